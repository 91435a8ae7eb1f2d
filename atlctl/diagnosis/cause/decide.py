"""The root cause of a job: which round decides, and which of the ways to fail explains it."""

from __future__ import annotations

from dataclasses import replace

from atlctl.diagnosis.cause import progress
from atlctl.diagnosis.cause.agents import find_rendezvous, find_signals
from atlctl.diagnosis.cause.initiators import find_initiators
from atlctl.diagnosis.cause.missing import find_missing
from atlctl.diagnosis.cause.outside import with_platform
from atlctl.diagnosis.cause.raw import find_loose, reported_deaths
from atlctl.diagnosis.cause.scene import Round, Scene, build
from atlctl.diagnosis.cause.story import tell_story
from atlctl.diagnosis.consequence import Sort
from atlctl.diagnosis.evidence import JobEvidence
from atlctl.diagnosis.failures import Part
from atlctl.diagnosis.result import Diagnosis, Verdict
from atlctl.diagnosis.signatures.match import Matcher

#: What a restart that cannot come up again says: it reads what the round before left behind.
_STALE = (Sort.MESH, Sort.STORE_LEFT)


def diagnose(job: JobEvidence, matcher: Matcher) -> Diagnosis:
    """What failed first in the whole job. Never raises on any evidence."""
    scene = build(job, matcher)
    number, answer = _decide(scene)
    if answer.verdict is Verdict.NONE:
        answer = reported_deaths(scene) or answer
    answer = with_platform(scene, answer)
    return replace(answer, **tell_story(scene, number, answer))


def _decide(scene: Scene) -> tuple[int, Diagnosis]:
    """The deciding round and its answer: the last one that is not only the follow-up of an earlier one."""
    skipped: tuple[int, Diagnosis] | None = None
    for number in range(scene.last_round, -1, -1):
        this = Round.of(scene, number)
        answer = _answer(this)
        if answer is None:
            if number == scene.last_round and not _unfinished(this):
                return number, Diagnosis(Verdict.NONE)
            continue
        if number > 0 and _only_follows(this):
            skipped = skipped or (number, answer)
            continue
        if answer.verdict is Verdict.UNDECIDED and skipped is not None:
            return skipped
        return number, answer
    return skipped or (scene.last_round, Diagnosis(Verdict.NONE))


def _answer(this: Round) -> Diagnosis | None:
    return (
        find_signals(this)
        or find_initiators(this)
        or (find_rendezvous(this) if not this.victims else None)
        or find_missing(this)
        or find_rendezvous(this)
        or progress.named(this)
        or find_loose(this)
    )


def _only_follows(this: Round) -> bool:
    """Whether all that failed in this round is that the job did not come up again after the one before."""
    if this.initiators or any(end.signal for end in this.final_ends):
        return False
    # Who waits for a worker whose log just ends waits for that worker.
    sorts = _STALE if this.silent_workers() else (*_STALE, Sort.STORE_WAITED)
    return bool(this.victims) and all(item.sort in sorts for item in this.victims)


def _unfinished(this: Round) -> bool:
    """Whether this round says nothing because it was cut off: other workers ended in it, or nobody lived in it."""
    if any(item.part is not Part.SILENT for item in this.failures):
        return True
    if any(item.process.seen for item in this.failures) or _came_up(this):
        return False
    ended_before = any(worker.rounds.final and worker.rounds.count - 1 < this.number for worker in this.scene.workers)
    return ended_before or this.number > 0


def _came_up(this: Round) -> bool:
    """Whether the training went on in any worker behind the end of the round before. Other lines prove nothing."""
    return any(
        log.last_activity > worker.rounds.ends[-1]
        for worker in this.scene.workers
        if (log := worker.evidence.log) and worker.rounds.ends and not worker.rounds.final
    )
