"""The deciding round, and the report about other failures."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.cause.decide import MAX_GROUPS
from atlctl.diagnosis.platform import PlatformState
from atlctl.diagnosis.result import Verdict
from atlctl.jobs.model import State
from tests.unit.diagnosis.samples import DATA, worker

from .logs import MESH, OWN, STORE, WAITED, Log, closed_by, culprit, diagnosed, proofs, unread, victim


def first_round(index: int, *, stamped: bool = True) -> Log:
    """Rank 3 raises, the others lose it, all agents restart their processes. No summary is printed for that."""
    log = Log(index, stamped=stamped).start()
    if index == 1:
        log.trace(1, 1, OWN).trace(1.1, 0, closed_by(1)).closing(1.3, 0).failed(1.35, 1)
    else:
        log.trace(1.1, 0, closed_by(1)).trace(1.1, 1, closed_by(1)).closing(1.3, 1).failed(1.4, 0)
    return log.restarted()


def test_the_last_round_decides() -> None:
    bad = first_round(1).start(5).trace(6, 0, "KeyError: 'phase'").trace(6.1, 1, closed_by(1))
    other = first_round(0).start(5).trace(6.1, 0, closed_by(1)).trace(6.1, 1, closed_by(1))
    found = diagnosed(other.ended(6.4, 0, closed=(1,)), bad.ended(6.3, 0, closed=(1,)))
    assert culprit(found)[:3] == ("rank", "worker-1", 0)
    assert (found.root_causes[0].attempt, found.root_causes[0].exception) == (1, "KeyError")
    assert [(cause.worker, cause.rank, cause.exception) for cause in found.earlier] == [("worker-1", 3, "ValueError")]


def test_a_job_that_recovered_did_not_fail() -> None:
    found = diagnosed(*(first_round(index).start(5) for index in (0, 1)))
    assert found.verdict is Verdict.NONE
    assert [(cause.worker, cause.rank) for cause in found.earlier] == [("worker-1", 3)]


def test_a_restart_that_read_a_stale_store_goes_back() -> None:
    """No process of the last round came up: its errors are consequences of the round before."""
    logs = []
    for index in (0, 1):
        log = first_round(index)
        logs.append(log.trace(8, 0, MESH).trace(8.01, 1, MESH).ended(8.3, 0, closed=(1,)))
    found = diagnosed(*logs)
    assert culprit(found)[:3] == ("rank", "worker-1", 1)
    assert (found.root_causes[0].attempt, found.root_causes[0].message) == (0, OWN)
    assert "the job was restarted; failures after round 0 are consequences" in found.remarks


def test_a_stale_store_without_a_round_before_is_not_explained_away() -> None:
    logs = [Log(index).trace(8, 0, MESH).trace(8.01, 1, MESH).ended(8.3, 0, closed=(1,)) for index in (0, 1)]
    assert diagnosed(*logs).verdict is not Verdict.NONE


def test_a_change_of_membership_is_no_failure() -> None:
    """The agents stop their processes and restart them with another world size; none of them failed."""
    logs = [Log(index).start().closing(3, 0, 1).restarted().start(5) for index in (0, 1)]
    assert diagnosed(*logs).verdict is Verdict.NONE


def test_a_signal_to_all_in_the_second_round() -> None:
    found = diagnosed(*(first_round(index).start(5).signalled(9) for index in (0, 1)))
    assert culprit(found)[:2] == ("external", None)
    assert [cause.rank for cause in found.earlier] == [3]


def test_a_hang_in_the_second_round() -> None:
    quiet = first_round(1).start(5).trace(16, 0, WAITED).ended(16.3, 0, 1, WAITED, closed=(1,))
    other = first_round(0).start(5).trace(16, 0, WAITED).trace(16, 1, WAITED).ended(16.3, 0, 1, WAITED, closed=(1,))
    found = diagnosed(other, quiet)
    assert culprit(found)[:3] == ("rank", "worker-1", 1)
    assert (found.root_causes[0].category, found.root_causes[0].attempt) == ("hang", 1)


def test_rounds_are_told_apart_without_stamps_too() -> None:
    found = diagnosed(*(first_round(index, stamped=False).start(5) for index in (0, 1)))
    assert found.verdict is Verdict.NONE


def test_restarts_exhausted_by_the_same_error() -> None:
    """Each round fails in the same way: the last one is the answer, and the first one is reported with it."""
    bad = first_round(1).start(5).trace(6, 1, OWN).trace(6.1, 0, closed_by(1)).ended(6.4, 1, closed=(0,))
    other = first_round(0).start(5).trace(6.1, 0, closed_by(1)).trace(6.1, 1, closed_by(1)).ended(6.5, 0, closed=(1,))
    found = diagnosed(other, bad)
    assert culprit(found)[:3] == ("rank", "worker-1", 1)
    assert len(found.earlier) == 1


def test_a_log_that_is_cut_behind_its_agents_report_was_not_restarted() -> None:
    """Nothing was printed after it: no sign of a restart."""
    log = Log(1).start().trace(1, 1, OWN).trace(1.05, 0, closed_by(1)).closing(1.2, 0).failed(1.3, 1)
    found = diagnosed(victim(0, of=1), log)
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    assert found.remarks == ()


def test_nothing_at_all() -> None:
    for found in (diagnosed(), diagnosed(unread(0), unread(1)), diagnosed(Log(0)), diagnosed(missing=("worker-0",))):
        assert (found.verdict, found.root_causes, found.candidates) == (Verdict.NONE, (), ())


def test_a_success() -> None:
    found = diagnosed(Log(0).start(), Log(1).start())
    assert (found.verdict, found.cascade, found.earlier) == (Verdict.NONE, (), ())


def test_an_agent_that_lost_its_store_is_not_the_cause() -> None:
    """The store's agent ended because its rank failed; the other agent only lost the store."""
    host = Log(0).start().trace(1, 0, OWN).trace(1.05, 1, closed_by(0)).ended(1.3, 0, closed=(1,))
    found = diagnosed(host, Log(1).start().closing(1.5, 0, 1).agent_died(1.6, STORE))
    assert culprit(found)[:3] == ("rank", "worker-0", 0)
    assert found.cascade[-1].workers == ("worker-1",)


