"""Tests excluded from `make test-quick`: those in `tests/slow.txt`, which `make slow` measures again. Files that `make
test` begins with: those in `tests/long.txt`, which `make test PYTEST=--write-long` measures again.

A pytest plugin. A slow test counts with its CPU time and that of its children, or with half of its duration if that is
longer: a waiting test leaves the processor to others.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LIST, LONG = TESTS / "slow.txt", TESTS / "long.txt"
#: Seconds from which a file counts as long.
FILE = 10
#: Seconds from which a function counts as slow: of a single case, and of all its cases.
CASE, FUNCTION = 0.15, 0.6

_cost: dict[str, list[float]] = defaultdict(list)
_seconds: dict[str, float] = defaultdict(float)


def function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Marks the slow ones, and puts the long files first as `--dist worksteal` deals the tests out, a part to each
    worker: else they come last, and only one or two workers have any. Tests that start torch or measure a network run
    one after the other, in one worker: side by side they starve each other."""
    slow = set(LIST.read_text().split("\n"))
    for item in items:
        if function(item) in slow:
            item.add_marker("slow")
    yield
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        heavy = [item for item in items if {"torch", "speed"} & {mark.name for mark in item.iter_markers()}]
        apart = {item.nodeid.partition("::")[0] for item in heavy}
        items[:] = spread(items, workers, dict(map(str.split, LONG.read_text().splitlines())), apart)


def spread(items: list[pytest.Item], workers: int, long: dict[str, str], apart: Collection[str]) -> list[pytest.Item]:
    """The items in `workers` parts of the same length; each begins with its share of the `long` files (seconds by
    path), the first one with all that are `apart`."""
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    owner = dict.fromkeys(files.keys() & apart, 0)
    loads[0] = sum(float(long.get(path, 0)) for path in owner)
    for path in sorted(files.keys() & long - owner.keys(), key=lambda path: (-float(long[path]), path)):
        owner[path] = least = loads.index(min(loads))
        loads[least] += float(long[path])
    for path, found in files.items():
        if path in owner:
            shares[owner[path]] += found
    rest = [item for path, found in files.items() if path not in owner for item in found]
    left = len(items)
    for number, share in enumerate(shares):
        size = left // (workers - number)
        left -= size
        missing = max(0, size - len(share))
        share += rest[:missing]
        del rest[:missing]
    return [item for share in shares for item in share] + rest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    cpu, begun = _cpu(), time.monotonic()
    try:
        return (yield)
    finally:
        _cost[function(item)].append(max(_cpu() - cpu, (time.monotonic() - begun) / 2))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid.partition("::")[0]] += report.duration


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-long", action="store_true", help="write tests/long.txt")
    parser.addoption("--write-slow", action="store_true", help="write tests/slow.txt; with -n 0, on a quiet machine")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--write-slow"):
        slow = (name for name, costs in _cost.items() if max(costs) >= CASE or sum(costs) >= FUNCTION)
        LIST.write_text("".join(f"{name}\n" for name in sorted(slow)))
    if session.config.getoption("--write-long") and not hasattr(session.config, "workerinput"):
        long = sorted((path, took) for path, took in _seconds.items() if took >= FILE)
        LONG.write_text("".join(f"{path} {took:.0f}\n" for path, took in long))


def _cpu() -> float:
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)
