"""The cost of `exec` on hosts of a real sshd, in one run beside a bare asyncssh loop, clush, pdsh and `xargs ssh`.

CPU is that of the client with all processes that it has started, from the start of its interpreter on, imports and all:
on each side what a user waits for. sshd and the commands run on the same machine and are not counted, and neither is
the shell that guards each command of `exec` there; but they take wall time from the client. All tools use the same key
exchange.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import pytest

from tests.benchmarks.measure import Cost, cost, report, tree_cost
from tests.benchmarks.sshsite import Site
from tests.support.needs import needs

pytestmark = needs("sshd")
SIZES = (64, 256, 1000)
#: Turns of `exec` and of the bare loop, after one that fills caches; peers have one each where they take long.
TURNS = {64: 5, 256: 7, 1000: 3}
PEER_TURNS = {64: 2, 256: 2, 1000: 1}
#: Against the bare loop.
BARE_RATIO = 1.4
#: Of a peer's CPU, at most.
PEER_SHARE = 1 / 3
#: Where output is what costs.
OUTPUT_SHARE = 1 / 2
PEAK_MB = 120
PEERS = ("clush", "pdsh", "xargs ssh")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("ssh"), max(SIZES))
    try:
        yield made
    finally:
        made.close()


def turns(site: Site, runs: int, *commands: Sequence[str], measure: Callable[..., Cost] = cost) -> list[list[Cost]]:
    """The runs of each command. They take turns, so that a busy minute hits all alike."""
    found: list[list[Cost]] = [[] for _ in commands]
    for _ in range(runs):
        for costs, argv in zip(found, commands, strict=True):
            costs.append(measure(argv, env=site.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    return found


def least(costs: Sequence[Cost]) -> Cost:
    """The least CPU, wall time and memory: a busy machine only ever adds."""
    return Cost(*(min(values) for values in zip(*costs, strict=True)))


def beside(site: Site, size: int, command: str) -> dict[str, Cost]:
    """The installed peers. Their memory is that of all their processes."""
    lines = site.peers(size, command)
    costs = turns(site, PEER_TURNS.get(size, 1), *lines.values(), measure=tree_cost)
    found = dict(zip(lines, map(least, costs), strict=True))
    if missing := [name for name in PEERS if name not in lines]:
        print(f"\nnot installed, and so not compared: {', '.join(missing)}")
    return found


@pytest.mark.parametrize("size", SIZES)
def test_hostname_on_many_hosts(site: Site, size: int) -> None:
    lines = site.bare(size, "hostname"), site.ours(size, "hostname")
    one = site.bare(1, "hostname"), site.ours(1, "hostname")
    turns(site, 1, *one)
    bares, ours = turns(site, TURNS[size], *lines)
    bare_one, ours_one = map(least, turns(site, TURNS[size], *one))
    peers = beside(site, size, "hostname")
    ratio = median(own.cpu / bare.cpu for bare, own in zip(bares, ours, strict=True))
    bare, own = least(bares), least(ours)
    each, bare_each = (1e3 * (a.cpu - b.cpu) / (size - 1) for a, b in ((own, ours_one), (bare, bare_one)))
    rows = [("bare asyncssh", bare), ("exec --all", own), *peers.items()]
    rows += [("bare asyncssh, 1 host", bare_one), ("exec --all, 1 host", ours_one)]
    note = f"{ratio:.2f} x the bare loop's CPU (median of {len(ours)} pairs); one more host: {each:.2f} CPU-ms"
    report(f"hostname on {size} hosts", rows, f"{note}, {bare_each:.2f} in the bare loop")
    assert own.peak < PEAK_MB
    if size == 256:  # with a few, the start is what there is
        assert ratio <= BARE_RATIO
    if size >= 256:
        for name in {"clush", "pdsh"} & peers.keys():
            assert own.cpu <= PEER_SHARE * peers[name].cpu, name
            assert own.wall < peers[name].wall, name


def test_a_mebibyte_from_each_of_64_hosts(site: Site, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes((b"x" * 99 + b"\n") * ((1 << 20) // 100))
    command = f"cat {text}"
    turns(site, 1, site.ours(1, command))
    found = turns(site, 3, site.bare(64, command), site.ours(64, command), site.ours(64, command, "--gather"))
    bare, live, gathered = map(least, found)
    peers = beside(site, 64, command)
    rows = [("bare asyncssh", bare), ("exec --all", live), ("exec --all --gather", gathered), *peers.items()]
    report("1 MiB from each of 64 hosts", rows)
    assert live.peak < PEAK_MB  # --gather holds all output
    for own in (live, gathered):
        for name in {"clush", "pdsh"} & peers.keys():
            assert own.cpu <= OUTPUT_SHARE * peers[name].cpu, name
            assert own.wall < peers[name].wall, name
