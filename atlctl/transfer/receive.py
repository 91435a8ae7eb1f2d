"""One worker's copy to this machine: what the worker says it sends, where it belongs, whether it came whole."""

from __future__ import annotations

import os
import time
from typing import Protocol

from atlctl.jobs.naming import safe_file_name
from atlctl.transfer.extract import FileTaker, FolderTaker, Tally
from atlctl.transfer.place import PlaceError, make_folder, open_folder
from atlctl.transfer.scripts import MAX_GREETING
from atlctl.transfer.tarread import BadStreamError, Entry, TarReader

#: Mode of a file that came without one.
_PRIVATE = 0o600
_MAX_SIZE_DIGITS = 19


class Target(Protocol):
    """Where one worker's copy belongs. Both raise OSError or PlaceError.

    `path` shows it to people; it is known once one of the other two was called.
    """

    @property
    def path(self) -> str: ...

    def folder(self) -> tuple[int, bool]:
        """A descriptor of the folder that gets the contents of a folder, and whether it was made for that."""

    def file(self) -> tuple[int, str]:
        """A descriptor of the folder that gets a file, and the file's name."""


class OneTarget:
    """As `cp` does: into `path` where it is a folder, else as `path`. `name`: of the source, empty: it has none."""

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self._name = name

    def file(self) -> tuple[int, str]:
        if os.path.isdir(self.path) or self.path.endswith("/"):
            folder = open_folder(self.path)
            self.path = os.path.join(self.path, self._name)
            return folder, self._name
        return open_folder(os.path.dirname(self.path) or "."), os.path.basename(self.path)

    def folder(self) -> tuple[int, bool]:
        if os.path.isdir(self.path):
            parent = open_folder(self.path)
            if not self._name:
                return parent, False
            name, self.path = self._name, os.path.join(self.path, self._name)
        else:
            whole = self.path.rstrip("/")
            parent, name = open_folder(os.path.dirname(whole) or "."), os.path.basename(whole)
        return _below(parent, name)


class EachTarget:
    """A folder of the worker's own below `path`; made, for its owner alone, where it is missing."""

    def __init__(self, path: str, worker: str, name: str) -> None:
        self._root = path
        self._own = safe_file_name(worker)
        self._name = name
        self.path = os.path.join(path, self._own)

    def file(self) -> tuple[int, str]:
        folder, _ = self.folder()
        self.path = os.path.join(self.path, self._name)
        return folder, self._name

    def folder(self) -> tuple[int, bool]:
        make_folder(self._root, 0o700)
        return _below(open_folder(self._root), self._own)


def _below(parent: int, name: str) -> tuple[int, bool]:
    """A folder in the folder `parent`, a descriptor that is closed; made where it is missing."""
    try:
        made = make_folder(name, 0o700, within=parent)
        return open_folder(name, within=parent), made
    finally:
        os.close(parent)


class Receiver:
    """Takes the bytes of one worker's stdout. Never raises: `problem` says what went wrong, empty while nothing did.

    A copy counts when `finish` was called, which needs the command's exit with 0, and `problem` is still empty.
    """

    def __init__(self, target: Target) -> None:
        self.tally = Tally()
        self.problem = ""
        self._target = target
        self._greeting = bytearray()
        self._taker: FileTaker | FolderTaker | None = None
        self._reader: TarReader | None = None
        #: Bytes that `cat` owes.
        self._owed = 0

    @property
    def path(self) -> str:
        return self._target.path

    def feed(self, data: bytes) -> None:
        if self.problem:
            return
        try:
            self._take(data)
        except (BadStreamError, PlaceError) as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"cannot write {self.path}: {error.strerror}")

    def finish(self) -> None:
        """The command has exited with 0: put the last file in its place, where the stream is whole."""
        if self.problem:
            return
        if self._taker is None or self._owed or (self._reader is not None and not self._reader.ended):
            self._fail("the stream was cut before its end")
            return
        try:
            if self._reader is None:
                self._taker.end()
            self._taker.commit()
        except (BadStreamError, PlaceError) as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"cannot write {self.path}: {error.strerror}")
        failed = self.tally.failed
        if failed.count and not self.problem:
            more = f" and {failed.count - len(failed.first)} more" if failed.count > len(failed.first) else ""
            self.problem = f"not copied: {'; '.join(failed.first)}{more}"

    def close(self) -> None:
        """Leave nothing half-made. Safe to call twice."""
        if self._taker is not None:
            self._taker.close()

    def _fail(self, problem: str) -> None:
        self.problem = problem
        self.close()

    def _take(self, data: bytes) -> None:
        piece = memoryview(data)
        if self._taker is None:
            self._greeting += data[: MAX_GREETING + 1]
            line, newline, _ = bytes(self._greeting).partition(b"\n")
            if not newline:
                if len(self._greeting) > MAX_GREETING:
                    raise BadStreamError("the worker did not say what it sends")
                return
            held = len(self._greeting) - len(data[: MAX_GREETING + 1])
            piece = piece[len(line) + 1 - held :]
            self._greet(line)
        if self._reader is not None:
            self._reader.feed(piece)
        elif piece and self._taker is not None:
            if len(piece) > self._owed:
                raise BadStreamError("the file grew while it was read")
            self._owed -= len(piece)
            self._taker.data(piece)

    def _greet(self, line: bytes) -> None:
        match line.split():
            case [b"folder", b"tar"]:
                self._taker = FolderTaker(*self._target.folder(), self.tally)
                self._reader = TarReader(self._taker)
            case [b"file", b"tar"]:
                self._taker = self._one_file()
                self._reader = TarReader(self._taker)
            case [b"file", b"cat", size] if size.isdigit() and len(size) < _MAX_SIZE_DIGITS:
                self._owed = int(size)
                self._taker = self._one_file()
                self._taker.begin(Entry(b"", "file", self._owed, _PRIVATE, time.time()))
            case _:
                raise BadStreamError("the worker did not say what it sends")

    def _one_file(self) -> FileTaker:
        folder, name = self._target.file()
        try:
            return FileTaker(folder, name, self.tally)
        except (OSError, PlaceError):
            os.close(folder)
            raise
