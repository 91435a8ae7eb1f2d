"""Finds the few lines in gigabytes of log that contain one of many literals, with their line numbers.

The inner loop, the *sieve*, reports whether a range of bytes contains any of the literals. Nothing in the standard
library does this fast: `in` needs one pass for each literal, `re` tries its alternatives one by one. The regex engine
of pydantic (which typer brings along) searches up to 64 literals in one pass with vector instructions. It returns
whether there is a match, not its place; the scanner halves the range until the line is found.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from itertools import pairwise

from atlctl.diagnosis.logline import LINE_LIMIT, is_utf8

#: Returns whether the bytes contain one of the literals.
Sieve = Callable[[bytes], bool]
#: Takes a line's number and the line; returns whether it needs the following line too.
Take = Callable[[int, bytes], bool]

#: Replaces the omitted part of a line longer than `LINE_LIMIT`.
GAP = b" [...] "
_FIRST = LINE_LIMIT // 2
_LAST = LINE_LIMIT - _FIRST - len(GAP)

#: Lines that are taken of one stream, and the bytes at its end that are searched behind them. A line that is taken
#: costs as much as 10 KB that are skipped.
MOST, KEEP = 30_000, 2 << 20
#: Chunks are collected up to this size.
_BLOCK = 1 << 19
#: Until a block of this size was freed, glibc returns freed blocks to the kernel, and page faults take up to half the
#: time.
_LARGE = 1 << 22
#: Most bytes that are searched at once: they fit into the core's caches.
_WIDEST = 1 << 16


class Scanner:
    """Finds lines that contain a literal in a stream of chunks.

    `take(number, line)` is called with each such line, in order, without its newline, numbered from 1. It returns True
    if it needs the next line as well, whatever that contains. Lines with a byte among the first `head` or the last
    `tail` bytes of the stream are always taken. A line longer than `LINE_LIMIT` is cut to its first and last bytes,
    with `GAP` between them.

    After `most` lines were taken, only the last `keep` bytes of the stream are searched, without limit: the first
    lines show how a failure began, the last ones how it ended. `skipped` are the numbers of the first and the last line
    in between, after `finish`.

    Memory is a few times the largest of chunk, `tail` and 0.5 MiB, and of `keep` if it skips lines, for any stream.
    Raises ValueError for a literal that is empty, not ASCII, longer than 1,000 bytes or contains a newline.
    """

    def __init__(
        self,
        literals: Collection[bytes],
        take: Take,
        *,
        head: int = 65_536,
        tail: int = 65_536,
        most: int = MOST,
        keep: int = KEEP,
    ) -> None:
        self._holds = sieve_for(frozenset(literals))
        self._take = take
        self._head = head
        self._tail = tail
        self._block = max(_BLOCK, tail)
        self.skipped: tuple[int, int] | None = None
        self._left = most  # lines that may still be taken
        self._keep = max(keep, tail)
        self._kept: deque[bytes] | None = None  # the last chunks, once enough lines were taken
        self._kept_size = 0
        self._parts: list[bytes] = []
        self._parts_size = 0
        self._data = b""  # not processed yet; begins at a line's start, or inside `_open`
        self._offset = 0  # of `_data` in the stream
        self._number = 1  # of the line at the start of `_data`
        self._follow = False  # the reader needs the next line
        self._open: _LongLine | None = None
        self._given = (b"", 0)  # the buffer of the current line, and its start
        _keep_freed_blocks()

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the stream, cut anywhere."""
        if self._kept is not None:
            self._retain(self._kept, chunk)
            return
        self._parts.append(chunk)
        self._parts_size += len(chunk)
        if self._parts_size >= self._block:
            self._look()

    def before(self, most: int) -> list[bytes]:
        """For use in `take`: up to `most` lines before the current one, as far as they are still held."""
        data, end = self._given
        start = end
        for _ in range(most):
            if start <= 0:
                break
            start = data.rfind(b"\n", 0, start - 1) + 1
        return data[start : end - 1].split(b"\n") if start < end else []

    def finish(self) -> int:
        """Takes the last lines at the end of the stream; to be called once. Returns the total number of lines."""
        if self._kept is not None:
            self._return_to(self._kept)
        self._left = -1
        self._look()
        data, self._data = self._data, b""
        start = 0
        if self._open:
            start = self._close_long(data, data.find(b"\n"), in_tail=self._tail > 0)
        while start < len(data):
            end = data.find(b"\n", start)
            line = data[start:] if end < 0 else data[start:end]
            self._given = (data, start)
            self._settle(line, self._offset + start, self._tail > 0 or self._holds(line))
            start += len(line) + 1
        return self._number - 1

    def _look(self) -> None:
        """Processes the lines that cannot be among the last `tail` bytes."""
        data = b"".join([part for part in (self._data, *self._parts) if part])
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
            start = self._lines(data, start, end)
            if start < end:
                self._kept = deque()
                self._retain(self._kept, data[start:])
                data = data[:start]
            elif edge - start > LINE_LIMIT:
                self._open = _LongLine(self._offset + start, data[start:edge], self._holds)
                start = edge
        self._data = data[start:]
        self._offset += start

    def _retain(self, kept: deque[bytes], chunk: bytes) -> None:
        """Keeps the end of the stream, and counts the lines before it."""
        kept.append(chunk)
        self._kept_size += len(chunk)
        while self._kept_size - len(kept[0]) >= self._keep:
            first = kept.popleft()
            self._kept_size -= len(first)
            self._leave_out(first, len(first))

    def _leave_out(self, data: bytes, size: int) -> None:
        if self.skipped is None:
            self.skipped = self._number, 0
        self._offset += size
        self._number += data.count(b"\n", 0, size)

    def _return_to(self, kept: deque[bytes]) -> None:
        """Goes on with the kept end of the stream, from its first whole line on."""
        data = b"".join(kept)
        kept.clear()
        self._kept = None
        more = len(data) - self._keep
        if more > 0:
            self._leave_out(data, more)
        if self.skipped is not None:
            start = data.find(b"\n", max(more, 0)) + 1 or len(data)
            self._number += 1
            self.skipped = self.skipped[0], self._number - 1
            self._offset += start - max(more, 0)
            self._follow = False
            data = data[start:]
        self._parts = [data]

    def _lines(self, data: bytes, start: int, end: int) -> int:
        """Processes complete lines; returns the start of the first one that was not, if enough lines were taken.

        Checks many at once, halves the range if it contains a literal, else widens it. After a found
        line, the range is the distance from the found line before it. So the bytes checked stay a small multiple of the
        input, however dense the literals are.
        """
        known = start  # a literal is in data[start:known], if that is not empty
        after = start  # the last line that was found
        width = _WIDEST
        while start < end and self._left:
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
        return start

    def _skip(self, data: bytes, start: int, end: int) -> int:
        self._number += data.count(b"\n", start, end)
        return end

    def _give(self, data: bytes, start: int) -> int:
        """Passes on the line at `start`; returns the start of the next one."""
        end = data.index(b"\n", start)
        self._left -= 1
        self._given = (data, start)
        self._follow = self._take(self._number, _cut(data[start:end]))
        self._number += 1
        return end + 1

    def _settle(self, line: bytes, offset: int, wanted: bool) -> None:
        if wanted or self._follow or offset < self._head:
            self._follow = self._take(self._number, _cut(line))
        self._number += 1

    def _close_long(self, data: bytes, newline: int, *, in_tail: bool) -> int:
        """Ends the open line at `newline`, or at the end of the stream if that is negative. Returns the start of the
        next line."""
        line, self._open = self._open, None
        assert line is not None
        end = len(data) if newline < 0 else newline
        line.add(data[:end], self._holds)
        self._settle(line.first + line.last, line.offset, in_tail or line.found)
        return end + 1


