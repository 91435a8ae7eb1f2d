"""`exec --output-dir`: one file for each worker's stdout, one for its stderr, for their owner alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from atlctl.backends.base import Stream
from atlctl.fanout.outcome import Outcome
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError
from atlctl.jobs.model import Worker
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import write_all

_SUFFIX: dict[Stream, str] = {"stdout": ".out", "stderr": ".err"}
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC


class FolderSink:
    """`NAME.out` for each worker that started, `NAME.err` where there was some; bytes untouched.

    The folder is made (0700) where it is missing, its parent must exist; a link is refused. Files of `workers` from an
    earlier run are removed first. No descriptor but the folder's is kept, so that a thousand workers need one.
    `truncated`: workers whose output is not whole, after a failure to write.

    Raises UsageError or NotAllowed when the folder cannot be used.
    """

    def __init__(self, folder: str, workers: Sequence[Worker]) -> None:
        self.truncated: set[str] = set()
        self._folder = folder
        self._failed = False
        #: Device, inode and owner of every file made: nobody's other file is appended to.
        self._made: dict[str, tuple[int, int, int]] = {}
        self._dir = _open_folder(folder)
        try:
            for worker in workers:
                for suffix in _SUFFIX.values():
                    self._remove(safe_file_name(worker.name) + suffix)
        except OSError as error:
            os.close(self._dir)
            raise _refused(folder, error) from error

    async def started(self, worker: Worker) -> None:
        """Makes the file, so that no output and no start differ."""
        self._append(worker.name, "stdout", b"")

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        """Raises AtlctlError once when the disk is full; what comes after that is dropped."""
        self._append(worker.name, stream, data)

    async def finished(self, outcome: Outcome) -> None:
        """Nothing is left to write."""

    def close(self) -> None:
        """Gives back the folder's descriptor. Safe to call twice."""
        if self._dir >= 0:
            os.close(self._dir)
            self._dir = -1

    def _append(self, name: str, stream: Stream, data: bytes) -> None:
        if self._failed:
            if data:
                self.truncated.add(name)
            return
        file = safe_file_name(name) + _SUFFIX[stream]
        try:
            fd = self._open(file)
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            self._failed = True
            self.truncated.add(name)
            raise AtlctlError(
                Message("cannot write {path}: {why}", path=os.path.join(self._folder, file), why=error.strerror),
                hint=Message("free some space, or choose another folder with --output-dir"),
            ) from error

    def _open(self, file: str) -> int:
        made = self._made.get(file)
        if made is None:
            fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _SAFE, 0o600, dir_fd=self._dir)
            os.fchmod(fd, 0o600)  # A umask may have taken bits that the owner needs.
            self._made[file] = _identity(fd)
            return fd
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | _SAFE, dir_fd=self._dir)
        if _identity(fd) != made:
            os.close(fd)
            raise OSError(errno.ESTALE, Message("it was replaced meanwhile"))
        return fd

    def _remove(self, file: str) -> None:
        try:
            os.unlink(file, dir_fd=self._dir)
        except FileNotFoundError:
            return


def _identity(fd: int) -> tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_uid


def _open_folder(folder: str) -> int:
    # With a slash at the end the system would follow a link in spite of O_NOFOLLOW.
    path = folder.rstrip("/") or "/"
    try:
        try:
            os.mkdir(path, 0o700)
            made = True
        except FileExistsError:
            made = False
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
        if made:
            os.fchmod(fd, 0o700)
    except OSError as error:
        raise _refused(folder, error) from error
    return fd


def _refused(folder: str, error: OSError) -> AtlctlError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotAllowed(Message("cannot write to {folder}: {why}", folder=folder, why=error.strerror))
    if os.path.islink(folder.rstrip("/")):
        return UsageError(
            Message("{folder} is a link", folder=folder), hint=Message("name the folder itself with --output-dir")
        )
    return UsageError(
        Message("cannot use {folder} for output: {why}", folder=folder, why=error.strerror),
        hint=Message("name a folder with --output-dir"),
    )
