"""Log files of containers, in the kubelet's CRI format or as lines with a timestamp, and how to read them."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

#: Longer lines are written in parts.
PART = 16384
CHUNK = 256 * 1024

_CRI = re.compile(rb"^([^ \n]+) std(?:out|err) F ?", re.MULTILINE)
_HEADS = (b"Z stdout F ", b"Z stderr F ")
_PARTIAL = re.compile(rb"^[^ \n]+ std(?:out|err) P ", re.MULTILINE)


def stamp(at: float | None = None) -> bytes:
    """RFC 3339 in UTC with nine digits, as the kubelet writes it."""
    nanoseconds = time.time_ns() if at is None else int(at * 1e9)
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z".encode()


@dataclass(slots=True)
class Run:
    """The log of a container's run. `stamped` files contain `TIMESTAMP TEXT` lines instead of CRI ones.

    With `limit` bytes the file is rotated: the old one is kept, and only the new one is served.
    """

    path: str
    limit: int = 0
    stamped: bool = False
    ended: bool = False
    rotations: int = 0
    _partial: dict[str, bytearray] = field(default_factory=dict)
    _changed: asyncio.Event | None = None

    def open(self) -> None:
        """Create the file at the container's start."""
        with open(self.path, "ab"):
            pass

    def feed(self, stream: str, data: bytes) -> None:
        """Take bytes from the container; complete lines are written immediately."""
        rest = self._partial.setdefault(stream, bytearray())
        rest += data
        at = stamp()
        lines = bytes(rest).split(b"\n")
        rest[:] = lines.pop()
        head = at + b" " + stream.encode()
        out = []
        for line in lines:
            while len(line) > PART:
                out.append(head + b" P " + line[:PART] + b"\n")
                line = line[PART:]
            out.append(head + b" F " + line + b"\n")
        while len(rest) > PART:
            out.append(head + b" P " + bytes(rest[:PART]) + b"\n")
            del rest[:PART]
        if out:
            self._append(b"".join(out))

    def end(self) -> None:
        """The container has ended: write the unfinished line."""
        for stream, rest in self._partial.items():
            if rest:
                self._append(stamp() + b" " + stream.encode() + b" P " + bytes(rest) + b"\n")
                rest.clear()
        self.ended = True
        self.wake()

    def write_lines(self, lines: list[str]) -> None:
        """Lines of a test, each with its own timestamp or the current time."""
        for line in lines:
            self.feed("stdout", line.encode() + b"\n")

    def _append(self, data: bytes) -> None:
        if self.limit and os.path.exists(self.path) and os.path.getsize(self.path) + len(data) > self.limit:
            self.rotations += 1
            os.rename(self.path, f"{self.path}.{self.rotations}")
        with open(self.path, "ab", buffering=0) as file:
            file.write(data)
        self.wake()

    def wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def changed(self, timeout: float) -> None:
        if self._changed is None:
            self._changed = asyncio.Event()
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return


@dataclass(slots=True)
class Options:
    """Options of a reader. `since` is in whole seconds, as in the kubelet's API.

    Following ends if `stopped` returns True, for example when the node fails.
    """

    follow: bool = False
    tail: int | None = None
    since: int | None = None
    timestamps: bool = False
    limit: int | None = None
    stopped: Callable[[], bool] = lambda: False


async def read(run: Run, options: Options) -> AsyncIterator[bytes]:
    """The answer's body in chunks. Following continues across rotations until the run has ended."""
    left = options.limit
    whole = True
    async for block in _blocks(run, options):
        data, whole = _shown(block, run.stamped, options.timestamps, whole)
        if left is not None:
            data = data[:left]
            left -= len(data)
        if data:
            yield data
        if left == 0:
            return


