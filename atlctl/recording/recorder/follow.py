"""Follows one worker's log for a recording, retries when the source or the file fails, and keeps segments.

    NAME.ts.log, NAME.part-2.ts.log, NAME.part-3.ts.log, ...

The last segment grows, the oldest ones are removed. No file is ever renamed, so that a concurrent reader sees each line
once. There is no separate position file: after a crash, the segments show where to continue.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from atlctl.backends.base import PREVIOUS, LogLine, LogRequest
from atlctl.diagnosis.torchelastic import AGENT_STARTS, FAILURE_MARKERS
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NothingMatched, Replaced
from atlctl.jobs.model import Job, Worker
from atlctl.jobs.statedir import write_all
from atlctl.recording.folder import part_of
from atlctl.recording.recorder.store import Store
from atlctl.recording.save import EvidenceSource, closing, stamped

#: Seconds before a log that broke off is requested again.
PAUSES = (0.5, 1.0, 2.0, 5.0)
#: Seconds after a trainer's failure in which its log may still name error files.
_NAMING = 10.0
_GAPS = 20
#: The only line that ends an attempt before the last one: the next attempt may assign other ranks.
_ATTEMPT_ENDS = b" failed (exitcode: "
_BILLION = 10**9
#: Bytes after which a segment is closed; at most a quarter of the size to keep.
SEGMENT = 8 << 20
#: Nanoseconds by which a line may be older than the one before it: a container's two streams are stamped separately.
SLACK = 10**9
_CHUNK = 1 << 20
#: `2026-11-20T18:40:00.000000000Z `, as `stamped` writes it.
_STAMP = 31
_second: tuple[bytes, int] = (b"", 0)


class Follower:
    """Follows one worker's log until `stop`, or until its source reports the end.

    `problem` is the current reason for missing lines, or empty; `unwritten`: the file on this machine cannot be
    written. `gaps` describe lines that are lost. `moved`: time of the last line, seconds of the monotonic clock.
    `came` is called with all lines that were written, `failed` when the log shows a trainer's failure, `begun` when an
    attempt may have begun, `stuck` with a new `problem` and `unwritten`.
    """

    def __init__(
        self,
        source: EvidenceSource,
        job: Job,
        worker: Worker,
        log: WorkerLog,
        *,
        came: Callable[[str, bytes], None],
        failed: Callable[[str, bytes], None],
        begun: Callable[[str], None],
        stuck: Callable[[str, str, bool], None],
    ) -> None:
        self.worker = worker
        self.log = log
        self.problem = ""
        self.unwritten = False
        self.gaps: list[str] = []
        self.ended = False
        self.moved = time.monotonic()
        self._source, self._job = source, job
        self._came, self._failed, self._begun, self._stuck = came, failed, begun, stuck
        self._instance: tuple[str | None, int] | None = None
        self._naming = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self, before: tuple[str | None, int] | None) -> None:
        """Starts following. `before`: pod and number of restarts of the recorded run, None if there is none."""
        self._instance = before
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        failures = 0
        while True:
            came = self.log.size, self.log.last
            unwritten = False
            try:
                await self._once()
                self.problem, self.unwritten, self.ended = "", False, True
                return
            except (NothingMatched, Replaced):
                problem: str = Message("it was deleted while its log was followed: lines at the end may be missing")
            except AtlctlError as error:
                problem = error.message
            except OSError as error:
                problem, unwritten = Message("cannot be written: {why}", why=error.strerror or error), True
            if problem != self.problem:
                self.problem, self.unwritten = problem, unwritten
                self._stuck(self.worker.name, problem, unwritten)
            failures = 0 if came != (self.log.size, self.log.last) else failures + 1
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])

    async def _once(self) -> None:
        """Continues after the last recorded line."""
        worker, before = self.worker, self._instance
        now = (worker.uid, worker.restarts)
        since = None if self.log.last is None else self.log.last - SLACK
        if before is not None and since is not None and before != now:
            if before[0] == now[0]:
                await self._rest(since)
            # Another pod or container: request its whole log, and drop lines that are recorded already.
            since = None
            known = None if worker.started is None else int(worker.started) * _BILLION - SLACK
        else:
            known = since
        self.log.expect(known)
        self._instance = now
        request = LogRequest(follow=True, since=None if since is None else since // _BILLION)
        await self._copy(request)

    async def _rest(self, since: int) -> None:
        """Records the lines that the previous run wrote after the last recorded one."""
        self.log.expect(since)
        try:
            await self._copy(LogRequest(attempt=PREVIOUS, since=since // _BILLION))
        except AtlctlError as error:
            if len(self.gaps) < _GAPS:
                self.gaps.append(Message("the end of its log before the restart is lost ({why})", why=error.message))

    async def _copy(self, request: LogRequest) -> None:
        async with closing(self._source.lines(self._job, self.worker, request)) as read:
            async for batch in read:
                if batch:
                    self._take(batch)
                    if isinstance(batch, list):
                        batch.clear()  # the source holds it until the next batch: 64 of these are 16 MB

    def _take(self, batch: Sequence[LogLine]) -> None:
        data = self.log.take(batch)
        self.moved = time.monotonic()
        if data or not self.unwritten:
            self.problem, self.unwritten = "", False
        self._came(self.worker.name, data)
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


class WorkerLog:
    """The recorded log of one worker. `last` is its newest time stamp (nanoseconds), None without one.

    `size` is the number of bytes that are kept.
    """

    def __init__(self, store: Store, stem: str, keep: int, closed: Callable[[int], None]) -> None:
        """`keep` in bytes. `closed` is called with the descriptor of each full segment, to sync and close it.

        Raises OSError if the files of an earlier recorder cannot be read.
        """
        self._store, self._stem, self._keep, self._closed = store, stem, keep, closed
        self._limit = min(SEGMENT, max(1, keep // 4))
        self._fd = -1
        self._parts: dict[int, int] = {}
        self._known: _KnownLines | None = None
        self.last: int | None = None
        for name in store.names():
            number = part_of(stem, name)
            if number is not None:
                fd = store.read(name)
                try:
                    self._parts[number] = os.fstat(fd).st_size
                finally:
                    os.close(fd)
        if self._parts:
            self._mend()

    @property
    def size(self) -> int:
        return sum(self._parts.values())

    @property
    def cut(self) -> bool:
        """Whether its oldest lines were removed."""
        return bool(self._parts) and min(self._parts) > 1

    def expect(self, since: int | None) -> None:
        """Makes `take` skip lines that are recorded already. They are searched from `since` (nanoseconds) on."""
        self._known = _KnownLines(self, since) if self._parts else None

    def take(self, lines: Sequence[LogLine]) -> bytes:
        """Appends those of `lines` that are not recorded yet; returns the bytes that it wrote.

        Raises OSError; then no line was added, and the file ends with a whole line.
        """
        if self._known is not None:
            lines = [line for line in lines if not self._old(line)]
        if not lines:
            return b""
        data = b"".join(map(stamped, lines))
        self._write(data)
        newest = max((line.time for line in lines if line.time is not None), default=None)
        if newest is not None and (self.last is None or newest > self.last):
            self.last = newest
        return data

    def _old(self, line: LogLine) -> bool:
        known = self._known
        if known is None:
            return False
        if line.time is not None and line.time > known.last + SLACK:
            self._known = None
            return False
        return known.take(line)

    def _write(self, data: bytes) -> None:
        number = max(self._parts, default=0)
        if self._fd >= 0 and self._parts[number] >= self._limit:
            self._closed(self._fd)
            self._fd = -1
            number += 1
        if self._fd < 0:
            number = max(number, 1)
            self._fd = self._store.append(self._name(number))
            self._parts.setdefault(number, 0)
        try:
            write_all(self._fd, data)
        except OSError:
            os.ftruncate(self._fd, self._parts[number])
            raise
        self._parts[number] += len(data)
        while len(self._parts) > 1 and self.size - self._parts[min(self._parts)] >= self._keep:
            oldest = min(self._parts)
            self._store.remove(self._name(oldest))
            del self._parts[oldest]

    def _mend(self) -> None:
        """Removes a last line that a crash cut, and finds the newest time stamp."""
        number = max(self._parts)
        fd = self._store.append(self._name(number))
        try:
            whole = self._whole(number)
            if whole < self._parts[number]:
                os.ftruncate(fd, whole)
                self._parts[number] = whole
        finally:
            os.close(fd)
        for line in self.backwards():
            when = when_of(line)
            if when is not None:
                # An earlier line may be slightly newer.
                self.last = when if self.last is None else max(self.last, when)
                if when < self.last - SLACK:
                    break

    def _whole(self, number: int) -> int:
        """The size of a segment up to its last newline."""
        fd = self._store.read(self._name(number))
        try:
            position = os.fstat(fd).st_size
            while position > 0:
                begin = max(0, position - _CHUNK)
                found = os.pread(fd, position - begin, begin).rfind(b"\n")
                if found >= 0:
                    return begin + found + 1
                position = begin
            return 0
        finally:
            os.close(fd)

    def backwards(self) -> Iterator[bytes]:
        """Its lines without newlines, from the last to the first."""
        for number in sorted(self._parts, reverse=True):
            fd = self._store.read(self._name(number))
            try:
                yield from _backwards(fd, self._parts[number])
            finally:
                os.close(fd)

    def _name(self, number: int) -> str:
        return f"{self._stem}.ts.log" if number == 1 else f"{self._stem}.part-{number}.ts.log"

    def sync(self) -> int | None:
        """A duplicate descriptor of the segment being written, to sync and close; None if there is none."""
        return os.dup(self._fd) if self._fd >= 0 else None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _KnownLines:
    """Recorded lines of a log from `since` on, to detect lines that arrive again. Each one matches once."""

    def __init__(self, log: WorkerLog, since: int | None) -> None:
        self.last = log.last if log.last is not None else -1
        self._floor: int | None = None
        keys = array("q")
        whole = True
        for line in log.backwards():
            when = when_of(line)
            if since is not None and when is not None and when < since - SLACK:
                whole = False
                break
            if when is not None:
                self._floor = when
            keys.append(hash(line))
        if not (whole and log.cut):
            self._floor = None
        self._keys = array("q", sorted(keys))
        self._taken = bytearray(len(self._keys))

    def take(self, line: LogLine) -> bool:
        key = hash(stamped(line)[:-1])
        place = bisect_left(self._keys, key)
        while place < len(self._keys) and self._keys[place] == key:
            if not self._taken[place]:
                self._taken[place] = 1
                return True
            place += 1
        # Older than all kept lines: it was recorded, and its segment was removed.
        return self._floor is not None and line.time is not None and line.time < self._floor


def _backwards(fd: int, size: int) -> Iterator[bytes]:
    rest: bytes | None = None
    position = size
    while position > 0:
        begin = max(0, position - _CHUNK)
        block = os.pread(fd, position - begin, begin)
        rest, *lines = (block.removesuffix(b"\n") if rest is None else block + rest).split(b"\n")
        position = begin
        yield from reversed(lines)
    if rest is not None:
        yield rest


def when_of(line: bytes) -> int | None:
    """The time stamp of a recorded line, nanoseconds since the epoch; None without one."""
    global _second
    head, fraction = line[:19], line[20:29]
    if line[19:20] != b"." or line[29:_STAMP] != b"Z " or not fraction.isdigit():
        return None
    if head != _second[0]:
        try:
            moment = datetime.strptime(head.decode("ascii"), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
        except ValueError:
            return None
        _second = head, int(moment.timestamp())
    return _second[1] * 10**9 + int(fraction)
