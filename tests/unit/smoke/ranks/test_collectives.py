"""From wrong values to the faulty rank."""

from __future__ import annotations

import random
from typing import Any

import pytest

from atlctl.smoke.ranks.collectives import LATE, Wrong, late, wrong_in_collectives, wrong_in_ddp
from atlctl.smoke.ranks.device import problem
from atlctl.smoke.ranks.members import Member
from atlctl.smoke.ranks.stages import StageOutcome, Track

WRONG = [1, 5, "188.0", "172.0"]


def collectives(world: int, pairs: set[tuple[int, int]], sums: dict[int, bool] | None = None) -> dict[int, Any]:
    """The ranks' results if the pairs (sender, receiver) are bad in all_gather."""
    return {
        receiver: {
            "all_gather": {"wrong": {str(s): WRONG for s, r in pairs if r == receiver}},
            "all_reduce": {"wrong": {}, "sum": WRONG if (sums or {}).get(receiver) else []},
        }
        for receiver in range(world)
    }


def places(wrongs: list[Wrong]) -> list[tuple[int | None, int | None]]:
    return [(wrong.place, wrong.peer) for wrong in wrongs]


def test_healthy_collectives_accuse_nobody() -> None:
    assert wrong_in_collectives(collectives(4, set())) == []


@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_sender_is_named_by_all_who_got_it_wrong(world: int) -> None:
    told = collectives(world, {(1, receiver) for receiver in range(world)}, dict.fromkeys(range(world), True))
    (wrong,) = wrong_in_collectives(told)
    assert (wrong.place, wrong.peer) == (1, None)
    assert "188.0 in place of 172.0" in wrong.evidence


def test_a_receiver_is_named_where_others_got_the_same_right() -> None:
    assert places(wrong_in_collectives(collectives(4, {(0, 2), (1, 2), (3, 2)}))) == [(2, None)]


def test_two_senders_are_both_named() -> None:
    bad = {(1, r) for r in range(8)} | {(6, r) for r in range(8)}
    assert sorted(places(wrong_in_collectives(collectives(8, bad)))) == [(1, None), (6, None)]


def test_one_pair_alone_leaves_open_which_end_it_is() -> None:
    assert places(wrong_in_collectives(collectives(4, {(1, 3)}))) == [(1, 3)]


def test_wrong_sums_alone() -> None:
    """Wrong sums on one rank accuse that rank; on all ranks the culprit is unknown, but it is still a fault."""
    assert places(wrong_in_collectives(collectives(4, set(), {2: True}))) == [(2, None)]
    assert places(wrong_in_collectives(collectives(4, set(), dict.fromkeys(range(4), True)))) == [(None, None)]


def test_a_wrong_part_of_reduce_scatter_does_not_accuse_its_receiver() -> None:
    told = collectives(4, set())
    told[0]["reduce_scatter"] = {"wrong": {}, "sum": WRONG}
    assert places(wrong_in_collectives(told)) == [(None, None)]


def arrivals(before: list[Any], inside: list[Any]) -> dict[int, tuple[str, float]]:
    """The late ranks if these are their seconds before all_gather and in it."""
    tracks = [
        Track(Member(at, f"worker-{at}"), results={"barrier": {}, "all_gather": {"before": came, "inside": waited}})
        for at, (came, waited) in enumerate(zip(before, inside, strict=True))
    ]
    return {member.number: told for member, told in late(StageOutcome("collectives", tracks)).items()}


def test_a_rank_is_late_if_the_others_were_in_the_collective_meanwhile() -> None:
    assert arrivals([0.01, 0.02, 0.52, 0.02], [0.6, 0.5, 0.1, 0.5]) == {2: ("all_gather", 0.5)}
    assert arrivals([0.01, 0.51], [0.5, 0.01]) == {1: ("all_gather", 0.5)}
    assert arrivals([0.02, 0.02, 0.52, 0.02], [0.1] * 4) == {}
    assert arrivals([5.0] * 4, [5.0] * 4) == {}
    assert arrivals([0.0, 0.0, LATE], [1.0] * 3) == {}
    assert arrivals([0.0, None, 5.0], [1.0] * 3) == {}
    assert arrivals(["x", [], 5.0], [1.0, {}, float("nan")]) == {}


