"""The common part of the backends with supervisors (this machine, hosts): stop, removal, unsupported operations."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from atlctl.backends.base import Argv, Plan, StopRequest, StopResult, as_it_is, some_of
from atlctl.backends.hosts.states import of_workers, understood
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, UsageError
from atlctl.jobs.fields import text, whole
from atlctl.jobs.model import Job, State, Worker

#: Characters of a reason.
_LIMIT = 500
#: Bytes of the end of a worker.
_MOST_END = 64 * 1024


class SupervisedBackend:
    """A part of `atlctl.backends.base.Backend`."""

    name: str
    #: The place of its jobs, and the command that removes an ended one.
    where: ClassVar[str]
    removal: ClassVar[str]

    async def raw_events(self, job: Job) -> tuple[Mapping[str, Any], ...]:  # noqa: ARG002 - none are kept
        return ()

    async def plan_stop(self, job: Job, workers: Sequence[Worker], request: StopRequest) -> Plan:
        if request.delete:
            raise UsageError(Message("--delete is for jobs of a cluster"), f"atlctl stop {job.name}")
        running = tuple(worker for worker in workers if worker.state.active)
        if not running:
            return Plan(job, (), "signal", nothing=as_it_is(job))
        kept = Message("logs and exit codes, until '{removal} {job}'; to start it again: atlctl rerun {job}")
        kept = kept.filled(removal=self.removal, job=job.name)
        how = Message(
            "SIGTERM to each worker's process group, then SIGKILL after {grace:g} s to the processes that remain",
            grace=request.grace,
        )
        facts = (("workers", some_of(job, running)), ("how", how), ("kept", kept))
        return Plan(job, running, "signal", facts, ends_terminal=True, steps=request.grace)

    async def plan_resume(self, job: Job) -> Plan:
        raise UsageError(
            Message("a job {where} cannot be resumed: its processes are gone", where=self.where),
            f"atlctl rerun {job.name}",
        )

    async def carry_out(
        self,
        plan: Plan,
        timeout: float,
        told: Callable[[str], None],  # noqa: ARG002 - the plan says how long it takes
    ) -> list[StopResult]:
        assert isinstance(plan.steps, float), "a plan of this class"
        try:
            return await asyncio.wait_for(self.stop(plan.job, plan.workers, plan.steps), timeout)
        except TimeoutError:
            late = Message("not ended after {timeout:g} s", timeout=timeout)
            return [StopResult(worker.name, "not-stopped", reason=late) for worker in plan.workers]

    async def in_attempt(self, job: Job, number: int) -> Job:
        """The job as an earlier attempt of it has ended; workers whose end is not known are unknown."""

        async def one(worker: Worker) -> Worker:
            with suppress(AtlctlError, ValueError, RecursionError):
                path = f"{self.folder_of(job, worker)}/exit.json.{number}"
                end = json.loads(await self.read_file(job, worker, path, _MOST_END) or "null")
                seen = understood(worker, {"event": "seen", "presence": "gone", "exit": end}) if end else None
                if seen is not None:
                    return seen.worker
            return replace(worker, state=State.UNKNOWN, reason="", exit_code=None, signal=None)

        return of_workers(job, await asyncio.gather(*map(one, job.workers)), ())

    @abstractmethod
    def folder_of(self, job: Job, worker: Worker) -> str:
        """The folder of a worker, on its machine."""

    @abstractmethod
    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None:
        """See `LogSource.read_file`."""

    @abstractmethod
    async def get_job(self, name: str) -> Job:
        """See `Inventory.get_job`."""

    @abstractmethod
    async def left_of(self, job: Job) -> str:
        """What `remove` would remove. Raises AtlctlError for a job that has not ended, or may not have."""

    @abstractmethod
    async def remove(self, job: Job) -> None:
        """Remove what is left of a job that has ended. Raises AtlctlError if that cannot be done, or only in part."""

    @abstractmethod
    async def rerun(self, job: Job, argv: Argv | None, *, dry_run: bool) -> Mapping[str, dict[str, Any] | AtlctlError]:
        """Start the command of an ended or kept job again, or `argv`: on all workers or on none. Returns what each
        worker starts, or why it does not. `dry_run`: only that. Raises AtlctlError."""

    @abstractmethod
    async def stop(self, job: Job, workers: Sequence[Worker], grace: float) -> list[StopResult]:
        """See `Controller.stop`."""


def ended(name: str, told: Mapping[str, Any]) -> StopResult:
    """The end of a worker as its supervisor reported it."""
    processes, reason = whole(told.get("processes")) or 0, text(told.get("reason"), _LIMIT)
    match told.get("how"):
        case "terminated" | "killed" | "already-ended" as how:
            return StopResult(name, how, processes, reason)
    return StopResult(name, "not-stopped", processes, reason or Message("some of its processes could not be ended"))
