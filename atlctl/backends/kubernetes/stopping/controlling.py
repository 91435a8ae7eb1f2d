"""Plans and carries out: what the backend hands on of `Controller`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from atlctl.backends.base import Executor, Plan, StopRequest, StopResult
from atlctl.backends.kubernetes import inventory
from atlctl.backends.kubernetes.api import Api
from atlctl.backends.kubernetes.discovery import Served
from atlctl.backends.kubernetes.inventory import Found
from atlctl.backends.kubernetes.kinds import fields
from atlctl.backends.kubernetes.stopping import apply, plan, processes, waiting
from atlctl.backends.kubernetes.stopping.plan import Steps, World
from atlctl.jobs.errors import TimedOut
from atlctl.jobs.model import Job, Worker

#: Seconds that a stop is waited for where nobody says how long.
TIMEOUT = 120.0


class Source(Protocol):
    """What is needed of the backend."""

    async def api(self) -> Api: ...

    async def served(self) -> Served: ...

    def executor(self, job: Job) -> Executor: ...

    def options(self) -> tuple[str, ...]: ...


async def plan_stop(source: Source, found: Found, workers: Sequence[Worker], request: StopRequest) -> Plan:
    """See `Controller.plan_stop`."""
    return plan.stop(found, await _world(source, found), workers, request)


async def plan_resume(source: Source, found: Found) -> Plan:
    """See `Controller.plan_resume`."""
    return plan.resume(found, await _world(source, found))


async def _world(source: Source, found: Found) -> World:
    api, served = await source.api(), await source.served()
    workloads, _, problems = await inventory.queues(api, found, served)
    namespace = found.job.namespace or api.namespace
    place = f"context {api.context}, " if api.context else ""
    options = source.options()
    if "--namespace" not in options:
        options = (*options, "--namespace", namespace)
    if api.context and "--context" not in options:
        options = (*options, "--context", api.context)
    return World(served, workloads, problems, f"{place}namespace {namespace}, {api.server}", options, time.time())


async def check(source: Source, agreed: Plan) -> None:
    """Asks the server for a dry run of every write."""
    steps = _steps(agreed)
    if steps is not None:
        await apply.send(await source.api(), steps.writes, dry_run=True)


async def carry_out(source: Source, agreed: Plan, timeout: float, told: Callable[[str], None]) -> Sequence[StopResult]:
    """See `Controller.carry_out`."""
    steps = _steps(agreed)
    if steps is None:
        return []
    api = await source.api()
    if steps.goal == "processes":
        return await _end(source, api, agreed, steps)
    begun = time.monotonic()
    try:
        async with asyncio.timeout(timeout):
            warnings = await apply.send(api, steps.writes)
    except TimeoutError as error:
        text = f"the API server did not answer within {timeout:g} s; it may have done what was asked"
        raise TimedOut(text, f"atlctl ps {agreed.job.name}") from error
    for warning in warnings:
        told(f"the server warns: {warning}")
    if steps.quick:
        return []
    if steps.goal == "awake":
        told(f"asked for; waiting until it is taken up, {timeout:g} s at most")
    else:
        told(f"asked for; waiting until {len(agreed.workers)} pods are gone, {timeout:g} s at most")
    left = max(0.0, timeout - (time.monotonic() - begun))
    return await waiting.settle(api, steps, agreed.workers, left, time.time())


def _steps(agreed: Plan) -> Steps | None:
    assert agreed.steps is None or isinstance(agreed.steps, Steps), "a plan of this backend"
    return agreed.steps


async def _end(source: Source, api: Api, agreed: Plan, steps: Steps) -> list[StopResult]:
    """In the pods of the plan alone: those of some kinds have the same name when they are made anew."""
    there = {fields.uid(pod) for pod in (await waiting.look(api, steps.found)).pods}
    same = [worker for worker in agreed.workers if worker.uid in there]
    executor = source.executor(agreed.job)
    try:
        ended = {result.worker: result for result in await processes.end(executor, same, steps.grace)}
    finally:
        await executor.aclose()
    gone = "its pod is gone, or was made anew meanwhile"
    return [ended.get(w.name) or StopResult(w.name, "not-stopped", reason=gone) for w in agreed.workers]
