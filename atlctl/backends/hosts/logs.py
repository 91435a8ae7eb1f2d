"""A local worker's log, read on this machine; lines of CRI files to lines of a log.

Which lines of the files are wanted is chosen by `remote.supervisor.logs`, for this machine and for hosts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime

from atlctl.backends.base import LogLine, LogRequest, Stream
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NothingMatched
from atlctl.jobs.statedir import file_error
from atlctl.remote.supervisor import logs

#: A line longer than this comes in pieces, the first ones marked as not complete.
MAX_LINE = 16 * 1024 * 1024
#: More lines of the files than one line may be cut into (pieces of 16 KiB).
PIECES = MAX_LINE // (16 * 1024) + 64

#: Fields of a CRI line that is cut short.
_EMPTY = [b""] * 3


def folder_of(own: str, request: LogRequest) -> str:
    """The folder of the log that is wanted, of the worker in the folder `own`. Raises AtlctlError."""
    if (folder := logs.of_attempt(own, request.attempt)) is None:
        if request.previous:
            raise AtlctlError(Message("this is its first attempt"), Message("leave out --previous"))
        raise NothingMatched(Message("it has no log of attempt {number}", number=request.attempt))
    return folder


async def read(
    folder: str, request: LogRequest, ended: Callable[[], bool] | None
) -> AsyncGenerator[Sequence[LogLine], None]:
    """Batches of lines. With `ended` (whether the worker has ended and its log is complete) the log is followed.

    While following, an empty batch says that nothing new has come. Raises AtlctlError for a file that cannot be read.
    """
    moment = int((request.since or 0) * 1e9)
    joiner = Joiner(moment)
    with closing(logs.Reader(folder)) as reader:
        blocks = logs.lines(
            reader,
            tail=request.tail,
            since=stamp(moment).encode() if request.since else b"",
            moment=moment,
            pieces=PIECES,
            longest=MAX_LINE,
            ended=ended if request.attempt is None else None,
        )
        try:
            for block in blocks:
                if block is None:
                    yield []
                    await asyncio.sleep(logs.POLL_SECONDS)
                    continue
                taken = map(joiner.take, block[:-1].split(b"\n")) if block else ()
                if batch := [line for line in taken if line is not None]:
                    yield batch
                    await asyncio.sleep(0)
        except OSError as error:
            raise file_error(error, str(error.filename or folder)) from error
    if rest := list(joiner.rest()):
        yield rest


class Joiner:
    """CRI lines to log lines: joins the pieces of long lines, each stream for itself."""

    def __init__(self, since: int) -> None:
        self._since = since
        self._parts: dict[Stream, list[bytes]] = {"stdout": [], "stderr": []}
        self._times: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self._stamp = b""
        self._second = 0

    def take(self, line: bytes) -> LogLine | None:
        stamp, name, tag, text = (line.split(b" ", 3) + _EMPTY)[:4]
        stream: Stream = "stderr" if name == b"stderr" else "stdout"
        when = self._nanoseconds(stamp)
        if when is None or tag not in (b"F", b"P"):
            return LogLine(None, "stdout", line)  # torn by a full disk: shown unchanged
        parts = self._parts[stream]
        if not parts:
            if tag == b"F":  # nearly all of them
                return LogLine(when, stream, text) if when >= self._since else None
            self._times[stream] = when
        parts.append(text)
        if tag == b"P" and sum(map(len, parts)) < MAX_LINE:
            return None
        return self._whole(stream, complete=tag == b"F")

    def rest(self) -> Iterator[LogLine]:
        """Last lines that never got their newline."""
        for stream, parts in self._parts.items():
            if parts:
                line = self._whole(stream, complete=False)
                if line is not None:
                    yield line

    def _whole(self, stream: Stream, complete: bool) -> LogLine | None:
        data, self._parts[stream] = b"".join(self._parts[stream]), []
        when = self._times[stream]
        return LogLine(when, stream, data, complete) if when >= self._since else None

    def _nanoseconds(self, stamp: bytes) -> int | None:
        # Most lines share the second of the line before.
        head, fraction = stamp[:19], stamp[20:-1]
        if head != self._stamp:
            try:
                moment = datetime.strptime(head.decode("ascii"), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
            except ValueError:
                return None
            self._stamp, self._second = head, int(moment.timestamp())
        if not fraction.isdigit():
            return None
        return self._second * 1_000_000_000 + int(fraction if len(fraction) == 9 else fraction.ljust(9, b"0")[:9])


def stamp(moment: int) -> str:
    """Nanoseconds since the epoch as they are in the files, so that they can be compared as text."""
    second, nanos = divmod(max(0, moment), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{nanos:09d}Z"
