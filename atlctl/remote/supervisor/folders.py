"""Files and folders of jobs on this machine: private, whole or not there, each guarded by a lock beside it.

A worker that was started from elsewhere has `STATE/ssh-workers/JOB/WORKER/`. The worker's name is in the path because
hosts often share a home, and perhaps with the client: its records are in `STATE/ssh/`.
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
    """Write 0600 beside `path`, then rename. Raises OSError, and leaves no other file behind."""
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(json.dumps(value).encode())
            while view:  # a disk that is nearly full takes a part
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


#: Where they are in the folder for state.
TREE = "ssh-workers"
#: No file of a folder is larger; an environment of this size could not be started.
MAX_FILE = 16 * 1024 * 1024


def state() -> str:
    """Where state lives on this machine: as `atlctl` itself finds it."""
    own = os.environ.get("ATLCTL_STATE_DIR", "")
    if os.path.isabs(own):
        return os.path.normpath(own)
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.environ.get("HOME", "") or pwd.getpwuid(os.geteuid()).pw_dir, ".local", "state")
    return os.path.join(base, "atlctl")


def private(path: str) -> None:
    """Make a folder that only this user can write to, or accept one. Raises Refused."""
    try:
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        _check(path)
    except OSError as error:
        raise explained(error, path) from error


def _check(path: str) -> None:
    """Raise Refused unless `path` is a folder that only this user can write to; OSError if there is none."""
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
    """Held while a worker's folder is made or removed. Raises Refused where somebody else holds it."""

    def __init__(self, folder: str) -> None:
        job, own = os.path.split(folder)
        self._path = f"{job}/.lock-{own}"
        try:
            while not self._taken():
                continue  # removed by who held it
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
        """Leaves nothing behind, also not the job's folder where nothing else is in it."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self._path))
        os.close(self._descriptor)


def read_json(path: str) -> dict[str, Any] | None:
    """The object in a file: None where there is no file, an empty one where it is damaged."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            os.close(descriptor)
            return {}
        with open(descriptor, "rb") as file:
            # Room for the limit would be made and given back each time: most of what a look at a worker cost.
            found = json.loads(file.read(min(seen.st_size, MAX_FILE)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError):
        return {}
    except OSError as error:
        raise explained(error, path) from error
    return found if isinstance(found, dict) else {}


def trusted(folder: str) -> None:
    """Raise Refused if a worker's folder, or one above it up to the state folder, may be forged by another user."""
    job = os.path.dirname(folder)
    tree = os.path.dirname(job)
    for path in (os.path.dirname(tree), tree, job, folder):
        try:
            _check(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise explained(error, path) from error


def record(folder: str, uid: str) -> dict[str, Any]:
    """The job in a worker's folder, which must be this one. Raises Refused."""
    trusted(folder)
    found = read_json(f"{folder}/job.json")
    if found is None:
        raise Refused("absent", "nothing of it is on this host (any more)")
    if found.get("uid") != uid:
        raise Refused("replaced", "another job of that name has taken its place on this host")
    return found


def presence(found: dict[str, Any]) -> tuple[str, str]:
    """Whether the supervisor of a record lives, and where it is when that cannot be seen from here."""
    try:
        return processes.presence(found["supervisor"])
    except (KeyError, TypeError) as error:
        raise Refused("failed", "its record on this host is damaged") from error


def remove(folder: str) -> None:
    """Remove a job's folder, where there is one; `job.json` goes first: what is left is no job.

    Raises OSError, ELOOP for a symbolic link, which is not followed.
    """
    if os.path.islink(folder):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), folder)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(f"{folder}/job.json")
    import shutil  # a supervisor has no use for it, and would start later

    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def delete(folder: str) -> None:
    """The same. Raises Refused."""
    try:
        remove(folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Refused("not_allowed", f"{folder} is a symbolic link, which is not followed") from error
        raise explained(error, folder) from error
