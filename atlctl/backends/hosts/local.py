"""Jobs of this machine as a backend: the registry, the supervisors' sockets and /proc."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from atlctl.backends.base import Argv, ExecRequest, Listing, LogLine, LogRequest, Plan, StopResult
from atlctl.backends.hosts import logs, registry
from atlctl.backends.hosts.backend import SupervisedBackend, ended
from atlctl.backends.hosts.execution import ControlClient, LocalExecution
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NothingMatched, Replaced, Unreachable, UsageError
from atlctl.jobs.model import Job, Processes, RankMap, State, Worker
from atlctl.remote import proc
from atlctl.remote.supervisor import asked, processes
from atlctl.remote.supervisor.logs import Ended


class LocalExecutor:
    """Runs commands in the workers of one job, over one connection to its supervisor."""

    def __init__(self, job: Job, found: registry.Glance) -> None:
        self._client = ControlClient(job, found.folder)
        # The same for all workers of a run, so that outputs that contain the environment can still be folded.
        self._token = os.urandom(8).hex()
        self._runs: Counter[str] = Counter()
        self._found = found

    def run(self, worker: Worker, request: ExecRequest) -> LocalExecution:
        self._runs[worker.name] += 1
        token = f"{self._token}-{self._runs[worker.name]}"
        exit_file = f"{registry.worker_folder(self._found.folder, worker.name)}/exit.json"
        return LocalExecution(
            self._client, worker, request, token, self._refusal(worker), lambda: os.path.exists(exit_file)
        )

    def _refusal(self, worker: Worker) -> str | None:
        if not worker.state.active or self._found.presence == "gone":
            return Message("not running ({state})", state=worker.state.label)
        if self._found.presence == "elsewhere":
            return Message("it runs on {place}: it can only be reached there", place=self._found.place)
        return None

    async def aclose(self) -> None:
        await self._client.aclose()


class LocalBackend(SupervisedBackend):
    """See `atlctl.backends.base.Backend`."""

    name = "local"
    where = Message("of this machine")
    removal = "atlctl local rm"

    async def list_jobs(self) -> Listing:
        entries, errors = registry.load_all()
        return Listing(tuple(entry.job for entry in entries), tuple(errors))

    async def get_job(self, name: str) -> Job:
        return registry.load(name).job

    async def current(self) -> Job | None:
        return None  # ATLCTL_JOB names it, for every command

    async def current_worker(self, job: Job) -> str | None:
        # The environment that this process has inherited; the job may have ended since.
        return os.environ.get("ATLCTL_WORKER") or None if os.environ.get("ATLCTL_JOB") == job.name else None

    async def ranks(self, job: Job) -> RankMap | None:
        return _living_ranks(job.name) or _guessed_ranks(job)

    def executor(self, job: Job) -> LocalExecutor:
        return LocalExecutor(job, self._same(job))

    def _same(self, job: Job) -> registry.Glance:
        """The entry as it is now. Raises AtlctlError where another job has taken the name."""
        found = registry.glance(job.name)
        if found.uid != job.uid:
            raise Replaced(job.name)
        return found

    def measure(self, workers: Sequence[Worker]) -> Mapping[str, Processes]:
        """See `Measuring`."""
        return measure(workers)

    def folder_of(self, job: Job, worker: Worker) -> str:
        return registry.worker_folder(self._same(job).folder, worker.name)

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
        found = self._same(job)
        folder = registry.worker_folder(found.folder, worker.name)
        ended = Ended({"supervisor": found.supervisor}, folder) if request.follow else None
        async for batch in logs.read(logs.folder_of(folder, request), request, ended):
            yield batch

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None:
        """A worker's file is a file of this machine; a relative path starts in its working folder."""
        try:
            base = registry.working_folder(job.name, worker.name)
        except NothingMatched:
            return None
        return _regular_file(os.path.join(base, path), limit)

    async def check(self, plan: Plan) -> None:
        self._same(plan.job)

    async def left_of(self, job: Job) -> str:
        found = self._same(job)
        if found.presence == "alive":
            raise registry.running(job.name)
        if found.presence == "elsewhere":
            text = Message(
                "job {job} was started on another machine; whether it still runs cannot be checked from here"
            )
            hint = Message("remove it on that machine; atlctl ps {job} shows its name", job=job.name)
            raise AtlctlError(text.filled(job=job.name), hint)
        return Message("its logs, records and working folders in {folder}", folder=found.folder)

    async def remove(self, job: Job) -> None:
        with registry.locked():
            try:
                found = self._same(job)
            except Replaced:
                raise UsageError(
                    Message("job {job} was restarted meanwhile", job=job.name), Message("run the command again")
                ) from None
            registry.remove(found.folder)

    async def rerun(self, job: Job, argv: Argv | None, *, dry_run: bool) -> Mapping[str, dict[str, Any] | AtlctlError]:
        from atlctl.backends.hosts.starting import rerun_here

        registry.must_have_ended(job)
        ready = await asyncio.to_thread(rerun_here, job.name, job.uid, argv, dry_run=dry_run)
        names = [worker.name for worker in job.workers]
        return {name: {**ready, "chdir": registry.working_folder(job.name, name)} for name in names}

    async def stop(self, job: Job, workers: Sequence[Worker], grace: float) -> list[StopResult]:
        """See `Controller.stop`. Workers whose supervisor is gone have ended with it."""
        found = self._same(job)
        if found.presence == "elsewhere":
            raise Unreachable(
                Message("job {job} runs on {place}: it can only be stopped there", job=job.name, place=found.place)
            )
        names = [worker.name for worker in workers]
        if found.presence == "gone":
            return [StopResult(name, "already-ended") for name in names]
        client = ControlClient(job, found.folder)
        answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        results: dict[str, StopResult] = {}
        answer: dict[str, Any] | None = None
        try:
            await client.connect()
            number = client.listen(answers.put_nowait)
            await client.send(number, {"op": "stop", "workers": names, "grace": grace})
            while (answer := await answers.get()) is not None and answer["event"] != "stop-done":
                if answer["event"] != "stopped":
                    raise Replaced(job.name)
                results[answer["worker"]] = ended(answer["worker"], answer)
        except Unreachable:
            if not await _has_gone(found):
                raise
        finally:
            await client.aclose()
        if answer is None:
            await _has_gone(found)
        return [results.get(name) or self._left(job, name) for name in names]

    def _left(self, job: Job, name: str) -> StopResult:
        """Of a worker that the supervisor did not speak of."""
        worker = next((worker for worker in registry.load(job.name).job.workers if worker.name == name), None)
        if worker is None:
            return StopResult(name, "not-stopped", reason=Message("no such worker"))
        if worker.state is State.LOST:
            return StopResult(name, "killed", reason=asked.KILLED)
        if not worker.state.active:
            return StopResult(name, "already-ended")
        return StopResult(name, "not-stopped", reason=Message("its supervisor has exited"))


