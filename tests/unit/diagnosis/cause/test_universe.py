"""Who should be there."""

from __future__ import annotations

from atlctl.diagnosis.cause.scene import Round, build
from atlctl.diagnosis.cause.universe import gaps, place_unheard, universe
from atlctl.diagnosis.evidence import JobEvidence

from .logs import Log, closed_by, matcher, victim


def round_of(*logs: Log) -> Round:
    return Round.of(build(JobEvidence(tuple(log.evidence() for log in logs)), matcher()), 0)


def test_all_ranks_are_heard() -> None:
    found = universe(round_of(victim(0), Log(1).start()))
    assert (found.world, sorted(found.known), found.unheard, found.complete) == (4, [0, 1, 2, 3], (), True)


def test_a_rank_that_nobody_heard() -> None:
    this = round_of(victim(0), Log(1).start(named=(0,)))
    found = universe(this)
    assert (found.unheard, found.complete) == ((3,), False)
    place = place_unheard(this, 3)
    assert place is not None
    assert (place.worker, place.rank, place.local_rank) == ("worker-1", 3, 1)


def test_a_rank_of_a_worker_that_is_not_there_has_no_place() -> None:
    assert place_unheard(round_of(victim(0, world=6), victim(1, world=6)), 5) is None


def test_without_a_worlds_size_nothing_is_complete() -> None:
    log = Log(0).trace(1, 0, closed_by(1)).ended(1.3, 0)
    found = universe(round_of(log))
    assert (found.world, found.unheard, found.complete) == (None, (), False)


def test_a_worlds_size_that_cannot_be_is_not_believed() -> None:
    found = universe(round_of(Log(0, world=2).start(), Log(1, world=2).start()))
    assert found.world is None


def test_local_ranks_that_must_be_there() -> None:
    """Two workers have two processes each: the third must have a second one as well."""
    this = round_of(victim(0, world=6), victim(1, world=6), Log(2, world=6).start(named=(0,)))
    assert [(item.worker, item.rank, item.local_rank) for item in gaps(this)] == [("worker-2", 5, 1)]
    assert gaps(round_of(victim(0), victim(1))) == []