def test_a_success_of_some_beside_victims_is_no_success() -> None:
    assert diagnosed(victim(0, of=1), Log(1).start()).verdict is not Verdict.NONE


@pytest.mark.parametrize("names", [(0, 1), (1, 0)])
def test_two_workers_of_a_real_job(names: tuple[int, int]) -> None:
    """The order of the workers does not matter."""
    workers = [
        worker(f"worker-{n}", (DATA / f"peer-gone-worker-{n}.log").read_bytes().split(b"\n"), index=n) for n in names
    ]
    found = diagnosed(*workers)
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    assert (found.root_causes[0].rank, found.root_causes[0].exit_code) == (3, 1)
    assert [group.ranks for group in found.cascade] == [(0, 1, 2)]


def test_an_evicted_worker_of_a_real_job() -> None:
    evicted = worker("worker-1", (DATA / "evicted-agent.log").read_bytes().split(b"\n"), index=1)
    assert culprit(diagnosed(victim(0, of=1), evicted))[:2] == ("worker", "worker-1")


DIFFERENT = [
    *("KeyError", "TypeError", "IndexError", "OSError", "EOFError", "ImportError", "NameError", "LookupError"),
    *("BufferError", "MemoryError", "AttributeError", "RecursionError", "ZeroDivisionError", "OverflowError"),
    "NotImplementedError",
]


def culprit_and_victims() -> list[Log]:
    bad = Log(1).start().trace(1.0, 1, OWN).trace(1.05, 0, closed_by(1)).ended(1.4, 1, closed=(0,))
    return [victim(0, of=1), bad]


def test_evidence_points_at_the_right_lines() -> None:
    logs = culprit_and_victims()
    found = diagnosed(*logs)
    shown = proofs(found)
    assert len(shown) >= 4
    for proof in shown:
        log = logs[int(proof.worker[-1])]
        assert proof.line_no is not None
        assert proof.text in log.lines[proof.line_no - 1]
    first = found.root_causes[0].proofs[0]
    assert (first.worker, first.text) == ("worker-1", OWN)


def test_evidence_of_every_sort_of_answer_points_at_its_line() -> None:
    jobs = [
        [victim(0, of=1), Log(1).start()],
        [Log(index).start().signalled(1) for index in (0, 1)],
        [Log(0).agent_died(3, STORE), Log(1).start()],
        [Log(index).start().watchdog(600, 0).watchdog(600, 1).failed(601, 0, -6) for index in (0, 1)],
        [Log(0).trace(1, 0, OWN, prefix=False)],
    ]
    for logs in jobs:
        for proof in proofs(diagnosed(*logs)):
            assert proof.line_no is not None
            line = logs[int(proof.worker[-1])].lines[proof.line_no - 1]
            assert proof.text in line or proof.text.startswith("exitcode: ")


def test_the_cascade_is_folded_by_kind() -> None:
    (group,) = diagnosed(*culprit_and_victims()).cascade
    assert (group.count, group.ranks) == (3, (0, 1, 2))
    assert set(group.workers) == {"worker-0", "worker-1"}
    assert group.first is not None
    assert group.first.seconds == pytest.approx(1795196701.05, abs=0.01)


