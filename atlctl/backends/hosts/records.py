"""The client's record of jobs on hosts: `STATE/ssh/JOB/job.json`, written before the first process runs anywhere."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.registry import MAX_FILE, OTHER_NAME, Registry, lock
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NothingMatched
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import ensure_dir, file_error, read_bytes, state_dir, write_atomic

if TYPE_CHECKING:
    from atlctl.backends.hosts.jobkeys import JobAccess

#: Kinds of jobs that have a record.
SSH, RUN = "SSH", "Run"


@dataclass(frozen=True, slots=True)
class Placed:
    """One worker: the host as it was written, and the folder of its supervisor there."""

    name: str
    host: Host
    folder: str


@dataclass(frozen=True, slots=True)
class Record:
    """A job started on hosts: the command and its workers. Their states are known only to the hosts."""

    name: str
    uid: str
    created: float
    argv: tuple[str, ...]
    hostfile: str | None
    chdir: str | None
    master_addr: str
    master_port: int
    workers: tuple[Placed, ...]
    #: SSH: started by `ssh run`; RUN: its workers are wrapped by `atlctl run`, and have `access`. `own`: the name of
    #: the worker that the record was found in. `owner`: the job of another backend that these workers belong to.
    kind: str = SSH
    access: JobAccess | None = None
    own: str | None = None
    owner: str | None = None

    @property
    def hosts(self) -> dict[str, Host]:
        """Its hosts, by the names of the workers."""
        return {placed.name: placed.host for placed in self.workers}

    def placed(self, name: str) -> Placed:
        """The worker of that name. Raises NothingMatched."""
        for placed in self.workers:
            if placed.name == name:
                return placed
        raise NothingMatched(Message("job {job} has no worker {worker}", job=self.name, worker=name))

    def details(self, name: str) -> dict[str, Any]:
        """The first part of every query about a worker."""
        return {"folder": self.placed(name).folder, "uid": self.uid, "worker": safe_file_name(name)}


RECORDS = Registry(
    "ssh",
    Message("record"),
    Message("jobs on hosts"),
    Message("jobs on hosts"),
    Message("no job on hosts was started from this machine; to start one: atlctl ssh run --help"),
    Message("its processes may still be running on its hosts; check, then remove it"),
)


def load(name: str) -> Record:
    """The record of that name. Raises as `Registry.load` does."""
    return RECORDS.load(name, lambda _, raw: parsed(raw))


class Kept:
    """Records that were read, each read again where its file is another one meanwhile: a question about each of a
    job's workers would read the whole record otherwise."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[tuple[int, int, int], Record]] = {}

    def load(self, name: str) -> Record:
        """As the function `load`."""
        # Before it is read: a record that is replaced in between is read again the next time.
        stamp = _stamp(name)
        if stamp is not None and name in self._read and self._read[name][0] == stamp:
            return self._read[name][1]
        record = load(name)
        if stamp is not None:
            self._read[name] = stamp, record
        return record


def _stamp(name: str) -> tuple[int, int, int] | None:
    """Identifies a version of the record's file; None if it does not exist."""
    try:
        found = os.lstat(os.path.join(RECORDS.root, name, "job.json"))
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def load_all() -> tuple[list[Record], list[AtlctlError]]:
    """All records that can be read, and an error for each one that cannot."""
    return RECORDS.load_all(load)


def forget(record: Record) -> None:
    """Remove the record alone; nothing is asked of hosts."""
    folder = os.path.join(RECORDS.root, record.name)
    try:
        RECORDS.folder(record.name)
        os.unlink(f"{folder}/job.json")
    except FileNotFoundError:
        return
    except OSError as error:
        raise file_error(error, folder) from error
    _tidy(folder)


def _tidy(folder: str) -> None:
    """Remove a folder in which no record is."""
    if not os.path.lexists(f"{folder}/job.json"):
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/.lock")
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def parsed(raw: dict[str, Any]) -> Record:
    """The record in an object of JSON. Raises KeyError, TypeError, ValueError."""
    return Record(
        name=_text(raw["name"]),
        uid=_text(raw["uid"]),
        created=float(raw["created"]),
        argv=tuple(_text(word) for word in raw["argv"]),
        hostfile=None if raw["hostfile"] is None else _text(raw["hostfile"]),
        chdir=None if raw["chdir"] is None else _text(raw["chdir"]),
        master_addr=_text(raw["master_addr"]),
        master_port=int(raw["master_port"]),
        workers=tuple(_placed(entry) for entry in raw["workers"]),
    )


def _placed(raw: dict[str, Any]) -> Placed:
    host = raw["host"]
    devices = host["devices"]
    made = Host(
        _text(host["name"]),
        None if host["user"] is None else _text(host["user"]),
        None if host["port"] is None else int(host["port"]),
        None if host["slots"] is None else int(host["slots"]),
        None if devices is None else tuple(int(device) for device in devices),
    )
    return Placed(_text(raw["name"]), made, _text(raw["folder"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


class Claim:
    """A name that is held while a job of it is started. `old`: the record that has it, perhaps of an ended job."""

    def __init__(self, name: str | None, first: int = 1) -> None:
        """`name` None: the first free one of ssh-1, ssh-2, ..., from number `first` on. Raises AtlctlError."""
        ensure_dir(RECORDS.root, state_dir())
        self.number = first - 1
        while True:
            self.number += 1
            self.name = name or f"ssh-{self.number}"
            self._folder = os.path.join(RECORDS.root, self.name)
            if name is None and os.path.lexists(self._folder):
                continue
            ensure_dir(self._folder)
            descriptor = lock(os.path.join(self._folder, ".lock"))
            if descriptor is not None:
                break
            if name is not None:
                raise AtlctlError(Message("another atlctl is starting job {job}", job=name), OTHER_NAME)
        self._descriptor = descriptor
        self._path = os.path.join(self._folder, "job.json")
        self.old: Record | None = None
        self._before: bytes | None = None
        if os.path.lexists(self._path):
            try:
                self.old = load(self.name)
                self._before = read_bytes(self._path, MAX_FILE)
            except BaseException:
                self.release()
                raise

    def write(self, record: Record) -> None:
        """The record of the new job, in the place of the old one."""
        write_atomic(self._path, json.dumps({"schema": 1, **asdict(record)}).encode())

    def withdraw(self) -> None:
        """The start has failed whole: as it was before."""
        if self._before is not None:
            write_atomic(self._path, self._before)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def release(self) -> None:
        _tidy(self._folder)
        os.close(self._descriptor)