async def _has_gone(found: registry.Glance) -> bool:
    """Whether a supervisor that does not answer has ended, or is about to: its last worker has ended meanwhile."""
    for _ in range(int(asked.GOING_SECONDS / 0.02)):
        if processes.presence(found.supervisor)[0] != "alive":
            return True
        await asyncio.sleep(0.02)
    return False


def _regular_file(path: str, limit: int) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _living_ranks(name: str) -> RankMap | None:
    """The ranks of living torchrun children of a job, from their environments; None if there are no such processes."""
    found: dict[int, str] = {}
    with contextlib.suppress(AtlctlError):
        job = registry.glance(name)
        if job.presence == "alive":
            family = proc.below(proc.children_of(proc.everything()), (job.supervisor["pid"],))
            found = asked.ranks(family, name)
    return RankMap(found, Message("running torchrun processes")) if found else None


def _guessed_ranks(job: Job) -> RankMap | None:
    """Node rank times processes per node, if all workers have the same number and node ranks are static.

    Local workers share one environment, so torchrun's own variables in it hold for all.
    """
    env = registry.environment(job.name)
    count = env.get("PET_NPROC_PER_NODE", "")
    if not count.isdigit() or env.get("PET_RDZV_BACKEND", "static") != "static":
        return None
    each = range(int(count))
    found = {worker.index * len(each) + local: worker.name for worker in job.workers for local in each}
    return RankMap(found, Message("node rank x PET_NPROC_PER_NODE={count}", count=count), guess=True)


def measure(workers: Sequence[Worker]) -> Mapping[str, Processes]:
    """See `atlctl.backends.base.Measuring`. A worker's processes: its first one, those below it and its session."""
    table = proc.everything()
    children = proc.children_of(table)
    sessions: dict[int, list[int]] = {}
    for entry in table.values():
        sessions.setdefault(entry.session, []).append(entry.pid)
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    found = {}
    for worker in workers:
        roots = {worker.pid, *sessions.get(worker.pid, ())} if worker.pid else set()
        own = [table[pid] for pid in {*proc.below(children, roots), *roots} if pid in table]
        if own:
            # The time of children that have ended counts: they were the worker's, too.
            ticks, pages = sum(one.ticks + one.ended for one in own), sum(one.pages for one in own)
            found[worker.name] = Processes(ticks / tick, pages * page)
    return found
