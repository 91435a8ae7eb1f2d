"""Jobs with NCCL: the probe's reports of real ones, with a fault in rank 2, and made ones.

`data/h100.jsonl` was recorded in November 2026 on one H100 that all ranks shared (`NCCL_HOSTID`), with torch 2.11.0 and
NCCL 2.28.9, without and with Python stacks. Paths were shortened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atlctl.diagnosis.hang import Scene, diagnose
from atlctl.diagnosis.rankreport import parse_report
from tests.unit.diagnosis.hang.made import COLLECTIVE, SITE, rank, report, stack

CASES = [json.loads(line) for line in (Path(__file__).parent / "data/h100.jsonl").read_text().splitlines()]
#: Verdict and confidence of rank 2 without and with stacks.
EXPECTED = {
    "barrier": ("hung in user code, likely", "in another operation, likely"),
    "dbg": ("hung in user code, certain", "hung in user code, certain"),
    "ddp": ("hung in user code, likely", "hung in user code, certain"),
    "eight": ("hung in user code, likely", "hung in user code, certain"),
    "fifo": ("blocked on I/O, likely", "blocked on I/O, certain"),
    "gather": ("in another operation, likely", "in another operation, likely"),
    "gpusleep": ("hung in user code, likely", "blocked on its GPU, likely"),
    "init": ("hung in user code, guess", "hung in user code, likely"),
    "item": ("hung in user code, likely", "hung in user code, certain"),
    "itemgil": ("hung in user code, likely", "hung in user code, likely"),
    "kill": ("gone, certain", "gone, certain"),
    "loader": ("hung in user code, likely", "hung in user code, certain"),
    "lock": ("hung in user code, likely", "hung in user code, certain"),
    "pipe": ("hung in user code, likely", "hung in user code, certain"),
    "recv": ("hung in user code, likely", "in another operation, likely"),
    "sleep": ("hung in user code, likely", "hung in user code, certain"),
    "stop": ("stopped, certain", "stopped, certain"),
    "teardown": ("hung in user code, guess", "hung in user code, likely"),
    "two": ("hung in user code, likely", "hung in user code, certain"),
}
#: No rank is to blame, or none can be told.
NOBODY = {"none": "working, likely", "size": "undecided, None"}


def scene(case: dict[str, Any], without: str | None = None) -> Scene:
    """`without`: a field of all reports that is left out."""
    reports = {}
    for name, data in case["workers"].items():
        data = {**data, "ranks": [{**item} for item in data["ranks"]]}
        for item in (data, *data["ranks"]):
            item.pop(without, None)
        made = parse_report(json.dumps(data).encode())
        assert made is not None
        reports[name] = made
    return diagnose(reports, whole=True)


def verdict(found: Scene) -> str:
    return f"{found.what}, {found.confidence}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['fault']}-{'stacks' if case['stacks'] else 'proc'}")
def test_a_real_job(case: dict[str, Any]) -> None:
    found = scene(case)
    fault, stacks = case["fault"], case["stacks"]
    if fault in NOBODY:
        assert (verdict(found), found.culprits) == (NOBODY[fault], ())
        return
    assert [culprit.rank for culprit in found.culprits] == [2]
    assert verdict(found) == EXPECTED[fault][stacks]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['fault']}-{'stacks' if case['stacks'] else 'proc'}")
def test_a_real_job_without_the_counts(case: dict[str, Any]) -> None:
    """NCCL before 2.24, or `NCCL_RAS_ENABLE=0`: weaker, and nobody else is blamed."""
    found = scene(case, without="ras")
    assert {culprit.rank for culprit in found.culprits} <= {2}
    if case["fault"] == "sleep":
        assert verdict(found) == ("hung in user code, likely" if case["stacks"] else "hung in user code, guess")
    if case["fault"] == "dbg":
        # The flight recorder of torch's debug server says as much.
        assert verdict(found) == "hung in user code, certain"
    if case["fault"] == "none":
        assert verdict(found) == "undecided, None"


def test_what_the_counts_add_is_shown() -> None:
    (case,) = (case for case in CASES if case["fault"] == "sleep" and case["stacks"])
    (culprit,) = scene(case).culprits
    assert culprit.lag is not None
    assert (culprit.lag.operation, culprit.lag.count, culprit.lag.most, culprit.lag.size) == ("all_reduce", 22, 24, 4)


def counts(size: int, behind: list[list[Any]], ahead: list[list[Any]], **more: Any) -> dict[str, Any]:
    item = {"size": size, "behind": behind, "behind_count": len(behind), "ahead": ahead, "ahead_count": len(ahead)}
    return {**item, "faulty": [], **more}


def ras(*communicators: dict[str, Any], moved: bool = False) -> dict[str, Any]:
    return {"problem": None, "version": "2.28.9", "moved": moved, "processes": 16, "communicators": list(communicators)}


def member(number: int, *more: Any) -> list[Any]:
    """A rank as NCCL knows it: on worker N at 10.0.0.N."""
    return [number, f"10.0.0.{number // 4}", 1000 + number, *more]


def job(odd: dict[int, dict[str, Any]], found: dict[str, Any], unseen: tuple[int, ...] = ()) -> Scene:
    """Four workers with four ranks, which use a CPU; the first worker has the counts."""
    ranks = {
        number: rank(number, "busy", waits=[["pt_nccl_watchdg", "S", "futex", True, None, 1]]) for number in range(16)
    }
    ranks |= odd
    reports = {
        f"worker-{worker}": report(
            *(ranks[number] for number in range(4 * worker, 4 * worker + 4)),
            addresses=[f"10.0.0.{worker}"],
            ras=found if worker == 0 else None,
        )
        for worker in range(4)
        if worker not in unseen
    }
    return diagnose(reports, whole=not unseen)


LAG: tuple[dict[str, Any], list[str]] = ({"all_reduce": [22, 24]}, [])


def test_a_rank_that_waits_for_another_group_is_no_culprit() -> None:
    """Rank 5 waits for rank 6 in their group, and rank 1 for rank 5 in another one."""
    asleep = rank(6, "sleep", waits=[["pt_nccl_watchdg", "S", "futex", True, None, 1]])
    found = job(
        {6: asleep},
        ras(
            counts(4, [[1, "10.0.0.1", 1005, *LAG]], [[0, "10.0.0.0", 1001]]),
            counts(4, [[2, "10.0.0.1", 1006, *LAG]], [[1, "10.0.0.1", 1005]]),
        ),
    )
    assert [culprit.rank for culprit in found.culprits] == [6]
    assert {item.rank for item in found.ranks if str(item.what) == "waiting in a collective"} == {1, 5}


def test_a_rank_is_found_by_address_and_pid_else_by_its_number_among_all() -> None:
    asleep = rank(9, "sleep", waits=[["pt_nccl_watchdg", "S", "futex", True, None, 1]])
    others = [member(number) for number in range(16) if number != 9]
    by_pid = job({9: asleep}, ras(counts(8, [[1, "10.0.0.2", 1009, *LAG]], others)))
    by_number = job({9: asleep}, ras(counts(16, [[9, "192.168.7.7", 71, *LAG]], others)))
    neither = job({9: asleep}, ras(counts(8, [[1, "192.168.7.7", 71, *LAG]], [])))
    assert [[culprit.rank for culprit in found.culprits] for found in (by_pid, by_number)] == [[9], [9]]
    assert verdict(by_pid) == verdict(by_number) == "hung in user code, likely"
    assert [culprit.lag for culprit in neither.culprits] == [None]  # by /proc alone


def test_more_waiting_ranks_than_are_named() -> None:
    asleep = rank(9, "sleep", waits=[["pt_nccl_watchdg", "S", "futex", True, None, 1]])
    found = job({9: asleep}, ras(counts(16, [member(9, *LAG)], [member(0)], ahead_count=15)))
    assert sum(item.held for item in found.ranks) == 15


def test_a_worker_that_does_not_answer_and_that_nccl_does_not_reach() -> None:
    others = [member(number) for number in range(12)]
    lost = [member(number, "unresponsive") for number in range(12, 16)]
    found = job({}, ras(counts(16, [], others, faulty=lost)), unseen=(3,))
    assert verdict(found) == "unreachable, likely"
    assert [culprit.rank for culprit in found.culprits] == [12, 13, 14, 15]
    assert found.unseen == ()


def test_busy_ranks_behind_are_not_guessed_among() -> None:
    """Half of the ranks wait in `recv` for the next stage, which NCCL does not count: nobody is named."""
    late = [member(number, *LAG) for number in range(8)]
    found = job({}, ras(counts(16, late, [member(number) for number in range(8, 16)])))
    assert found.culprits == ()
    places = {
        "recv": [["recv", f"{SITE}/torch/distributed/distributed_c10d.py", 2400], COLLECTIVE[-1]],
        "synchronize": [["synchronize", f"{SITE}/torch/cuda/__init__.py", 1162], COLLECTIVE[-1]],
        "item": [COLLECTIVE[-1]],
    }
    for frames in places.values():
        stacks = {number: rank(number, "busy", stack=stack(*frames)) for number in range(8)}
        assert job(stacks, ras(counts(16, late, [member(number) for number in range(8, 16)]))).culprits == ()
        asleep = rank(3, "sleep", stack=stack(["wait_for_lease", "/job/data.py", 41]))
        found = job({**stacks, 3: asleep}, ras(counts(16, late, [member(number) for number in range(8, 16)])))
        assert ([culprit.rank for culprit in found.culprits], verdict(found)) == ([3], "hung in user code, certain")


def test_counts_that_move_mean_work() -> None:
    assert verdict(job({}, ras(moved=True))) == "working, likely"


@pytest.mark.parametrize("value", [None, 7, "x", [], {"communicators": 3}, {"communicators": [{"behind": [[1]]}]}])
def test_any_counts(value: object) -> None:
    found = parse_report(json.dumps({"atlctl_stacks": 1, "ranks": [rank(0)], "ras": value}).encode())
    assert found is not None
    diagnose({"worker-0": found}, whole=True)
