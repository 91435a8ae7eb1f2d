"""Jobs on hosts that are reached over SSH: lists of hosts, and what `ssh run` has started on them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from atlctl.backends.base import (
    Executor,
    Listing,
    LogLine,
    LogRequest,
    Plan,
    StopRequest,
    StopResult,
)
from atlctl.backends.guarded.asking import file_of
from atlctl.backends.guarded.ranks import living
from atlctl.backends.ssh import hostlook
from atlctl.backends.ssh.connect import Connections
from atlctl.backends.ssh.executor import SshExecutor
from atlctl.backends.ssh.launched import looking, reading, records, stopping
from atlctl.backends.ssh.launched.records import Record
from atlctl.backends.ssh.lists import HostList
from atlctl.backends.ssh.stream import Within
from atlctl.backends.supervised import ending
from atlctl.jobs.errors import AtlctlError, NothingMatched, Replaced, UsageError
from atlctl.jobs.model import Job, RankMap, State, Worker
from atlctl.jobs.naming import fold_names

#: Hosts that are asked at once, and seconds for each.
_AT_ONCE, _SECONDS = 64, 30.0


class SshBackend:
    """See `atlctl.backends.base.Backend`. Nothing is connected to before a host is asked for something."""

    name = "ssh"

    def __init__(
        self,
        connections: Connections,
        lists: Sequence[HostList],
        meant: HostList | None = None,
        waiting: Callable[[str], None] | None = None,
    ) -> None:
        """`lists`: those that can be named. `meant`: the one that is meant where none is named. `waiting` is told what
        is waited for: a log."""
        self._waiting = waiting
        self._connections = connections
        self._lists: dict[str, HostList] = {one.name: one for one in lists}
        if meant is not None:
            self._lists[meant.name] = meant
        self._meant = meant
        self._records = records.Kept()
        #: What hosts told of their workers when the job was looked up, by its UID.
        self._seen: dict[str, Mapping[str, looking.Seen]] = {}

    async def aclose(self) -> None:
        await self._connections.aclose()

    # Jobs

    async def list_jobs(self) -> Listing:
        found, problems = await asyncio.to_thread(records.load_all)
        jobs = await asyncio.gather(*(self._launched(record) for record in found))
        names = {job.name for job in jobs}
        listed = [one.job for one in self._lists.values() if one.name not in names]
        return Listing((*jobs, *listed), tuple(problems))

    async def get_job(self, name: str) -> Job:
        if self._meant is not None and name == self._meant.name:
            return self._meant.job
        try:
            return await self._launched(self._records.load(name))
        except NothingMatched:
            if name in self._lists:
                return self._lists[name].job
            known = [*(record.name for record in records.load_all()[0]), *self._lists]
            hint = f"jobs on hosts: {', '.join(known[:8])}" if known else "name hosts with --hostfile FILE"
            raise NothingMatched(f"no job named {name} on hosts", hint) from None

    async def current(self) -> Job | None:
        return None if self._meant is None else self._meant.job

    async def current_worker(self, job: Job) -> str | None:
        if job.kind == looking.KIND:
            return os.environ.get("ATLCTL_WORKER") if os.environ.get("ATLCTL_JOB") == job.name else None
        own = self._lists[job.name].own if job.name in self._lists else None
        return None if own is None else job.workers[own].name

    async def look(self, job: Job) -> Job:
        """Of a list: which hosts let this client in. Of all: load, ranks, GPUs."""
        record = self._record(job)
        executor, gate = self.executor(job), asyncio.Semaphore(_AT_ONCE)

        async def one(worker: Worker) -> Worker:
            if not (worker.state.active and (record is None or worker.state is not State.UNKNOWN)):
                return worker
            async with gate:
                try:
                    async with asyncio.timeout(_SECONDS):
                        usage = await hostlook.look(executor, worker)
                except TimeoutError:
                    return replace(worker, reason=worker.reason or f"no answer within {_SECONDS:g} s")
                except AtlctlError as error:
                    return replace(worker, reason=worker.reason or error.message)
            if record is None:
                worker = replace(worker, state=State.RUNNING, reason="")
            elif (seen := self._seen.get(job.uid, {}).get(worker.name)) is not None:
                usage = replace(usage, ranks=len(seen.ranks))  # a host may have other jobs' ranks, too
            gpus = len(usage.gpus) if usage.gpus is not None else worker.gpus
            return replace(worker, usage=usage, gpus=gpus)

        workers = tuple(await asyncio.gather(*map(one, job.workers)))
        if record is not None:
            return replace(job, workers=workers)
        lost = [worker.name for worker in workers if worker.state is State.UNKNOWN]
        state, reason = (State.UNKNOWN, f"{fold_names(lost)} not reached") if lost else (State.RUNNING, job.reason)
        return replace(job, workers=workers, state=state, reason=reason)

    async def ranks(self, job: Job) -> RankMap | None:
        record = self._record(job)
        if record is not None:
            found = looking.ranks(await self._look(record, again=False))
        else:
            alive = [worker for worker in job.workers if worker.state.active]
            found = await living(self.executor(job), alive)
        if found is not None:
            return found
        slots = {worker.gpus for worker in job.workers}
        if len(slots) != 1 or (count := slots.pop()) is None or job.missing:
            return None
        computed = {worker.index * count + local: worker.name for worker in job.workers for local in range(count)}
        return RankMap(computed, f"place in the list x {count} slots", guess=True)

    # Workers

    def executor(self, job: Job) -> Executor:
        record = self._record(job)
        if record is None:
            hosts = {host.name: host for host in self._lists[job.name].hosts}
            return SshExecutor(self._connections, hosts)
        return SshExecutor(self._connections, record.hosts, within(record))

    def _asking(self, record: Record) -> Executor:
        """For questions to the hosts: those of workers that have ended answer, too."""
        return SshExecutor(self._connections, record.hosts)

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncGenerator[Sequence[LogLine], None]:
        record = self._owned(job)
        asking = self._asking(record)
        async with aclosing(reading.lines(asking, record, worker.name, request, self._waiting)) as batches:
            async for batch in batches:
                yield batch

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None:
        """Of a list, by its absolute path alone; of a job that was started, also from its working folder on."""
        record = self._record(job)
        if record is not None:
            return await reading.read_file(self._asking(record), record, worker.name, path, limit)
        if not path.startswith("/"):
            return None
        return await file_of(self.executor(job), worker, path, limit)

    async def raw_events(self, job: Job) -> tuple[Mapping[str, Any], ...]:  # noqa: ARG002 - none are kept
        return ()

    # Stop

    async def plan_stop(self, job: Job, workers: Sequence[Worker], request: StopRequest) -> Plan:
        self._owned(job)
        return ending.plan_stop(job, workers, request, "atlctl ssh rm")

    async def plan_resume(self, job: Job) -> Plan:  # noqa: ARG002 - none of them can be
        raise UsageError("a job on hosts cannot be resumed: its processes are gone", "start it anew")

    async def check(self, plan: Plan) -> None:
        self._owned(plan.job)

    async def carry_out(
        self,
        plan: Plan,
        timeout: float,
        told: Callable[[str], None],  # noqa: ARG002 - the plan says how long it takes
    ) -> list[StopResult]:
        return await ending.carry_out(plan, timeout, self.stop)

    async def stop(self, job: Job, workers: Sequence[Worker], grace: float) -> list[StopResult]:
        names, record = [worker.name for worker in workers], self._owned(job)
        return await stopping.stop(self._asking(record), record, names, grace)

    # Where a job is from

    async def _launched(self, record: Record) -> Job:
        return looking.job(record, await self._look(record, again=True))

    async def _look(self, record: Record, *, again: bool) -> Mapping[str, looking.Seen]:
        """What its hosts tell of its workers. `again`: also where they have told before."""
        if again or record.uid not in self._seen:
            self._seen[record.uid] = await looking.look(self._asking(record), record)
        return self._seen[record.uid]

    def _record(self, job: Job) -> Record | None:
        """None of a list. Raises NothingMatched, Replaced where it is another job's meanwhile."""
        if job.kind != looking.KIND:
            return None
        record = self._records.load(job.name)
        if record.uid != job.uid:
            raise Replaced(job.name)
        return record

    def _owned(self, job: Job) -> Record:
        """Raises UsageError for a list."""
        record = self._record(job)
        if record is None:
            raise UsageError(
                f"{job.name} is a list of hosts: no process there is known to be its own",
                "what 'atlctl ssh run' starts can be stopped; else: atlctl exec --hostfile FILE --all -- pkill NAME",
            )
        return record


def within(record: Record) -> dict[str, Within]:
    """What a command in each worker is given: the platform's contract, as the worker itself."""
    contract = {
        "MASTER_ADDR": record.master_addr,
        "MASTER_PORT": str(record.master_port),
        "WORLD_SIZE": str(len(record.workers)),
        "ATLCTL_JOB": record.name,
    }
    return {
        placed.name: Within(
            {
                **contract,
                "RANK": str(index),
                "ATLCTL_WORKER": placed.name,
                # Above the folders of all workers, of the job, and of this worker.
                "ATLCTL_STATE_DIR": placed.folder.rsplit("/", 3)[0],
            },
            record.chdir,
        )
        for index, placed in enumerate(record.workers)
    }
