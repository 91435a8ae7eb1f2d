"""A diagnosed job, its rounds, and the expected ranks."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.cause.rounds import (
    JudgedJob,
    Round,
    build,
    gaps,
    name_process,
    place_unheard,
    proofs,
    rank_of_the_mute,
    universe,
)
from atlctl.diagnosis.evidence import JobEvidence
from atlctl.diagnosis.failures import Part
from atlctl.diagnosis.joining import Process
from atlctl.diagnosis.result import Confidence, Proof
from tests.unit.diagnosis.samples import record

from .logs import OWN, Log, closed_by, error_files, matcher, unread, victim


def judged(*workers: object) -> JudgedJob:
    return build(JobEvidence(tuple(item.evidence() if isinstance(item, Log) else item for item in workers)), matcher())  # type: ignore[misc]


def failing() -> Log:
    return Log(1).start().trace(1.0, 1, OWN).trace(1.05, 0, closed_by(1)).ended(1.4, 1, closed=(0,))


def test_every_process_is_judged_once() -> None:
    job = judged(victim(0, of=1), failing())
    assert [(item.worker, item.rank, item.part) for item in job.failures] == [
        ("worker-0", 0, Part.VICTIM), ("worker-0", 1, Part.VICTIM),
        ("worker-1", 2, Part.VICTIM), ("worker-1", 3, Part.INITIATOR),
    ]  # fmt: skip


def test_rounds_of_a_job() -> None:
    log = failing().restarted().start(5)
    job = judged(log)
    assert job.last_round >= 0
    this = Round.of(job, 0)
    assert [item.rank for item in this.initiators] == [3]
    assert Round.of(job, 7).failures == []


def test_workers_that_say_nothing_of_an_end() -> None:
    job = judged(victim(0, of=1), Log(1).start(), Log(2), unread(3))
    assert [worker.worker for worker in Round.of(job, 0).silent_workers()] == ["worker-1", "worker-2"]


def test_proofs_are_words_then_torchruns_report_then_the_error_file() -> None:
    files = error_files(1, {(0, 1): record(OWN, time=1795196701)})
    job = judged(failing().evidence(error_files=files))
    (item,) = Round.of(job, 0).initiators
    words, report, file = proofs(item)
    assert (words.text, words.file) == (OWN, None)
    assert "failed (exitcode: 1) local_rank: 1" in report.text
    assert (file.line_no, file.file, file.text) == (None, next(iter(files)), OWN)


@pytest.mark.parametrize(
    ("process", "name"),
    [
        (Process("w", 0, 0, rank=3, local_rank=1), "rank 3 (local rank 1)"),
        (Process("w", 0, 0, rank=3), "rank 3"),
        (Process("w", 0, 0, local_rank=1), "local rank 1"),
        (Process("w", 0, 0, pid=12), "process 12"),
    ],
)
def test_names(process: Process, name: str) -> None:
    assert name_process(process) == name


def test_each_proof_of_a_cause_stands_once() -> None:
    """A rule names victims as proofs, and one of them may be the subject itself."""
    job = judged(failing())
    (item,) = Round.of(job, 0).initiators
    own = proofs(item)
    other = Proof("worker-0", own[0].line_no, "the same line of another log")
    platform = [Proof("worker-1", None, text) for text in ("OOMKilled", "node lost")]
    found = job.cause(item, Confidence.LIKELY, "x", extra=[own[0], other, *platform, own[0], platform[0]]).proofs
    assert sorted(found, key=str) == sorted([*own, other, *platform], key=str)


def test_proofs_stay_in_their_order() -> None:
    job = judged(failing())
    (item,) = Round.of(job, 0).initiators
    own, other = proofs(item), Proof("worker-0", 3, "a victim")
    assert job.cause(item, Confidence.LIKELY, "x", extra=[other, own[0]]).proofs == (*own, other)


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
    """Two workers have two processes each: the third one must also have a second process."""
    this = round_of(victim(0, world=6), victim(1, world=6), Log(2, world=6).start(named=(0,)))
    assert [(item.worker, item.rank, item.local_rank) for item in gaps(this)] == [("worker-2", 5, 1)]
    assert gaps(round_of(victim(0), victim(1))) == []


def missing_in(*sizes: int) -> list[tuple[str, int | None]]:
    """Worker and local rank of the missing processes, if worker N has `sizes[N]` processes."""
    logs = []
    for index, size in enumerate(sizes):
        log = Log(index, processes=size)
        for local in range(size):
            log.trace(1, local, closed_by(0))
        logs.append(log.ended(1.3, 0, closed=range(1, size)))
    return [(item.worker, item.local_rank) for item in gaps(round_of(*logs))]


def test_two_workers_of_different_sizes_lack_what_the_larger_one_has() -> None:
    assert missing_in(1, 2) == [("worker-0", 1)]
    assert missing_in(3, 1) == [("worker-1", 1), ("worker-1", 2)]


def test_workers_that_agree_outvote_a_larger_one() -> None:
    """The larger one may be a node with more GPUs."""
    assert missing_in(1, 1, 2) == []
    assert missing_in(1, 2, 2) == [("worker-0", 1)]


def test_workers_of_one_size_lack_nothing() -> None:
    assert missing_in(2) == missing_in(1, 1) == missing_in(2, 2) == []


def one(index: int, rank: int) -> Log:
    """A worker with one process, of rank `rank`, which lost its connection."""
    return Log(index).say(1, f"[rank{rank}]: Traceback (most recent call last):", f"[rank{rank}]: {closed_by(1)}")


def test_the_rank_of_a_worker_of_which_no_process_was_heard() -> None:
    """Workers are not always in the order of their ranks."""
    assert rank_of_the_mute(round_of(one(0, 0), Log(1).say(0, "x"), one(2, 2)), "worker-1") == 1
    assert rank_of_the_mute(round_of(one(0, 2), Log(1).say(0, "x"), one(2, 1)), "worker-1") == 0


def test_a_mute_worker_has_no_rank_where_the_others_do_not_leave_one_over() -> None:
    for others in (
        [one(0, 0), one(2, 5)],  # other ranks are missing as well
        [one(0, 0), Log(2).say(0, "x")],  # another one has no logs
        [one(0, 0).say(1, *one(0, 1).lines), one(2, 2)],  # a worker has two
    ):
        logs = [others[0], Log(1).say(0, "x"), others[1]]
        assert rank_of_the_mute(round_of(*logs), "worker-1") is None
