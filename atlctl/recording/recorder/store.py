"""The folder of a recording: locked for one recorder, accessed through its descriptor, without following links.

Two files of JSON lines hold the history around the workers:

events.jsonl   the platform's events; an event is repeated when its count increases
states.jsonl   {"time", "worker", "state", "reason", "message", "exit_code", "signal", "restarts", "pod", "node"}
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from atlctl.diagnosis.logline import decode
from atlctl.i18n import Message
from atlctl.jobs import fields
from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError
from atlctl.jobs.model import Worker
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import READ_FLAGS, lines_within, open_below, write_all
from atlctl.recording import manifest
from atlctl.recording.events import MAX_EVENTS
from atlctl.recording.folder import NEW_FOLDER, opened

#: The lock file of the running recorder.
LOCK = ".recorder.lock"
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | _SAFE
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | _SAFE
EVENTS = "events.jsonl"
STATES = "states.jsonl"
#: Bytes after which a file is rewritten with only its newest lines.
LINES_LIMIT = 32 << 20
_STATE = ("state", "reason", "message", "exit_code", "signal", "restarts", "pod", "node")
#: The last state changes of a file that are read.
MAX_CHANGES = 20_000
_TEXT = 1_000


class Store:
    """An open recording folder, new or of an earlier recorder. Folders are 0700, files 0600. Must be closed.

    Raises UsageError if the folder holds other files or is in use by a recorder, NotAllowed if permissions are wrong.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._fd = -1
        try:
            self._fd, made = opened(self.path)
            self._check(made)
            self._lock = self._locked()
        except OSError as error:
            self._give_up()
            raise _mapped(error, self.path) from error
        except AtlctlError:
            self._give_up()
            raise

    def _check(self, made: bool) -> None:
        """Rejects a folder that other users could change during the recording, and one with other files."""
        found = os.fstat(self._fd)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise NotAllowed(Message("{path} is owned or writable by other users", path=self.path), NEW_FOLDER)
        names = set() if made else set(os.listdir(self._fd))
        if names and manifest.NAME not in names and LOCK not in names:
            raise UsageError(Message("{path} is not empty, and not a recording", path=self.path), NEW_FOLDER)

    def _locked(self) -> int:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | _SAFE, 0o600, dir_fd=self._fd)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise UsageError(
                    Message("another recorder writes to {path}", path=self.path),
                    Message("end it, or {advice}", advice=NEW_FOLDER),
                ) from error
            raise
        return lock

    def _give_up(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def names(self) -> list[str]:
        return os.listdir(self._fd)

    def append(self, name: str) -> int:
        """Opens a file for appending, creates it if it is missing, and returns its descriptor. Raises OSError."""
        return regular(os.open(name, _APPEND, 0o600, dir_fd=self._fd), name)

    def read(self, name: str) -> int:
        """Opens a file for reading and returns its descriptor. Raises OSError."""
        return regular(os.open(name, os.O_RDONLY | os.O_NONBLOCK | _SAFE, dir_fd=self._fd), name)

    def replace(self, name: str, data: bytes) -> None:
        """Replaces the contents of `name` with `data` atomically. Raises OSError."""
        part = f".{name}.part"
        fd = regular(os.open(part, _NEW, 0o600, dir_fd=self._fd), part)
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
        """Opens the folder `parts`, creates missing ones, and returns its descriptor. Raises OSError."""
        return open_below(self._fd, map(safe_file_name, parts))

    def close(self) -> None:
        """Closes the folder and releases the lock."""
        os.close(self._lock)
        os.close(self._fd)


def create_in(folder: int, name: str) -> int:
    """Creates a file in an open folder, or empties an existing one; returns its descriptor. Raises OSError."""
    return regular(os.open(name, _NEW, 0o600, dir_fd=folder), name)


def regular(fd: int, name: str) -> int:
    """Returns `fd` if it is a regular file; else closes it and raises OSError."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EEXIST, Message("not a regular file"), name)
    return fd


def _mapped(error: OSError, path: str) -> AtlctlError:
    message = Message("cannot record to {path}: {why}", path=path, why=error.strerror or error)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotAllowed(message, NEW_FOLDER)
    return UsageError(message, NEW_FOLDER)


class JsonLinesFile:
    """A file of JSON lines for appending. Raises OSError."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._size = 0

    def recorded(self) -> list[dict[str, Any]]:
        """The objects that an earlier recorder wrote. Adds a newline if a crash cut the last line."""
        if self._name not in self._store.names():
            return []
        found: list[dict[str, Any]] = []
        torn = False
        with open(self._store.read(self._name), "rb") as file:
            for line in lines_within(file):
                torn = not line.endswith(b"\n")
                try:
                    item = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(item, dict):
                    found.append(item)
            self._size = os.fstat(file.fileno()).st_size
        if torn:
            self._append(b"\n")
        return found

    def add(self, items: Iterable[Mapping[str, Any]]) -> None:
        data = "".join(f"{json.dumps(item)}\n" for item in items).encode()
        if not data:
            return
        self._append(data)
        if self._size > LINES_LIMIT:
            newest = self.recorded()[-MAX_EVENTS:]
            short = "".join(f"{json.dumps(item)}\n" for item in newest).encode()[-LINES_LIMIT // 2 :]
            self._store.replace(self._name, short[short.find(b"\n") + 1 :] if len(short) == LINES_LIMIT // 2 else short)
            self._size = len(short)

    def _append(self, data: bytes) -> None:
        fd = self._store.append(self._name)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        self._size += len(data)


class Events:
    """Writer of the platform's events, without duplicates."""

    def __init__(self, store: Store) -> None:
        self._lines = JsonLinesFile(store, EVENTS)
        self._seen = {_key(item): None for item in self._lines.recorded()}

    def take(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Appends the events that are new or whose count has changed. Raises OSError."""
        fresh = [item for item in found if _key(item) not in self._seen]
        self._lines.add(fresh)
        self._seen.update(dict.fromkeys(map(_key, fresh)))
        while len(self._seen) > 2 * MAX_EVENTS:
            del self._seen[next(iter(self._seen))]


def _key(event: Mapping[str, Any]) -> int:
    """A key of an event and its count: an event object changes with every count."""
    meta = event.get("metadata")
    if isinstance(meta, dict) and meta.get("uid") and meta.get("resourceVersion"):
        return hash((str(meta["uid"]), str(meta["resourceVersion"])))
    return hash(json.dumps(event, sort_keys=True))


class States:
    """Writer of the changes of workers' states."""

    def __init__(self, store: Store) -> None:
        self._lines = JsonLinesFile(store, STATES)
        self._last: dict[str, tuple[Any, ...]] = {
            str(item.get("worker")): tuple(item.get(name) for name in _STATE) for item in self._lines.recorded()
        }

    def take(self, workers: Iterable[Worker]) -> None:
        """Appends the states that have changed. Raises OSError."""
        changed = []
        for worker in workers:
            values = {name: getattr(worker, name) for name in _STATE} | {"state": str(worker.state)}
            if self._last.get(worker.name) != tuple(values.values()):
                self._last[worker.name] = tuple(values.values())
                changed.append({"time": time.time(), "worker": worker.name, **values})
        self._lines.add(changed)


@dataclass(frozen=True, slots=True)
class StateChange:
    """A worker's new state. `time` is in seconds since the epoch. Texts are hostile."""

    time: float
    worker: str
    state: str
    reason: str = ""
    message: str = ""


def read_states(folder: str) -> list[StateChange]:
    """Reads the state changes in a folder's `states.jsonl`, in file order; invalid lines are skipped."""
    try:
        fd = os.open(os.path.join(folder, STATES), READ_FLAGS)
    except OSError:
        return []
    found = []
    with open(fd, "rb") as file:
        for line in lines_within(file):
            try:
                item = fields.parse_json(decode(line))
            except (ValueError, RecursionError):
                continue
            time = fields.moment(item.get("time")) if isinstance(item, dict) else None
            if time is not None and isinstance(item.get("worker"), str):
                texts = [fields.text(item.get(key), _TEXT) for key in ("worker", "state", "reason", "message")]
                found.append(StateChange(time, *texts))
    return found[-MAX_CHANGES:]
