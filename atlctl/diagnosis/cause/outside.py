"""What the platform adds to an answer: a kill by the kernel, an eviction, a worker that never started."""

from __future__ import annotations

from dataclasses import replace

from atlctl.diagnosis.cause.scene import Scene
from atlctl.diagnosis.platform import Judgement, judge_event, judge_state
from atlctl.diagnosis.processes import WorkerRounds
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Proof, Verdict
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


def with_platform(scene: Scene, answer: Diagnosis) -> Diagnosis:
    """The answer with what the platform says of its workers; where the logs do not decide, what it says of others."""
    if answer.root_causes:
        return replace(answer, root_causes=tuple(_explained(scene, cause) for cause in answer.root_causes))
    told = [(worker, found) for worker in scene.workers if (found := _judgement(scene, worker)) is not None]
    proven = [(worker, found) for worker, found in told if found.certainty == "proves" or found.strong]
    if len(proven) == 1:
        worker, found = proven[0]
        return Diagnosis(Verdict.WORKER, (_cause(scene, worker, found.category, found.text, Confidence.LIKELY),))
    failed = [worker for worker in scene.workers if _failed(worker)]
    if answer.verdict is not Verdict.NONE or not failed:
        return answer
    causes = tuple(_cause(scene, worker, "explicit_exit", _ending(worker), Confidence.GUESS) for worker in failed[:16])
    return Diagnosis(Verdict.WORKER, causes) if len(causes) == 1 else Diagnosis(Verdict.UNDECIDED, candidates=causes)


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


def _cause(scene: Scene, worker: WorkerRounds, category: str, text: str, confidence: Confidence) -> Cause:
    log = worker.evidence.log
    last = [Proof(worker.worker, log.last_line, log.last_text)] if log and log.last_line else []
    why = "the logs do not decide it, the platform says so"
    return scene.worker_cause(worker.worker, category, text, confidence, why, extra=last)