def test_the_cascade_has_at_most_ten_groups() -> None:
    """Fifteen kinds of later failures in addition to a culprit that was clearly first."""
    world = 2 * (len(DIFFERENT) + 1)
    first = Log(0, world=world).start().trace(1, 0, OWN).trace(1.1, 1, closed_by(0)).ended(1.3, 0, closed=(1,))
    others = [
        Log(index, world=world).start().trace(30 + index, 0, f"{name}: x").trace(30 + index, 1, closed_by(0))
        .ended(31 + index, 0, closed=(1,))
        for index, name in enumerate(DIFFERENT, 1)
    ]  # fmt: skip
    found = diagnosed(first, *others)
    assert found.root_causes[0].worker == "worker-0"
    assert len(found.cascade) == MAX_GROUPS + 1 == 10
    assert found.cascade[-1].reason == "other failures"
    assert sum(group.count for group in found.cascade) == world - 1
    times = [group.first.seconds for group in found.cascade[:-1] if group.first]
    assert times == sorted(times)


def test_no_culprit_stands_in_the_cascade() -> None:
    found = diagnosed(*culprit_and_victims())
    assert all(3 not in group.ranks for group in found.cascade)


def test_a_line_for_every_worker() -> None:
    logs = culprit_and_victims()
    found = diagnosed(*logs, Log(2, world=8).start(), unread(3), Log(4, world=8).agent_died(3, STORE))
    assert [(item.worker, item.part) for item in found.workers] == [
        ("worker-0", "victim"), ("worker-1", "initiator"), ("worker-2", "silent"), ("worker-3", "no log"),
        ("worker-4", "agent"),
    ]  # fmt: skip
    bad = found.workers[1]
    assert (bad.said, bad.processes, bad.failed, bad.rounds) == (OWN, 2, 2, 1)
    assert found.workers[2].said.endswith("step 2/300 loss 1.5")


def test_remarks_say_what_was_missing_or_odd() -> None:
    logs = culprit_and_victims()
    assert diagnosed(*logs).remarks == ()
    found = diagnosed(*logs, unread(2), expected=4, missing=("worker-3",))
    assert found.remarks == ("no log of 1 worker: worker-2", "never seen: worker-3")


def test_earlier_failures_stand_beside_a_later_round() -> None:
    log = Log(0, world=2).start().trace(1, 0, OWN).closing(1.1, 1).failed(1.2, 0).restarted()
    log.start(5).trace(9, 0, MESH).trace(9, 1, MESH).ended(9.3, 0, closed=(1,))
    found = diagnosed(log)
    assert found.verdict is not Verdict.NONE
    assert OWN in {cause.message for cause in (*found.root_causes, *found.earlier)}


@pytest.mark.parametrize(
    ("platform", "category", "said", "confidence"),
    [
        (PlatformState(signal=11), "native_crash", "was ended by SIGSEGV", "likely"),
        (PlatformState(signal=9), "killed", "was ended by SIGKILL", "likely"),
        (PlatformState(signal=15), "preemption", "was ended by SIGTERM", "guess"),
        (PlatformState(exit_code=137), "killed", "ended with exit code 137", "guess"),
        (PlatformState(exit_code=3), "explicit_exit", "ended with exit code 3", "guess"),
        (PlatformState(exit_code=1), "unknown_python_exit", "ended with exit code 1", "guess"),
        (None, "unknown_python_exit", "is Failed", "guess"),
    ],
)
def test_a_silent_log_has_the_end_that_the_platform_reports(
    platform: PlatformState | None, category: str, said: str, confidence: str
) -> None:
    log = Log(0).say(0, "step 1/300 loss 1.5").evidence(state=State.FAILED, platform=platform)
    found = diagnosed(log, Log(1).say(0, "step 1/300 loss 1.5").evidence(state=State.SUCCEEDED))
    assert culprit(found) == ("worker", "worker-0", None, confidence)
    (cause,) = found.root_causes
    assert (cause.category, cause.message) == (category, f"worker-0 {said}, and its log names no failure")


@pytest.mark.parametrize(("code", "seconds", "known"), [(1, 0.001, True), (1, 30, False), (3, 0.001, False)])
def test_an_exception_is_found_before_lines_of_the_other_pipe(code: int, seconds: float, known: bool) -> None:
    """Code 1 is that of an exception that nothing has handled."""
    steps = [f"step {number}/300 loss 1.4" for number in range(2, 60)]
    log = Log(0).say(0, "step 1/300 loss 1.5").trace(1, 0, OWN, prefix=False).say(1 + seconds, *steps)
    found = diagnosed(log.evidence(state=State.FAILED, platform=PlatformState(exit_code=code)))
    (cause,) = found.root_causes
    assert (cause.worker, cause.message == OWN, cause.traceback is not None) == ("worker-0", known, known)