@lru_cache(maxsize=1)
def _keep_freed_blocks() -> None:
    bytes(_LARGE)


class _LongLine:
    """A long line whose end is not read yet: its first and last bytes, and whether it contains a literal."""

    __slots__ = ("first", "found", "last", "offset")

    def __init__(self, offset: int, start: bytes, holds: Sieve) -> None:
        """`start` is longer than `LINE_LIMIT`."""
        self.offset = offset
        self.found = holds(start)
        self.first = start[:_FIRST]
        self.last = start[max(_FIRST, len(start) - LINE_LIMIT) :]

    def add(self, more: bytes, holds: Sieve) -> None:
        """Takes the next bytes of the line."""
        self.found = self.found or holds(self.last[-LONGEST:] + more)
        self.last = (self.last + more)[-LINE_LIMIT:]


def _cut(line: bytes) -> bytes:
    return line if len(line) <= LINE_LIMIT else line[:_FIRST] + GAP + line[-_LAST:]


def _line_end(data: bytes, start: int, near: int) -> int:
    """The end of the last line in `data[start:]` that ends by `near`, or else of the first one."""
    return data.rfind(b"\n", start, near) + 1 or data.index(b"\n", near) + 1


#: More than these in one pattern, and the engine takes an automaton at a third of the speed.
GROUP = 64
#: More passes than these are slower than the automaton, whose speed hardly depends on the number of literals.
MOST_GROUPS = 6
#: A literal's bytes at most.
LONGEST = 1_000

