"""Logs of local workers: CRI files, rotated, perhaps still growing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence

from atlctl.backends.base import LogLine, LogRequest
from atlctl.backends.local.supervisor import logfiles
from atlctl.backends.supervised.crilines import PIECES, Joiner
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.statedir import file_error

POLL_SECONDS = 0.1


async def read(folder: str, request: LogRequest, running: asyncio.Event | None) -> AsyncIterator[Sequence[LogLine]]:
    """Batches of lines. With `running` (set once the worker has ended and its log is complete) the log is followed.

    While following, an empty batch says that nothing new has come. Raises AtlctlError for a file that cannot be read.
    """
    if request.previous:
        raise AtlctlError("local workers are not restarted: there is no previous instance", "leave out --previous")
    since = int((request.since or 0) * 1e9)
    reader = _Reader(folder)
    joiner = Joiner(since)
    try:
        if request.tail is not None:
            reader, joiner, last = _last_lines(folder, request.tail, since)
            if running is None:
                last.extend(joiner.rest())
            if last:
                yield list(last)
        else:
            for batch in reader.batches(joiner):
                yield batch
                await asyncio.sleep(0)
        while running is not None:
            done = running.is_set()
            found = False
            for batch in reader.batches(joiner):
                found = True
                yield batch
            if done:
                break
            if not found:
                yield []
                await asyncio.sleep(POLL_SECONDS)
        if request.tail is None or running is not None:
            rest = list(joiner.rest())
            if rest:
                yield rest
    finally:
        reader.close()


def _last_lines(folder: str, count: int, since: int) -> tuple[_Reader, Joiner, deque[LogLine]]:
    """The last `count` lines, and a reader and joiner that go on behind them. Reads as little as it can."""
    reach = count + PIECES  # the first line found may lack its beginning, and must not be among the last
    while True:
        reader, joiner = _Reader(folder), Joiner(since)
        from_start = reader.skip_to_last(reach)
        last: deque[LogLine] = deque(maxlen=count)
        for batch in reader.batches(joiner):
            last.extend(batch)
        if from_start or len(last) == count:
            return reader, joiner, last
        reader.close()
        reach *= 8


class _Reader:
    """The files' lines, joined. Raises AtlctlError for a file that cannot be read."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files = logfiles.Reader(folder)

    def batches(self, joiner: Joiner) -> Iterator[list[LogLine]]:
        """All that is there now."""
        try:
            for block in self._files.blocks():
                taken = (joiner.take(line) for line in block[:-1].split(b"\n"))
                batch = [line for line in taken if line is not None]
                if batch:
                    yield batch
        except OSError as error:
            raise file_error(error, str(error.filename or self._folder)) from error

    def skip_to_last(self, lines: int) -> bool:
        """Go to where at most `lines` lines of the files are left; True where that is the very beginning."""
        try:
            return self._files.skip_to_last(lines)
        except OSError as error:
            raise file_error(error, str(error.filename or self._folder)) from error

    def close(self) -> None:
        self._files.close()
