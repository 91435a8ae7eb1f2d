"""Tests excluded from `make test-quick`: those in `tests/slow.txt`, which `make slow` measures again.

A pytest plugin. A test counts with its CPU time and that of its children, or with half of its duration if that is
longer: a waiting test leaves the processor to others.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "slow.txt"
#: Seconds from which a function counts as slow: of a single case, and of all its cases.
CASE, FUNCTION = 0.15, 0.6

_cost: dict[str, list[float]] = defaultdict(list)


def function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = set(LIST.read_text().split("\n"))
    for item in items:
        if function(item) in slow:
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    cpu, begun = _cpu(), time.monotonic()
    try:
        return (yield)
    finally:
        _cost[function(item)].append(max(_cpu() - cpu, (time.monotonic() - begun) / 2))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-slow", action="store_true", help="write tests/slow.txt; with -n 0, on a quiet machine")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--write-slow"):
        slow = (name for name, costs in _cost.items() if max(costs) >= CASE or sum(costs) >= FUNCTION)
        LIST.write_text("".join(f"{name}\n" for name in sorted(slow)))


def _cpu() -> float:
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)
