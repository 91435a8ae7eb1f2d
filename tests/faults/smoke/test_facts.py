"""Settings of hosts that differ: real namespaces, limits and files, one difference a host."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from atlctl.smoke.context import Options, Run
from atlctl.smoke.facts import check_facts
from atlctl.smoke.findings import Culprit, Finding, Report, Severity
from atlctl.smoke.network.mesh import check_mesh
from atlctl.smoke.run import Smoke
from atlctl.smoke.session import Session
from tests.faults.smoke import netns
from tests.faults.smoke.netns import Network
from tests.support.needs import needs
from tests.support.pace import within

pytestmark = [
    needs("ip", "nft"),
    pytest.mark.skipif(bool(netns.refused()), reason=netns.refused() or "-"),
]

#: The agents see no ranks of other tests.
MARKS = {"ATLCTL_STATE_DIR": "/nowhere", "ATLCTL_JOB": f"smoke-{os.getpid()}", "ATLCTL_WORKER": "any"}
#: /sys and /etc/hosts of a host's own; the command follows.
_OWN = 'mount -t sysfs sysfs /sys && mount --bind "$1" /etc/hosts && shift && exec "$@"'


def host(index: int, hosts: Path, *more: str) -> Sequence[str]:
    return ("unshare", "-m", "sh", "-c", _OWN, "sh", str(hosts), "env", f"RANK={index}", *more)


def named(index: int, hosts: Path, *more: str) -> Sequence[str]:
    """A host with a host name of its own."""
    own = ("unshare", "-u", "sh", "-c", 'hostname "$1" && shift && exec "$@"', "sh", f"node{index}")
    return (*own, *host(index, hosts, *more))


MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def facts_of(
    network: Network, before: dict[int, Sequence[str]], environ: dict[str, str] = MASTER, mesh: bool = False
) -> list[Finding]:
    async def check() -> list[Finding]:
        config = {"seconds": 60, "torch": False, "nice": 0, "token": os.urandom(8).hex()}
        executor = network.hosts(MARKS | environ, before)
        async with Session(executor, network.workers, config) as session:
            run = Run(session, tuple(network.workers), Options("quick", net_only=True, timeout=60), Report("quick"))
            assert await session.roll_call(20.0) == {}
            await check_facts(run)
            if mesh:
                await check_mesh(run)
            return run.report.findings

    return asyncio.run(check())


def test_what_differs_on_one_host_is_named(tmp_path: Path) -> None:
    right, astray = tmp_path / "right", tmp_path / "astray"
    right.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n10.77.0.1 node0\n")
    astray.write_text(f"127.0.0.1 localhost {socket.gethostname()} node0\n")
    with Network(7) as network:
        network.mtu(3, 1400)
        before = {index: host(index, right) for index in range(7)}
        before[4] = host(4, right, "prlimit", "--nofile=256:256")
        before[5] = host(5, astray)
        before[6] = host(6, right, "taskset", "-c", "0")
        found = facts_of(network, before)
    usable = len(os.sched_getaffinity(0))
    files = next(finding.evidence for finding in found if finding.culprit == Culprit("facts", "worker-4"))
    assert {(finding.culprit, finding.evidence) for finding in found} == {
        (Culprit("facts", "worker-3"), "MTU of eth0: 1400 (the others: 1500)"),
        (Culprit("facts", "worker-4"), files),
        (Culprit("facts", "worker-5"), "address of MASTER_ADDR: 127.0.0.1 (worker-0 has 10.77.0.1)"),
        (Culprit("facts", "worker-6"), f"usable CPUs: 1 (the others: {usable})"),
    }
    assert files.startswith("open files: 256 (the others: ")


def files(folder: Path, count: int, changes: dict[int, dict[str, str]]) -> dict[int, Sequence[str]]:
    """Hosts that know each other by /etc/hosts. `changes`: other addresses of names there, empty ones are not known."""
    before = {}
    for index in range(count):
        names = {f"node{number}": f"10.77.0.{number + 1}" for number in range(count)} | changes.get(index, {})
        path = folder / f"hosts{index}"
        path.write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in names.items() if ip))
        before[index] = named(index, path)
    return before


def test_names_of_other_workers(tmp_path: Path) -> None:
    changes = {
        1: {"node3": ""},
        2: {"node4": "127.0.1.1"},
        3: {"node3": "127.0.1.1"},  # Debian's habit: its own name
        4: {"node0": "10.77.0.2"},
    }
    with Network(5) as network:
        found = facts_of(network, files(tmp_path, 5, changes))
        without = facts_of(network, files(tmp_path, 5, changes), {})
    assert {(finding.culprit, finding.evidence) for finding in found if "its name" not in finding.evidence} == {
        (Culprit("facts", "worker-1"), "address of node3: cannot be resolved (worker-3 has 10.77.0.4)"),
        (Culprit("facts", "worker-2"), "address of node4: 127.0.1.1 (worker-4 has 10.77.0.5)"),
        (Culprit("facts", "worker-4"), "address of MASTER_ADDR: 10.77.0.2 (worker-0 has 10.77.0.1)"),
    }
    assert "address of node0: 10.77.0.2 (worker-0 has 10.77.0.1)" in [finding.evidence for finding in without]


def test_two_workers_and_a_master_that_one_does_not_find(tmp_path: Path) -> None:
    with Network(2) as network:
        lost = facts_of(network, files(tmp_path, 2, {1: {"node0": ""}}))
        astray = facts_of(network, files(tmp_path, 2, {1: {"node0": "127.0.0.1"}}))
    for found, what in ((lost, "cannot be resolved"), (astray, "127.0.0.1")):
        assert [(finding.culprit, finding.evidence) for finding in found] == [
            (Culprit("facts", "worker-1"), f"address of MASTER_ADDR: {what} (worker-0 has 10.77.0.1)")
        ]


@pytest.mark.parametrize("environ", [{}, MASTER, {"MASTER_ADDR": "10.77.0.1"}, {"MASTER_ADDR": "10.96.0.1"}])
def test_workers_that_cannot_resolve_each_other_are_healthy(tmp_path: Path, environ: dict[str, str]) -> None:
    """As pods without a Service: each knows itself, and all know the master; 10.96.0.1 is no worker's address."""
    changes = {index: {f"node{other}": "" for other in range(1, 4) if other != index} for index in range(4)}
    with Network(4) as network:
        assert facts_of(network, files(tmp_path, 4, changes), environ, mesh=True) == []


