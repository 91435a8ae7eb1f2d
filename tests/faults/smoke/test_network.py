"""Each network fault on four hosts (network namespaces), and conditions that must not disturb the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from atlctl.jobs.model import Worker
from atlctl.smoke.context import Options
from atlctl.smoke.findings import Culprit, Severity, SmokeVerdict
from atlctl.smoke.run import LIGHT_SECONDS, Smoke, check_links
from atlctl.smoke.session import Session
from tests.faults.smoke import driving, netns
from tests.faults.smoke.cases import FAINT, MBIT, MIXED, SINGLE, Case, mixed, single
from tests.faults.smoke.rankfaults import hungry_neighbours
from tests.support.needs import needs
from tests.support.plainhosts import PlainHosts, workers

pytestmark = [needs("ip", "nft"), pytest.mark.speed]
spaces = pytest.mark.skipif(bool(netns.refused()), reason=netns.refused() or "-")


def named(kind: str) -> None:
    """On a virtual machine that pauses, a fault of speed may be missed once in three runs; no other is ever named."""
    case = single(kind, 4, random.Random(kind))
    told = case.run()
    if not case.hard and not told.accused:
        missed = told.lines()
        told, other = case.run(), case.run()
        assert other.accused == case.wanted, f"{kind}\n{missed}\n{other.lines()}"
    assert (told.accused, told.nobody) == (case.wanted, []), f"{kind}\n{told.lines()}"
    assert all(finding.confirmed for finding in told.report.findings)


@spaces
@pytest.mark.parametrize("kind", [kind for kind in (*SINGLE, *FAINT) if not single(kind, 4, random.Random()).hard])
def test_a_fault_of_speed_is_named_and_nothing_else(kind):
    named(kind)


@spaces
def test_a_fault_that_cuts_workers_off_is_named_and_nothing_else():
    """Three networks at the same time, because the test mostly waits."""
    kinds = [kind for kind in SINGLE if single(kind, 4, random.Random()).hard and kind != "silent worker"]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(named, kinds))


@spaces
@pytest.mark.parametrize("count", range(2, 2 + len(MIXED)))
def test_faults_at_once_are_told_apart(count):
    case = mixed(count, 4, random.Random(count))
    told = case.run()
    assert (told.accused, told.nobody) == (case.wanted, []), f"{case.faults}\n{told.lines()}"


@spaces
@pytest.mark.parametrize("share", [1, 0.56])
def test_slow_links_of_a_slower_host_name_the_host(share):
    """And the links, if the other links of the host are as fast as those of others.

    A link of 2 MB/s is not judged if its receive window was full in each try: of three runs each names some, and none
    another one."""
    mbit = MBIT / 4  # so few that six hosts reach it beside other tests
    wanted = {frozenset(("worker-2",))}
    if share == 1:
        wanted = {frozenset((f"worker-{other}", "worker-2")) for other in (0, 1, 4)}
    found: set[driving.Accused] = set()
    with netns.Network(6, mbit) as network:
        network.rate(2, share * mbit)
        for other in (0, 1, 4):
            network.slow_link(2, other, 0.3 * mbit)
        for _ in range(3):
            told = driving.drive(network.hosts(), network.workers)
            assert (told.accused <= wanted, told.nobody) == (True, []), told.lines()
            found |= told.accused
            if found == wanted:
                return
    assert found == wanted, told.lines()


@spaces
def test_a_slow_host_with_a_lossy_link_is_two_findings():
    told = Case(4, [("slow node", (0,)), ("2 % loss of a link", (0, 1))]).run()
    named = {(f.culprit and (f.culprit.worker, f.culprit.peer), "lost" in f.evidence) for f in told.report.findings}
    assert named == {(("worker-0", None), False), (("worker-0", "worker-1"), True)}, told.lines()


@spaces
def test_healthy_hosts_pass():
    told = Case(4, mbit=50).run()
    assert told.report.verdict is SmokeVerdict.PASS, told.lines()
    mesh, speeds = told.report.data["mesh"], told.report.data["throughput"]
    assert mesh["workers"] == speeds["workers"] == [f"worker-{index}" for index in range(4)]
    for matrix in (mesh["matrix_rtt_ms"], speeds["matrix_mb_per_s"]):
        assert [[cell is None for cell in row] for row in matrix] == [[a == b for a in range(4)] for b in range(4)]
    median = statistics.median(cell for row in speeds["matrix_mb_per_s"] for cell in row if cell is not None)
    assert 3 < median < 8  # 50 Mbit/s are 6.25 MB/s


@spaces
def test_speeds_that_the_cpus_limit_are_not_judged():
    """The hosts share one CPU with other processes, and their network is faster."""
    with hungry_neighbours(8), netns.Network(4) as network:
        executor = network.hosts(before=dict.fromkeys(range(4), ("taskset", "-c", "0")))
        told = driving.drive(executor, network.workers)
    check = told.report.checks[-1]
    assert (check.verdict, told.accused) == (SmokeVerdict.NOT_JUDGED, set()), told.lines()
    assert "waited for a CPU" in check.note


@spaces
def test_hosts_that_have_nothing_but_ipv6():
    with netns.Network(3, ipv6=True) as network:
        network.cut(0, 2)
        told = driving.drive(network.hosts(), network.workers, throughput=False)
    assert told.accused == {frozenset(("worker-0", "worker-2"))}, told.lines()
    assert told.report.data["mesh"]["addresses"]["worker-1"]["address"] == "fd77::2"


@spaces
def test_of_two_workers_the_speed_is_not_judged_but_loss_is():
    with netns.Network(2, 200) as network:
        told = driving.drive(network.hosts(), network.workers)
        assert [check.verdict for check in told.report.checks] == [SmokeVerdict.PASS, SmokeVerdict.NOT_JUDGED]
        network.lose_between(0, 1, 2)
        told = driving.drive(network.hosts(), network.workers)
    assert told.accused == {frozenset(("worker-0", "worker-1"))}, told.lines()


def sent(network: netns.Network, index: int) -> int:
    """Bytes that a host has sent."""
    words = ("ip", "netns", "exec", network.space(index), "cat", "/proc/net/dev")
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return int(next(line for line in shown.splitlines() if "eth0" in line).split()[9])


@spaces
def test_a_link_that_was_lost_for_a_moment_is_named():
    """No connection breaks by it, and none needs to be open at that time."""
    with netns.Network(3) as network:

        async def test() -> Smoke:
            begun = asyncio.Event()
            hosts = network.hosts(before=dict.fromkeys(range(3), netns.OWN_SYS))

            def progress(check: str, _: str) -> None:
                if check == "mesh":
                    begun.set()

            smoke = Smoke(hosts, network.workers, Options(net_only=True), progress=progress)
            run = asyncio.create_task(smoke.run())
            await begun.wait()
            await asyncio.to_thread(network.replug, 1)
            await run
            return smoke

        smoke = asyncio.run(test())
    (finding,) = [one for one in smoke.report.findings if one.severity is Severity.FAIL]
    assert finding.culprit == Culprit("worker", "worker-1"), finding
    assert re.fullmatch(r"eth0 lost its link during the test \(\d+ changes\)", finding.evidence)
    verdicts = {check.name: check.verdict for check in smoke.report.checks}
    assert (verdicts["mesh"], smoke.report.verdict) == (SmokeVerdict.FAIL, SmokeVerdict.FAIL)


@spaces
@pytest.mark.parametrize("setting", ["NCCL_SOCKET_IFNAME=eth1", "NCCL_SOCKET_IFNAME==eth1", "GLOO_SOCKET_IFNAME=eth1"])
def test_the_network_that_a_training_is_told_to_use_is_tested_too(setting):
    name, _, value = setting.partition("=")

    def findings(network: netns.Network, value: str) -> tuple[str, list[tuple[Culprit | None, str, str]]]:
        smoke = Smoke(network.hosts({name: value}), network.workers, Options(items=("facts", "mesh")))
        asyncio.run(smoke.run())
        (note,) = [check.note for check in smoke.report.checks if check.name == "mesh"]
        return note, [(one.culprit, one.severity, one.evidence) for one in smoke.report.findings]

    with netns.Network(4) as network:
        network.second()
        note, found = findings(network, value)
        assert (note.endswith("; also over eth1"), found) == (True, [])
        _, found = findings(network, "ib0")
        assert {culprit.worker for culprit, severity, _ in found if culprit and severity == "warn"} == {
            f"worker-{index}" for index in range(4)
        }
        assert f"{name} is ib0, and no such interface has an address (eth0, eth1)" in found[0][2]
        subprocess.run(["ip", "-n", network._switch, "link", "set", "q2", "down"], check=True)
        _, ((culprit, severity, text),) = findings(network, value)
        assert (culprit, severity) == (Culprit("worker", "worker-2"), "fail")
        assert text.startswith("over eth1: ")


@spaces
def test_the_network_of_infiniband_is_tested_as_nccl_takes_it_without_a_setting():
    def note(variables: dict[str, str]) -> str:
        smoke = Smoke(network.hosts(variables), network.workers, Options(items=("facts", "mesh")))
        asyncio.run(smoke.run())
        assert smoke.report.findings == []
        (told,) = [check.note for check in smoke.report.checks if check.name == "mesh"]
        return told

    with netns.Network(3) as network:
        network.second("ib0")
        assert note({}).endswith("; also over ib0")
        assert not note({"NCCL_SOCKET_IFNAME": "eth"}).endswith("ib0")


@spaces
def test_check_links_finds_a_slow_link_with_a_tenth_of_the_speed():
    with netns.Network(4, 1000) as network:
        executor = network.hosts()
        report = asyncio.run(check_links(executor, network.workers, 30))
        assert report.findings == []
        speeds = [speed for row in report.data["throughput"]["matrix_mb_per_s"] for speed in row if speed]
        assert 2 < max(speeds) < 25  # a tenth of 1 Gbit/s are 12.5 MB/s, measured over the last half of a transfer
        # Three transfers of 0.15 s are 6 MB, longer and repeated ones of a busy machine more; at full speed, 56 MB.
        assert max(sent(network, index) for index in range(4)) < 28e6
        network.slow_link(0, 1, 20)
        report = asyncio.run(check_links(executor, network.workers, 30))
        assert report.timings["throughput"] <= LIGHT_SECONDS
    found = {(one.culprit.worker, one.culprit.peer) for one in report.findings if one.culprit and one.confirmed}
    assert found == {("worker-0", "worker-1")}, report


@spaces
def test_a_host_without_a_network_is_named():
    with netns.Network(3) as network:
        subprocess.run(["ip", "-n", network.space(1), "link", "set", "eth0", "down"], check=True)
        told = driving.drive(network.hosts(), network.workers, throughput=False)
    assert told.accused == {frozenset(("worker-1",))}, told.lines()


def local() -> PlainHosts:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return PlainHosts(env=lambda _: {"PATH": path})


def test_workers_of_one_machine_share_loopback_and_it_is_said():
    told = driving.drive(local(), workers(3))
    assert [check.verdict for check in told.report.checks] == [SmokeVerdict.PASS, SmokeVerdict.NOT_JUDGED]
    assert all("loopback" in check.note for check in told.report.checks)


@pytest.mark.parametrize("slow", [{2: 4.5}, dict.fromkeys(range(4), 6)])
def test_a_slow_login_is_a_note_and_the_worker_is_tested(slow):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

    def login(worker: Worker) -> Sequence[str]:
        return "sh", "-c", 'sleep "$1"; shift; exec "$@"', "sh", str(slow.get(worker.index, 0))

    executor = PlainHosts(login, lambda _: {"PATH": path})
    smoke = Smoke(executor, workers(4), Options("quick", items=("facts", "mesh"), timeout=60))
    asyncio.run(smoke.run())
    assert smoke.report.verdict is SmokeVerdict.PASS, smoke.report
    assert smoke.report.findings == []
    assert re.fullmatch(r"4 of 4 workers answer, worker-\d after \d+ s", smoke.report.checks[0].note)


def test_an_agent_that_falls_silent_is_named_soon():
    told = driving.drive(local(), workers(4), throughput=False, after_roll_call=driving.stop("worker-2"))
    (finding,) = told.report.findings
    assert (finding.culprit, finding.severity) == (Culprit("worker", "worker-2"), Severity.FAIL)
    assert finding.confirmed
    assert "no usable answer" in finding.evidence


def test_strangers_at_the_port_do_not_disturb_and_get_nothing():
    """Connections that send nothing, too little, a wrong token or too much, kept open during the test."""
    strange = [b"", b"GET / HTTP/1.1\r\n\r\n", b"x" * 37, b"\0" * 4096]

    async def talk() -> tuple[list[bytes], list[dict[str, Any]]]:
        config = {"seconds": 60, "torch": False, "nice": 0, "token": "of the run"}
        known = workers(2)
        async with Session(local(), known, config) as session, contextlib.AsyncExitStack() as open_:
            assert await session.roll_call(10) == {}
            told = await session.ask({worker.name: {"cmd": "listen"} for worker in known}, 10)
            ports = [(told[worker.name].fields or {})["port"] for worker in known]
            visitors = []
            for number in range(600):  # more than are accepted at the same time
                visitor = socket.create_connection(("127.0.0.1", ports[number % 2]), 5)
                open_.callback(visitor.close)
                visitor.sendall(strange[number % 4])
                visitors.append(visitor)
            calls = {
                worker.name: {"cmd": "mesh", "patience": 3, "cap": 9, "peers": {1 - n: ["127.0.0.1", ports[1 - n]]}}
                for n, worker in enumerate(known)
            }
            answers = await session.ask(calls, 20)
            heard = [_rest(visitor) for number, visitor in enumerate(visitors) if number % 4 >= 2]
            return heard, [answers[worker.name].fields or {} for worker in known]

    heard, answers = asyncio.run(talk())
    assert set(heard) == {b""}
    assert [next(iter(answer["peers"].values()))["ok"] for answer in answers] == [True, True]


def _rest(visitor: socket.socket) -> bytes:
    """The data that the server sent before it closed the connection."""
    try:
        return visitor.recv(100)
    except ConnectionResetError:
        return b""


@spaces
def test_nothing_is_left_of_hosts_whose_maker_was_killed(tmp_path):
    script = (
        "import os, signal; from tests.faults.smoke.netns import Network\n"
        "with Network(2) as network: print(network.space(0), flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[3]
    made = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    name = made.stdout.strip()
    assert Path("/run/netns", name).exists(), made.stderr
    with netns.Network(1):
        assert not Path("/run/netns", name).exists()
