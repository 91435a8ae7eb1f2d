"""The culprits that explain bad pairs, and the second measurement."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.smoke.network.blame import Pair, PairBlame, accused, blame, confirm

NAMES = [f"w{index}" for index in range(64)]


def matrix(count: int, nodes: dict[int, int], links: dict[tuple[int, int], int]) -> dict[tuple[str, str], int]:
    """The measurements of all pairs with these faults (by kind)."""
    seen = {}
    for one in range(count):
        for other in range(count):
            if one != other:
                link = links.get((min(one, other), max(one, other)), 0)
                seen[NAMES[one], NAMES[other]] = max(nodes.get(one, 0), nodes.get(other, 0), link)
    return seen


def named(found: PairBlame) -> tuple[set[int], set[tuple[int, int]]]:
    number = {name: index for index, name in enumerate(NAMES)}
    return {number[name] for name in found.workers}, {(number[a], number[b]) for a, b in found.links}


@pytest.mark.parametrize(
    ("count", "nodes", "links"),
    [
        (4, {2: 1}, {}),
        (4, {}, {(1, 3): 1}),
        (4, {0: 1, 3: 1}, {}),
        (4, {0: 3}, {(1, 2): 1}),
        (4, {0: 1}, {(1, 2): 3}),
        (4, {0: 3, 1: 1}, {}),
        (4, {}, {(0, 1): 3, (0, 2): 3}),
        (4, {}, {(0, 1): 1, (1, 2): 3, (2, 3): 1}),
        (4, {}, {(0, 1): 3, (0, 2): 3, (0, 3): 1}),  # three kinds of faults are not one worker's fault
        (3, {1: 1}, {}),
        (3, {}, {(0, 2): 1}),
        (2, {}, {(0, 1): 1}),
        (8, {1: 3, 2: 1, 5: 1}, {}),
        (64, {5: 1}, {(7, 9): 3}),
    ],
)
def test_the_fewest_faults_that_explain_everything(count, nodes, links):
    found = blame(NAMES[:count], matrix(count, nodes, links))
    assert named(found) == (set(nodes), set(links))
    assert not found.unclear


@pytest.mark.parametrize("count", [3, 4, 8, 20])
def test_where_nobody_reaches_anybody_nobody_is_named(count):
    found = blame(NAMES[:count], matrix(count, dict.fromkeys(range(count), 3), {}))
    assert not found.workers
    assert not found.links
    assert len(found.unclear) == count * (count - 1) // 2


def test_hundreds_of_bad_links_are_not_listed():
    chance = random.Random(1)
    links = {(a, b): 1 for a in range(64) for b in range(a + 1, 64) if chance.random() < 0.2}
    found = blame(NAMES, matrix(64, {}, links))
    assert not found.workers
    assert not found.links
    assert len(found.unclear) == len(links)


def test_one_direction_is_enough():
    seen = matrix(4, {}, {})
    for other in (1, 2, 3):
        seen[NAMES[other], NAMES[0]] = 3
    assert blame(NAMES[:4], seen).workers == ("w0",)


def test_a_pair_that_was_not_looked_at_says_nothing():
    seen = {pair: kind for pair, kind in matrix(5, {0: 1}, {}).items() if set(pair) != {"w0", "w4"}}
    assert named(blame(NAMES[:5], seen)) == ({0}, set())


def test_a_worker_of_whose_many_pairs_one_looks_good_is_still_named():
    seen = matrix(8, {3: 1}, {})
    seen["w3", "w6"] = seen["w6", "w3"] = 0
    assert named(blame(NAMES[:8], seen)) == ({3}, set())


@st.composite
def faults(draw: st.DrawFn) -> tuple[int, dict[int, int], dict[tuple[int, int], int]]:
    """Up to three faults without another explanation: links between healthy workers, and no worker with more than a
    third of its pairs bad."""
    count = draw(st.integers(6, 24))
    places = draw(st.permutations(range(count)))
    kind = st.sampled_from([1, 2, 3])
    amount = draw(st.integers(0, 3))
    nodes = {places[index]: draw(kind) for index in range(amount)}
    healthy = sorted(places[amount:])
    links: dict[tuple[int, int], int] = {}
    for _ in range(3 - amount):
        one, other = sorted(draw(st.permutations(healthy))[:2])
        if all(one not in link and other not in link for link in links):
            links[one, other] = draw(kind)
    return count, nodes, links


@given(faults())
def test_faults_that_can_be_told_apart_are(fault):
    count, nodes, links = fault
    assert named(blame(NAMES[:count], matrix(count, nodes, links))) == (set(nodes), set(links))


@given(st.integers(2, 7), st.data())
def test_any_matrix_is_answered_and_every_bad_pair_accounted_for(count, data):
    seen = {pair: data.draw(st.integers(0, 3)) for pair in matrix(count, {}, {}) if data.draw(st.booleans())}
    found = blame(NAMES[:count], seen)
    for (one, other), kind in seen.items():
        if kind:
            pair = (one, other) if NAMES.index(one) < NAMES.index(other) else (other, one)
            assert pair in found.links or pair in found.unclear or set(pair) & set(found.workers)
    for worker in found.workers:
        assert any(worker in pair and kind for pair, kind in seen.items())


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
    """If all pairs are bad and results change each time, only confirmed pairs stay."""
    seen = matrix(6, {}, {})
    asked = 0

    async def look(todo: Sequence[Pair]) -> dict[Pair, bool]:
        nonlocal asked
        asked += 1
        return {}

    assert asyncio.run(confirm(NAMES[:6], seen, [("w0", "w1")], look)) == set()
    assert asked <= 8
