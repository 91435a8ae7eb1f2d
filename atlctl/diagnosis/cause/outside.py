"""What the platform adds to an answer: a kill by the kernel, an eviction, a worker that never started."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from atlctl.diagnosis.cause.scene import Scene
from atlctl.diagnosis.failures import Part
from atlctl.diagnosis.platform import Event, Judgement, PlatformState, judge_event, judge_state
from atlctl.diagnosis.processes import WorkerRounds
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Proof, Verdict
from atlctl.jobs import podnews
from atlctl.jobs.model import State

#: Categories that say how a process ended and not why: the platform may know better.
_OPEN = frozenset(
    {
        "killed",
        "terminated",
        "oom_kill",
        "node_lost",
        "network_lost",
        "unknown_python_exit",
        "rendezvous_timeout",
        "preemption",
    }
)
_BAD = (State.FAILED, State.HELD, State.LOST)
#: Categories that say no more than that a worker is gone.
_GONE = frozenset({"node_lost", "network_lost", "rendezvous_timeout"})
#: What the kubelet says when a container is stopped; a failed probe has other words.
_STOPPING = "Stopping container"
#: Exit codes of SIGKILL and SIGTERM.
_OF_DELETION = (137, 143)
_FIRST = "it is the first that ended, by the states and events of the job"
_PLATFORM_SAYS = "the logs do not decide it, the platform says so"


def with_platform(scene: Scene, answer: Diagnosis) -> Diagnosis:
    """The answer with what the platform says of its workers; where the logs do not decide, what it says of others."""
    if (first := _first_gone(scene)) is not None and _leaves_open(scene, answer, first):
        return Diagnosis(Verdict.WORKER, (first,))
    if answer.root_causes:
        return replace(answer, root_causes=tuple(_explained(scene, cause) for cause in answer.root_causes))
    told = [(worker, found) for worker in scene.workers if (found := _judgement(scene, worker)) is not None]
    proven = [(worker, found) for worker, found in told if found.certainty == "proves" or found.strong]
    if len(proven) == 1:
        worker, found = proven[0]
        cause = _cause(scene, worker.worker, found.category, found.text, Confidence.LIKELY)
        return Diagnosis(Verdict.WORKER, (cause,))
    failed = [worker for worker in scene.workers if _failed(worker)]
    if answer.verdict is not Verdict.NONE or not failed:
        return answer
    causes = tuple(
        _cause(scene, worker.worker, "explicit_exit", _ending(worker), Confidence.GUESS) for worker in failed[:16]
    )
    return Diagnosis(Verdict.WORKER, causes) if len(causes) == 1 else Diagnosis(Verdict.UNDECIDED, candidates=causes)


@dataclass(frozen=True, slots=True)
class _End:
    """When a worker's container ended, in seconds since the epoch, and how. `event`: the words of the event, if any."""

    worker: str
    time: float
    code: int
    event: str = ""


def _first_gone(scene: Scene) -> Cause | None:
    """The worker that ended or was stopped before a controller deleted the others; None if events do not show one."""
    deleted = scene.job.deleted
    stopped = {
        event.worker: event
        for event in reversed(scene.job.events)
        if event.kind == "Pod" and event.reason == "Killing" and event.message.startswith(_STOPPING) and event.worker
    }
    if not deleted and not stopped:
        return None
    ends = [end for end in _ends(scene) if not _by_deletion(end, deleted)]
    first = min((end.time for end in ends), default=math.inf)
    known = {worker.worker for worker in scene.workers}  # pods of earlier attempts have names that no worker has
    outside = [
        event
        for name, event in stopped.items()
        if name in known and name not in deleted and (event.first or math.inf) < first
    ]
    if len(outside) == 1 and (deleted or ends):
        return _stopped(scene, outside[0])
    firsts = [end for end in ends if end.time == first]
    return _exited(scene, firsts[0]) if len(firsts) == 1 and not outside else None


