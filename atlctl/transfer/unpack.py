"""Unpack a tar stream to local files: each file complete or not at all, and never through a link.

Every step is relative to an open folder and follows no link (`openat` with O_NOFOLLOW), so that neither a received name
nor a link in the target leads elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from atlctl.i18n import Message
from atlctl.transfer.tar import BadStreamError, CountedNames, TarEntry

#: Errors of the disk or this process, which would also affect the following members.
_ENDS_ALL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: Longest path on Linux, in bytes.
_LONGEST = 4096
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Free bytes and files that a copy leaves on the disk.
_SPARE_BYTES, _SPARE_FILES = 1 << 20, 16
TEMPORARY = ".atlctl-cp."


@dataclass(slots=True)
class Tally:
    """Counts of a copy. `skipped`: links and special files; `failed`: files that could not be stored."""

    files: int = 0
    bytes: int = 0
    skipped: CountedNames = field(default_factory=CountedNames)
    failed: CountedNames = field(default_factory=CountedNames)


class _Folder(NamedTuple):
    """A folder that this copy created, and the attributes that it gets when it is complete."""

    parts: tuple[str, ...]
    mode: int
    mtime: float


class _Taker:
    """Takes the bytes of one file after the other."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._umask = current_umask()
        self._file: NewFile | None = None
        self._entry: TarEntry | None = None

    def data(self, piece: memoryview) -> None:
        if self._file is not None:
            self._file.write(piece)
            self._tally.bytes += len(piece)


class FolderTaker(_Taker):
    """Stores members below the descriptor `root`, which it closes.

    `made`: the folder was created for this copy, and gets the mode and time of the stream's root. An absolute name or
    one with `..` ends the copy (BadStreamError); a failure of one file is recorded, and the copy continues. The last
    file is published with the next member, or by `commit`.
    """

    def __init__(self, root: int, made: bool, tally: Tally) -> None:
        super().__init__(tally)
        self._root = root
        self._made = made
        #: Complete, but not yet published.
        self._whole: tuple[NewFile, str] | None = None
        self._at: tuple[tuple[str, ...], int] | None = None
        self._open: list[_Folder] = []

    def begin(self, entry: TarEntry) -> None:
        self._publish()
        self._entry = entry
        parts = _parts(entry.name)
        self._leave(parts)
        if entry.kind in ("symlink", "hardlink", "device", "fifo"):
            self._tally.skipped.add(f"{_shown(entry.name)} ({entry.kind})")
        elif entry.kind == "folder":
            self._try(entry, lambda: self._folder(parts, entry))
        elif entry.kind == "file" and parts:
            self._try(entry, lambda: self._begin_file(parts, entry))
        else:
            text = Message("{path}: not a plain file ({kind})", path=_shown(entry.name), kind=entry.kind)
            self._tally.failed.add(text)

    def end(self) -> None:
        entry, file = self._entry, self._file
        if file is not None and entry is not None:
            file.seal(entry.mode & ~self._umask, entry.mtime)
            self._whole, self._file = (file, _shown(entry.name)), None

    def commit(self) -> None:
        """The copy succeeded: publish the last file."""
        self._publish()
        self.close()

    def close(self) -> None:
        """Remove incomplete files; published ones stay. Safe to call twice."""
        for file in (self._file, self._whole[0] if self._whole is not None else None):
            if file is not None:
                file.discard()
        self._file = self._whole = None
        if self._root >= 0:
            self._leave(None)
            self._forget_place()
            os.close(self._root)
            self._root = -1

    def _try(self, entry: TarEntry, step: Callable[[], None]) -> None:
        """Record the failure of one member. A full disk ends the copy."""
        try:
            step()
        except PlaceError as error:
            self._tally.failed.add(Message("{path}: {why}", path=_shown(entry.name), why=error.args[0]))
        except OSError as error:
            if error.errno in _ENDS_ALL:
                raise
            self._tally.failed.add(Message("{path}: {why}", path=_shown(entry.name), why=error.strerror))

    def _begin_file(self, parts: tuple[str, ...], entry: TarEntry) -> None:
        self._file = NewFile(self._enter(parts[:-1]), parts[-1], entry.size)

    def _publish(self) -> None:
        if self._whole is None:
            return
        (file, name), self._whole = self._whole, None
        try:
            file.publish()
            self._tally.files += 1
        except PlaceError as error:
            self._tally.failed.add(Message("{path}: {why}", path=name, why=error.args[0]))

    def _folder(self, parts: tuple[str, ...], entry: TarEntry) -> None:
        if not parts:
            if self._made:
                self._open.insert(0, _Folder((), entry.mode & ~self._umask, entry.mtime))
                self._made = False
            return
        parent = self._enter(parts[:-1])
        if make_folder(parts[-1], 0o700, within=parent):
            self._open.append(_Folder(parts, entry.mode & ~self._umask, entry.mtime))
        else:
            os.close(open_folder(parts[-1], within=parent))

    def _enter(self, parts: tuple[str, ...]) -> int:
        """A descriptor of that folder below the root; created if missing. The caller must not close it."""
        if self._at is not None and self._at[0] == parts:
            return self._at[1]
        self._forget_place()
        here = os.dup(self._root)
        try:
            for name in parts:
                make_folder(name, 0o777, within=here)
                below = open_folder(name, within=here)
                os.close(here)
                here = below
        except (OSError, PlaceError):
            os.close(here)
            raise
        self._at = (parts, here)
        return here

    def _forget_place(self) -> None:
        if self._at is not None:
            os.close(self._at[1])
            self._at = None

    def _leave(self, parts: tuple[str, ...] | None) -> None:
        """Set mode and time of the folders that are complete. None: all of them."""
        while self._open and (parts is None or parts[: len(self._open[-1].parts)] != self._open[-1].parts):
            done = self._open.pop()
            self._forget_place()
            with contextlib.suppress(OSError, PlaceError):  # another process may have moved it
                folder = self._enter(done.parts)
                os.fchmod(folder, done.mode & 0o777)
                nanoseconds = int(done.mtime * 1_000_000_000)
                os.utime(folder, ns=(nanoseconds, nanoseconds))


