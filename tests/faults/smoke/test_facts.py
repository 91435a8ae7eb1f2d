"""Settings of hosts that differ: real namespaces, limits and files, one difference a host."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from atlctl.smoke.context import Options, Run
from atlctl.smoke.facts import check_facts
from atlctl.smoke.findings import Culprit, Finding, Report
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

#: /sys and /etc/hosts of a host's own; the command follows.
_OWN = 'mount -t sysfs sysfs /sys && mount --bind "$1" /etc/hosts && shift && exec "$@"'


def host(index: int, hosts: Path, *more: str) -> Sequence[str]:
    return ("unshare", "-m", "sh", "-c", _OWN, "sh", str(hosts), "env", f"RANK={index}", *more)


def facts_of(network: Network, before: dict[int, Sequence[str]]) -> list[Finding]:
    async def check() -> list[Finding]:
        config = {"seconds": 60, "torch": False, "nice": 0, "token": os.urandom(8).hex()}
        executor = network.hosts({"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}, before)
        async with Session(executor, network.workers, config) as session:
            run = Run(session, tuple(network.workers), Options("quick", net_only=True, timeout=60), Report("quick"))
            assert await session.roll_call(20.0) == {}
            await check_facts(run)
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
        (Culprit("facts", "worker-5"), "address of MASTER_ADDR: 127.0.0.1 (the others: 10.77.0.1)"),
        (Culprit("facts", "worker-6"), f"usable CPUs: 1 (the others: {usable})"),
    }
    assert files.startswith("open files: 256 (the others: ")


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
