"""A backend for tests that run each request in a separate event loop: opened and closed each time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

from atlctl.backends.base import Backend, ExecRequest, Execution, Executor, Listing, LogLine, LogRequest, StopResult
from atlctl.jobs.model import Job, RankMap, Worker


class Closable(Backend, Protocol):
    async def aclose(self) -> None: ...


class Fresh:
    """`make` opens a backend. `operate` plays the job's controller before each request."""

    def __init__(self, name: str, make: Callable[[], Closable], operate: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._make = make
        self._operate = operate

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Closable]:
        backend = self._make()
        try:
            yield backend
        finally:
            await backend.aclose()

    async def list_jobs(self) -> Listing:
        self._operate()
        async with self._open() as backend:
            return await backend.list_jobs()

    async def get_job(self, name: str) -> Job:
        self._operate()
        async with self._open() as backend:
            return await backend.get_job(name)

    async def current(self) -> Job | None:
        return None

    async def current_worker(self, job: Job) -> str | None:
        return None

    async def ranks(self, job: Job) -> RankMap | None:
        return None

    def executor(self, job: Job) -> _Closing:
        return _Closing(self._make(), job)

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
        operating = asyncio.create_task(self._keep_operating())
        try:
            async with self._open() as backend:
                batches: Any = backend.lines(job, worker, request)
                async with aclosing(batches):
                    async for batch in batches:
                        yield batch
        finally:
            operating.cancel()

    async def _keep_operating(self) -> None:
        while True:
            await asyncio.to_thread(self._operate)
            await asyncio.sleep(0.1)

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None:
        async with self._open() as backend:
            return await backend.read_file(job, worker, path, limit)

    async def stop(self, job: Job, workers: Sequence[Worker], grace: float) -> Sequence[StopResult]:
        async with self._open() as backend:
            return await backend.stop(job, workers, grace)


class _Closing:
    """An executor that also closes its backend's connections."""

    def __init__(self, backend: Closable, job: Job) -> None:
        self._backend = backend
        self._executor: Executor = backend.executor(job)

    def run(self, worker: Worker, request: ExecRequest) -> Execution:
        return self._executor.run(worker, request)

    async def aclose(self) -> None:
        await self._executor.aclose()
        await self._backend.aclose()
