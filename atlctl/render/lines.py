"""From chunks to whole lines with a prefix: the hot path of live output, bytes from end to end."""

from __future__ import annotations

from collections.abc import Sequence

from atlctl.render.sanitize import OutputSanitizer
from atlctl.render.spill import Spill

#: A view, as cutting off the end of a chunk must not copy it.
Piece = bytes | memoryview | Spill


class LinePrefixer:
    """Gives whole lines of one stream, each after `prefix` (which may be empty), bytes untouched.

    The start of a line waits for its newline: up to `memory_limit` bytes in memory, beyond that in a file, so that
    a line of any length stays one line. With `sanitizer` what is fed passes it first.
    """

    __slots__ = ("_limit", "_new_line", "_prefix", "_sanitizer", "_spill", "_tail")

    def __init__(self, prefix: bytes, memory_limit: int, sanitizer: OutputSanitizer | None = None) -> None:
        self._prefix = prefix
        self._new_line = b"\n" + prefix
        self._limit = memory_limit
        self._sanitizer = sanitizer
        self._tail = bytearray()
        self._spill: Spill | None = None

    def feed(self, data: bytes) -> Sequence[Piece]:
        """The lines that `data` completes. Raises AtlctlError when a long line cannot be kept."""
        if self._sanitizer is not None:
            data = self._sanitizer.feed(data)
        end = data.rfind(b"\n")
        if end < 0:
            self._hold(data)
            return ()
        rest = data[end + 1 :]
        # One replace for all lines of the chunk, then the last prefix and the line it would begin are cut off.
        body = data.replace(b"\n", self._new_line) if self._prefix else data
        pieces = (*self._start_of_line(), memoryview(body)[: len(body) - len(rest) - len(self._prefix)])
        if rest:
            self._hold(rest)
        return pieces

    def finish(self) -> Sequence[Piece]:
        """The last line, where it had no newline; none is invented."""
        if self._sanitizer is not None:
            self._hold(self._sanitizer.finish())
        return self._start_of_line() if self._spill is not None or self._tail else ()

    def close(self) -> None:
        """Forgets a line that was begun."""
        self._tail.clear()
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    def _hold(self, data: bytes) -> None:
        if self._spill is None and len(self._tail) + len(data) > self._limit:
            self._spill = Spill()
            self._spill.append(self._tail)
            self._tail = bytearray()
        if self._spill is None:
            self._tail += data
        else:
            self._spill.append(data)

    def _start_of_line(self) -> tuple[Piece, ...]:
        """The prefix and what is held, which is held no more."""
        if self._spill is not None:
            spill, self._spill = self._spill, None
            return (self._prefix, spill)
        start = self._prefix + self._tail
        self._tail.clear()
        return (start,)
