"""Logs of local workers: CRI files, rotated, perhaps still growing."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from typing import BinaryIO

from atlctl.backends.base import LogLine, LogRequest, Stream
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.statedir import file_error

POLL_SECONDS = 0.1
BATCH = 1000
READ_SIZE = 1 << 18
#: A line longer than this comes in pieces, the first ones marked as not complete.
MAX_LINE = 16 * 1024 * 1024


#: More lines of the files than one line may be cut into (pieces of 16 KiB).
PIECES = MAX_LINE // (16 * 1024) + 64


#: Fields of a CRI line that is cut short.
_EMPTY = [b""] * 3


class _Joiner:
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
            return LogLine(None, "stdout", line)  # torn by a full disk: shown as it stands
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


def files(folder: str) -> list[str]:
    """The log's files, oldest first."""
    try:
        found = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise file_error(error, folder) from error
    rotated = sorted(name for name in found if name.startswith("0.log."))
    return [f"{folder}/{name}" for name in (*rotated, *(["0.log"] if "0.log" in found else []))]


async def read(folder: str, request: LogRequest, running: asyncio.Event | None) -> AsyncIterator[Sequence[LogLine]]:
    """Batches of lines. With `running` (set once the worker has ended and its log is complete) the log is followed.

    While following, an empty batch says that nothing new has come. Raises AtlctlError for a file that cannot be read.
    """
    if request.previous:
        raise AtlctlError("local workers are not restarted: there is no previous instance", "leave out --previous")
    since = int((request.since or 0) * 1e9)
    reader = _Reader(folder)
    joiner = _Joiner(since)
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


def _last_lines(folder: str, count: int, since: int) -> tuple[_Reader, _Joiner, deque[LogLine]]:
    """The last `count` lines, and a reader and joiner that go on behind them. Reads as little as it can."""
    reach = count + PIECES  # the first line found may lack its beginning, and must not be among the last
    while True:
        reader, joiner = _Reader(folder), _Joiner(since)
        from_start = reader.skip_to_last(reach)
        last: deque[LogLine] = deque(maxlen=count)
        for batch in reader.batches(joiner):
            last.extend(batch)
        if from_start or len(last) == count:
            return reader, joiner, last
        reader.close()
        reach *= 8


class _Reader:
    """Reads on through rotations: a file is left only at its end, when a newer one exists.

    Files are told by their inode, which is not given out again while one is held open.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._inode = 0
        self._buffer = b""

    def batches(self, joiner: _Joiner) -> Iterator[list[LogLine]]:
        """All that is there now."""
        while True:
            if self._file is not None:
                yield from self._to_its_end(joiner)
            following = self._following()
            if following is None:
                return
            if self._file is not None:
                # What was written between our last read and the rotation.
                yield from self._to_its_end(joiner)
                torn = joiner.take(self._buffer) if self._buffer else None
                if torn is not None:
                    yield [torn]
            self._take(following)

    def skip_to_last(self, lines: int) -> bool:
        """Go to where at most `lines` lines of the files are left; True where that is the very beginning."""
        found, left = _in_order(self._folder), lines
        while found:
            opened = _open(found.pop()[1])
            if opened is None:
                return self.skip_to_last(lines)  # rotated away meanwhile
            self._take(opened)
            counted, inside = _before_last(opened, left)
            if inside:
                return False
            left -= counted
        return True

    def _to_its_end(self, joiner: _Joiner) -> Iterator[list[LogLine]]:
        assert self._file is not None
        while data := self._file.read(READ_SIZE):
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            taken = (joiner.take(line) for line in lines)
            batch = [line for line in taken if line is not None]
            if batch:
                yield batch

    def _following(self) -> BinaryIO | None:
        """The file after the current one, opened; None where there is none (yet)."""
        while True:
            found = _in_order(self._folder)
            inodes = [inode for inode, _ in found]
            # One that is not there any more was the oldest: all that are there come after it.
            position = inodes.index(self._inode) + 1 if self._file is not None and self._inode in inodes else 0
            if position >= len(found):
                return None
            inode, path = found[position]
            opened = _open(path)
            if opened is not None:
                if os.fstat(opened.fileno()).st_ino == inode:
                    return opened
                opened.close()  # the name has gone to a newer file meanwhile

    def _take(self, opened: BinaryIO) -> None:
        self.close()
        self._file, self._inode, self._buffer = opened, os.fstat(opened.fileno()).st_ino, b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _before_last(file: BinaryIO, lines: int) -> tuple[int, bool]:
    """Seek to where the last `lines` lines of the file begin, or to its beginning.

    Returns how many it holds of them, and whether it holds more.
    """
    position = file.seek(0, os.SEEK_END)
    counted = 0
    while position > 0:
        size = min(READ_SIZE, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        here = block.count(b"\n")
        if counted + here > lines:
            cut = len(block)
            for _ in range(lines - counted + 1):
                cut = block.rfind(b"\n", 0, cut)
            file.seek(position + cut + 1)
            return lines, True
        counted += here
    file.seek(0)
    return counted, False


def _open(path: str) -> BinaryIO | None:
    try:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error(error, path) from error


def _in_order(folder: str) -> list[tuple[int, str]]:
    """Inodes and paths of the log's files, oldest first, as they stood at one moment."""
    while True:
        paths = files(folder)
        try:
            found = [(os.stat(path).st_ino, path) for path in paths]
        except FileNotFoundError:
            continue  # rotated away meanwhile
        except OSError as error:
            raise file_error(error, folder) from error
        if files(folder) == paths:  # each rotation brings a new name
            return found