def ddp(world: int, seed: int = 1) -> dict[int, Any]:
    """The results of healthy ranks."""
    chance = random.Random(seed)
    true = {sender: [chance.uniform(1, 2), *(chance.uniform(-1, 1) for _ in range(3))] for sender in range(world)}
    return {
        rank: {
            "gradients": {
                "votes": {str((rank + k) % world): list(true[(rank + k) % world]) for k in range(min(3, world))},
                "reference": [value * (1 + 1e-7) for value in true[rank]],
            },
            "sync": {"given": list(true[rank]), "error": 1e-7, "digest": "aa"},
            "update": {"digest": "bb"},
        }
        for rank in range(world)
    }


@pytest.mark.parametrize("world", [2, 3, 4, 64])
def test_healthy_gradients_accuse_nobody(world: int) -> None:
    assert wrong_in_ddp(ddp(world)) == []


@pytest.mark.parametrize("world", [2, 3, 4, 64])
@pytest.mark.parametrize("value", [1.001, float("nan")])
def test_a_rank_that_computes_wrong_is_outvoted(world: int, value: float) -> None:
    """All ranks receive the wrong mean; only the rank whose gradients differ from all votes is named."""
    told = ddp(world)
    for marks in told[1]["gradients"]["votes"].values():
        marks[1] += value
    told[1]["sync"]["given"][1] += value
    for rank in range(world):
        told[rank]["sync"]["error"] = 0.5
    assert places(wrong_in_ddp(told)) == [(1, None)]


def test_what_is_given_to_ddp_is_compared_with_what_was_voted() -> None:
    told = ddp(4)
    told[3]["sync"]["given"][0] += 0.01
    for rank in range(4):
        told[rank]["sync"]["error"] = 0.5
    assert places(wrong_in_ddp(told)) == [(3, None)]


@pytest.mark.parametrize("step", ["sync", "update"])
def test_a_rank_that_diverges_is_named_by_its_digest(step: str) -> None:
    told = ddp(4)
    told[2][step]["digest"] = "cc"
    assert places(wrong_in_ddp(told)) == [(2, None)]


def test_of_two_that_differ_the_one_off_the_reference_is_named() -> None:
    told = ddp(2)
    told[0]["sync"] |= {"digest": "cc", "error": 0.3}
    assert places(wrong_in_ddp(told)) == [(0, None)]


def test_gradients_that_are_wrong_everywhere_name_nobody_and_are_told() -> None:
    told = ddp(4)
    for rank in range(4):
        told[rank]["sync"]["error"] = None
    assert places(wrong_in_ddp(told)) == [(None, None)]


@pytest.mark.parametrize("garbage", [None, 3, "x", [], {"0": "x"}, {"x": 1}, [[1]]])
def test_malformed_answers_break_nothing(garbage: Any) -> None:
    told: dict[int, Any] = {
        rank: {
            "gradients": {"votes": garbage, "reference": garbage},
            "sync": {"given": garbage, "error": garbage, "digest": garbage},
            "all_gather": {"wrong": garbage, "sum": garbage},
        }
        for rank in range(3)
    }
    wrong_in_ddp(told)
    wrong_in_collectives(told)
    problem({"memory": {"wrong": garbage}, "matmul fp32": {"error": garbage, "rest": garbage, "limit": garbage}})


def test_a_device_is_judged_by_memory_and_by_each_kind_of_product() -> None:
    good = {"error": 3e-7, "rest": 1e-6, "limit": 1e-5}
    assert problem({"memory": {"wrong": []}, "matmul fp32": good}) == ""
    assert "memory does not hold" in problem({"memory": {"wrong": [17]}, "matmul fp32": good})
    assert "matmul bf16" in problem({"matmul bf16": {**good, "error": 0.1}})
    assert "not a number" in problem({"matmul fp32": {**good, "error": None, "rest": None}})
    assert "matmul fp32" in problem({"matmul fp32": {**good, "rest": 1e-3}})
