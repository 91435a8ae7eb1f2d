"""Reads the log that `crilog` writes: through rotations, from its end, while it grows. Whole lines, as they stand.

Files are told by their inode, which is not given out again while one is held open. Raises OSError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

READ_SIZE = 1 << 18


def files(folder: str) -> list[str]:
    """The log's files, oldest first."""
    try:
        found = os.listdir(folder)
    except FileNotFoundError:
        return []
    rotated = sorted(name for name in found if name.startswith("0.log."))
    return [f"{folder}/{name}" for name in (*rotated, *(["0.log"] if "0.log" in found else []))]


class Reader:
    """Reads on through rotations: a file is left only at its end, when a newer one exists."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._inode = 0
        self._buffer = b""

    def blocks(self) -> Iterator[bytes]:
        """All that is there now: whole lines, each with its newline."""
        while True:
            if self._file is not None:
                yield from self._to_its_end()
            following = self._following()
            if following is None:
                return
            try:
                if self._file is not None:
                    # What was written between our last read and the rotation.
                    yield from self._to_its_end()
                    if self._buffer:
                        yield self._buffer + b"\n"
            except GeneratorExit:
                following.close()
                raise
            self._take(following)

    def position(self) -> tuple[int, int]:
        """Inode and offset of the first line that `blocks` has not given yet."""
        return self._inode, self._file.tell() - len(self._buffer) if self._file is not None else 0

    def go_on(self, inode: int, offset: int) -> bool:
        """Go to a position of an earlier reader; False where its file is gone."""
        for found, path in _in_order(self._folder):
            opened = _open(path) if found == inode else None
            if opened is not None:
                self._take(opened)
                # A file that is shorter is another one, of a number that was given out again.
                if os.fstat(opened.fileno()).st_size < offset:
                    self.close()
                    return False
                opened.seek(offset)
                return True
        return False

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

    def skip_older(self, moment: int) -> None:
        """Go behind the files that were left for a newer one before `moment` (nanoseconds since the epoch)."""
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


def _in_order(folder: str) -> list[tuple[int, str]]:
    """Inodes and paths of the log's files, oldest first, as they stood at one moment."""
    while True:
        paths = files(folder)
        try:
            found = [(os.stat(path).st_ino, path) for path in paths]
        except FileNotFoundError:
            continue  # rotated away meanwhile
        if files(folder) == paths:  # each rotation brings a new name
            return found
