"""The local backend: the seams of `atlctl.backends.base` over the registry and the supervisors."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import AsyncIterator, Sequence
from typing import Any

from atlctl.backends.base import ExecRequest, Listing, LogLine, LogRequest, StopResult
from atlctl.backends.local import logs, ranks, registry
from atlctl.backends.local.client import ControlClient
from atlctl.backends.local.execution import LocalExecution
from atlctl.jobs.errors import AtlctlError, Unreachable
from atlctl.jobs.model import Job, RankMap, Worker

#: How often a followed log asks whether its worker has ended, seconds.
ENDED_POLL_SECONDS = 0.2


class LocalExecutor:
    """Runs commands in the workers of one job, over one connection to its supervisor."""

    def __init__(self, entry: registry.Entry) -> None:
        self._client = ControlClient(entry.job, entry.folder)
        # The same for all workers of a run: what commands print of their environment still folds.
        self._token = secrets.token_hex(8)
        self._reachable = entry.presence == "alive"

    def run(self, worker: Worker, request: ExecRequest) -> LocalExecution:
        refusal = None if worker.state.active and self._reachable else f"not running ({worker.state})"
        return LocalExecution(self._client, worker, request, self._token, refusal)

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

    async def ranks(self, job: Job) -> RankMap | None:
        return ranks.observed(job)

    def executor(self, job: Job) -> LocalExecutor:
        return LocalExecutor(self._same(job))

    def _same(self, job: Job) -> registry.Entry:
        """The entry as it is now. Raises AtlctlError where another job has taken the name."""
        entry = registry.load(job.name)
        if entry.job.uid != job.uid:
            raise AtlctlError(
                f"job {job.name} was replaced by another of the same name meanwhile", f"atlctl ps {job.name}"
            )
        return entry

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
        entry = self._same(job)
        folder = f"{entry.folder}/workers/{worker.name}"
        if not request.follow:
            async for batch in logs.read(f"{folder}/log", request, None):
                yield batch
            return
        ended = asyncio.Event()
        watch = asyncio.create_task(self._watch(job, f"{folder}/exit.json", ended))
        try:
            async for batch in logs.read(f"{folder}/log", request, ended):
                yield batch
        finally:
            watch.cancel()

    async def _watch(self, job: Job, exit_file: str, ended: asyncio.Event) -> None:
        while not await asyncio.to_thread(os.path.exists, exit_file):
            try:
                entry = registry.load(job.name)
            except AtlctlError:
                break  # removed meanwhile: nothing more will come
            if entry.presence != "alive":
                break
            await asyncio.sleep(ENDED_POLL_SECONDS)
        ended.set()

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None:
        """A worker's file is a file of this machine; a relative path starts in its working folder."""
        base = f"{registry.root()}/{job.name}/workers/{worker.name}/work"
        try:
            descriptor = os.open(os.path.join(base, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return file.read(limit)

    async def stop(self, job: Job, workers: Sequence[Worker], grace: float) -> list[StopResult]:
        """See `Controller.stop`. Workers whose supervisor is gone have ended with it."""
        entry = self._same(job)
        if entry.presence == "elsewhere":
            raise Unreachable(f"job {job.name} {entry.job.reason}: it can only be stopped there")
        names = [worker.name for worker in workers]
        if entry.presence == "gone":
            return [StopResult(name, "already-ended") for name in names]
        client = ControlClient(job, entry.folder)
        answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        try:
            await client.connect()
            number = client.listen(answers.put_nowait)
            await client.send(number, {"op": "stop", "workers": names, "grace": grace})
            results: dict[str, StopResult] = {}
            while (answer := await answers.get()) is not None and answer["event"] != "stop-done":
                if answer["event"] != "stopped":
                    raise AtlctlError(f"job {job.name} was replaced by another of the same name meanwhile")
                results[answer["worker"]] = StopResult(answer["worker"], answer["how"], answer["processes"])
        finally:
            await client.aclose()
        # A supervisor that went away while it stopped takes its workers with it.
        return [results.get(name) or await self._left(job, name) for name in names]

    async def _left(self, job: Job, name: str) -> StopResult:
        found = next((worker for worker in registry.load(job.name).job.workers if worker.name == name), None)
        if found is None or not found.state.active:
            return StopResult(name, "killed", reason="its supervisor ended while it was stopped")
        return StopResult(name, "not-stopped", reason="its supervisor went away")


def current_worker() -> tuple[str, str] | None:
    """The local job and worker this process runs in, None outside of one.

    The environment says so; a process that only inherited the variables of a job that is gone is outside.
    """
    job, worker = os.environ.get("ATLCTL_JOB"), os.environ.get("ATLCTL_WORKER")
    return (job, worker) if job and worker else None
