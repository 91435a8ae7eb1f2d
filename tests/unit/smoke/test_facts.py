"""The check `facts`: agents' reports, differing workers, and the check with real agents."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from atlctl.jobs.model import Worker
from atlctl.smoke.care import look_before
from atlctl.smoke.context import Options, Run
from atlctl.smoke.facts import (
    Bounds,
    Vote,
    astray,
    check_facts,
    clock_findings,
    clocks_again,
    compare,
    differences,
    faulty,
    first_worker,
    gather,
    hosts_to_resolve,
    labels,
    look_after,
    loopback,
    loopback_names,
    unresolved,
    vote,
)
from atlctl.smoke.findings import Check, Culprit, Finding, Report, Severity, SmokeVerdict
from atlctl.smoke.session import Session
from tests.support.plainhosts import PlainHosts, workers
from tests.unit.smoke.scripted import Script, Scripted, Stream, worker


def fact(**more: Any) -> dict[str, Any]:
    return {
        "torch": "2.5.1+cu124", "cuda": "12.4", "nccl": "2.21.5", "driver": "550.54.15", "python": "3.11.9",
        "kernel": "5.15.0-91-generic", "machine": "x86_64", "memlock": -1, "shm": {"size": 64 << 30, "free": 1 << 30},
        "settings": {"NCCL_SOCKET_IFNAME": "eth0", "CUDA_VISIBLE_DEVICES": "0"}, "rdma": [port()],
        "gpus": [{"index": n, "name": "NVIDIA H100", "links": {"up": 18, "down": 0}} for n in range(8)],
        "smi": {"tool": True, "topology": {"NV18": 28}}, "name": ["10.0.0.1"], "host": "h", "nofile": 1048576,
        "cpus": {"count": 96, "allowed": 96, "quota": 64.0}, "interfaces": [nic(), nic(name="docker0", state="down")],
        "place": {"RANK": "1", "MASTER_ADDR": "m"}, "master": {"name": "m", "addresses": ["10.0.0.9"], "problem": ""},
    } | more  # fmt: skip


def nic(**more: Any) -> dict[str, Any]:
    return {"name": "eth0", "state": "up", "mtu": 9000, "speed": 25000} | more


def cards(**more: Any) -> list[dict[str, Any]]:
    """Eight GPUs, the last of which differs."""
    usual = {"pcie_width": 16.0, "pcie_gen": 5.0, "power_limit": 700.0, "ecc_mode": "Enabled"}
    return [gpu | usual | (more if gpu["index"] == 7 else {}) for gpu in fact()["gpus"]]


def port(**more: Any) -> dict[str, Any]:
    return {
        "device": "mlx5_0", "port": "1", "state": "ACTIVE", "rate": "400 Gb/sec (4X NDR)", "layer": "InfiniBand",
        "gids": 2,
    } | more  # fmt: skip


def others(odd: dict[str, Any], count: int = 4) -> dict[str, Any]:
    return {f"worker-{n}": fact() for n in range(count)} | {"worker-2": odd}


def test_alike() -> None:
    assert compare(others(fact())) == {}
    # The master itself may resolve its own name to loopback.
    master = fact(place={"RANK": "0"}, master={"name": "m", "addresses": ["127.0.1.1"], "problem": ""})
    assert compare(others(master)) == {}
    # A value of a wrong type counts as missing.
    assert compare(others(fact(cpus={"quota": "x"}, nofile="y", place=[], interfaces=[{"name": "eth0"}]))) == {
        "interface eth0": Vote("up 25000 Mb/s", {"worker-2": "unknown"})
    }


@pytest.mark.parametrize(
    ("change", "label", "value", "most"),
    [
        ({"pcie_width": 8.0}, "PCIe of GPU 7", "x8 gen 5", "x16 gen 5"),
        ({"power_limit": 400.0}, "power limit of GPU 7", "400 W", "700 W"),
        ({"ecc_mode": "Disabled"}, "ECC of GPU 7", "Disabled", "Enabled"),
    ],
)
def test_a_card_that_differs(change: dict[str, Any], label: str, value: str, most: str) -> None:
    facts = {f"worker-{n}": fact(gpus=cards()) for n in range(4)} | {"worker-2": fact(gpus=cards(**change))}
    assert compare(facts) == {label: Vote(most, {"worker-2": value})}


def test_names_that_no_worker_resolves() -> None:
    lost = fact(name=[], name_problem="no answer", master={"name": "m", "addresses": [], "problem": "no answer"})
    assert [finding.evidence for finding in unresolved({"worker-0": lost, "worker-1": lost})] == [
        "no worker can resolve MASTER_ADDR m: no answer",
        "no worker can resolve its own host name, so gloo may use loopback: no answer",
    ]
    assert unresolved(others(lost)) == []
    assert compare(others(fact(name=[])))["own host name"] == Vote("resolved", {"worker-2": "cannot be resolved"})


def test_many_workers_resolve_a_few_names_each() -> None:
    few = {"a": "node0", "b": "node1", "c": "same", "d": "same", "e": "x y", "f": None, "g": "localhost"}
    assert hosts_to_resolve(few)["a"] == ["node1"]
    assert hosts_to_resolve(few)["g"] == ["node0", "node1"]
    many = hosts_to_resolve({f"worker-{n}": f"node{n}" for n in range(100)})
    assert many["worker-97"] == ["node0", "node98", "node99", "node1"]
    asked = Counter(host for hosts in many.values() for host in hosts)
    assert set(asked) == {f"node{n}" for n in range(100)}
    assert max(map(len, many.values())) <= 5


def test_a_rendezvous_endpoint_may_be_on_any_worker() -> None:
    place = {"RANK": "0", "MASTER_ADDR": "m"}
    facts = {"worker-0": fact(place=place), "worker-1": fact(), "worker-2": fact()}
    assert first_worker(facts) == "worker-0"
    there = {"place": place | {"PET_RDZV_ENDPOINT": "m:1"}, "master": {"name": "m", "addresses": ["10.0.0.2"]}}
    named = {f"worker-{n}": fact(addresses=["127.0.0.1", f"10.0.0.{n}"], **there) for n in range(4)}
    assert first_worker(named) == "worker-2"
    assert first_worker(named | {"worker-3": fact(**there | {"master": {"addresses": ["10.0.0.1"]}})}) == "worker-2"
    astray = {name: one | {"master": {"addresses": ["10.0.0.1"]}} for name, one in list(named.items())[:2]}
    assert first_worker(named | astray) is None
    service = {name: one | {"master": {"addresses": ["10.96.0.1"]}} for name, one in named.items()}
    assert first_worker(service) is None
    assert first_worker(facts | {"worker-1": fact(place=place)}) is None


def test_the_driver_may_be_known_to_nvidia_smi_alone() -> None:
    gpus = [gpu | {"driver": "535.1"} for gpu in fact()["gpus"]]
    assert compare(others(fact(driver=None, gpus=gpus)))["GPU driver"].odd == {"worker-2": "535.1"}


@pytest.mark.parametrize(
    ("change", "label", "value"),
    [
        ({"torch": "2.4.0+cu124"}, "torch", "2.4.0+cu124"),
        ({"torch": None}, "torch", "none"),
        ({"cuda": "12.1"}, "CUDA", "12.1"),
        ({"nccl": "2.20.5"}, "NCCL", "2.20.5"),
        ({"driver": "535.1"}, "GPU driver", "535.1"),
        ({"python": "3.10.1"}, "Python", "3.10"),
        ({"kernel": "6.8.0"}, "kernel", "6"),
        ({"memlock": 65536}, "memlock", "64 KiB"),
        ({"nofile": 1024}, "open files", "1024"),
        ({"cpus": {"allowed": 8}}, "usable CPUs", "8"),
        ({"interfaces": [nic(mtu=1500)]}, "MTU of eth0", "1500"),
        ({"interfaces": [nic(state="down")]}, "interface eth0", "down"),
        ({"interfaces": [nic(speed=10000)]}, "interface eth0", "up 10000 Mb/s"),
        ({"master": {"name": "n", "addresses": ["10.0.0.9"]}}, "MASTER_ADDR", "n"),
        ({"master": {"name": "m", "addresses": ["127.0.1.1"]}}, "address of MASTER_ADDR", "127.0.1.1"),
        ({"master": {"name": "m", "addresses": []}}, "address of MASTER_ADDR", "cannot be resolved"),
        ({"shm": {"size": 64 << 20, "free": 0}}, "/dev/shm", "64 MiB"),
        ({"gpus": fact()["gpus"][:7]}, "GPUs", "7 x NVIDIA H100"),
        ({"smi": {"topology": {"NV18": 21, "SYS": 7}}}, "GPU topology", "NV18 x 21, SYS x 7"),
        ({"settings": {}}, "setting NCCL_SOCKET_IFNAME", "not set"),
        ({"settings": {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "1"}}, "setting NCCL_IB_DISABLE", "1"),
        ({"rdma": []}, "RDMA port mlx5_0/1", "not there"),
        ({"rdma": [port(state="DOWN")]}, "RDMA port mlx5_0/1", "DOWN, 400 Gb/sec (4X NDR), InfiniBand, 2 GIDs"),
        ({"rdma": [port(gids=1)]}, "RDMA port mlx5_0/1", "ACTIVE, 400 Gb/sec (4X NDR), InfiniBand, 1 GIDs"),
        ({"gpus": [{**g, "links": {"up": 18 - (g["index"] == 3), "down": 0}} for g in fact()["gpus"]]},
         "NVLinks of GPU 3", "17 up, 0 down"),
    ],
)  # fmt: skip
def test_the_one_that_differs_is_named(change: dict[str, Any], label: str, value: str) -> None:
    votes = compare(others(fact(**change)))
    assert {name: found.odd for name, found in votes.items()} == {label: {"worker-2": value}}
    (finding,) = differences(votes)
    assert finding.culprit is not None
    assert (finding.culprit.kind, finding.culprit.worker, finding.severity) == ("facts", "worker-2", Severity.WARN)
    assert label in finding.evidence
    assert finding.advice or label in ("kernel", "machine")


def test_what_each_worker_has_for_itself_is_not_compared() -> None:
    odd = fact(
        settings={"NCCL_SOCKET_IFNAME": "eth0", "NCCL_HOSTID": "7", "CUDA_VISIBLE_DEVICES": "3"},
        python="3.11.2",
        kernel="5.4.0",
        shm={"size": 61 << 30, "free": 0},
    )
    assert compare(others(odd)) == {}


def test_what_was_not_told_is_not_compared() -> None:
    assert compare(others({"problem": "no answer"})) == {}
    assert set(compare(others({"torch": "2.5.1+cu124", "versions_problem": "x"}))) >= {"RDMA port mlx5_0/1"}


def test_without_torch_anywhere_it_is_no_difference() -> None:
    assert compare({f"worker-{n}": fact(torch=None) for n in range(3)}) == {}


def test_one_finding_for_a_worker_that_differs_in_much() -> None:
    (finding,) = differences(compare(others(fact(torch="2.1", cuda="11.8", nccl="2.18"))))
    assert finding.evidence == (
        "torch: 2.1 (the others: 2.5.1+cu124); CUDA: 11.8 (the others: 12.4); NCCL: 2.18 (the others: 2.21.5)"
    )


@pytest.mark.parametrize("values", ["ab", "aabb", "abc", "aabbc"])
def test_without_a_majority_nobody_is_named(values: str) -> None:
    found = vote({str(n): value for n, value in enumerate(values)})
    assert found.majority is None
    assert len(found.odd) == len(values)
    (finding,) = differences({"torch": found})
    assert finding.culprit is not None
    assert finding.culprit.worker is None


def test_a_majority_is_more_than_half_of_three() -> None:
    assert vote(dict(zip("xyz", "aab", strict=True))).odd == {"z": "b"}
    assert vote({"x": "a"}).odd == vote({}).odd == {}


@pytest.mark.parametrize(
    "hostile",
    [
        {"settings": [], "rdma": {}, "gpus": [], "smi": {}, "memlock": "x", "shm": [], "python": 3, "name": "x"},
        {"rdma": [1, {"device": {}}], "settings": {"NCCL_X": {"a": 1}}, "smi": {"topology": 3}, "gpus": []},
        {"shm": {"size": -1}, "memory": [], "cpus": 3, "name": ["no address", 3]},
        {"hosts": [1, {"name": [], "addresses": {}}, {"name": "h", "addresses": [None, {}]}], "addresses": ["x", 3]},
        {"place": {"RANK": "0"}, "master": {"name": 3, "addresses": "x", "holder": [], "port": {}}, "addresses": 4},
        {"cpus": {"stolen": "x"}, "hosts": 3, "host": ["h"]},
    ],
)
def test_nonsense_is_survived(hostile: dict[str, Any]) -> None:
    facts = others(hostile)
    differences(compare(facts), faulty(facts))
    loopback_names(facts)
    labels(hostile)


def test_cpu_time_of_a_hypervisor_is_compared_between_machines() -> None:
    def at(boot: str, stolen: float | None) -> dict[str, Any]:
        return {"boot": boot, "cpus": {"stolen": stolen}}

    alone = {"w0": at("a", 0.0), "w1": at("a", 0.4), "w2": at("a", 0.0), "w3": at("a", 0.5)}
    assert faulty(alone) == {}
    apart = {"w0": at("a", 0.0), "w1": at("a", 0.4), "w2": at("b", 0.3), "w3": at("b", 0.5), "w4": at("c", None)}
    assert {name: list(found.values()) for name, found in faulty(apart).items()} == {
        name: ["CPU time that the hypervisor takes: 30% (the others: 0%)"] for name in ("w2", "w3")
    }
    assert list(faulty({"w0": at("", 0.0), "w1": at("", 0.2), "w2": at("", 0.0)})) == ["w1"]


def test_clocks_are_judged_within_what_the_way_tells() -> None:
    near = {f"w{n}": (-0.2, 0.3) for n in range(4)}
    assert astray(near) == {}
    assert astray(near | {"w2": (-30.0, 0.9)}) == {}
    assert astray(near | {"w2": (4.0, 4.5)}) == {"w2": pytest.approx(3.7)}
    assert astray(near | {"w2": (-90.5, -90.0)}) == {"w2": pytest.approx(-89.8)}
    # The client's clock is not tested.
    assert astray({name: (low + 500, high + 500) for name, (low, high) in near.items()}) == {}


def test_a_clock_names_its_worker_only_where_there_are_others() -> None:
    (finding,) = clock_findings({"w2": 3.7}, 4)
    assert finding.culprit is not None
    assert finding.culprit.worker == "w2"
    assert finding.evidence == "its clock is 3.7 s ahead of the others', at least"
    (finding,) = clock_findings({"w1": -3.7}, 2)
    assert finding.culprit is not None
    assert finding.culprit.worker is None


def test_a_name_for_loopback_matters_where_the_others_have_none() -> None:
    assert loopback({"name": ["127.0.1.1", "::1"]})
    assert loopback({"name": ["127.0.0.1", "10.0.0.4"]}) is False
    assert loopback({}) is None
    odd = fact(name=["127.0.1.1"])
    assert [f.culprit.worker for f in loopback_names(others(odd)) if f.culprit] == ["worker-2"]
    assert loopback_names(others(odd | {"settings": {"GLOO_SOCKET_IFNAME": "eth0"}})) == []
    assert loopback_names({f"w{n}": odd for n in range(4)}) == []


def tells(wall: str) -> Script:
    """An agent that answers every command with this time, and then with another one."""

    async def script(stream: Stream) -> None:
        await stream.ask()
        stream.hello()
        while (command := await stream.ask())["cmd"] != "bye":
            for told in (wall, "1"):
                stream.put(b'\x1e{"ev":"clock","re":%d,"wall":%s}\n' % (command["id"], told.encode()))
            stream.say(ev="told", re=command["id"], end=True)

    return script


def clocks_of(wall: str) -> tuple[list[str], Bounds, Bounds]:
    """For two workers: the live ones after both looks, and the clocks of the first and the second look."""

    async def main() -> tuple[list[str], Bounds, Bounds]:
        hosts = (worker(0), worker(1))
        async with Session(Scripted({"worker-1": tells(wall)}), hosts, {"seconds": 9}) as session:
            assert await session.roll_call(5) == {}
            run = Run(session, hosts, Options(), Report("quick"))
            await gather(run)
            again = await clocks_again(run, session.living())
            first = {name: fact["clock"] for name, fact in run.facts.items() if "clock" in fact}
            return session.living(), first, again

    return asyncio.run(main())


def test_the_clock_is_what_was_said_first() -> None:
    living, *looks = clocks_of(str(time.time() + 1000))
    assert living == ["worker-0", "worker-1"]
    for bounds in looks:
        assert list(bounds) == ["worker-1"]
        least, most = bounds["worker-1"]
        assert 990 < least < most < 1010


@pytest.mark.parametrize("wall", ["9" * 400, "-1e15", "NaN", "Infinity", '"now"', "null"], ids=lambda wall: wall[:8])
def test_a_time_that_is_none_costs_nobody_anything(wall: str) -> None:
    living, *looks = clocks_of(wall)
    assert living == ["worker-0", "worker-1"]
    assert all(bounds["worker-1"][1] < -1e9 for bounds in looks), "the next word counts"


MARKS = {"ATLCTL_STATE_DIR": "/nowhere", "ATLCTL_JOB": "check-facts-test"}


def over(env: Callable[[Worker], Mapping[str, str]], count: int = 4, *, words: tuple[str, ...] = ()) -> Run:
    async def main() -> Run:
        hosts = workers(count)
        config = {"seconds": 60, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
        own = PlainHosts(
            lambda worker: words if worker.index == 2 else (),
            lambda worker: {**MARKS, "ATLCTL_WORKER": worker.name, **env(worker)},
        )
        async with Session(own, hosts, config) as session:
            assert await session.roll_call(20) == {}
            run = Run(session, tuple(hosts), Options(), Report("quick"))
            await look_before(run)
            await check_facts(run)
        return run

    return asyncio.run(main())


def site(folder: Path, version: str) -> str:
    """An import folder that seems to contain this torch version."""
    (folder / version / "torch").mkdir(parents=True)
    (folder / version / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda = None\n")
    return str(folder / version)


def test_check_facts_alike(tmp_path: Path) -> None:
    path = site(tmp_path, "2.5.1")
    run = over(lambda _: {"PYTHONPATH": path, "RANK": "3"})
    assert (run.report.findings, run.quiet) == ([], "")
    (check,) = run.report.checks
    assert check.verdict is SmokeVerdict.PASS
    assert check.note.startswith("torch 2.5.1")
    # Variables set by the platform are reported, but are not a fault.
    assert run.report.data["facts"]["place"]["worker-0"]["RANK"] == "3"


@pytest.mark.parametrize("odd", ["2.4.0", ""])
def test_another_torch_or_none(tmp_path: Path, odd: str) -> None:
    most, other = site(tmp_path, "2.5.1"), site(tmp_path, odd) if odd else ""
    run = over(lambda worker: {"PYTHONPATH": other if worker.index == 2 else most})
    (finding,) = run.report.findings
    assert finding.culprit is not None
    assert (finding.culprit.kind, finding.culprit.worker, finding.confirmed) == ("facts", "worker-2", True)
    assert finding.severity is Severity.WARN
    assert finding.evidence == f"torch: {odd or 'none'} (the others: 2.5.1)"


def test_settings_and_limits_at_once() -> None:
    words = ("sh", "-c", 'ulimit -l 1000 && exec "$@"', "sh")
    run = over(lambda worker: {"NCCL_IB_DISABLE": "1"} if worker.index == 2 else {}, words=words)
    (finding,) = run.report.findings
    assert finding.culprit is not None
    assert finding.culprit.worker == "worker-2"
    assert "memlock: 1000 KiB" in finding.evidence
    assert "setting NCCL_IB_DISABLE: 1 (the others: not set)" in finding.evidence


def counted(before: object, after: object, *names: str) -> list[tuple[str, str]]:
    """The findings of the last look at the network cards of worker-0, if the checks `names` were made."""

    async def main() -> Run:
        async def agent(stream: Stream) -> None:
            await stream.ask()
            stream.hello()
            asked = await stream.ask()
            stream.say(ev="links", re=asked["id"], end=True, counters=after)
            await stream.ask()

        hosts = workers(1)
        async with Session(Scripted({"worker-0": agent}), hosts, {"seconds": 60, "token": "t"}) as session:
            assert await session.roll_call(20) == {}
            run = Run(session, tuple(hosts), Options(), Report("quick"), facts={"worker-0": {"counters": before}})
            run.report.checks += [Check(name, SmokeVerdict.PASS) for name in names]
            run.find(Finding("throughput", Severity.WARN, Culprit("link", "worker-0", "worker-1"), "slow"))
            await look_after(run)
        return run

    return [(f"{one.check} {one.severity}", str(one.evidence)) for one in asyncio.run(main()).report.findings]


SLOW = ("throughput warn", "slow")


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"eth0": {"carrier_changes": 2}}, {"eth0": {"carrier_changes": 2}}, [SLOW]),
        (
            {"eth0": {"carrier_changes": 2}},
            {"eth0": {"carrier_changes": 4}},
            [("mesh fail", "eth0 lost its link during the test (2 changes)")],
        ),
        (
            {"mlx5_0/1": {"link_downed": 0, "symbol_error": 3}},
            {"mlx5_0/1": {"link_downed": 1, "symbol_error": 8}},
            [
                ("mesh fail", "mlx5_0/1 lost its link during the test (1 changes)"),
                ("mesh warn", "mlx5_0/1 counted 5 errors during the test"),
            ],
        ),
        (
            {"ib0": {"rx_errors": 0, "rx_dropped": 0}},
            {"ib0": {"rx_errors": 7, "rx_dropped": 9000}},
            [SLOW, ("mesh warn", "ib0 counted 7 errors during the test")],
        ),
        # A bridge whose containers come and go, a card that is new, one that was reset, and nonsense.
        ({"docker0": {"carrier_changes": 2}}, {"docker0": {"carrier_changes": 4}}, [SLOW]),
        ({}, {"eth0": {"carrier_changes": 4}}, [SLOW]),
        ({"eth0": {"rx_errors": 9}}, {"eth0": {"rx_errors": 0}}, [SLOW]),
        ({"eth0": {"rx_errors": "9"}, "eth1": 3}, {"eth0": {"rx_errors": []}, "eth1": {}, "eth2": None}, [SLOW]),
        (None, {"eth0": {"carrier_changes": 4}}, [SLOW]),
        ({"eth0": {"carrier_changes": 2}}, ["eth0"], [SLOW]),
    ],
)
def test_what_the_cards_have_counted_meanwhile(before: object, after: object, found: list[tuple[str, str]]) -> None:
    assert counted(before, after, "facts", "mesh", "throughput") == found


def test_without_the_mesh_the_facts_have_the_finding() -> None:
    found = counted({"eth0": {"carrier_changes": 2}}, {"eth0": {"carrier_changes": 4}}, "facts")
    assert [check for check, _ in found] == ["facts fail"]


def test_one_worker_is_not_judged() -> None:
    (check,) = over(lambda _: {}, 1).report.checks
    assert check.verdict is SmokeVerdict.NOT_JUDGED
    assert check.note.startswith("one worker, nothing to compare with")


def test_a_training_in_progress_makes_the_run_quiet() -> None:
    environ = {**os.environ, **MARKS, "ATLCTL_WORKER": "worker-1", "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    rank = subprocess.Popen([sys.executable, "-c", "input()"], env=environ, stdin=subprocess.PIPE)
    try:
        assert over(lambda _: {}).quiet == "training in progress: worker-1: ranks run there (1)"
    finally:
        rank.communicate(b"\n")
