"""The job that `atlctl use` has chosen for a terminal.

    STATE/use/BOOT-SESSION-START.json    one for each terminal: see `Used`

STATE is the state folder. The name is made of the boot id, the id of the terminal's session and the start time of the
session's leader, so that no other terminal and no later boot reads it. The key TAB asks here too: nothing is imported
that takes long, and without the folder the answer costs one look at it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed
from atlctl.jobs.statedir import check_private, ensure_dir, file_error, read_bytes, state_dir, writable, write_atomic

FORGET = Message("forget it: {command}", command="atlctl use -")
#: Bytes of a file here.
_MAX_FILE = 64 << 10
#: Seconds after which the file of a session that cannot be looked at (another machine, another container) is removed.
_OLD = 30 * 24 * 3600.0
#: Options that lead to the job again, by their long names without hyphens.
PLACE = ("backend", "kubeconfig", "context", "namespace", "hostfile")


class Used(NamedTuple):
    """A job and its place. `name` is prefixed with its kind, since other kinds may have a job of that name; `asked`:
    options of `PLACE` that lead to it."""

    name: str
    uid: str
    asked: Mapping[str, str]

    @property
    def short(self) -> str:
        """The name without the kind."""
        return self.name.rpartition("/")[2]

    def fits(self, asked: Mapping[str, str | None]) -> bool:
        """Whether options that were given leave room for this job: they name its place, or none."""
        if asked.get("selector") is not None:
            return False
        given = {**asked, "backend": asked.get("backend") or os.environ.get("ATLCTL_BACKEND") or None}
        return all(given.get(name) is None or place(name, given[name]) == self.asked.get(name) for name in PLACE)


def place(option: str, value: str | None) -> str | None:
    """The value of an option of `PLACE`, the same from every working folder."""
    return os.path.abspath(value) if value and option in ("kubeconfig", "hostfile") else value


def load() -> Used | None:
    """The job of this terminal. Raises NotAllowed if another user may have written the file, AtlctlError if it cannot
    be read."""
    path = _path() if os.path.lexists(_folder()) else None
    if path is None:
        return None
    try:
        found = os.lstat(path)
        check_private(_folder(), state_dir())
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise NotAllowed(writable(path, found), FORGET)
        return _read(read_bytes(path, _MAX_FILE))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error(error, path) from error
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise AtlctlError(Message("{path} is damaged", path=path), FORGET) from error


def _read(data: bytes) -> Used:
    whole = json.loads(data)
    used = Used(whole["name"], whole["uid"], whole["asked"])
    if not all(isinstance(text, str) for text in (*used[:2], *used.asked, *used.asked.values())):
        raise TypeError
    return used


def save(used: Used) -> None:
    """Remember a job for this terminal, and forget those of terminals that are closed.

    Raises AtlctlError if no later command would find it, or it cannot be written.
    """
    path = _path()
    if path is None or os.getsid(0) == os.getpid():
        raise AtlctlError(
            Message("this process has no terminal session that a later command would share"),
            Message("set the variable instead: export ATLCTL_JOB={job}", job=used.short),
        )
    from atlctl.remote.supervisor.processes import identity

    ensure_dir(_folder(), state_dir())
    whole = {**used._asdict(), "session": identity(os.getsid(0))}
    write_atomic(path, json.dumps(whole).encode())
    _remove_stale()


def forget() -> bool:
    """Forget the job of this terminal; whether there was one. Raises AtlctlError."""
    path = _path()
    try:
        if path is not None:
            check_private(_folder(), state_dir())
            os.unlink(path)
            with suppress(OSError):
                os.rmdir(_folder())  # other terminals have none: no command looks further
            return True
    except FileNotFoundError:
        pass
    except OSError as error:
        raise file_error(error, str(path)) from error
    return False


def _folder() -> str:
    return os.path.join(state_dir(), "use")


def _path() -> str | None:
    """The file of this terminal; None if the leader of its session has ended, or is out of sight."""
    from atlctl.remote.supervisor.processes import place, stat

    session = os.getsid(0)
    leader = stat(session)
    return leader and os.path.join(_folder(), f"{place()['boot_id']}-{session}-{leader.start}.json")


def _remove_stale() -> None:
    """Remove the files of sessions that have ended. A file that cannot be read is removed once it is old."""
    from atlctl.remote.supervisor.processes import presence

    for entry in os.scandir(_folder()):
        with suppress(AtlctlError, OSError):
            told = "elsewhere"
            with suppress(ValueError, RecursionError, KeyError, TypeError):
                session: dict[str, Any] = json.loads(read_bytes(entry.path, _MAX_FILE))["session"]
                told = presence(session)[0]
            age = time.time() - entry.stat(follow_symlinks=False).st_mtime
            if told == "gone" or (told == "elsewhere" and age > _OLD):
                os.unlink(entry.path)
