"""The plan of a stop where a supervisor ends the processes, and how it is carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from atlctl.backends.base import Plan, StopRequest, StopResult
from atlctl.jobs.errors import UsageError
from atlctl.jobs.model import Job, Worker
from atlctl.jobs.naming import fold_names


def plan_stop(job: Job, workers: Sequence[Worker], request: StopRequest, remove: str) -> Plan:
    """`remove`: the command that removes what is left of a job. Raises UsageError for what only clusters have."""
    for asked, option in ((request.delete, "--delete"), (request.keep, "--keep-pods")):
        if asked:
            raise UsageError(f"{option} is for jobs of a cluster", f"atlctl stop {job.name}")
    running = tuple(worker for worker in workers if worker.state.active)
    if not running:
        return Plan(job, (), "signal", nothing=f"job {job.name} is {job.state}")
    kept = f"logs and exit codes, until '{remove} {job.name}'; not reversible: the processes are gone"
    how = f"SIGTERM to each worker's process group, after {request.grace:g} s SIGKILL to all that is left of it"
    who = f"{fold_names(worker.name for worker in running)} ({len(running)} of {job.expected})"
    facts = (("workers", who), ("how", how), ("kept", kept))
    return Plan(job, running, "signal", facts, ends_terminal=True, steps=request.grace)


async def carry_out(
    plan: Plan, timeout: float, stop: Callable[[Job, Sequence[Worker], float], Awaitable[list[StopResult]]]
) -> list[StopResult]:
    """Do what `plan_stop` has planned, by `stop`, within `timeout` seconds."""
    assert isinstance(plan.steps, float), "a plan of this module"
    try:
        return await asyncio.wait_for(stop(plan.job, plan.workers, plan.steps), timeout)
    except TimeoutError:
        late = f"not ended after {timeout:g} s"
        return [StopResult(worker.name, "not-stopped", reason=late) for worker in plan.workers]
