"""Merges the logs of many workers by time."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from atlctl.backends.base import LogLine
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Worker

#: Maximum number of lines in a chunk.
CHUNK = 2000

Lines = AsyncIterator[Sequence[LogLine]]


class _Source:
    """The log of one worker: the current batch, and the request for the next one."""

    def __init__(self, position: int, worker: Worker, lines: Lines) -> None:
        self.position = position
        self.worker = worker
        self.buffer: deque[LogLine] = deque()
        self.caught_up = False
        self.done = False
        self.problem: AtlctlError | None = None
        self._lines = lines
        self._last = 0
        self.task: asyncio.Task[Sequence[LogLine] | None] | None = None

    async def _next(self) -> Sequence[LogLine] | None:
        return await anext(self._lines, None)

    def ask(self) -> None:
        if self.task is None and not self.done and not self.buffer:
            self.task = asyncio.create_task(self._next())

    def collect(self) -> None:
        """Take the result of the finished request."""
        assert self.task is not None
        task, self.task = self.task, None
        try:
            batch = task.result()
        except AtlctlError as error:
            self.problem, batch = error, None
        if batch is None:
            self.done = True
        else:
            self.caught_up = not batch
            self.buffer.extend(batch)

    def key(self) -> int:
        """The time of the next line; a line without time stays with the line before it."""
        when = self.buffer[0].time
        if when is not None:
            self._last = when
        return self._last

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, AtlctlError):
                await self.task


async def merge(
    workers: Sequence[Worker], open_log: Callable[[Worker], Lines], report: Callable[[Worker, AtlctlError | None], None]
) -> AsyncIterator[list[tuple[Worker, LogLine]]]:
    """Chunks of lines by time; lines of equal time in the order of `workers`.

    A followed log without new lines does not delay the others. `report` is called once per worker, when its log has
    ended or could not be read. Holds one batch per worker at most.
    """
    sources = [_Source(position, worker, open_log(worker)) for position, worker in enumerate(workers)]
    try:
        reported: set[int] = set()
        while True:
            for source in sources:
                source.ask()
            waiting = [source for source in sources if source.task is not None]
            urgent = [source for source in waiting if not source.caught_up]
            if not any(source.buffer for source in sources):
                urgent = urgent or waiting
            if urgent:
                tasks = [source.task for source in urgent if source.task is not None]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for source in waiting:
                if source.task is not None and source.task.done():
                    source.collect()
                if source.done and not source.buffer and source.position not in reported:
                    reported.add(source.position)
                    report(source.worker, source.problem)
            if any(not s.buffer and not s.done and not s.caught_up for s in sources):
                continue
            chunk = _take(sources)
            if chunk:
                yield chunk
            elif all(source.done for source in sources):
                return
    finally:
        for source in sources:
            await source.close()


def _take(sources: Sequence[_Source]) -> list[tuple[Worker, LogLine]]:
    """Lines in order, until a source that may continue has none left."""
    chunk: list[tuple[Worker, LogLine]] = []
    heap = [(source.key(), source.position) for source in sources if source.buffer]
    heapq.heapify(heap)
    while heap and len(chunk) < CHUNK:
        source = sources[heap[0][1]]
        chunk.append((source.worker, source.buffer.popleft()))
        if source.buffer:
            heapq.heapreplace(heap, (source.key(), source.position))
        elif source.done:
            heapq.heappop(heap)
        else:
            break
    return chunk