async def _blocks(run: Run, options: Options) -> AsyncIterator[bytes]:
    """Blocks of the file, split at lines; the last one may end inside a line."""
    file = _open(run.path)
    try:
        if file is not None:
            size = os.fstat(file.fileno()).st_size
            start = _tail(file, size, options.tail)
            if options.since is not None:
                start = max(start, _first_since(file, size, options.since))
            file.seek(start)
        rest = b""
        while True:
            ended = run.ended or options.stopped()
            if file is None and (file := _open(run.path)) is None:
                if not options.follow or ended:
                    return
                await run.changed(0.2)
                continue
            data = file.read(CHUNK)
            if data:
                cut = data.rfind(b"\n") + 1
                if cut:
                    yield rest + data[:cut]
                    rest = data[cut:]
                else:
                    rest += data
                await asyncio.sleep(0)
                continue
            if (fresh := _rotated(run.path, file.fileno())) is not None:
                file.close()
                file = fresh
                continue
            if not options.follow or ended:
                if rest:
                    yield rest
                return
            await run.changed(0.1 if run.stamped else 1.0)
    finally:
        if file is not None:
            file.close()


def _open(path: str):
    try:
        return open(path, "rb", buffering=0)
    except FileNotFoundError:
        return None


def _rotated(path: str, fd: int):
    """The new file, if `path` was rotated."""
    try:
        same = os.stat(path).st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return None
    return None if same else _open(path)


def _shown(block: bytes, stamped: bool, timestamps: bool, whole: bool) -> tuple[bytes, bool]:
    """Lines of a file in the API's format. `whole`: the previous line was complete; a continuation has no timestamp."""
    if stamped and timestamps:
        return block, True
    # Most timestamps have the same width, so slicing is several times faster than a pattern.
    lines = block.split(b"\n")
    if stamped:
        return b"\n".join([line[31:] if line[29:31] == b"Z " else line.partition(b" ")[2] for line in lines]), True
    if whole and not lines[-1] and all(line[29:40] in _HEADS for line in lines[:-1]):
        cut = [line[:31] + line[40:] for line in lines] if timestamps else [line[40:] for line in lines]
        return b"\n".join(cut), True
    if whole and not _PARTIAL.search(block):
        return _CRI.sub(rb"\1 " if timestamps else b"", block), True
    shown = bytearray()
    # Not splitlines: a carriage return does not end a line.
    for line in lines[:-1] if not lines[-1] else lines:
        at, _, rest = line.partition(b" ")
        _, _, rest = rest.partition(b" ")
        tag, _, text = rest.partition(b" ")
        if timestamps and whole:
            shown += at + b" "
        whole = tag == b"F"
        shown += text + (b"\n" if whole else b"")
    return bytes(shown), whole


def _tail(file, size: int, lines: int | None) -> int:
    """The position where the last `lines` lines begin."""
    if lines is None or size == 0:
        return 0
    if lines == 0:
        return size
    position, left, first = size, lines, True
    while position > 0:
        begin = max(0, position - CHUNK)
        file.seek(begin)
        block = file.read(position - begin)
        end = len(block)
        if first:
            end -= block.endswith(b"\n")
            first = False
        count = block.count(b"\n", 0, end)
        if count < left:
            left -= count
            position = begin
            continue
        for _ in range(left):
            end = block.rfind(b"\n", 0, end)
        return begin + end + 1
    return 0


def _first_since(file, size: int, since: int) -> int:
    """The position of the first line not older than `since`, by binary search: timestamps only grow."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        begin, end, at = _line_at(file, middle, size)
        if at is None or at < since:
            low = end
        else:
            high = max(low, begin)
            if begin <= low:
                return begin
    return low


def _line_at(file, position: int, size: int) -> tuple[int, int, int | None]:
    """Start, end and timestamp (whole seconds) of the line that contains byte `position`."""
    begin = position
    while begin > 0:
        back = max(0, begin - 4096)
        file.seek(back)
        found = file.read(begin - back).rfind(b"\n")
        if found >= 0:
            begin = back + found + 1
            break
        begin = back
    file.seek(begin)
    block = file.read(4096)
    end = block.find(b"\n", 0)
    length, more = len(block), block
    while end < 0 and begin + length < size and more:
        more = file.read(65536)
        found = more.find(b"\n")
        end = length + found if found >= 0 else -1
        length += len(more)
    stop = begin + end + 1 if end >= 0 else size
    return begin, stop, _seconds(block[:40])


def _seconds(head: bytes) -> int | None:
    try:
        return int(datetime.fromisoformat(head[:19].decode() + "+00:00").timestamp())
    except ValueError:
        return None
