"""A fan-out over 64 servers of `atlctl run`, each a process as in a worker, beside the same over one sshd.

The client is the same. Servers and commands run on the same machine: what they cost is in the wall time, and the CPU is
the client's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median

import pytest

from atlctl.backends.hosts.jobkeys import JobAccess
from tests.benchmarks.measure import Cost, cost, report
from tests.benchmarks.sshsite import Site
from tests.support.needs import needs
from tests.support.wrapper import Wrappers

pytestmark = needs("sshd")
WORKERS = 64
TURNS = 7
#: Of sshd's wall time.
RATIO = 1.3
PEAK_MB = 60


class Workers:
    """The servers, and a home that knows them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        access = JobAccess(os.urandom(32), "start-1")
        with ThreadPoolExecutor(4) as pool:
            self.servers = list(
                pool.map(
                    lambda index: Wrappers(folder / f"w{index}", [f"127.2.0.{index + 1}"], [{}], access), range(WORKERS)
                )
            )
        ssh = folder / ".ssh"
        ssh.mkdir(mode=0o700)
        self.servers[0].key(ssh / "id_ed25519")
        (ssh / "known_hosts").write_text("".join(server.known for server in self.servers))
        (folder / "hosts").write_text("".join(f"{server.addresses[0]}:{server.port}\n" for server in self.servers))

    def command(self, line: str) -> list[str]:
        words = ["exec", "--hostfile", str(self._folder / "hosts"), "--all", *line.split()]
        return [sys.executable, "-m", "atlctl", *words]

    @property
    def peak(self) -> float:
        """MB of the largest server, at its most."""
        return max(map(_peak, self.servers))

    def close(self) -> None:
        for server in self.servers:
            server.close()


def _peak(server: Wrappers) -> float:
    assert server.process is not None
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("ssh"), WORKERS)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with closing(Workers(tmp_path_factory.mktemp("workers"))) as made:
        yield made


@pytest.mark.parametrize("line", ["hostname", "head -c 1048576 /dev/zero"], ids=["hostname", "a mebibyte"])
def test_a_fan_out_takes_as_long_as_over_sshd(site: Site, workers: Workers, line: str) -> None:
    found: tuple[list[Cost], list[Cost]] = ([], [])
    for turn in range(TURNS + 1):
        for costs, argv, home in (
            (found[0], site.ours(WORKERS, line), {}),
            (found[1], workers.command(line), {"HOME": str(workers.servers[0].folder.parent)}),
        ):
            one = cost(argv, env={**site.env, **home}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if turn:  # the first fills caches
                costs.append(one)
    sshd, ours = (Cost(*(median(values) for values in zip(*costs, strict=True))) for costs in found)
    ratio = median(own.wall / theirs.wall for theirs, own in zip(*found, strict=True))
    note = f"{ratio:.2f} x sshd's wall time (median of {TURNS} pairs); the largest server: {workers.peak:.1f} MB"
    report(f"{line} on {WORKERS} workers", [("sshd", sshd), ("atlctl run", ours)], note)
    assert ratio <= RATIO
    assert workers.peak < PEAK_MB