#: Listens on the port, as the store of a training does.
_LISTEN = "import socket, sys; s = socket.create_server(('', 29500)); print(flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("file", "environ", "evidence"),
    [
        ("other", {}, "port 29500 of MASTER_ADDR is in use: {name} (process {pid})"),
        ("train.py", {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, None),
        ("torchrun", {}, None),
    ],
)
def test_a_process_on_the_port_of_the_master(
    tmp_path: Path, file: str, environ: dict[str, str], evidence: str | None
) -> None:
    (tmp_path / file).write_text(_LISTEN)
    with Network(2) as network:
        words = ("nsenter", f"--net=/run/netns/{network.space(0)}", sys.executable, str(tmp_path / file))
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, env=os.environ | MARKS | environ) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            name = Path(f"/proc/{holder.pid}/comm").read_text().strip()
            found = facts_of(network, files(tmp_path, 2, {}), mesh=True)
            holder.communicate()
    told = [(finding.culprit, finding.evidence) for finding in found]
    assert told == ([(Culprit("facts", "worker-0"), evidence.format(name=name, pid=holder.pid))] if evidence else [])


@pytest.mark.parametrize(
    ("rule", "culprit", "why"),
    [
        ("tcp dport 29500 drop", Culprit("worker", "worker-0"), "nothing came for 2.2 s"),
        ("tcp dport 29500 reject", Culprit("worker", "worker-0"), "a firewall refuses connections"),
        ("ip saddr 10.77.0.3 tcp dport 29500 drop", Culprit("link", "worker-2", "worker-0"), "nothing came for 2.2 s"),
        ("tcp dport 29501 drop", None, ""),
    ],
)
def test_a_firewall_before_the_port_of_the_master(tmp_path: Path, rule: str, culprit: Culprit | None, why: str) -> None:
    with Network(3) as network:
        words = ("nsenter", f"--net=/run/netns/{network.space(0)}", "nft", "-f", "-")
        text = (
            f"add table inet f\nadd chain inet f c {{ type filter hook input priority 0; }}\nadd rule inet f c {rule}\n"
        )
        subprocess.run(words, input=text, text=True, check=True, timeout=20)
        found = facts_of(network, files(tmp_path, 3, {}), mesh=True)
    told = [(finding.culprit, finding.severity, finding.evidence) for finding in found]
    said = f"port 29500 of MASTER_ADDR cannot be reached: {why}"
    assert told == ([(culprit, Severity.FAIL, said)] if culprit else [])


