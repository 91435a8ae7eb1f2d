"""Jobs on hosts that are reached over SSH: lists of hosts, and what `ssh run` has started on them."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from atlctl.backends.base import (
    Argv,
    Executor,
    Listing,
    LogLine,
    LogRequest,
    Plan,
    StopRequest,
    StopResult,
    as_it_is,
    some_of,
)
from atlctl.backends.guarded.asking import file_of, living, told_by
from atlctl.backends.hosts import asking, logs, looking, records, registry, runs, stopping, wrappers
from atlctl.backends.hosts.backend import SupervisedBackend
from atlctl.backends.hosts.connect import Connections
from atlctl.backends.hosts.lists import HostList
from atlctl.backends.hosts.records import RUN, SSH, Record
from atlctl.backends.hosts.states import Seen
from atlctl.backends.hosts.stream import SshExecutor, Within
from atlctl.backends.questions import ask_each
from atlctl.i18n import Message
from atlctl.jobs.errors import NAME_HOSTS, AtlctlError, NothingMatched, Replaced, UsageError, no_answer
from atlctl.jobs.model import Job, RankMap, State, Usage, Worker
from atlctl.jobs.naming import fold_names, meant_job, safe_file_name
from atlctl.remote.gpus import QUERY, parse
from atlctl.remote.sending import shell

#: Hosts that are asked at once, and seconds for each.
_AT_ONCE, _SECONDS = 64, 30.0
_LIMIT = 256 * 1024


class SshBackend(SupervisedBackend):
    """See `atlctl.backends.base.Backend`. Nothing is connected to before a host is asked for something."""

    name = "ssh"
    where = Message("on hosts")
    removal = "atlctl ssh rm"

    def __init__(
        self,
        connections: Connections,
        lists: Sequence[HostList],
        meant: HostList | None = None,
        waiting: Callable[[str], None] | None = None,
    ) -> None:
        """`lists`: the lists that can be named. `meant`: the default list. `waiting` gets the reason for a wait."""
        self._waiting = waiting
        self._connections = connections
        self._lists: dict[str, HostList] = {one.name: one for one in lists}
        if meant is not None:
            self._lists[meant.name] = meant
        self._meant = meant
        self._records = records.Kept()
        self._wrapped: dict[str, Record] = {}
        #: The answers of the hosts when the job was looked up, by its UID.
        self._seen: dict[str, Mapping[str, Seen]] = {}

    async def aclose(self) -> None:
        await self._connections.aclose()

    # Jobs

    async def list_jobs(self) -> Listing:
        found, problems = await asyncio.to_thread(records.load_all)
        wrapped = await asyncio.to_thread(runs.here)
        launched = {record.name for record in found}
        wrapped = [record for record in wrapped if record.owner not in launched]
        jobs = await asyncio.gather(*(self.launched(record) for record in (*wrapped, *found)))
        names = {job.name for job in jobs}
        listed = [one.job for one in self._lists.values() if one.name not in names]
        return Listing((*jobs, *listed), tuple(problems))

    async def get_job(self, name: str) -> Job:
        if self._meant is not None and name == self._meant.name:
            return self._meant.job
        try:
            return await self.launched(self._load(name))
        except NothingMatched:
            if name in self._lists:
                return self._lists[name].job
            known = [*(record.name for record in (*runs.here(), *records.load_all()[0])), *self._lists]
            hint = meant_job(name, known) or NAME_HOSTS
            if known and not meant_job(name, known):
                hint = Message("{listed}: {jobs}", listed=records.RECORDS.listed, jobs=", ".join(known[:8]))
            raise NothingMatched(Message("no job named {job} on hosts", job=name), hint) from None

    async def current(self) -> Job | None:
        for record in runs.here():
            return await self.launched(record)
        return None if self._meant is None else self._meant.job

    async def current_worker(self, job: Job) -> str | None:
        if (record := self._record(job)) is not None:
            if record.access is not None:
                return record.own
            return os.environ.get("ATLCTL_WORKER") if os.environ.get("ATLCTL_JOB") == job.name else None
        own = self._lists[job.name].own if job.name in self._lists else None
        return None if own is None else job.workers[own].name

    def evidence(self, job: Job) -> Sequence[str]:
        """Of a job of `atlctl run` that has a folder, or of this worker alone."""
        record = self._record(job)
        if record is None or record.own is None:
            return ()
        start = os.path.dirname(record.placed(record.own).folder)
        with suppress(OSError), os.scandir(os.path.dirname(start)) as entries:
            # The name of a start begins with its time.
            earlier = [item.path for item in entries if item.is_dir() and item.name < os.path.basename(start)]
            return start, *sorted(name for name in earlier if not os.path.basename(name).startswith("."))[::-1]
        return ()

    async def look(self, job: Job) -> Job:
        """Of a list: which hosts let this client in. Of all: load, ranks, GPUs."""
        record = self._record(job)
        executor = self.executor(job)
        look = Argv(("sh", "-c", shell("host"), "sh", *QUERY))

        async def one(worker: Worker) -> Worker:
            if not (worker.state.active and (record is None or worker.state is not State.UNKNOWN)):
                return worker
            try:
                async with asyncio.timeout(_SECONDS):
                    usage = usage_of(await told_by(executor, worker, look, _LIMIT))
            except TimeoutError:
                return replace(worker, reason=worker.reason or no_answer(_SECONDS))
            except AtlctlError as error:
                return replace(worker, reason=worker.reason or error.message)
            if record is None:
                worker = replace(worker, state=State.RUNNING, reason="")
            elif (seen := self._seen.get(job.uid, {}).get(worker.name)) is not None:
                usage = replace(usage, ranks=len(seen.ranks))  # a host may have other jobs' ranks, too
            gpus = len(usage.gpus) if usage.gpus is not None else worker.gpus
            return replace(worker, usage=usage, gpus=gpus)

        workers = tuple(await ask_each(job.workers, one, _AT_ONCE))
        if record is not None:
            return replace(job, workers=workers)
        lost = [worker.name for worker in workers if worker.state is State.UNKNOWN]
        if lost:
            reason = Message("{hosts} not reached", hosts=fold_names(lost))
            return replace(job, workers=workers, state=State.UNKNOWN, reason=reason)
        return replace(job, workers=workers, state=State.RUNNING)

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
        return RankMap(computed, Message("place in the list x {count} slots", count=count), guess=True)

    # Workers

    def executor(self, job: Job) -> Executor:
        record = self._record(job)
        if record is None:
            hosts = {host.name: host for host in self._lists[job.name].hosts}
            return SshExecutor(self._connections, hosts)
        # A wrapper starts commands in the environment and folder of its command.
        return SshExecutor(self._connections, record.hosts, {} if record.access is not None else within(record))

    def _asking(self, record: Record) -> Executor:
        """For questions to the hosts: those of workers that have ended answer, too."""
        return SshExecutor(self._connections, record.hosts)

    async def ask_wrappers(
        self, job: Job, names: Sequence[str], question: str, details: Mapping[str, Any], seconds: float
    ) -> dict[str, dict[str, Any] | AtlctlError]:
        """The answers of the wrappers of a job that `atlctl run` has wrapped, by worker."""
        record = self._owned(job)
        return await self._wrappers(record, names, question, details, seconds)

    async def _wrappers(
        self, record: Record, names: Sequence[str], question: str, details: Mapping[str, Any], seconds: float
    ) -> dict[str, dict[str, Any] | AtlctlError]:
        told = {**details, "uid": record.uid}

        async def one(name: str) -> dict[str, Any]:
            if not record.placed(name).folder:
                raise AtlctlError(Message("has not come to the start of the job"))
            return await wrappers.ask(self._connections, record.hosts[name], question, told, seconds)

        return await asking.each(names, one)

    def folder_of(self, job: Job, worker: Worker) -> str:
        return _folder(self._owned(job), worker.name)

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncGenerator[Sequence[LogLine], None]:
        record = self._owned(job)
        shared = None if record.access is None else _shared(record, worker.name)

        def ended() -> bool:
            return os.path.exists(f"{shared}/exit.json")

        reading = (
            looking.lines(self._asking(record), record, worker.name, request, self._waiting)
            if shared is None
            else logs.read(logs.folder_of(shared, request), request, ended if request.follow else None)
        )
        async with aclosing(reading) as batches:
            async for batch in batches:
                yield batch

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None:
        """Of a list, by its absolute path alone; of a job that was started, also from its working folder on."""
        record = self._record(job)
        if record is not None:
            return await looking.read_file(self._asking(record), record, worker.name, path, limit)
        if not path.startswith("/"):
            return None
        return await file_of(self.executor(job), worker, path, limit)

    # Stop

    async def plan_stop(self, job: Job, workers: Sequence[Worker], request: StopRequest) -> Plan:
        record = self._owned(job)
        if request.keep and record.access is not None:
            kept_by = (State.RUNNING, State.STOPPING, State.HELD)  # of a held worker only the time limit ends
            running = tuple(worker for worker in workers if worker.state in kept_by)
            if not running:
                return Plan(job, (), "signal", nothing=as_it_is(job))
            how = Message(
                "SIGTERM to each worker's command, then SIGKILL after {grace:g} s to the processes that remain"
            )
            how = how.filled(grace=request.grace)
            kept = Message("the workers and their files; start the command again with: atlctl rerun {job}")
            facts = (("workers", some_of(job, running)), ("how", how), ("kept", kept.filled(job=job.name)))
            return Plan(job, running, "keep", facts, steps=request.grace)
        plan = await super().plan_stop(job, workers, request)
        # The supervisors of other jobs outlive their workers; a wrapper ends with its command.
        stays = record.access is None or _shared(record, record.workers[-1].name) is not None
        return replace(plan, loses_logs=not stays)

    async def check(self, plan: Plan) -> None:
        self._owned(plan.job)

    async def carry_out(self, plan: Plan, timeout: float, told: Callable[[str], None]) -> list[StopResult]:
        if plan.how != "keep":
            return await super().carry_out(plan, timeout, told)
        grace = plan.steps if isinstance(plan.steps, float) else 0.0
        return await self._end_wrapped(plan.job, [worker.name for worker in plan.workers], grace, keep=True)

    async def stop(self, job: Job, workers: Sequence[Worker], grace: float) -> list[StopResult]:
        names, record = [worker.name for worker in workers], self._owned(job)
        if record.access is not None:
            return await self._end_wrapped(job, names, grace, keep=False)
        return await stopping.stop(self._asking(record), record, names, grace)

    async def rerun(self, job: Job, argv: Argv | None, *, dry_run: bool) -> Mapping[str, dict[str, Any] | AtlctlError]:
        record = self._owned(job)
        if record.access is None:
            from atlctl.backends.hosts.starting import rerun

            registry.must_have_ended(job)
            return await rerun(lambda hosts: SshExecutor(self._connections, hosts), record, argv, dry_run=dry_run)
        details = {"step": "prepare" if dry_run else "go", **({} if argv is None else {"argv": list(argv.words)})}
        return await self.ask_wrappers(job, list(record.hosts), "rerun", details, _SECONDS)

    async def _end_wrapped(self, job: Job, names: Sequence[str], grace: float, *, keep: bool) -> list[StopResult]:
        details = {"grace": grace, "keep": keep}
        answers = await self.ask_wrappers(job, names, "stop", details, grace + stopping.MARGIN_SECONDS)
        return [stopping.result(name, answers[name]) for name in names]

    # Removal

    async def left_of(self, job: Job) -> str:
        record = self._owned(job)
        if record.access is not None:
            raise registry.running(job.name)
        unknown = [worker for worker in job.workers if worker.state is State.UNKNOWN]
        if unknown:
            names, folder = fold_names(worker.name for worker in unknown), os.path.join(records.RECORDS.root, job.name)
            text = Message("job {job}: cannot check whether it still runs on {hosts}: {why}")
            raise AtlctlError(
                text.filled(job=job.name, hosts=names, why=unknown[0].reason),
                Message("if a host is gone for good, forget the job: rm -r {folder}", folder=folder),
            )
        if any(worker.state.active for worker in job.workers):
            raise registry.running(job.name)
        return Message(
            "its logs and records on {hosts}, and its record on this machine", hosts=fold_names(record.hosts)
        )

    async def remove(self, job: Job) -> None:
        record = self._owned(job)
        if errors := await stopping.remove(self._asking(record), record):
            first, text = next(iter(errors.values())), Message("job {job} is not removed from {hosts}: {why}")
            raise AtlctlError(text.filled(job=job.name, hosts=fold_names(errors), why=first.message), first.hint)

    # Where a job is from

    async def launched(self, record: Record) -> Job:
        """The job of a record, as its hosts answer now."""
        self._trusted(record)
        return looking.job(record, await self._look(record, again=True))

    async def _look(self, record: Record, *, again: bool) -> Mapping[str, Seen]:
        """Query the hosts of a job. `again`: also if they were queried before."""
        if again or record.uid not in self._seen:
            if record.access is not None:
                names = [placed.name for placed in record.workers]
                answers = await self._wrappers(record, names, "look", {}, asking.ANSWER_SECONDS)
                self._seen[record.uid] = looking.of_answers(record, answers)
            else:
                self._seen[record.uid] = await looking.look(self._asking(record), record)
        return self._seen[record.uid]

    def _load(self, name: str) -> Record:
        """The record of the job `name`: of a wrapper in this container, of `ssh run`, or of a wrapper whose job belongs
        to that one. Raises as `records.load`."""
        try:
            return self._trusted(runs.load(name))
        except NothingMatched:
            try:
                return self._records.load(name)
            except NothingMatched:
                if (record := runs.owned_by(name)) is None:
                    raise
                return self._trusted(record)

    def _trusted(self, record: Record) -> Record:
        """The record, whose hosts may now be connected to with the job's own keys."""
        if record.access is not None and self._wrapped.get(record.name) != record:
            for index, placed in enumerate(record.workers):
                self._connections.trust(placed.host, record.access, index)
            self._wrapped[record.name] = record
        return record

    def _record(self, job: Job) -> Record | None:
        """The record of a job; None for a list of hosts. Raises NothingMatched; Replaced if another job has its
        name."""
        if job.kind not in (SSH, RUN):
            return None
        # That of a wrapper was read when the job was looked up.
        record = (self._wrapped.get(job.name) if job.kind == RUN else None) or self._load(job.name)
        if record.uid != job.uid:
            raise Replaced(job.name)
        return record

    def _owned(self, job: Job) -> Record:
        """Raises UsageError for a list."""
        record = self._record(job)
        if record is None:
            text = Message("{job} is only a list of hosts: which of their processes belong to it is not known")
            raise UsageError(
                text.filled(job=job.name),
                Message(
                    "only jobs of 'atlctl ssh run' can be stopped; otherwise: atlctl exec --hostfile FILE --all -- "
                    "pkill NAME"
                ),
            )
        return record


def _folder(record: Record, name: str) -> str:
    return f"{record.placed(name).folder}/workers/{safe_file_name(name)}"


def _shared(record: Record, name: str) -> str | None:
    """The folder of a worker of `atlctl run` if it is on shared storage: its log can be read without the worker, which
    may be gone."""
    own = _folder(record, name)
    return own if os.path.isdir(f"{own}/log") else None


def within(record: Record) -> dict[str, Within]:
    """The environment and folder of a command in each worker: the same as the worker's own."""
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


def usage_of(said: bytes) -> Usage:
    """Parse the output of the usage script: load, GPUs and ranks. Fields that cannot be parsed are missing."""
    own, gpus, rows = said.partition(b"\nG\n")
    told = {line[:1]: line[2:40].decode("ascii", "replace") for line in own.splitlines() if line[1:2] == b" "}
    readout = parse(rows) if gpus else None
    return Usage(
        _number(told.get(b"L", "")),
        _whole(told.get(b"C", "")),
        _whole(told.get(b"R", "")),
        None if readout is None or not (readout.gpus or readout.none) else readout.gpus,
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < 1e6 else None


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None
