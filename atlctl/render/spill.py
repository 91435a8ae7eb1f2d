"""Bytes that are too many for memory: an unnamed file that is written once and read once."""

from __future__ import annotations

import os
import tempfile

from atlctl.jobs.errors import AtlctlError


class Spill:
    """Append, then read from the start. The file has no name: it is gone with the process, however that ends."""

    __slots__ = ("_file", "_read", "size")

    def __init__(self) -> None:
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
        """Up to `limit` bytes from `offset`, wherever `read` stands. Raises OSError."""
        return os.pread(self._file.fileno(), min(limit, self.size - offset), offset)

    @property
    def unread(self) -> int:
        return self.size - self._read

    def close(self) -> None:
        """Gives the disk space back. Safe to call twice."""
        self._file.close()


def _cannot_hold(error: OSError) -> AtlctlError:
    return AtlctlError(
        f"cannot hold output in {tempfile.gettempdir()}: {error.strerror}",
        hint="set TMPDIR to a folder with space",
    )
