"""A worker's log in the kubelet's CRI format, rotated by size.

Each line: `2026-11-20T17:45:05.757882235Z stdout F text`. `P` instead of `F` marks a piece of a line that
goes on: lines are cut after 16 KiB, as container runtimes do, and a last line without newline stays `P`.
Source: Kubernetes' kubelet CRI logging format; rotation as `containerLogMaxSize` and `containerLogMaxFiles`.
"""

from __future__ import annotations

import contextlib
import os
import time

PIECE = 16 * 1024


class _Clock:
    """RFC 3339 stamps with nanoseconds; the part down to the second is made once a second."""

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
    """Appends both streams of one worker to `folder/0.log`, keeping at most `max_files` files of `max_bytes`.

    A full disk loses lines, never the worker: `lost` counts the bytes that could not be written.
    """

    def __init__(self, folder: str, max_bytes: int, max_files: int) -> None:
        self._folder = folder
        self._path = f"{folder}/0.log"
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._tails = {"stdout": b"", "stderr": b""}
        self._clock = _Clock()
        self._descriptor = self._open()
        self._size = 0
        self._torn = False
        self.lost = 0

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def feed(self, stream: str, data: bytes) -> None:
        """Take bytes as they came; whole lines are written at once."""
        head = b"%s %s F " % (self._clock.stamp(), stream.encode("ascii"))
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
            # Goes on in the old file, under its old name: a full disk is met at the next write.
            with contextlib.suppress(OSError):
                os.rename(rotated, self._path)
            return
        os.close(self._descriptor)
        self._descriptor, self._size, self._torn = descriptor, 0, False
        with contextlib.suppress(OSError):  # what cannot be removed now is tried again at the next rotation
            old = sorted(name for name in os.listdir(self._folder) if name.startswith("0.log."))
            for name in old[: max(0, len(old) - (self._max_files - 1))]:
                os.unlink(f"{self._folder}/{name}")

    def close(self) -> None:
        """Write what is left of unfinished lines and close."""
        for stream, tail in self._tails.items():
            if tail:
                self._append(b"%s %s P %s\n" % (self._clock.stamp(), stream.encode("ascii"), tail))
        os.close(self._descriptor)
