"""Which of several own failures came first, and when that cannot be known."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.cause.order import first_of
from atlctl.diagnosis.cause.scene import Scene, build
from atlctl.diagnosis.evidence import JobEvidence
from atlctl.diagnosis.failures import Part
from atlctl.diagnosis.result import Verdict

from .logs import Log, candidates, closed_by, culprit, diagnosed, matcher

ERRORS = ("KeyError: 'lr'", "ValueError: bad magic in shard 3", "TypeError: unhashable")


def failing(index: int, at: float, *, trained: bool = True, **options: object) -> Log:
    """A worker in which local rank 0 raises an error that no other worker has."""
    log = Log(index, **options)  # type: ignore[arg-type]
    if trained:
        log.start()
    log.trace(at, 0, ERRORS[index]).trace(at + 0.05, 1, closed_by(index))
    return log.ended(at + 0.4, 0, closed=(1,))


def scene_of(*logs: Log) -> Scene:
    return build(JobEvidence(tuple(log.evidence() for log in logs)), matcher())


def tie_of(*logs: Log) -> str:
    scene = scene_of(*logs)
    return first_of(scene, [item for item in scene.failures if item.part is Part.INITIATOR]).tie


def test_the_earlier_one_where_clocks_were_compared() -> None:
    """Both workers print their steps, at the same moments: their clocks agree."""
    found = diagnosed(failing(0, 1.5), failing(1, 1.0))
    assert culprit(found) == ("rank", "worker-1", 0, "likely")
    assert "0.5 s before the next" in found.root_causes[0].why


@pytest.mark.parametrize("ahead", [-5.0, 5.0, 120.0])
def test_clocks_that_differ_are_set_right(ahead: float) -> None:
    """Worker 1 was first, whatever its clock says."""
    found = diagnosed(failing(0, 1.6), failing(1, 1.0, ahead=ahead))
    assert culprit(found)[:3] == ("rank", "worker-1", 0)
    assert found.remarks == (f"clocks differ and were set right: worker-1 {ahead:+.1f} s",)


def test_nearer_than_a_collective_can_pass_on_is_at_once() -> None:
    assert tie_of(failing(0, 1.0), failing(1, 1.05)) == "at_once"
    assert tie_of(failing(0, 1.0), failing(1, 1.08)) == ""


def test_clocks_that_nobody_compared_leave_it_open() -> None:
    """Both failed of their own: two culprits, and no order between them."""
    found = diagnosed(failing(0, 1.0, trained=False), failing(1, 6.0, trained=False))
    assert found.verdict is Verdict.RANKS
    assert {str(cause.confidence) for cause in found.root_causes} == {"guess"}
    assert "clocks cannot be compared" in found.root_causes[0].why


def test_clocks_are_not_wrong_by_a_minute() -> None:
    found = diagnosed(failing(0, 60.0, trained=False), failing(1, 1.0, trained=False))
    assert culprit(found)[:3] == ("rank", "worker-1", 0)


def test_the_same_second_is_undecided() -> None:
    """Summaries have whole seconds, and old versions print nothing else."""
    logs = []
    for index in (0, 1):
        log = Log(index, stamped=False).start().trace(1 + index / 2, 0, ERRORS[index])
        logs.append(log.summary(2, (0, 1, ERRORS[index]), (1, -15, "")))
    found = diagnosed(*logs)
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-0", 0), ("worker-1", 0)]
    assert "within the same second" in found.candidates[0].why


def test_milliseconds_of_the_agents_notice_decide_where_clocks_agree() -> None:
    found = diagnosed(failing(0, 1.5, stamped=False), failing(1, 1.0, stamped=False))
    assert culprit(found)[:3] == ("rank", "worker-1", 0)


def test_in_one_log_the_order_of_words_decides() -> None:
    log = Log(0, stamped=False).start().trace(1, 1, ERRORS[0]).trace(1, 0, ERRORS[1]).ended(1.4, 0, closed=(1,))
    found = diagnosed(log)
    assert culprit(found) == ("rank", "worker-0", 1, "likely")
    assert "its words stand first in the log" in found.root_causes[0].why


def test_one_failure_has_no_rival() -> None:
    scene = scene_of(failing(0, 1.0))
    only = [item for item in scene.failures if item.part is Part.INITIATOR]
    first = first_of(scene, only)
    assert (first.leaders, first.margin, first.tie) == ((only[0],), None, "")
