"""From chunks of output to whole lines, each after the `NAME: ` of its worker: the hot path of live output.

Bytes from end to end; a line that is too long for memory waits in an unnamed file (`Spill`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Worker
from atlctl.render.palette import WORKERS
from atlctl.render.sanitize import OutputSanitizer, clean


class Spill:
    """Append, then read from the start. The file has no name: it is gone with the process, however that ends."""

    __slots__ = ("_file", "_read", "size")

    def __init__(self) -> None:
        import tempfile  # costs more at the start of a command than all else here, and seldom is one needed

        try:
            self._file = tempfile.TemporaryFile(prefix="atlctl-", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise _cannot_hold(error) from error
        self.size = 0
        self._read = 0

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Raises AtlctlError when the disk is full."""
        view = memoryview(data)
        try:
            while view:
                done = os.pwrite(self._file.fileno(), view, self.size)
                self.size += done
                view = view[done:]
        except OSError as error:
            raise _cannot_hold(error) from error

    def read(self, limit: int) -> bytes:
        """The next bytes, at most `limit`; empty at the end. Raises OSError."""
        data = os.pread(self._file.fileno(), min(limit, self.size - self._read), self._read)
        self._read += len(data)
        return data

    def read_at(self, offset: int, limit: int) -> bytes:
        """Up to `limit` bytes from `offset`, independent of `read`. Raises OSError."""
        return os.pread(self._file.fileno(), min(limit, self.size - offset), offset)

    @property
    def unread(self) -> int:
        return self.size - self._read

    def close(self) -> None:
        """Gives the disk space back. Safe to call twice."""
        self._file.close()


def _cannot_hold(error: OSError) -> AtlctlError:
    import tempfile

    return AtlctlError(
        Message("cannot hold output in {folder}: {why}", folder=tempfile.gettempdir(), why=error.strerror),
        hint=Message("set TMPDIR to a folder with space"),
    )


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
        """The last line if it had no newline; no newline is added."""
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


def prefix_for(worker: Worker, color: bool) -> bytes:
    """`NAME: `, cleaned; if `color` is set, in the colour of the worker's index."""
    shown = clean(worker.name)
    number = WORKERS[worker.index % len(WORKERS)]
    return (f"\x1b[38;5;{number}m{shown}:\x1b[0m " if color else f"{shown}: ").encode()
