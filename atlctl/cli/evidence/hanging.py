"""`errors` on a job that still runs and whose logs name no failure: what its ranks are doing, as its own evidence."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from atlctl.cli import say
from atlctl.jobs.model import Job, State

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.diagnosis.evidence import JobEvidence
    from atlctl.diagnosis.result import Diagnosis

#: Seconds that the look may take.
SECONDS = 15.0


async def join(source: Backend, job: Job, found: Diagnosis, evidence: JobEvidence) -> Diagnosis:
    """`found` as it is where it has an answer or where nothing of the job runs, else with a look at its ranks."""
    from atlctl.diagnosis.result import Verdict

    if found.verdict not in (Verdict.NONE, Verdict.UNDECIDED):
        return found
    if not any(worker.state is State.RUNNING for worker in job.workers):
        return found
    from atlctl.cli.evidence.looking import scene_of
    from atlctl.diagnosis.hang.answer import joined
    from atlctl.jobs.naming import fold_names
    from atlctl.stacks.look import WINDOW, look

    say.note(f"the logs name no failure so far; looking for {WINDOW:g} s at what the ranks are doing")
    executor = source.executor(job)
    try:
        looks = await look(executor, job.workers, SECONDS, None)
    finally:
        await executor.aclose()
    unseen: dict[str, list[str]] = {}
    for item in looks:
        if item.error is not None and item.worker.state.active:
            unseen.setdefault(item.error.message, []).append(item.worker.name)
    remarks = [f"{fold_names(names)} could not be looked at: {why}" for why, names in unseen.items()]
    scene = scene_of(looks, job)
    if any(rank.report is not None for rank in scene.ranks):
        found = joined(found, scene, _quiet(evidence))
    elif not unseen:
        remarks.append(scene.why)
    return replace(found, remarks=(*found.remarks, *remarks))


def _quiet(evidence: JobEvidence) -> float | None:
    """Seconds since the last line of any log; None where no log has times of its own."""
    logs = [worker.log for worker in evidence.workers if worker.log is not None]
    times = [log.last.seconds for log in logs if log.last is not None and log.last.absolute]
    return time.time() - max(times) if times else None