class FileTaker(_Taker):
    """Stores one file at the requested place, whatever its name in the stream. Closes `folder`."""

    def __init__(self, folder: int, name: str, tally: Tally) -> None:
        super().__init__(tally)
        self._folder = folder
        self._name = name
        in_the_way(folder, name)

    def begin(self, entry: TarEntry) -> None:
        if self._entry is not None or entry.kind != "file":
            raise BadStreamError(Message("the worker did not send the one file that was requested"))
        self._entry = entry
        self._file = NewFile(self._folder, self._name, entry.size)

    def end(self) -> None:
        if self._file is not None and self._entry is not None:
            self._file.seal(self._entry.mode & ~self._umask, self._entry.mtime)

    def commit(self) -> None:
        """The copy succeeded. Raises BadStreamError if the stream held no file."""
        if self._file is None:
            raise BadStreamError(Message("the worker sent no file"))
        self._file.publish()
        self._tally.files += 1
        self.close()

    def close(self) -> None:
        """Remove incomplete files. Safe to call twice."""
        if self._file is not None:
            self._file.discard()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


def _parts(name: bytes) -> tuple[str, ...]:
    """The folders and the name of a member. Raises BadStreamError for one outside the target."""
    if len(name) > _LONGEST:
        raise BadStreamError(Message("the worker sent a name that is too long"))
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if name.startswith(b"/") or b".." in parts or b"\0" in name:
        raise BadStreamError(Message("the worker sent a name that leads out of the target: {name}", name=_shown(name)))
    return tuple(os.fsdecode(part) for part in parts)


def _shown(name: bytes) -> str:
    return os.fsdecode(name[:256]).removeprefix("./").rstrip("/") or "."


class PlaceError(Exception):
    """A file cannot be stored; the text is the reason, for users."""


def current_umask() -> int:
    """The umask of this process, restored at once: no call only reads it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class NewFile:
    """A file with a temporary name beside its target and mode 0600 until it is complete.

    `folder` is a descriptor, which is duplicated. `size`: the space that it needs, None if unknown. Raises PlaceError
    if its target exists and is not a regular file, or if the disk is full.
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
        """All bytes are written. `mode`: permission bits after the umask."""
        os.fchmod(self._file, mode & 0o777)
        if mtime is not None:
            nanoseconds = int(mtime * 1_000_000_000)
            os.utime(self._file, ns=(nanoseconds, nanoseconds))
        os.close(self._file)
        self._file = -1

    def publish(self) -> None:
        """Rename it to its target, replacing an existing file. Raises PlaceError."""
        try:
            in_the_way(self._folder, self._name)
            os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except (OSError, PlaceError):
            self.discard()
            raise
        self._release()

    def discard(self) -> None:
        """Delete it. Safe to call at any time, and twice."""
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
    """Raise PlaceError if `name` in `folder` exists and is not a regular file."""
    try:
        mode = os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise in_its_place(mode)


def what_is(mode: int) -> str:
    """The kind of a file, for a message."""
    if stat.S_ISLNK(mode):
        return Message("a link")
    if stat.S_ISDIR(mode):
        return Message("a folder")
    return Message("a file") if stat.S_ISREG(mode) else Message("a special file")


def in_its_place(mode: int) -> PlaceError:
    """The error for a target of the wrong kind."""
    return PlaceError(Message("{sort} is in its place", sort=what_is(mode)))


def open_folder(name: str, *, within: int | None = None) -> int:
    """Open a folder. With `within`, a descriptor, no link is followed; without, the path is the user's own."""
    if within is None:
        return os.open(name, _FOLDER)
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=within)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            # Linux also reports ENOTDIR for a link, because it checks O_DIRECTORY first.
            raise in_its_place(os.lstat(name, dir_fd=within).st_mode) from error
        raise


def make_folder(name: str, mode: int, *, within: int | None = None) -> bool:
    """Create a folder; False if the name exists already."""
    try:
        os.mkdir(name, mode, dir_fd=within)
    except FileExistsError:
        return False
    return True


def _check_room(folder: int, size: int | None) -> None:
    disk = os.fstatvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if size is not None and size + _SPARE_BYTES > free:
        raise OSError(errno.ENOSPC, Message("{size} bytes are needed, {free} are free", size=size, free=free))
    if disk.f_files and disk.f_favail < _SPARE_FILES:
        raise OSError(errno.ENOSPC, Message("the disk has no room for more files"))
