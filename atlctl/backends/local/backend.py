"""The local backend: the seams of `atlctl.backends.base` over the registry and the supervisors."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from atlctl.backends.base import ExecRequest, Listing, LogLine, LogRequest, Plan, StopRequest, StopResult
from atlctl.backends.local import logs, measuring, ranks, registry
from atlctl.backends.local.client import ControlClient
from atlctl.backends.local.execution import LocalExecution
from atlctl.backends.supervised import ending
from atlctl.jobs.errors import Replaced, Unreachable, UsageError
from atlctl.jobs.model import Job, RankMap, State, Worker
from atlctl.jobs.usage import Processes

#: How often a followed log asks whether its worker has ended, seconds.
ENDED_POLL_SECONDS = 0.2
#: How long a supervisor may live on after it has closed its socket, seconds.
GOING_SECONDS = 2.0


class LocalExecutor:
    """Runs commands in the workers of one job, over one connection to its supervisor."""

    def __init__(self, job: Job, found: registry.Glance) -> None:
        self._client = ControlClient(job, found.folder)
        # The same for all workers of a run: what commands print of their environment still folds.
        self._token = secrets.token_hex(8)
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
            return f"not running ({worker.state})"
        if self._found.presence == "elsewhere":
            return f"it runs on {self._found.place}: it can only be reached there"
        return None

    async def aclose(self) -> None:
        await self._client.aclose()


class LocalBackend:
    """See `atlctl.backends.base.Backend`."""

    name = "local"

    async def list_jobs(self) -> Listing:
        entries, errors = registry.load_all()
        return Listing(tuple(entry.job for entry in entries), tuple(errors))

    async def get_job(self, name: str) -> Job:
        return registry.load(name).job

    async def current(self) -> Job | None:
        return None  # ATLCTL_JOB names it, for every command

    async def current_worker(self, job: Job) -> str | None:
        own = current_worker()
        return own[1] if own is not None and own[0] == job.name else None

    async def ranks(self, job: Job) -> RankMap | None:
        return ranks.known(job)

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
        return measuring.measure(workers)

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
        found = self._same(job)
        folder = registry.worker_folder(found.folder, worker.name)
        if not request.follow:
            async for batch in logs.read(f"{folder}/log", request, None):
                yield batch
            return
        ended = asyncio.Event()
        watch = asyncio.create_task(_watch(found, f"{folder}/exit.json", ended))
        try:
            async for batch in logs.read(f"{folder}/log", request, ended):
                yield batch
        finally:
            watch.cancel()

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None:
        """A worker's file is a file of this machine; a relative path starts in its working folder."""
        try:
            base = f"{registry.worker_folder(registry.job_folder(job.name), worker.name)}/work"
        except FileNotFoundError:
            return None
        return _regular_file(os.path.join(base, path), limit)

    async def plan_stop(self, job: Job, workers: Sequence[Worker], request: StopRequest) -> Plan:
        return ending.plan_stop(job, workers, request, "atlctl local rm")

    async def plan_resume(self, job: Job) -> Plan:  # noqa: ARG002 - none of them can be
        raise UsageError("a job of this machine cannot be resumed: its processes are gone", "start it anew")

    async def check(self, plan: Plan) -> None:
        self._same(plan.job)

    async def carry_out(
        self,
        plan: Plan,
        timeout: float,
        told: Callable[[str], None],  # noqa: ARG002 - the plan says how long it takes
    ) -> list[StopResult]:
        return await ending.carry_out(plan, timeout, self.stop)

    async def raw_events(self, job: Job) -> tuple[Mapping[str, Any], ...]:  # noqa: ARG002 - none are kept
        return ()

    async def stop(self, job: Job, workers: Sequence[Worker], grace: float) -> list[StopResult]:
        """See `Controller.stop`. Workers whose supervisor is gone have ended with it."""
        found = self._same(job)
        if found.presence == "elsewhere":
            raise Unreachable(f"job {job.name} runs on {found.place}: it can only be stopped there")
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
                results[answer["worker"]] = StopResult(answer["worker"], answer["how"], answer["processes"])
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
            return StopResult(name, "not-stopped", reason="no such worker")
        if worker.state is State.LOST:
            return StopResult(name, "killed", reason="its supervisor was killed while it was stopped")
        if not worker.state.active:
            return StopResult(name, "already-ended")
        return StopResult(name, "not-stopped", reason="its supervisor went away")


async def _has_gone(found: registry.Glance) -> bool:
    """Whether a supervisor that does not answer has ended, or is about to: its last worker has ended meanwhile."""
    for _ in range(int(GOING_SECONDS / 0.02)):
        if registry.presence(found.supervisor)[0] != "alive":
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


async def _watch(found: registry.Glance, exit_file: str, ended: asyncio.Event) -> None:
    """Set `ended` when a worker has ended, or its supervisor: nothing more will come of its log."""
    while registry.runs(found, exit_file):  # noqa: ASYNC110  another process sets no event
        await asyncio.sleep(ENDED_POLL_SECONDS)
    ended.set()


def current_worker() -> tuple[str, str] | None:
    """The local job and worker whose environment this process has inherited, None outside of one.

    The job may have ended since: compare with the workers that run.
    """
    job, worker = os.environ.get("ATLCTL_JOB"), os.environ.get("ATLCTL_WORKER")
    return (job, worker) if job and worker else None
