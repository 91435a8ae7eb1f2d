"""A file or a folder of this machine as a tar stream, in pieces of about a mebibyte.

The archive holds `data`, what was asked for, and behind it the empty file `end`: whoever has that has all.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError
from atlctl.transfer.place import Names
from atlctl.transfer.spec import own_name

PIECE = 1 << 20
_RECORD = 10240
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class SourceError(AtlctlError):
    """The source cannot be read as it was found: it changed meanwhile, or reading failed."""


@dataclass(slots=True)
class Source:
    """What is there to send. `skipped`: links and special files below a folder, which are not sent.

    `name` is empty where the path has none of its own; then a folder's contents are meant.
    """

    path: str
    kind: str = "file"
    name: str = ""
    size: int = 0
    mode: int = 0
    files: int = 0
    bytes: int = 0
    skipped: Names = field(default_factory=Names)


def survey(path: str) -> Source:
    """Look through `path` before anything is sent. A link as the path itself is followed, others never.

    Raises UsageError where nothing is there, NotAllowed for the first thing that cannot be read.
    """
    try:
        found = os.stat(path)
        source = Source(path, name=own_name(path), mode=stat.S_IMODE(found.st_mode))
        if stat.S_ISDIR(found.st_mode):
            source.kind = "folder"
            folder = os.open(path, _OPEN | os.O_DIRECTORY)
            for _ in _members(folder, b"", source):
                pass
            return source
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path} is neither a file nor a folder")
        os.close(os.open(path, _OPEN))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{path}: no such file or folder", "a path on a worker is written WORKER:PATH") from error
    except OSError as error:
        raise _refusal(error, path) from error
    source.files, source.bytes, source.size = 1, found.st_size, found.st_size
    return source


def archive(source: Source) -> Iterator[bytes]:
    """The tar stream. Raises SourceError; what was given until then has no `end`."""
    try:
        yield from _gathered(_archive(source))
    except OSError as error:
        raise SourceError(f"{source.path} cannot be read any more: {error.strerror}") from error


def plain(source: Source) -> Iterator[bytes]:
    """The bytes of one file. Raises SourceError."""
    try:
        file = os.open(source.path, _OPEN)
        try:
            yield from _bytes(file, source.size, source.path)
        finally:
            os.close(file)
    except OSError as error:
        raise SourceError(f"{source.path} cannot be read any more: {error.strerror}") from error


def _archive(source: Source) -> Iterator[bytes]:
    written = 0
    for piece in _data(source):
        written += len(piece)
        yield piece
    last = _header(b"end", tarfile.REGTYPE, 0, 0o600, 0)
    end = written + len(last) + 2 * tarfile.BLOCKSIZE
    yield last + bytes(2 * tarfile.BLOCKSIZE + -end % _RECORD)


def _data(source: Source) -> Iterator[bytes]:
    if source.kind == "file":
        file = os.open(source.path, _OPEN)
        try:
            found = os.fstat(file)
            yield from _file(file, b"data", found, source.path)
        finally:
            os.close(file)
        return
    folder = os.open(source.path, _OPEN | os.O_DIRECTORY)
    found = os.fstat(folder)
    yield _header(b"data", tarfile.DIRTYPE, 0, found.st_mode, found.st_mtime)
    for name, status, member in _members(folder, b"data/", None):
        if member is None:
            yield _header(name, tarfile.DIRTYPE, 0, status.st_mode, status.st_mtime)
        else:
            yield from _file(member, name, status, os.fsdecode(name.removeprefix(b"data/")))


def _members(folder: int, prefix: bytes, source: Source | None) -> Iterator[tuple[bytes, os.stat_result, int | None]]:
    """Everything below `folder`, a descriptor that is closed: name, status, and a descriptor for files.

    With `source` files are not opened, only counted, and what is skipped is named.
    """
    try:
        for name in sorted(os.listdir(folder)):
            path = prefix + os.fsencode(name)
            found = os.lstat(name, dir_fd=folder)
            if stat.S_ISDIR(found.st_mode):
                below = os.open(name, _OPEN | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                yield path, found, None
                yield from _members(below, path + b"/", source)
            elif not stat.S_ISREG(found.st_mode):
                if source is not None:
                    source.skipped.add(f"{os.fsdecode(path)} ({_sort(found.st_mode)})")
            elif source is not None:
                source.files += 1
                source.bytes += found.st_size
                if not os.access(name, os.R_OK, dir_fd=folder, effective_ids=True):
                    raise PermissionError(13, "Permission denied", os.fsdecode(path))
            else:
                file = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=folder)
                try:
                    yield path, os.fstat(file), file
                finally:
                    os.close(file)
    finally:
        os.close(folder)


def _sort(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "symlink"
    if stat.S_ISFIFO(mode):
        return "fifo"
    return "socket" if stat.S_ISSOCK(mode) else "device"


def _file(file: int, name: bytes, found: os.stat_result, path: str) -> Iterator[bytes]:
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{path} changed while it was read")
    yield _header(name, tarfile.REGTYPE, found.st_size, found.st_mode, found.st_mtime)
    yield from _bytes(file, found.st_size, path)
    if found.st_size % tarfile.BLOCKSIZE:
        yield bytes(-found.st_size % tarfile.BLOCKSIZE)


def _bytes(file: int, size: int, path: str) -> Iterator[bytes]:
    """Exactly `size` bytes: what a file has grown meanwhile is left out, one that has shrunk ends the copy."""
    while size:
        piece = os.read(file, min(size, PIECE))
        if not piece:
            raise SourceError(f"{path} became shorter while it was read")
        size -= len(piece)
        yield piece


def _header(name: bytes, kind: bytes, size: int, mode: int, mtime: float) -> bytes:
    """One header, of nobody's own: user and group are 0. GNU's form, which every tar of a worker reads."""
    info = tarfile.TarInfo(os.fsdecode(name))
    info.type, info.size, info.mode, info.mtime = kind, size, mode & 0o777, max(0, int(mtime))
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Small pieces put together, so that a thousand little files are not a thousand writes."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= PIECE:
            yield b"".join(held) if len(held) > 1 else piece
            held, size = [], 0
    if held:
        yield b"".join(held)


def _refusal(error: OSError, path: str) -> AtlctlError:
    place = os.path.join(path, os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else path
    return NotAllowed(f"cannot read {place}: {error.strerror}", "nothing was sent")
