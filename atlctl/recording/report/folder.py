"""A new folder for a report. Everything goes in through its descriptor; names from workers never choose a path."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from atlctl.diagnosis.scanning.sieve import sieve_for
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import write_all
from atlctl.recording.save import Folder
from atlctl.render.redact import HIDDEN, LITERALS, Kind, Redactor
from atlctl.render.sanitize import clean

CHUNK = 256 * 1024
#: A line of a log that goes on is treated in pieces of this size.
_LINE = 1 << 20


class ReportFolder(Folder):
    """New, or empty. Files are 0600, folders 0700. `found` counts the secrets that were hidden on the way in."""

    elsewhere = "name another folder with --out"

    def __init__(self, path: str) -> None:
        self.found: Counter[Kind] = Counter()
        super().__init__(path)

    def named(self, name: str) -> str:
        return kept_name(name)

    def put(self, parts: Sequence[str], data: bytes) -> None:
        """A file of `data`, in which nothing is hidden any more. Raises OSError."""
        fd = self.create_below(parts)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def put_log(self, parts: Sequence[str], source: int, skip: int = 0) -> None:
        """The lines of the open file `source` behind the line in which `skip` bytes end. Raises OSError."""
        fd = self.create_below(parts)
        try:
            if skip:
                skip_to(source, skip)
            for piece in hidden(_chunks(source), self.found):
                write_all(fd, piece)
        finally:
            os.close(fd)

    def files(self) -> list[tuple[str, int]]:
        """Paths below the folder and sizes in bytes, in order. Raises OSError."""
        found = []
        for path, _, names, at in os.fwalk(".", dir_fd=self._fd):
            for name in names:
                full = name if path == "." else f"{path[2:]}/{name}"
                found.append((full, os.stat(name, dir_fd=at, follow_symlinks=False).st_size))
        return sorted(found)

    def places(self) -> int:
        """How often the mark of what is hidden stands in the folder's files. Raises OSError."""
        mark, count = HIDDEN.encode(), 0
        for _, _, names, at in os.fwalk(".", dir_fd=self._fd):
            for name in names:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                try:
                    held = b""
                    for chunk in _chunks(fd):
                        held += chunk
                        count += held.count(mark)
                        held = held[held.rfind(mark) + len(mark) :] if mark in held else held
                        held = held[-len(mark) + 1 :]
                finally:
                    os.close(fd)
        return count


def kept_name(name: str) -> str:
    """A file's name as it was where that is harmless to read and to unpack; else as `safe_file_name` writes it.

    Workers are called as their logs are, so that as few as possible change their names.
    """
    fits = 0 < len(os.fsencode(name)) <= 255 and name not in (".", "..") and name[0] not in "-~ " and "/" not in name
    return name if fits and clean(name) == name and "\\" not in name else safe_file_name(name)


def hidden(chunks: Iterator[bytes], found: Counter[Kind]) -> Iterator[bytes]:
    """A log in pieces, its secrets hidden. As many lines come out as go in; little of it is held."""
    holds = sieve_for(LITERALS)
    redactor = Redactor(holds, found, cut=True)
    rest = b""
    for chunk in chunks:
        held = rest + chunk
        cut = held.rfind(b"\n") + 1
        if not cut and len(held) >= _LINE:
            # In the middle of a line: behind a blank, where a secret does not go on.
            cut = held.rfind(b" ", len(held) // 2) + 1 or len(held)
        whole, rest = held[:cut], held[cut:]
        if whole:
            yield _treated(whole, redactor, holds(whole))
    if rest:
        yield _treated(rest, redactor, True)


def _treated(data: bytes, redactor: Redactor, suspect: bool) -> bytes:
    if not suspect and redactor.quiet:
        return data
    return b"".join(map(redactor.line, data.splitlines(keepends=True) if b"\r" not in data else _lines(data)))


def _lines(data: bytes) -> list[bytes]:
    """By newlines alone: a progress bar's carriage returns end no line."""
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _chunks(fd: int) -> Iterator[bytes]:
    while data := os.read(fd, CHUNK):
        yield data


def skip_to(fd: int, size: int) -> None:
    """Go behind the line in which the first `size` bytes of an open file end. Raises OSError."""
    os.lseek(fd, size - 1, os.SEEK_SET)
    while data := os.read(fd, CHUNK):
        end = data.find(b"\n")
        if end >= 0:
            os.lseek(fd, end + 1 - len(data), os.SEEK_CUR)
            return
