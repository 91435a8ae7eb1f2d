"""Worker logs in the kubelet's CRI format: written, rotated by size, read from a tail or a time on, followed.

Each line: `2026-11-20T17:45:05.757882235Z stdout F text`. `P` instead of `F` marks a part of a line: lines are split
after 16 KiB, as in container runtimes, and a last line without newline stays `P`. Source: Kubernetes' kubelet CRI
logging format; rotation as `containerLogMaxSize` and `containerLogMaxFiles`.

Files are identified by inode, which is not reused while a file is open.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, BinaryIO

from . import folders
from .telling import Refused, say, write

PIECE = 16 * 1024
READ_SIZE = 1 << 18
POLL_SECONDS = 0.1
#: Seconds between checks whether the worker has ended.
ENDED_SECONDS = 0.2
#: Nanoseconds by which the clock may have been wrong at a rotation.
SLACK = 3600 * 10**9
STAMP = len("2026-11-20T17:45:05.757882235Z")


class Clock:
    """RFC 3339 timestamps with nanoseconds; formats the part down to the second once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._text = b""

    def stamp(self) -> bytes:
        second, nanos = divmod(time.time_ns(), 1_000_000_000)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second)).encode("ascii")
        return b"%s%09dZ" % (self._text, nanos)


class CriLog:
    """Appends both streams of a worker to `folder/0.log`, and keeps up to `max_files` files of `max_bytes`.

    A full disk loses lines but does not end the worker: `lost` counts the bytes that could not be written.
    """

    def __init__(self, folder: str, max_bytes: int, max_files: int) -> None:
        self._folder = folder
        self._path = f"{folder}/0.log"
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._tails = {"stdout": b"", "stderr": b""}
        self._clock = Clock()
        self._descriptor = self._open()
        self._size = 0
        self._torn = False
        self.lost = 0

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def feed(self, stream: str, data: bytes, stamp: bytes = b"") -> None:
        """Take bytes as received; complete lines are written immediately. `stamp`: when they came, if not now."""
        head = b"%s %s F " % (stamp or self._clock.stamp(), stream.encode("ascii"))
        lines = (self._tails[stream] + data).split(b"\n")
        tail = lines.pop()
        pieces: list[bytes] = []
        for line in lines:
            self._cut(head, line, b"\n", pieces)
        if len(tail) > PIECE:
            whole = len(tail) - len(tail) % PIECE
            self._cut(head.replace(b" F ", b" P "), tail[:whole], b"\n", pieces)
            tail = tail[whole:]
        self._tails[stream] = tail
        if pieces:
            self._append(b"".join(pieces))

    @staticmethod
    def _cut(head: bytes, line: bytes, end: bytes, pieces: list[bytes]) -> None:
        partial = head.replace(b" F ", b" P ")
        while len(line) > PIECE:
            pieces += (partial, line[:PIECE], b"\n")
            line = line[PIECE:]
        pieces += (head, line, end)

    def _append(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        if self._torn:
            data = b"\n" + data
        view = memoryview(data)
        try:
            while view:
                written = os.write(self._descriptor, view)
                self._size += written
                view = view[written:]
            self._torn = False
        except OSError:
            self.lost += len(view)
            self._torn = self._torn or len(view) < len(data)

    def _rotate(self) -> None:
        rotated = f"{self._path}.{time.time_ns()}"
        try:
            os.rename(self._path, rotated)
            descriptor = self._open()
        except OSError:
            # Continue in the old file, under its old name: the next write will detect a full disk.
            with contextlib.suppress(OSError):
                os.rename(rotated, self._path)
            return
        os.close(self._descriptor)
        self._descriptor, self._size, self._torn = descriptor, 0, False
        with contextlib.suppress(OSError):  # the next rotation retries
            old = sorted(name for name in os.listdir(self._folder) if name.startswith("0.log."))
            for name in old[: max(0, len(old) - (self._max_files - 1))]:
                os.unlink(f"{self._folder}/{name}")

    def close(self) -> None:
        """Write unfinished lines and close."""
        for stream, tail in self._tails.items():
            if tail:
                self._append(b"%s %s P %s\n" % (self._clock.stamp(), stream.encode("ascii"), tail))
        os.close(self._descriptor)


def files(folder: str) -> list[str]:
    """The log's files, oldest first."""
    try:
        found = os.listdir(folder)
    except FileNotFoundError:
        return []
    rotated = sorted(name for name in found if name.startswith("0.log."))
    return [f"{folder}/{name}" for name in (*rotated, *(["0.log"] if "0.log" in found else []))]


def attempts(own: str) -> list[int]:
    """The numbers of the attempts before this one whose logs are in a worker's folder `own`, in order."""
    try:
        names = os.listdir(own)
    except FileNotFoundError:
        return []
    return sorted(int(name[4:]) for name in names if name.startswith("log.") and name[4:].isdigit())


def of_attempt(own: str, attempt: int | None) -> str | None:
    """The folder of a worker's log in an attempt: an earlier one by its number, -1 for the one before the last, None
    for the last. None if there is none."""
    if attempt is None:
        return f"{own}/log"
    earlier = attempts(own)
    number = max([0, *earlier]) if attempt == -1 else attempt
    return f"{own}/log.{number}" if number in earlier else None


class Reader:
    """Reads across rotations: leaves a file only at its end, if a newer one exists."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._inode = 0
        self._buffer = b""

    def blocks(self) -> Iterator[bytes]:
        """All available data: complete lines with their newlines."""
        while True:
            if self._file is not None:
                yield from self._to_its_end()
            following = self._following()
            if following is None:
                return
            try:
                if self._file is not None:
                    # Data written between the last read and the rotation.
                    yield from self._to_its_end()
                    if self._buffer:
                        yield self._buffer + b"\n"
            except GeneratorExit:
                following.close()
                raise
            self._take(following)

    def position(self) -> tuple[int, int]:
        """Inode and offset of the first line that `blocks` has not returned yet."""
        return self._inode, self._file.tell() - len(self._buffer) if self._file is not None else 0

    def go_on(self, inode: int, offset: int) -> bool:
        """Continue at a position of an earlier reader; False if its file is gone."""
        for found, path in _in_order(self._folder):
            opened = _open(path) if found == inode else None
            if opened is not None:
                self._take(opened)
                # A shorter file is a new one whose inode was reused.
                if os.fstat(opened.fileno()).st_size < offset:
                    self.close()
                    return False
                opened.seek(offset)
                return True
        return False

    def skip_to_last(self, lines: int) -> bool:
        """Go to the last `lines` lines of the files; True if that is the beginning of the log."""
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

    def skip_older(self, moment: int) -> None:
        """Skip the files that were replaced before `moment` (nanoseconds since the epoch)."""
        older = None
        for _, path in _in_order(self._folder):
            when = path.rpartition(".")[2]
            if not (when.isdigit() and int(when) < moment):
                break
            older = path
        opened = _open(older) if older is not None else None
        if opened is not None:
            opened.seek(0, os.SEEK_END)
            self._take(opened)

    def _to_its_end(self) -> Iterator[bytes]:
        assert self._file is not None
        while data := self._file.read(READ_SIZE):
            data = self._buffer + data
            end = data.rfind(b"\n") + 1
            self._buffer = data[end:]
            if end:
                yield data[:end]

    def _following(self) -> BinaryIO | None:
        """The file after the current one, opened; None if there is none yet."""
        while True:
            found = _in_order(self._folder)
            inodes = [inode for inode, _ in found]
            # If the current file is gone, it was the oldest: all existing ones come after it.
            position = inodes.index(self._inode) + 1 if self._file is not None and self._inode in inodes else 0
            if position >= len(found):
                return None
            inode, path = found[position]
            opened = _open(path)
            if opened is not None:
                if os.fstat(opened.fileno()).st_ino == inode:
                    return opened
                opened.close()  # the name now belongs to a newer file

    def _take(self, opened: BinaryIO) -> None:
        self.close()
        self._file, self._inode, self._buffer = opened, os.fstat(opened.fileno()).st_ino, b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _before_last(file: BinaryIO, lines: int) -> tuple[int, bool]:
    """Seek to the last `lines` lines of the file, or to its beginning.

    Returns the number of lines found, and whether the file has more.
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


def _in_order(folder: str) -> list[tuple[int, str]]:
    """Inodes and paths of the log's files, oldest first, as a consistent snapshot."""
    while True:
        paths = files(folder)
        try:
            found = [(os.stat(path).st_ino, path) for path in paths]
        except FileNotFoundError:
            continue  # rotated away meanwhile
        if files(folder) == paths:  # each rotation creates a new name
            return found


class Ended:
    """Whether a worker has ended, so that its log is complete."""

    def __init__(self, record: dict[str, Any], own: str) -> None:
        """`own`: the worker's folder."""
        self._record, self._own = record, own
        self._asked = 0.0
        self._is = False

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self._is and now - self._asked >= ENDED_SECONDS:
            self._asked = now
            self._is = os.path.exists(f"{self._own}/exit.json") or folders.presence(self._record)[0] != "alive"
            self._is = self._is or not os.path.isdir(self._own)
        return self._is


def lines(
    reader: Reader,
    *,
    tail: int | None,
    since: bytes,
    moment: int,
    pieces: int,
    longest: int,
    ended: Callable[[], bool] | None,
    goes_on: bool = False,
) -> Iterator[bytes | None]:
    """Blocks of complete lines of the files: the last `tail` lines, those from `since` on, or all.

    `since`: a timestamp, empty for none; `moment`: the same in nanoseconds. A log line has up to `pieces` lines in the
    files, and is cut after `longest` bytes. With `ended` the log is followed until that returns True; yields None
    whenever there is nothing new. `goes_on`: the reader is already in position. Raises OSError.
    """
    if not goes_on and tail is not None:
        yield _last(reader, tail, since, pieces, longest, whole=ended is None)
    elif not goes_on and since:
        reader.skip_older(moment - SLACK)
        if first := _from(reader, since):
            yield first
    if tail is not None and ended is None:
        return
    while True:
        done = ended is None or ended()
        found = False
        for block in reader.blocks():
            found = True
            yield block
        if done:
            return
        if not found:
            yield None


def _split(block: bytes) -> list[bytes]:
    return [line + b"\n" for line in block[:-1].split(b"\n")]


class _Grouped:
    """Groups lines of the files by the log line that they are parts of."""

    def __init__(self, keep: int | None, since: bytes, longest: int) -> None:
        self.whole: deque[list[bytes]] = deque(maxlen=keep)
        self.begun: dict[bytes, list[bytes]] = {}
        self._sizes: dict[bytes, int] = {}
        self._since, self._longest = since, longest

    def take(self, line: bytes) -> None:
        stamp, stream, tag, text = (line.split(b" ", 3) + [b""] * 3)[:4]
        if len(stamp) != STAMP or tag not in (b"F", b"P"):
            self.whole.append([line])  # truncated by a full disk
            return
        self.begun.setdefault(stream, []).append(line)
        self._sizes[stream] = self._sizes.get(stream, 0) + len(text) - 1
        if tag == b"F" or self._sizes[stream] >= self._longest:
            self.end(stream)

    def end(self, stream: bytes) -> None:
        pieces = self.begun.pop(stream)
        self._sizes[stream] = 0
        if pieces[0][:STAMP] >= self._since:
            self.whole.append(pieces)


def _last(reader: Reader, count: int, since: bytes, more: int, longest: int, *, whole: bool) -> bytes:
    """The last `count` lines; the reader continues after them. `whole`: an unfinished line counts, too."""
    reach = count + more  # the first line found may be incomplete, and must not be among the last
    while True:
        lines = _Grouped(count, since, longest)
        from_start = reader.skip_to_last(reach)
        for block in reader.blocks():
            for line in _split(block):
                lines.take(line)
        if from_start or len(lines.whole) == count:
            break
        reader.close()
        reach *= 8
    if whole:
        for stream in sorted(lines.begun, reverse=True):
            lines.end(stream)
    return b"".join(piece for pieces in (*lines.whole, *lines.begun.values()) for piece in pieces)


def _from(reader: Reader, since: bytes) -> bytes:
    """Lines from the first one that is not older, to the end of its block, with earlier parts of the same line. Empty
    if all are older."""
    begun: dict[bytes, list[bytes]] = {}
    for block in reader.blocks():
        found = _split(block)
        for at, line in enumerate(found):
            stamp, stream, tag = (line.split(b" ", 3) + [b""] * 3)[:3]
            if len(stamp) == STAMP and stamp >= since:
                return b"".join([*(piece for pieces in begun.values() for piece in pieces), *found[at:]])
            if tag == b"P":
                begun.setdefault(stream, []).append(line)
            elif tag == b"F":
                begun.pop(stream, None)
    return b""


def log(wanted: dict[str, Any]) -> None:
    """Answer a log request: one line of JSON, then the lines of the files.

    Marks `@ INODE OFFSET` are inserted: a reader that lost its connection continues from the last one. Raises Refused;
    OSError if the client no longer reads.
    """
    folder = wanted["folder"]
    record = folders.record(folder, wanted["uid"])
    own = f"{folder}/workers/{wanted['worker']}"
    folders.presence(record)
    chosen = of_attempt(own, wanted["attempt"])
    if chosen is None:
        raise Refused("failed", "no log of that attempt")
    with closing(Reader(chosen)) as reader:
        mark = wanted["mark"]
        say({"event": "log", "resumed": mark is not None and reader.go_on(*mark)})
        blocks = lines(
            reader,
            tail=wanted["tail"],
            since=wanted["since"].encode(),
            moment=wanted["moment"],
            pieces=wanted["pieces"],
            longest=wanted["longest"],
            ended=Ended(record, own) if wanted["follow"] and wanted["attempt"] is None else None,
            goes_on=mark is not None,
        )
        try:
            for block in blocks:
                if block is None:
                    time.sleep(POLL_SECONDS)
                else:
                    write(block + b"@ %d %d\n" % reader.position())
        except BrokenPipeError:
            raise
        except OSError as error:
            # Standard output is already in use for the log.
            sys.stderr.write(f"{error.filename or own}: {error.strerror}\n")
            raise SystemExit(1) from None
