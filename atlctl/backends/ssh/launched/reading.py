"""Logs and files of workers on hosts."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from atlctl.backends.base import Event, Executor, Exited, LogLine, LogRequest, Output
from atlctl.backends.ssh.launched import asking
from atlctl.backends.ssh.launched.looking import details
from atlctl.backends.ssh.launched.records import Record
from atlctl.backends.ssh.launched.sending import request as question
from atlctl.backends.supervised.crilines import MAX_LINE, PIECES, Joiner
from atlctl.jobs.errors import AtlctlError, TimedOut, Unreachable

#: Seconds without a line after which a log that is followed says that nothing new has come.
QUIET_SECONDS = 0.1
#: Seconds between two tries after a lost connection, and for how long they go on without success.
AGAIN_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
#: Seconds until a host must have begun to send, and without a byte of a log that is read to its end.
SILENT_SECONDS = 30.0
#: Lines of a file that stay without their end for longer than this are none of ours.
MAX_RAW = 1 << 20
_MARK = re.compile(rb"@ ([0-9]{1,20}) ([0-9]{1,20})")


async def lines(
    executor: Executor,
    record: Record,
    name: str,
    request: LogRequest,
    waiting: Callable[[str], None] | None = None,
) -> AsyncGenerator[Sequence[LogLine], None]:
    """As `LogSource.lines`; a log that is followed goes on over lost connections, each of which `waiting` is told.
    Raises AtlctlError where the log cannot be read, or was cut off."""
    if request.previous:
        raise AtlctlError("workers on hosts are not restarted: there is no previous instance", "leave out --previous")
    reading = _Reading(record, name, request)
    while True:
        try:
            async with aclosing(reading.batches(executor)) as batches:
                async for batch in batches:
                    yield batch
            break
        except (Unreachable, TimedOut) as error:
            first = reading.lost_at is None
            if not reading.goes_on():
                raise
            if first and waiting is not None:
                waiting(f"waiting for the log of {name}: {error.message}")
        yield []
        await asyncio.sleep(AGAIN_SECONDS)
    if rest := list(reading.joiner.rest()):
        yield rest


class _Reading:
    """One log on its way, over one connection or several."""

    def __init__(self, record: Record, name: str, request: LogRequest) -> None:
        self._name, self._follow = name, request.follow
        moment = int((request.since or 0) * 1e9)
        self.joiner = Joiner(moment)
        self._wanted = {
            **details(record, name),
            "tail": request.tail,
            "since": _stamp(moment) if request.since else "",
            "moment": moment,
            "follow": request.follow,
            "pieces": PIECES,
            "longest": MAX_LINE,
        }
        #: The last mark, and how many lines have come behind it. Of a lost connection they come again.
        self._mark: tuple[int, int] | None = None
        self._behind = 0
        self._again = 0
        #: Since when no connection has brought anything, None where one does.
        self.lost_at: float | None = None
        self._told: dict[str, Any] | None = None

    def goes_on(self) -> bool:
        """After a lost connection: whether it is worth to ask again, and can be done without a loss."""
        now = asyncio.get_running_loop().time()
        if self.lost_at is None:
            self.lost_at = now
        return self._follow and self._mark is not None and now - self.lost_at < PATIENCE_SECONDS

    async def batches(self, executor: Executor) -> AsyncGenerator[Sequence[LogLine], None]:
        """What one connection brings. Raises AtlctlError; returns at the end of the log."""
        self._told = None
        begun = asyncio.get_running_loop().time()
        wanted = {**self._wanted, "mark": self._mark}
        execution = executor.run(asking.worker_of(self._name), question("log", wanted))
        said, buffer = bytearray(), b""
        last: Event | None = None
        try:
            async for event in _patiently(aiter(execution), self._follow):
                if event is None:
                    if not self._follow:
                        raise asking.silent(self._name, SILENT_SECONDS)
                    if self._told is None and asyncio.get_running_loop().time() - begun > SILENT_SECONDS:
                        raise asking.silent(self._name, SILENT_SECONDS)
                    yield []
                    continue
                last = event
                if isinstance(event, Output) and event.stream == "stdout":
                    *found, buffer = (buffer + event.data).split(b"\n")
                    if len(buffer) > MAX_RAW:
                        raise AtlctlError(f"{self._name}: its log cannot be understood")
                    if batch := self._take(found):
                        yield batch
                elif isinstance(event, Output):
                    said = (said + event.data)[-asking.MAX_SAID :]
        finally:
            await execution.aclose()
        told = self._answer()
        if not (isinstance(last, Exited) and last.exit_code == 0 and told is not None and told["event"] == "log"):
            raise asking.for_user(self._name, asking.failure(self._name, last, told, bytes(said)))

    def _answer(self) -> dict[str, Any] | None:
        # `batches` has set it to None, and read there it would be None for mypy: it does not see what `_take` does.
        return self._told

    def _take(self, raw: list[bytes]) -> list[LogLine]:
        """Lines as they came, the answer's first one and marks among them."""
        batch = []
        for line in raw:
            if self._told is None:
                # Before it stands what the login's shell may print.
                told = asking.parsed(line)
                if told is not None and "event" in told:
                    self._told, self.lost_at = told, None
                    if told.get("resumed") is not True:
                        self._behind = 0
                    self._again = self._behind
            elif mark := _MARK.fullmatch(line):
                self._mark, self._behind = (int(mark[1]), int(mark[2])), 0
            elif self._again:
                self._again -= 1
            else:
                self._behind += 1
                taken = self.joiner.take(line)
                if taken is not None:
                    batch.append(taken)
        return batch


async def _patiently(events: AsyncIterator[Event], follow: bool) -> AsyncGenerator[Event | None, None]:
    """The events, and None for each while in which none has come."""
    pending: asyncio.Future[Event | None] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(events, None))
            done, _ = await asyncio.wait([pending], timeout=QUIET_SECONDS if follow else SILENT_SECONDS)
            if not done:
                yield None
                continue
            event, pending = pending.result(), None
            if event is None:
                return
            yield event
    finally:
        if pending is not None:
            pending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pending


def _stamp(moment: int) -> str:
    """Nanoseconds since the epoch as they stand in the files, so that they can be compared as text."""
    second, nanos = divmod(max(0, moment), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{nanos:09d}Z"


async def read_file(executor: Executor, record: Record, name: str, path: str, limit: int) -> bytes | None:
    """Up to `limit` bytes of a regular file, None where it cannot be read. A relative path begins in the worker's
    working folder; a link at its end is not followed. Raises AtlctlError where the host cannot be asked."""
    wanted = {**details(record, name), "path": path, "limit": limit}
    try:
        told, data = await asking.ask_for_bytes(executor, name, "read", wanted, limit)
    except AtlctlError as error:
        raise asking.for_user(name, error) from error
    return data if told.get("event") == "file" else None
