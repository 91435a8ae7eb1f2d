"""One worker's log, from its source to its file, however often either of them breaks off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast

from atlctl.backends.base import LogLine, LogRequest
from atlctl.diagnosis.agentnotes import AGENT_STARTS, FAILURE_MARKERS
from atlctl.jobs.errors import AtlctlError, NothingMatched, Replaced
from atlctl.jobs.model import Job, Worker
from atlctl.recording.recorder.segments import SLACK, WorkerLog

#: Seconds before a log that broke off is asked for again.
PAUSES = (0.5, 1.0, 2.0, 5.0)
#: Seconds after a trainer's failure in which its log may still name error files.
_NAMING = 10.0
_GAPS = 20
#: An attempt that is not the last one ends with no other word: the next may give out other ranks.
_ATTEMPT_ENDS = b" failed (exitcode: "
#: A problem that begins so is one of this machine.
UNWRITTEN = "cannot be written"
_BILLION = 10**9


class Source(Protocol):
    """What is needed of a backend."""

    def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]: ...

    async def raw_events(self, job: Job) -> Sequence[Mapping[str, Any]]: ...


class Follower:
    """Follows one worker until `stop`, or until its source says that nothing more can come.

    `problem` is why nothing comes at the moment, empty while all is well; `gaps` are lines that will never come.
    `moved`: when the last line came, seconds of the monotonic clock. `failed` is called when the log tells of a
    trainer's failure, `begun` when an attempt may begin in it, `stuck` with a new `problem`.
    """

    def __init__(
        self,
        source: Source,
        job: Job,
        worker: Worker,
        log: WorkerLog,
        *,
        failed: Callable[[str, bytes], None],
        begun: Callable[[str], None],
        stuck: Callable[[str, str], None],
    ) -> None:
        self.worker = worker
        self.log = log
        self.problem = ""
        self.gaps: list[str] = []
        self.ended = False
        self.moved = time.monotonic()
        self._source, self._job = source, job
        self._failed, self._begun, self._stuck = failed, begun, stuck
        self._instance: tuple[str | None, int] | None = None
        self._naming = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self, before: tuple[str | None, int] | None) -> None:
        """`before`: pod and number of restarts of the run whose lines are recorded, None where none are."""
        self._instance = before
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        failures = 0
        while True:
            came = self.log.size, self.log.last
            try:
                await self._once()
                self.problem, self.ended = "", True
                return
            except (NothingMatched, Replaced):
                problem = "it was deleted while its log was followed: lines at the end may be missing"
            except AtlctlError as error:
                problem = error.message
            except OSError as error:
                problem = f"{UNWRITTEN}: {error.strerror or error}"
            if problem != self.problem:
                self.problem = problem
                self._stuck(self.worker.name, problem)
            failures = 0 if came != (self.log.size, self.log.last) else failures + 1
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])

    async def _once(self) -> None:
        """Goes on behind what is recorded."""
        worker, before = self.worker, self._instance
        now = (worker.uid, worker.restarts)
        since = None if self.log.last is None else self.log.last - SLACK
        if before is not None and since is not None and before != now:
            if before[0] == now[0]:
                await self._rest(since)
            # The pod is another one, or its container: all of its log is wanted, less what was recorded of it.
            since = None
            known = None if worker.started is None else int(worker.started) * _BILLION - SLACK
        else:
            known = since
        self.log.expect(known)
        self._instance = now
        request = LogRequest(follow=True, since=None if since is None else since // _BILLION)
        await self._copy(request)

    async def _rest(self, since: int) -> None:
        """What the run before wrote after the last line that is recorded."""
        self.log.expect(since)
        try:
            await self._copy(LogRequest(previous=True, since=since // _BILLION))
        except AtlctlError as error:
            if len(self.gaps) < _GAPS:
                self.gaps.append(f"the end of the run before its restart is gone ({error.message})")

    async def _copy(self, request: LogRequest) -> None:
        # Both backends give generators: ended early, they must give back their connections at once.
        batches = cast("AsyncGenerator[Sequence[LogLine], None]", self._source.lines(self._job, self.worker, request))
        async with aclosing(batches) as read:
            async for batch in read:
                if batch:
                    self._take(batch)
                    if isinstance(batch, list):
                        batch.clear()  # whoever gave it holds it until the next one comes: 64 of these are 16 MB

    def _take(self, batch: Sequence[LogLine]) -> None:
        data = self.log.take(batch)
        self.moved = time.monotonic()
        if data or not self.problem.startswith(UNWRITTEN):
            self.problem = ""
        if any(marker in data for marker in FAILURE_MARKERS):
            self._naming = self.moved + _NAMING
            self._failed(self.worker.name, data)
        elif self.moved < self._naming and b"error_file: " in data:
            self._failed(self.worker.name, data)
        elif AGENT_STARTS in data or _ATTEMPT_ENDS in data:
            self._begun(self.worker.name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled() and (error := self._task.exception()) is not None:
                raise error
