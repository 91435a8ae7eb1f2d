"""All of a job on one table."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.cause.scene import Round, Scene, build, name_process, proofs
from atlctl.diagnosis.evidence import JobEvidence
from atlctl.diagnosis.failures import Part
from atlctl.diagnosis.processes import Process
from atlctl.diagnosis.result import Confidence, Proof
from tests.unit.diagnosis.samples import record

from .logs import OWN, Log, closed_by, error_files, matcher, unread, victim


def scene_of(*workers: object) -> Scene:
    return build(JobEvidence(tuple(item.evidence() if isinstance(item, Log) else item for item in workers)), matcher())  # type: ignore[misc]


def failing() -> Log:
    return Log(1).start().trace(1.0, 1, OWN).trace(1.05, 0, closed_by(1)).ended(1.4, 1, closed=(0,))


def test_every_process_is_judged_once() -> None:
    scene = scene_of(victim(0, of=1), failing())
    assert [(item.worker, item.rank, item.part) for item in scene.failures] == [
        ("worker-0", 0, Part.VICTIM), ("worker-0", 1, Part.VICTIM),
        ("worker-1", 2, Part.VICTIM), ("worker-1", 3, Part.INITIATOR),
    ]  # fmt: skip


def test_rounds_of_a_scene() -> None:
    log = failing().restarted().start(5)
    scene = scene_of(log)
    assert scene.last_round >= 0
    this = Round.of(scene, 0)
    assert [item.rank for item in this.initiators] == [3]
    assert Round.of(scene, 7).failures == []


def test_workers_that_say_nothing_of_an_end() -> None:
    scene = scene_of(victim(0, of=1), Log(1).start(), Log(2), unread(3))
    assert [worker.worker for worker in Round.of(scene, 0).silent_workers()] == ["worker-1", "worker-2"]


def test_proofs_are_words_then_torchruns_report_then_the_error_file() -> None:
    files = error_files(1, {(0, 1): record(OWN, time=1795196701)})
    scene = scene_of(failing().evidence(error_files=files))
    (item,) = Round.of(scene, 0).initiators
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
    """A rule names victims as proofs, and one of them may be what it is about."""
    scene = scene_of(failing())
    (item,) = Round.of(scene, 0).initiators
    own = proofs(item)
    other = Proof("worker-0", own[0].line_no, "the same line of another log")
    platform = [Proof("worker-1", None, text) for text in ("OOMKilled", "node lost")]
    found = scene.cause(item, Confidence.LIKELY, "x", extra=[own[0], other, *platform, own[0], platform[0]]).proofs
    assert sorted(found, key=str) == sorted([*own, other, *platform], key=str)


def test_proofs_stay_in_their_order() -> None:
    scene = scene_of(failing())
    (item,) = Round.of(scene, 0).initiators
    own, other = proofs(item), Proof("worker-0", 3, "a victim")
    assert scene.cause(item, Confidence.LIKELY, "x", extra=[other, own[0]]).proofs == (*own, other)
