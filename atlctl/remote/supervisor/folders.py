"""Files and folders of jobs on this machine: private, written atomically, each with a lock next to it.

A worker that was started remotely has `STATE/ssh-workers/JOB/WORKER/`. The path contains the worker's name because
hosts often share a home directory, perhaps with the client, whose records are in `STATE/ssh/`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import stat
from typing import Any

from . import processes
from .telling import Refused, explained


def write_json(path: str, value: Any) -> None:
    """Write `path` atomically, mode 0600, by a rename. Raises OSError, and leaves no temporary file behind."""
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(json.dumps(value).encode())
            while view:  # a nearly full disk accepts only a part
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


#: The folder for them in the state folder.
TREE = "ssh-workers"
#: Maximum bytes of a file; an environment of this size could not be started.
MAX_FILE = 16 * 1024 * 1024


def state() -> str:
    """The state folder on this machine, by the same rule as in `atlctl`."""
    own = os.environ.get("ATLCTL_STATE_DIR", "")
    if os.path.isabs(own):
        return os.path.normpath(own)
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.environ.get("HOME", "") or pwd.getpwuid(os.geteuid()).pw_dir, ".local", "state")
    return os.path.join(base, "atlctl")


def private(path: str) -> None:
    """Create a folder that only this user can write to, or check an existing one. Raises Refused."""
    try:
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        _check(path)
    except OSError as error:
        raise explained(error, path) from error


def _check(path: str) -> None:
    """Raise Refused unless only this user can write to the folder `path`; OSError if it does not exist."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise Refused("not_allowed", f"{path} is a symbolic link, a folder is needed")
    if not stat.S_ISDIR(found.st_mode):
        raise Refused("not_allowed", f"{path} is not a folder")
    if found.st_uid != os.geteuid():
        raise Refused("not_allowed", f"{path} belongs to user {found.st_uid}, not to user {os.geteuid()}")
    if found.st_mode & 0o022:
        raise Refused("not_allowed", f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})")


class Lock:
    """A lock held while a worker's folder is created or removed. Raises Refused if it is taken."""

    def __init__(self, folder: str) -> None:
        job, own = os.path.split(folder)
        self._path = f"{job}/.lock-{own}"
        try:
            while not self._taken():
                continue  # the previous holder removed it
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise Refused("running", "another atlctl is starting or removing this job there") from error
            raise explained(error, self._path) from error

    def _taken(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(self._path) and os.path.samestat(os.stat(self._path), os.fstat(self._descriptor)):
                return True
        except OSError:
            os.close(self._descriptor)
            raise
        os.close(self._descriptor)
        return False

    def release(self) -> None:
        """Remove the lock, and the job's folder if it is empty."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self._path))
        os.close(self._descriptor)


def read_json(path: str) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no file, empty if it is damaged."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            os.close(descriptor)
            return {}
        with open(descriptor, "rb") as file:
            # Not a buffer of the maximum size: allocating it took most of the time of a request.
            found = json.loads(file.read(min(seen.st_size, MAX_FILE)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError):
        return {}
    except OSError as error:
        raise explained(error, path) from error
    return found if isinstance(found, dict) else {}


def trusted(folder: str) -> None:
    """Raise Refused if another user could forge a worker's folder, or one above it up to the state folder."""
    job = os.path.dirname(folder)
    tree = os.path.dirname(job)
    for path in (os.path.dirname(tree), tree, job, folder):
        try:
            _check(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise explained(error, path) from error


def replaced() -> Refused:
    return Refused("replaced", "another job of that name has taken its place on this host")


def linked(folder: str) -> Refused:
    return Refused("not_allowed", f"{folder} is a symbolic link, which is not followed")


def record(folder: str, uid: str) -> dict[str, Any]:
    """The record of the job in a worker's folder; its UID must match. Raises Refused."""
    trusted(folder)
    found = read_json(f"{folder}/job.json")
    if found is None:
        raise Refused("absent", "nothing of it is on this host (any more)")
    if found.get("uid") != uid:
        raise replaced()
    return found


def presence(found: dict[str, Any]) -> tuple[str, str]:
    """Whether a record's supervisor is alive; if that is not visible from here, also its machine."""
    try:
        return processes.presence(found["supervisor"])
    except (KeyError, TypeError) as error:
        raise Refused("failed", "its record on this host is damaged") from error


def must_have_ended(found: dict[str, Any]) -> None:
    """Raise Refused if a record's supervisor is alive, or may be on another machine."""
    here, place = presence(found)
    if here == "alive":
        raise Refused("running", "it still runs")
    if here == "elsewhere":
        raise Refused("elsewhere", f"it may still run on {place}")


def remove(folder: str) -> None:
    """Remove a job's folder, if there is one. `job.json` goes first: without it the folder is not a job.

    Raises OSError; ELOOP for a symbolic link, which is not followed.
    """
    if os.path.islink(folder):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), folder)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(f"{folder}/job.json")
    import shutil  # not at the top: it would slow the supervisor's start

    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def delete(folder: str) -> None:
    """Like `remove`, but raises Refused."""
    try:
        remove(folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise linked(folder) from error
        raise explained(error, folder) from error