def test_cpu_time_that_a_hypervisor_takes(tmp_path: Path) -> None:
    """The kernel's counters are those of a file that changes: no hypervisor is needed. The worker has a boot of its
    own, because workers of one machine are not compared."""
    stat, boot, done = tmp_path / "stat", tmp_path / "boot_id", threading.Event()
    boot.write_text("11111111-2222-4333-8444-555555555555\n")
    stat.write_text("cpu  1000 0 0 1000 0 0 0 0 0 0\n")

    def count() -> None:
        passed = 0
        while not done.wait(0.01):
            passed += 1
            line = f"cpu  {1000 + 2 * passed} 0 0 {1000 + passed} 0 0 0 {passed} 0 0\n"
            with stat.open("r+") as file:
                file.write(line)

    counter = threading.Thread(target=count)
    with Network(3) as network:
        before = files(tmp_path, 3, {})
        mounts = f"mount --bind {stat} /proc/stat && mount --bind {boot} /proc/sys/kernel/random/boot_id"
        before[1] = (*before[1], "unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh")
        counter.start()
        try:
            (finding,) = facts_of(network, before)
        finally:
            done.set()
            counter.join()
    assert finding.culprit == Culprit("facts", "worker-1")
    assert re.fullmatch(r"CPU time that the hypervisor takes: 2[0-9]% \(the others: [0-9]%\)", finding.evidence), (
        finding.evidence
    )


@pytest.mark.torch
def test_a_dead_name_server_is_said_and_costs_seconds(tmp_path: Path) -> None:
    hosts, resolver = tmp_path / "hosts", tmp_path / "resolv.conf"
    hosts.write_text("127.0.0.1 localhost\n")
    resolver.write_text("nameserver 10.77.0.99\nsearch one.example two.example\n")
    begun = time.monotonic()
    with Network(2) as network:
        more = ("unshare", "-m", "sh", "-c", f'mount --bind {resolver} /etc/resolv.conf && exec "$@"', "sh")
        before = {index: host(index, hosts, *more) for index in range(2)}
        executor = network.hosts({"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}, before)
        smoke = Smoke(executor, network.workers, Options("quick", timeout=60, items=("facts", "collectives")))
        asyncio.run(smoke.run())
    # 63 s for this check alone, when each lookup took its usual time.
    assert within(time.monotonic() - begun, 40)
    assert {check.name: str(check.verdict) for check in smoke.report.checks}["collectives"] == "pass"
    found = [finding.evidence.partition(":")[0] for finding in smoke.report.findings]
    assert found == [
        "no worker can resolve MASTER_ADDR node0",
        "no worker can resolve its own host name, so gloo may use loopback",
    ]
