"""What ranks are doing, beside what the logs say."""

from __future__ import annotations

from typing import Any

import pytest

from atlctl.diagnosis.hang.answer import joined
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Verdict
from tests.unit.diagnosis.hang.made import NOW, SITE, job, rank, stack

SILENT = Diagnosis(Verdict.NONE)
STUCK = stack(["sleep", f"{SITE}/vendored/wait.py", 3], ["fetch", "/job/train.py", 6], ["main", "/job/train.py", 30])


def test_silent_logs_and_one_rank_that_hangs() -> None:
    found = joined(SILENT, job({5: rank(5, "sleep", stack=STUCK)}), 60.0)
    assert found.verdict is Verdict.RANK
    [cause] = found.root_causes
    assert (cause.worker, cause.rank, cause.local_rank, cause.category) == ("worker-1", 5, 1, "hang")
    assert (cause.message, cause.confidence) == ("hung in user code", "likely")
    assert cause.why == "it sleeps, in no collective; 15 of 16 ranks have waited for 2 s or more"
    assert cause.frame is not None
    assert str(cause.frame) == 'File "/job/train.py", line 6, in fetch'
    assert [proof.text for proof in cause.proofs][1:] == [
        'File "/job/train.py", line 6, in fetch',
        'File "/job/train.py", line 30, in main',
        "/proc/1005: state S in clock_nanosleep, 0 ticks of CPU",
    ]
    assert found.remarks == ("the logs name no failure: this is what the ranks are doing now",)


@pytest.mark.parametrize(
    ("quiet", "last"), [(4.0, "the last line of a log is 4 s old: it may only be slow"), (None, "")]
)
def test_a_job_that_still_talks_may_only_be_slow(quiet: float | None, last: str) -> None:
    found = joined(SILENT, job({5: rank(5, "sleep", stack=STUCK)}), quiet)
    assert [(cause.rank, cause.confidence) for cause in found.root_causes] == [(5, "guess")]
    assert found.remarks[1:] == ((last,) if last else ())


def test_several() -> None:
    found = joined(SILENT, job({5: rank(5, "sleep"), 9: rank(9, "stopped")}), 60.0)
    assert found.verdict is Verdict.RANKS
    assert {(cause.rank, cause.message) for cause in found.root_causes} == {(5, "hung in user code"), (9, "stopped")}


def test_nobody_hangs() -> None:
    found = joined(SILENT, job({}, usual="moving"), 60.0)
    assert (found.verdict, found.root_causes) == (Verdict.NONE, ())
    assert found.remarks == (
        "what the ranks are doing was looked at; working; no rank stood still during the look; --repeat compares two",
    )


@pytest.mark.parametrize("verdict", [Verdict.UNDECIDED, Verdict.RANK])
def test_an_answer_of_the_logs_stands(verdict: Verdict) -> None:
    cause = Cause("worker-0", "python_exception", "x", Confidence.GUESS, "y", rank=0)
    told = Diagnosis(verdict, candidates=(cause,))
    found = joined(told, job({5: rank(5, "sleep")}), 60.0)
    assert (found.verdict, found.root_causes, found.candidates) == (verdict, (), (cause,))
    [remark] = found.remarks
    assert remark.startswith("what the ranks are doing was looked at; hung in user code (rank 5); it sleeps; ")


def at_start(age: float, sign: str = "file", **more: Any) -> dict[str, Any]:
    """What differs in a rank's report `age` seconds after its launch, before it has a process group."""
    return {"started": NOW - age, "waits": [], "torch": False, "sign": sign, **more}


@pytest.mark.parametrize("sign", ["file", "disk", "busy", "starved", "sleep", "futex", "poll"])
@pytest.mark.parametrize("torch", [True, False, None])
def test_a_young_start_is_not_a_hang(sign: str, torch: bool | None) -> None:
    ranks = {number: rank(number, **at_start(12, sign, torch=torch)) for number in range(15)}
    found = joined(SILENT, job({**ranks, 15: None}), 60.0)
    assert (found.verdict, found.candidates) == (Verdict.NONE, ())
    assert found.remarks == (
        "what the ranks are doing was looked at; starting; 16 of 16 ranks are starting, 12 s after they were launched",
    )


def test_a_start_that_others_wait_for_is_not_a_hang_while_it_is_young() -> None:
    found = joined(SILENT, job({5: rank(5, **at_start(12))}), 60.0)
    assert (found.verdict, found.remarks[0].split("; ")[1]) == (Verdict.NONE, "starting")


def test_a_start_that_others_have_long_waited_for_is_a_hang() -> None:
    found = joined(SILENT, job({5: rank(5, **at_start(600))}), 60.0)
    assert [(cause.rank, cause.category) for cause in found.root_causes] == [(5, "hang")]


def test_a_stopped_process_is_stopped_at_its_start_too() -> None:
    ranks: dict[int, dict[str, Any] | None]
    ranks = {number: rank(number, **at_start(12, "stopped" if number == 5 else "file")) for number in range(16)}
    found = joined(SILENT, job(ranks), 60.0)
    assert [(cause.rank, cause.message) for cause in found.root_causes] == [(5, "stopped")]


IMPORTING = stack(["<module>", "/nfs/pkg/x.py", 3], ["_load_unlocked", "<frozen importlib._bootstrap>", 690])


@pytest.mark.parametrize("known", [{"torch": False}, {"torch": True, "stack": IMPORTING}])
def test_a_start_that_takes_long_is_undecided(known: dict[str, Any]) -> None:
    ranks: dict[int, dict[str, Any] | None]
    ranks = {number: rank(number, **at_start(430, **known)) for number in range(16)}
    found = joined(SILENT, job(ranks), 60.0)
    assert (found.verdict, found.root_causes) == (Verdict.UNDECIDED, ())
    assert {(cause.category, cause.message) for cause in found.candidates} == {("slow_start", "starting")}
    assert found.remarks[0].endswith("; starting; 16 of 16 ranks are still starting after 7 min")


def test_an_import_in_the_middle_of_the_training_is_not_a_start() -> None:
    found = joined(SILENT, job({5: rank(5, "file", stack=IMPORTING)}), 60.0)
    assert [(cause.rank, cause.category) for cause in found.root_causes] == [(5, "hang")]