def _ends(scene: Scene) -> list[_End]:
    """Ends with an exit code other than 0: of containers as they are known last, else as events report them first."""
    found: dict[str, _End] = {}
    for event in scene.job.events:
        news = podnews.read(event.reason, event.message)
        if news is not None and news.code and event.worker and event.first is not None:
            found.setdefault(event.worker, _End(event.worker, event.first, news.code, event.message))
    for worker in scene.workers:
        state = worker.evidence.platform
        if state is not None and state.exit_code and state.finished is not None:
            found.setdefault(worker.worker, _End(worker.worker, state.finished, state.exit_code))
    return list(found.values())


def _by_deletion(end: _End, deleted: Mapping[str, float]) -> bool:
    """Whether a container ended since its pod was deleted. Times are of whole seconds: the code decides within one."""
    at = deleted.get(end.worker, math.inf)
    return end.time > at or (end.time == at and end.code in _OF_DELETION)


def _exited(scene: Scene, end: _End) -> Cause:
    judged = judge_state(PlatformState(exit_code=end.code))
    text = f"{end.worker} ended with exit code {end.code}, before the job's controller deleted the other pods"
    cause = _cause(scene, end.worker, judged.category if judged else "explicit_exit", text, Confidence.LIKELY, _FIRST)
    proofs = (*cause.proofs, *([Proof(end.worker, None, end.event)] if end.event else ()))
    return replace(cause, exit_code=end.code, proofs=proofs)


def _stopped(scene: Scene, event: Event) -> Cause:
    name = event.worker or ""
    text = f"{name} was stopped from outside (its pod was deleted or evicted) before any other worker ended"
    cause = _cause(scene, name, "preemption", text, Confidence.LIKELY, _FIRST)
    return replace(cause, proofs=(*cause.proofs, Proof(name, None, f"{event.reason}: {event.message}")))


def _leaves_open(scene: Scene, answer: Diagnosis, first: Cause) -> bool:
    """Whether the logs say no more than that others were gone, and do not call the first one a victim."""
    if any(cause.category not in _GONE for cause in answer.root_causes):
        return False
    victims = {item.worker for item in scene.failures if item.part is Part.VICTIM}
    return first.category == "preemption" or first.worker not in victims


def _judgement(scene: Scene, worker: WorkerRounds) -> Judgement | None:
    """The strongest statement about a worker: of its state, or of events about it or its node."""
    platform = worker.evidence.platform
    found = [judge_state(platform)] if platform else []
    for event in scene.job.events:
        about_node = event.worker is None and platform is not None and event.node == platform.node is not None
        if event.worker == worker.worker or about_node:
            found.append(judge_event(event))
    said = [item for item in found if item is not None]
    return max(said, key=lambda item: (item.certainty == "proves", item.strong), default=None)


def _explained(scene: Scene, cause: Cause) -> Cause:
    worker = next((item for item in scene.workers if item.worker == cause.worker), None)
    if worker is None or cause.category not in _OPEN or (found := _judgement(scene, worker)) is None:
        return cause
    sure = found.certainty == "proves" and cause.rank is None
    return replace(
        cause,
        category=found.category,
        why=f"{cause.why}; the platform says: {found.text}",
        confidence=Confidence.CERTAIN if sure else cause.confidence,
        proofs=(*cause.proofs, Proof(worker.worker, None, found.text)),
    )


def _failed(worker: WorkerRounds) -> bool:
    platform = worker.evidence.platform
    return worker.evidence.state in _BAD or bool(platform and platform.exit_code)


def _ending(worker: WorkerRounds) -> str:
    platform = worker.evidence.platform
    if platform and platform.exit_code:
        return f"{worker.worker} ended with exit code {platform.exit_code}, and its log names no failure"
    return f"{worker.worker} is {worker.evidence.state}, and its log names no failure"


def _cause(
    scene: Scene, name: str, category: str, text: str, confidence: Confidence, why: str = _PLATFORM_SAYS
) -> Cause:
    worker = next((item for item in scene.workers if item.worker == name), None)
    log = worker.evidence.log if worker else None
    last = [Proof(name, log.last_line, log.last_text)] if log and log.last_line else []
    return scene.worker_cause(name, category, text, confidence, why, extra=last)
