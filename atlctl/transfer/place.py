"""Files that are put in their place on this machine: whole or not at all, and never through a link.

Every step is relative to an open folder and follows nothing (`openat` with O_NOFOLLOW), so that neither a name from
outside nor a link that stands in the target leads elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from dataclasses import dataclass, field

_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Names that are kept of one sort; the rest is counted.
NAMED = 8
#: Bytes and files of the disk that a copy leaves free.
_SPARE_BYTES, _SPARE_FILES = 1 << 20, 16

TEMPORARY = ".atlctl-cp."


class PlaceError(Exception):
    """A file cannot be put in its place; the text says why, for people."""


@dataclass(slots=True)
class Names:
    """Names of one sort: the first few, and how many there are."""

    first: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, name: str) -> None:
        if len(self.first) < NAMED:
            self.first.append(name)
        self.count += 1


def current_umask() -> int:
    """The bits that new files of this process do not get. Only tells: there is no call that reads it alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class NewFile:
    """A file that grows under a temporary name beside its place, for its owner alone until it is whole.

    `folder` is a descriptor, of which a copy is kept. `size`: how much room it needs, None where that is not known.
    Raises PlaceError where something else than a regular file stands in its place or the disk is full.
    """

    def __init__(self, folder: int, name: str, size: int | None) -> None:
        _check_room(folder, size)
        in_the_way(folder, name)
        self._name = name
        self._temporary = f"{TEMPORARY}{secrets.token_hex(8)}"
        self._folder = os.dup(folder)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
            self._file = os.open(self._temporary, flags, 0o600, dir_fd=self._folder)
        except OSError:
            os.close(self._folder)
            raise

    def write(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
        while view:
            view = view[os.write(self._file, view) :]

    def seal(self, mode: int, mtime: float | None) -> None:
        """All bytes are there. `mode`: permission bits, the umask already taken off."""
        os.fchmod(self._file, mode & 0o777)
        if mtime is not None:
            nanoseconds = int(mtime * 1_000_000_000)
            os.utime(self._file, ns=(nanoseconds, nanoseconds))
        os.close(self._file)
        self._file = -1

    def publish(self) -> None:
        """Give it its name. A file of that name is replaced. Raises PlaceError."""
        try:
            in_the_way(self._folder, self._name)
            os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except (OSError, PlaceError):
            self.discard()
            raise
        self._release()

    def discard(self) -> None:
        """Leave nothing of it. Safe to call at any time, and twice."""
        if self._folder >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._folder)
        self._release()

    def _release(self) -> None:
        for descriptor in (self._file, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._folder = -1


def in_the_way(folder: int, name: str) -> None:
    """Raises PlaceError where `name` in `folder` is there and is no regular file."""
    try:
        mode = os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise PlaceError(f"{what_is(mode)} stands in its place")


def what_is(mode: int) -> str:
    """The sort of a file, for a message."""
    if stat.S_ISLNK(mode):
        return "a link"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a file" if stat.S_ISREG(mode) else "a special file"


def open_folder(name: str, *, within: int | None = None) -> int:
    """A descriptor of a folder. `within` another one no link is followed; a path alone is the user's own word."""
    if within is None:
        return os.open(name, _FOLDER)
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=within)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            # Linux says ENOTDIR for a link, too: O_DIRECTORY is looked at first.
            raise PlaceError(f"{what_is(os.lstat(name, dir_fd=within).st_mode)} stands in its place") from error
        raise


def make_folder(name: str, mode: int, *, within: int | None = None) -> bool:
    """Make a folder; False where something of that name is there already."""
    try:
        os.mkdir(name, mode, dir_fd=within)
    except FileExistsError:
        return False
    return True


def _check_room(folder: int, size: int | None) -> None:
    disk = os.fstatvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if size is not None and size + _SPARE_BYTES > free:
        raise OSError(errno.ENOSPC, f"{size} bytes are needed and {free} are free")
    if disk.f_files and disk.f_favail < _SPARE_FILES:
        raise OSError(errno.ENOSPC, "the disk has no room for more files")