#: Bytes that are frequent in logs, at which a search should not stop; the most frequent first.
_FREQUENT = b" 0123456789etaonirsl.:,=|-_/'\"()dcumphgfEbIT"


@lru_cache(maxsize=8)
def sieve_for(literals: frozenset[bytes]) -> Sieve:
    """The fastest available sieve.

    Raises ValueError for a literal that is empty, not UTF-8, longer than `LONGEST` or contains a newline.
    """
    for literal in literals:
        if not 0 < len(literal) <= LONGEST or not is_utf8(literal) or b"\n" in literal:
            raise ValueError(f"not a literal that can be looked for: {literal[:60]!r}")
    if not literals:
        return lambda _: False
    try:
        return vector_sieve(literals)
    except ImportError:
        return plain_sieve(literals)


def vector_sieve(literals: Iterable[bytes]) -> Sieve:
    """A sieve using the regex engine in pydantic's compiled core. Raises ImportError if that is not installed."""
    from pydantic_core import SchemaValidator, core_schema

    found = _needed(literals)
    groups = -(-len(found) // GROUP) if len(found) <= MOST_GROUPS * GROUP else 1
    # Literals are sorted: neighbours share their first bytes, which the engine's first step compares.
    cuts = [len(found) * number // groups for number in range(groups + 1)]
    searches = [
        SchemaValidator(
            core_schema.str_schema(pattern="|".join(map(_hex, found[start:end])), regex_engine="rust-regex")
        )
        for start, end in pairwise(cuts)
    ]

    def holds(data: bytes) -> bool:
        # The engine finds nothing in invalid UTF-8.
        if not data.isascii() and not is_utf8(data):
            data = data.decode("utf-8", "replace").encode()
        for search in searches:  # noqa: SIM110 - a generator costs more than the search
            if search.isinstance_python(data):
                return True
        return False

    return holds


def plain_sieve(literals: Iterable[bytes]) -> Sieve:
    """A sieve using `re`, several times slower. It stops only at bytes that are rare in logs and compares there."""
    found = _needed(literals)
    rare = _stops(found)
    around: dict[int, dict[bytes, list[bytes]]] = {}
    for literal in found:
        stop = min(rare.intersection(literal), key=_frequency)
        before, after = literal[: literal.index(stop)], literal[literal.index(stop) + 1 :]
        branch = re.escape(after[1:]) + (b"(?<=%s)" % re.escape(literal) if before else b"")
        around.setdefault(stop, {}).setdefault(after[:1], []).append(branch)
    search = re.compile(
        b"|".join(
            re.escape(bytes([stop])) + b"(?:%s)" % b"|".join(_one_of(*branch) for branch in branches.items())
            for stop, branches in around.items()
        )
    ).search
    return lambda data: search(data) is not None


def _needed(literals: Iterable[bytes]) -> list[bytes]:
    """The sorted literals, without those that contain another one."""
    unique = set(literals)
    text = b"\n".join(unique)  # to compare each with each takes 20 times as long
    within = [one for one in unique if text.count(one) > 1]
    return sorted(one for one in unique if not any(other in one for other in within if other != one))


def _hex(literal: bytes) -> str:
    """The literal as a pattern of pydantic's regex engine."""
    return "".join(char if char.isalnum() else f"\\u{{{ord(char):x}}}" for char in literal.decode())


def _one_of(first: bytes, rests: list[bytes]) -> bytes:
    return re.escape(first) + b"(?:%s)" % b"|".join(rests)


def _frequency(byte: int) -> float:
    """The rough frequency of a byte in logs, from a table; it affects only the speed."""
    place = _FREQUENT.find(byte)
    return 0.001 if place < 0 else 0.05 * 0.93**place


def _stops(literals: list[bytes]) -> set[int]:
    """Bytes of which each literal contains at least one, chosen greedily to be rare."""
    left, chosen = set(literals), set[int]()
    while left:
        best = max(sorted(set(b"".join(left))), key=lambda byte: sum(byte in one for one in left) / _frequency(byte))
        chosen.add(best)
        left = {one for one in left if best not in one}
    return chosen
