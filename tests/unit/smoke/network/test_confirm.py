from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from atlctl.smoke.network.blame import Pair
from atlctl.smoke.network.confirm import accused, confirm
from tests.unit.smoke.network.test_blame import NAMES, matrix


def run(count: int, suspects: Collection[Pair], really: set[Pair]) -> tuple[set[Pair], list[Pair]]:
    looked: list[Pair] = []

    async def look(todo: Sequence[Pair]) -> dict[Pair, bool]:
        looked.extend(todo)
        return {pair: pair in really for pair in todo}

    names = NAMES[:count]
    return asyncio.run(confirm(names, matrix(count, {}, {}), suspects, look)), looked


def of(node: int, count: int) -> set[Pair]:
    return {pair for pair in matrix(count, {}, {}) if NAMES[node] in pair}


def test_a_moment_of_noise_accuses_nobody():
    bad, looked = run(4, {("w0", "w1"), ("w2", "w3")}, set())
    assert bad == set()
    assert set(looked) == {("w0", "w1"), ("w2", "w3")}


def test_noise_beside_a_fault_is_cleared():
    bad, _ = run(8, of(3, 8) | {("w1", "w2")}, of(3, 8))
    assert bad == of(3, 8)


def test_a_worker_is_looked_at_through_some_of_its_pairs():
    bad, looked = run(64, of(3, 64), of(3, 64))
    assert accused(NAMES, matrix(64, {}, {}), bad).workers == ("w3",)
    assert len(looked) == 4


def test_both_ends_of_a_link_are_cleared_one_after_the_other():
    bad, looked = run(4, [("w0", "w1"), ("w1", "w0")], {("w1", "w0")})
    assert bad == {("w1", "w0")}
    assert len(looked) == 2


def test_no_end_of_looking_accuses_whom_nobody_looked_at():
    """Where all is bad and a look changes its mind each time, only what was seen again stays."""
    seen = matrix(6, {}, {})
    asked = 0

    async def look(todo: Sequence[Pair]) -> dict[Pair, bool]:
        nonlocal asked
        asked += 1
        return {}

    assert asyncio.run(confirm(NAMES[:6], seen, [("w0", "w1")], look)) == set()
    assert asked <= 8
