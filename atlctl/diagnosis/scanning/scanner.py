"""Hands on the lines of a stream that hold a literal, each with its number, and what a reader asks for besides."""

from __future__ import annotations

from collections.abc import Callable, Collection

from atlctl.diagnosis.scanning.sieve import LONGEST, Sieve, sieve_for
from atlctl.diagnosis.text import LINE_LIMIT

#: Gets a line's number and the line; says whether it wants the following line, too.
Take = Callable[[int, bytes], bool]

#: Stands for what was left out of a line longer than `LINE_LIMIT`.
GAP = b" [...] "
_FIRST = LINE_LIMIT // 2
_LAST = LINE_LIMIT - _FIRST - len(GAP)

#: Chunks are collected until they are as long as this.
_BLOCK = 1 << 19
#: glibc hands freed blocks back to the kernel, and page faults take up to half the time, until it has seen a
#: block of this size freed.
_LARGE = 1 << 22
#: Bytes that are looked at in one go, at most: they stay in the core's nearest caches.
_WIDEST = 1 << 16


class Scanner:
    """Finds lines that hold a literal in a stream of chunks.

    `take(number, line)` gets each such line, without its newline, the first line being 1, and returns
    True where it wants the next line as well, whatever that holds. Lines with a byte among the first
    `head` or the last `tail` bytes of the stream are taken in any case. Lines come in order and once.
    Of a line longer than `LINE_LIMIT` the first and the last bytes are given, with `GAP` between them.

    Memory is a few times the longest of chunk, `tail` and 0.5 MiB, whatever the stream holds. Raises
    ValueError for a literal that is empty, not ASCII, longer than 1,000 bytes or holds a newline.
    """

    def __init__(self, literals: Collection[bytes], take: Take, *, head: int = 65_536, tail: int = 65_536) -> None:
        self._holds = sieve_for(frozenset(literals))
        self._take = take
        self._head = head
        self._tail = tail
        self._block = max(_BLOCK, tail)
        self._parts: list[bytes] = []
        self._parts_size = 0
        self._data = b""  # not dealt with yet; starts where a line starts, or inside `_open`
        self._offset = 0  # of `_data` in the stream
        self._number = 1  # of the line at the start of `_data`
        self._follow = False  # the reader wants the next line
        self._open: _LongLine | None = None
        bytes(_LARGE)

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the stream, cut anywhere."""
        self._parts.append(chunk)
        self._parts_size += len(chunk)
        if self._parts_size >= self._block:
            self._look()

    def finish(self) -> int:
        """The stream has ended, to be called once: hands on the last lines. Returns the number of lines in all."""
        self._look()
        data, self._data = self._data, b""
        start = 0
        if self._open:
            start = self._close_long(data, data.find(b"\n"), in_tail=self._tail > 0)
        while start < len(data):
            end = data.find(b"\n", start)
            line = data[start:] if end < 0 else data[start:end]
            self._settle(line, self._offset + start, self._tail > 0 or self._holds(line))
            start += len(line) + 1
        return self._number - 1

    def _look(self) -> None:
        """Deals with the lines that cannot be among the last `tail` bytes, whatever follows."""
        data = b"".join((self._data, *self._parts))
        self._parts.clear()
        self._parts_size = 0
        edge = max(len(data) - self._tail, 0)
        start = 0
        if self._open:
            newline = data.find(b"\n", 0, edge)
            if newline < 0:
                self._open.add(data[:edge], self._holds)
                start = edge
            else:
                start = self._close_long(data, newline, in_tail=False)
        if not self._open:
            end = max(data.rfind(b"\n", start, edge) + 1, start)
            self._lines(data, start, end)
            start = end
            if edge - start > LINE_LIMIT:
                self._open = _LongLine(self._offset + start, data[start:edge], self._holds)
                start = edge
        self._data = data[start:]
        self._offset += start

    def _lines(self, data: bytes, start: int, end: int) -> None:
        """Whole lines: looks at many at once, halves where a literal is among them, widens where none is.

        After a line that was found it looks as far as that one was from the one before. So the bytes
        looked at stay a small multiple of what there is, however dense the literals are.
        """
        known = start  # a literal is in data[start:known], where that is not empty
        after = start  # the last line that was found
        width = _WIDEST
        while start < end:
            if self._follow or self._offset + start < self._head:
                start = self._give(data, start)
            elif start < known:
                middle = _line_end(data, start, (start + known) // 2)
                if middle == known:
                    width = min(max(start - after, 1), _WIDEST)
                    start = after = self._give(data, start)
                elif self._holds(data[start:middle]):
                    known = middle
                else:
                    start = self._skip(data, start, middle)
            else:
                stop = _line_end(data, start, min(start + width, end))
                if not self._holds(data[start:stop]):
                    start = self._skip(data, start, stop)
                    width = min(2 * width, _WIDEST)
                elif width == 1:
                    start = after = self._give(data, start)
                else:
                    known = stop

    def _skip(self, data: bytes, start: int, end: int) -> int:
        self._number += data.count(b"\n", start, end)
        return end

    def _give(self, data: bytes, start: int) -> int:
        """Hands on the line at `start`; returns where the next one starts."""
        end = data.index(b"\n", start)
        self._follow = self._take(self._number, _cut(data[start:end]))
        self._number += 1
        return end + 1

    def _settle(self, line: bytes, offset: int, wanted: bool) -> None:
        if wanted or self._follow or offset < self._head:
            self._follow = self._take(self._number, _cut(line))
        self._number += 1

    def _close_long(self, data: bytes, newline: int, *, in_tail: bool) -> int:
        """The open line ends at `newline`, or with the stream where that is negative; returns where the next starts."""
        line, self._open = self._open, None
        assert line is not None
        end = len(data) if newline < 0 else newline
        line.add(data[:end], self._holds)
        self._settle(line.first + line.last, line.offset, in_tail or line.found)
        return end + 1


class _LongLine:
    """A line whose end is not in sight: its first and last bytes, and whether a literal was in it."""

    __slots__ = ("first", "found", "last", "offset")

    def __init__(self, offset: int, start: bytes, holds: Sieve) -> None:
        """`start` is longer than `LINE_LIMIT`."""
        self.offset = offset
        self.found = holds(start)
        self.first = start[:_FIRST]
        self.last = start[max(_FIRST, len(start) - LINE_LIMIT) :]

    def add(self, more: bytes, holds: Sieve) -> None:
        """The next bytes of the line."""
        self.found = self.found or holds(self.last[-LONGEST:] + more)
        self.last = (self.last + more)[-LINE_LIMIT:]


def _cut(line: bytes) -> bytes:
    return line if len(line) <= LINE_LIMIT else line[:_FIRST] + GAP + line[-_LAST:]


def _line_end(data: bytes, start: int, near: int) -> int:
    """Where a line of `data[start:]` ends: the last one that ends by `near`, or else the first one."""
    return data.rfind(b"\n", start, near) + 1 or data.index(b"\n", near) + 1
