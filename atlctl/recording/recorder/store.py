"""The folder of a recording: one recorder at a time, every step relative to its descriptor, no link followed."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress

from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import open_below, write_all
from atlctl.recording import manifest

#: Held by the recorder that writes.
LOCK = ".recorder.lock"
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _SAFE
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | _SAFE
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | _SAFE
_ELSEWHERE = "name another folder with --out"


class Store:
    """An open recording folder, new or begun by an earlier recorder. Folders are 0700, files 0600. Close it.

    Raises UsageError where the folder holds something else or is recorded already, NotAllowed where it cannot be used.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._fd = -1
        try:
            try:
                os.mkdir(self.path, 0o700)
                made = True
            except FileExistsError:
                made = False
            self._fd = os.open(self.path, _FOLDER)
            if made:
                os.fchmod(self._fd, 0o700)  # a umask may have taken bits that the owner needs
            self._check(made)
            self._lock = self._locked()
        except OSError as error:
            self._give_up()
            raise _mapped(error, self.path) from error
        except AtlctlError:
            self._give_up()
            raise

    def _check(self, made: bool) -> None:
        """A folder that others may write to could be changed under our hands; one of other things is none of ours."""
        found = os.fstat(self._fd)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise NotAllowed(f"{self.path} belongs to others, or others may write to it", _ELSEWHERE)
        names = set() if made else set(os.listdir(self._fd))
        if names and manifest.NAME not in names and LOCK not in names:
            raise UsageError(f"{self.path} is not empty, and no recording", _ELSEWHERE)

    def _locked(self) -> int:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | _SAFE, 0o600, dir_fd=self._fd)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise UsageError(f"another recorder writes to {self.path}", f"end it, or {_ELSEWHERE}") from error
            raise
        return lock

    def _give_up(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def names(self) -> list[str]:
        return os.listdir(self._fd)

    def append(self, name: str) -> int:
        """A descriptor that appends to a file, made where it is missing. Raises OSError."""
        return _regular(os.open(name, _APPEND, 0o600, dir_fd=self._fd), name)

    def read(self, name: str) -> int:
        """A descriptor that reads a file. Raises OSError."""
        return _regular(os.open(name, os.O_RDONLY | os.O_NONBLOCK | _SAFE, dir_fd=self._fd), name)

    def replace(self, name: str, data: bytes) -> None:
        """`name` holds `data`, or what it held before. Raises OSError."""
        part = f".{name}.part"
        fd = _regular(os.open(part, _NEW, 0o600, dir_fd=self._fd), part)
        try:
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
            os.rename(part, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            self.remove(part)
            raise

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def below(self, parts: list[str]) -> int:
        """A descriptor of the folder `parts`, each made where it is missing. Raises OSError."""
        return open_below(self._fd, map(safe_file_name, parts))

    def close(self) -> None:
        """Lets the next recorder in."""
        os.close(self._lock)
        os.close(self._fd)


def create_in(folder: int, name: str) -> int:
    """A new file in an open folder, emptied where it is there. Raises OSError."""
    return _regular(os.open(name, _NEW, 0o600, dir_fd=folder), name)


def _regular(fd: int, name: str) -> int:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EEXIST, "is no regular file", name)
    return fd


def _mapped(error: OSError, path: str) -> AtlctlError:
    why = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotAllowed(f"cannot record to {path}: {why}", _ELSEWHERE)
    return UsageError(f"cannot record to {path}: {why}", _ELSEWHERE)
