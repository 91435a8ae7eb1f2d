"""What stands around the root cause: the cascade folded by kind, a line for each worker, earlier rounds, remarks."""

from __future__ import annotations

from typing import Any

from atlctl.diagnosis.cause.scene import Round, Scene, proofs
from atlctl.diagnosis.failures import Failure, Part
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Followed, Proof, Verdict, WorkerReport

#: Groups of the cascade; what is more is one last group.
MAX_GROUPS = 9
_MAX_EARLIER = 32


def tell_story(scene: Scene, number: int, answer: Diagnosis) -> dict[str, Any]:
    """The fields of a Diagnosis that stand around its causes."""
    return {
        "cascade": _cascade(scene, number, answer),
        "workers": tuple(_worker(scene, index) for index in range(len(scene.workers))),
        "earlier": _earlier(scene, number, answer),
        "remarks": _remarks(scene, number),
    }


def _cascade(scene: Scene, number: int, answer: Diagnosis) -> tuple[Followed, ...]:
    this = Round.of(scene, number)
    blamed = {(cause.worker, cause.rank, cause.local_rank) for cause in (*answer.root_causes, *answer.candidates)}
    groups: dict[str, list[Failure]] = {}
    if answer.verdict is Verdict.JOB:
        return ()
    for item in this.failures:
        if item.part is Part.SILENT or (item.worker, item.rank, item.local_rank) in blamed:
            continue
        groups.setdefault(_reason(item), []).append(item)
    for end in this.final_ends:
        if end.signal is None:
            groups.setdefault("agents that lost the rendezvous", [])
    made = [_group(scene, reason, items) for reason, items in groups.items() if items]
    agents = [end for end in this.final_ends if end.signal is None]
    if agents:
        first = agents[0]
        made.append(
            Followed(
                "torchrun itself ended: the rendezvous or its store was gone",
                len(agents),
                tuple(dict.fromkeys(end.worker for end in agents)),
                (),
                scene.clocks.when(first.worker, first.time),
                Proof(first.worker, first.line_no, first.text),
            )
        )
    made.sort(key=lambda group: (group.first is None, group.first.seconds if group.first else 0.0))
    if len(made) <= MAX_GROUPS:
        return tuple(made)
    rest = made[MAX_GROUPS:]
    workers = dict.fromkeys(name for group in rest for name in group.workers)
    ranks = sorted({rank for group in rest for rank in group.ranks})
    count = sum(group.count for group in rest)
    return (
        *made[:MAX_GROUPS],
        Followed("other failures", count, tuple(workers), tuple(ranks), rest[0].first, rest[0].proof),
    )


def _reason(item: Failure) -> str:
    if item.part is Part.ENDED:
        return (
            "ended by its own agent (SIGTERM)" if item.process.forced is None else "killed by its own agent (SIGKILL)"
        )
    if item.reason:
        return item.reason
    if item.exception:
        return f"a later failure: {item.exception}"
    return f"ended by {item.signal}" if item.signal else f"exit code {item.exit_code}"


def _group(scene: Scene, reason: str, items: list[Failure]) -> Followed:
    timed = sorted(
        ((when, item) for item in items if (when := scene.when(item)) is not None), key=lambda pair: pair[0].seconds
    )
    first = timed[0] if timed else None
    shown = first[1] if first else items[0]
    found = proofs(shown)
    return Followed(
        reason,
        len(items),
        tuple(dict.fromkeys(item.worker for item in items)),
        tuple(sorted({item.rank for item in items if item.rank is not None})),
        first[0] if first else None,
        found[0] if found else None,
    )


def _worker(scene: Scene, index: int) -> WorkerReport:
    worker = scene.workers[index]
    log = worker.evidence.log
    mine = [item for item in scene.failures if item.worker == worker.worker]
    told = [item for item in mine if item.part is not Part.SILENT]
    timed = [(when, item) for item in told if (when := scene.when(item)) is not None]
    first = min(timed, key=lambda pair: pair[0].seconds, default=None)
    skew = scene.clocks.skew.get(worker.worker)
    processes = len({item.key for item in mine})
    failed = len({item.key for item in told})
    if first is None and told:
        shown: Failure | None = told[0]
    else:
        shown = first[1] if first else None
    if shown is not None:
        found = proofs(shown)
        return WorkerReport(
            worker.worker, worker.evidence.index, str(shown.part), shown.message or _reason(shown),
            first[0] if first else None, processes, failed, worker.rounds.count, found[0] if found else None, skew,
        )  # fmt: skip
    if worker.ends:
        end = worker.ends[0]
        return WorkerReport(
            worker.worker, worker.evidence.index, "agent", end.text, scene.clocks.when(worker.worker, end.time),
            processes, failed, worker.rounds.count, Proof(worker.worker, end.line_no, end.text), skew,
        )  # fmt: skip
    if log is None:
        return WorkerReport(worker.worker, worker.evidence.index, "no log", "", None, processes, 0, 0, None, skew)
    proof = Proof(worker.worker, log.last_line, log.last_text) if log.last_line else None
    when = scene.clocks.when(worker.worker, log.last)
    return WorkerReport(
        worker.worker,
        worker.evidence.index,
        "silent",
        log.last_text,
        when,
        processes,
        0,
        worker.rounds.count,
        proof,
        skew,
    )


def _earlier(scene: Scene, number: int, answer: Diagnosis) -> tuple[Cause, ...]:
    """Initiators of other rounds than the one that decided."""
    found = [
        scene.cause(item, Confidence.LIKELY, "failed in another round; the job was restarted since")
        for item in scene.failures
        if item.part is Part.INITIATOR
        and item.strength
        and (item.process.round < number or answer.verdict is Verdict.NONE)
    ]
    return tuple(found[:_MAX_EARLIER])


def _remarks(scene: Scene, number: int) -> tuple[str, ...]:
    found = []
    unread = [worker.worker for worker in scene.workers if worker.evidence.log is None]
    if unread:
        found.append(f"no log of {len(unread)} worker{'s' if len(unread) > 1 else ''}: {', '.join(unread[:5])}")
    if scene.job.missing:
        found.append(f"never seen: {', '.join(scene.job.missing[:5])}")
    skewed = {name: skew for name, skew in scene.clocks.skew.items() if abs(skew) >= 1}
    if skewed:
        shown = ", ".join(f"{name} {skew:+.1f} s" for name, skew in list(skewed.items())[:5])
        found.append(f"clocks differ and were set right: {shown}")
    if scene.last_round > number:
        found.append(f"the job was restarted; what came after round {number} only followed")
    return tuple(found)
