"""The registry of jobs with supervisors: their folders below the state folder, and the jobs of this machine.

A `Registry` is one such folder: `STATE/local` of the jobs of this machine, `STATE/ssh` of those that were started on
hosts (see `records`). Each job has a folder, 0700; a folder without `job.json` is not a job: its start was never
finished.

    STATE/local/.lock                    held while an entry is made or removed
    STATE/local/JOB/spec.json            the job's description
    STATE/local/JOB/env.json             the environment the workers were started with, 0600
    STATE/local/JOB/job.json             spec.json and who supervises; written by the supervisor when all workers run
    STATE/local/JOB/control.sock         the supervisor's socket
    STATE/local/JOB/supervisor.log       the supervisor's log
    STATE/local/JOB/workers/NAME/work/   the worker's working folder, unless the job has another
    STATE/local/JOB/workers/NAME/log/    its log (CRI format)
    STATE/local/JOB/workers/NAME/*.json  proc: pid and start; trainer: its trainer failed; exit: how it ended
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from atlctl.backends.hosts.states import Presence, Seen, of_workers, understood
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched
from atlctl.jobs.model import Job, State, Worker
from atlctl.jobs.naming import MAX_JOB_NAME, check_job_name, meant_job, natural_key, safe_file_name
from atlctl.jobs.statedir import check_private, ensure_dir, file_error, is_job, job_names, linked, read_bytes, state_dir
from atlctl.remote.supervisor import asked, folders, processes
from atlctl.remote.supervisor.telling import Refused

#: No file is larger; an environment of 16 MiB could not be started, a record has up to 4096 hosts.
MAX_FILE = 64 * 1024 * 1024
#: An ended job's folder, while a start of the same name is tried.
_ASIDE = ".aside-"

OTHER_NAME = Message("choose another name with --name")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registry:
    """The folder `name` of the state folder. The other fields are parts of messages: the name of a `job.json`, of these
    jobs and of a list of them, and the hints if there are none and if one is damaged."""

    name: str
    entry: str
    jobs: str
    listed: str
    none: str
    damaged: str

    @property
    def root(self) -> str:
        """Nothing is created."""
        return os.path.join(state_dir(), self.name)

    def names(self) -> list[str]:
        """Names of all jobs, in natural order; [] if there is no registry yet."""
        try:
            return sorted(job_names(self.root), key=natural_key)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> AtlctlError:
        if error.errno not in (errno.EACCES, errno.EPERM):
            return file_error(error, self.root)
        text = Message("the registry of {jobs} cannot be read: {root}: {why}")
        return NotAllowed(
            text.filled(jobs=self.jobs, root=self.root, why=error.strerror),
            Message(
                "restore its owner and mode (chown, chmod u+rwx), or set ATLCTL_STATE_DIR to a folder that you own"
            ),
        )

    def folder(self, name: str) -> str:
        """The folder of a job, which is the user's alone. Raises FileNotFoundError, and NotAllowed if it, or one above
        it up to the state folder, may be forged."""
        folder = os.path.join(self.root, name)
        check_private(folder, state_dir())
        return folder

    def load(self, name: str, made: Callable[[str, dict[str, Any]], T]) -> T:
        """What `made` makes of the folder and the `job.json` of a job.

        Raises NothingMatched with the jobs there are, AtlctlError for a file that is damaged or unreadable.
        """
        check_job_name(name)
        try:
            folder = self.folder(name)
            return made(folder, json.loads(read_bytes(f"{folder}/job.json", MAX_FILE)))
        except FileNotFoundError:
            there = self.names()
            listed = Message("{listed}: {jobs}", listed=self.listed, jobs=", ".join(there)) if there else self.none
            raise NothingMatched(Message("no job named {job}", job=name), meant_job(name, there) or listed) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            folder = os.path.join(self.root, name)
            text = Message("the {entry} of job {job} cannot be read: {folder}/job.json is damaged")
            raise AtlctlError(
                text.filled(entry=self.entry, job=name, folder=folder),
                Message("{advice}: {command}", advice=self.damaged, command=f"rm -r {folder}"),
            ) from error

    def load_all(self, load: Callable[[str], T]) -> tuple[list[T], list[AtlctlError]]:
        """All jobs that can be read, and an error for each one that cannot."""
        found, errors = [], []
        for name in self.names():
            try:
                found.append(load(name))
            except NothingMatched:
                continue  # removed between the listing and the look
            except AtlctlError as error:
                errors.append(error)
        return found, errors


LOCAL = Registry(
    "local",
    Message("entry"),
    Message("local jobs"),
    Message("jobs here"),
    Message("no local jobs yet; to start one: atlctl local run --help; to see where jobs are searched: atlctl doctor"),
    Message("if none of its processes runs, remove it"),
)


def lock(path: str, wait: float = 0.0) -> int | None:
    """The descriptor that holds the lock `path`, None if another process holds it for `wait` seconds.

    Raises AtlctlError.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise file_error(error, path) from error
    deadline = time.monotonic() + wait
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return None
                time.sleep(0.05)
            else:
                return descriptor
    except OSError as error:
        os.close(descriptor)
        raise file_error(error, path) from error
    except BaseException:
        os.close(descriptor)
        raise


# Jobs of this machine


@dataclass(frozen=True, slots=True)
class Entry:
    """One job as the registry has it. `job.workers` are complete, in order of their index."""

    job: Job
    folder: str
    presence: Presence
    master_port: int | None


def running(name: str, hint: Message | None = None) -> AtlctlError:
    """The error for a job that must have ended."""
    hint = hint or Message("stop it first: atlctl stop {job}", job=name)
    return AtlctlError(Message("job {job} is still running", job=name), hint)


def must_have_ended(job: Job) -> None:
    """Raise AtlctlError if a worker runs. Of one whose state is unknown its host decides."""
    if any(worker.state.active and worker.state is not State.UNKNOWN for worker in job.workers):
        raise running(job.name)


def occupied(name: str) -> Message:
    """The hint where the name of a job that runs is wanted for another one."""
    return Message("{command}, or {advice}", command=f"atlctl stop {name}", advice=OTHER_NAME)


@contextlib.contextmanager
def locked(wait: float = 30.0) -> Iterator[str]:
    """The registry's folder, made if needed, with its lock held. Raises AtlctlError after `wait` seconds."""
    ensure_dir(LOCAL.root, state_dir())
    path = os.path.join(LOCAL.root, ".lock")
    descriptor = lock(path, wait)
    if descriptor is None:
        raise AtlctlError(
            Message("another atlctl has been starting or removing a local job for too long"),
            Message("find the process that holds {path}: fuser -v {path}", path=path),
        )
    try:
        yield LOCAL.root
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Glance:
    """Which job has a name, and whether it is supervised: all that most requests need to know of it."""

    uid: str
    folder: str
    presence: Presence
    place: str
    supervisor: dict[str, Any]


def glance(name: str) -> Glance:
    """A quick look at the entry of that name. Raises as `Registry.load` does."""
    return LOCAL.load(name, _glance)


def _glance(folder: str, record: dict[str, Any]) -> Glance:
    here, place = processes.presence(record["supervisor"])
    return Glance(record["uid"], folder, here, place, record["supervisor"])


def load(name: str) -> Entry:
    """The entry of that name. Raises as `Registry.load` does."""
    return LOCAL.load(name, _entry)


def load_all() -> tuple[list[Entry], list[AtlctlError]]:
    """All entries that can be read, and an error for each one that cannot."""
    return LOCAL.load_all(load)


def _entry(folder: str, record: dict[str, Any]) -> Entry:
    here, place = processes.presence(record["supervisor"])
    table = functools.cache(processes.everything)  # one look, and none if no worker seems to be Held
    seen = [
        _seen(
            worker_folder(folder, spec["name"]),
            Worker(
                spec["name"],
                index,
                State.RUNNING,
                node_rank=index,
                role="worker",
                host=str(record["supervisor"]["host"]),
                address="127.0.0.1",
            ),
            lambda own: asked.seen(own, here, place, table),
        )
        for index, spec in enumerate(record["workers"])
    ]
    workers = tuple(one.worker for one in seen)
    plain = Job(
        *(os.path.basename(folder), "Local", "local", State.UNKNOWN, record["uid"], len(workers)),
        created=record["created"],
        command=shlex.join(map(str, record.get("argv") or ())),
    )
    job = of_workers(plain, workers, [one.worker.name for one in seen if one.doubtful])
    port = record.get("master_port")
    return Entry(job, folder, here, port if isinstance(port, int) else None)


def _seen(own: str, worker: Worker, look: Callable[[str], dict[str, Any]]) -> Seen:
    try:
        seen = understood(worker, look(own))
    except Refused as refused:
        kind = NotAllowed if refused.told["kind"] == "not_allowed" else AtlctlError
        raise kind(str(refused)) from None
    assert seen is not None, "an answer of this very version"
    return seen


def worker_folder(folder: str, name: str) -> str:
    """Where the entry in `folder` keeps a worker. A name is never taken for a path."""
    return f"{folder}/workers/{safe_file_name(name)}"


def working_folder(name: str, worker: str) -> str:
    """The working folder of a worker. Raises as `Registry.load` does."""

    def made(folder: str, record: dict[str, Any]) -> str:
        stated = next((spec.get("chdir") for spec in record["workers"] if spec["name"] == worker), None)
        return str(stated or f"{worker_folder(folder, worker)}/work")

    return LOCAL.load(name, made)


def environment(name: str) -> dict[str, str]:
    """The environment that all workers of a job were started with; each has a few variables more."""
    try:
        found = json.loads(read_bytes(os.path.join(LOCAL.folder(name), "env.json"), MAX_FILE))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def remove(folder: str) -> None:
    """Remove an entry's folder. The caller holds the lock. `job.json` is removed first: without it there is no job."""
    try:
        folders.remove(folder)
    except OSError as error:
        raise file_error(error, error.filename or folder) from error


def set_aside(root_folder: str, name: str) -> str | None:
    """Move an ended job's folder out of the way of a new start. Returns its new path; None if there was no such job."""
    folder = os.path.join(root_folder, name)
    if os.path.islink(folder):
        raise linked(folder)
    aside = os.path.join(root_folder, f"{_ASIDE}{name}")
    try:
        os.rename(folder, aside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error(error, folder) from error
    return aside


def keep(root_folder: str, name: str) -> str | None:
    """Give the ended job that was set aside for a new one of its name a number behind its name; its name now, None if
    it could not be moved, which the next start tries again. The caller holds the lock."""
    ends = (other.rpartition(".")[2] for other in os.listdir(root_folder))
    numbers = {int(end) for end in ends if end.isascii() and end.isdecimal() and len(end) < 10}
    taken = (number for number in numbers if os.path.lexists(os.path.join(root_folder, _numbered(name, number))))
    kept = _numbered(name, max(taken, default=0) + 1)
    try:
        os.rename(os.path.join(root_folder, f"{_ASIDE}{name}"), os.path.join(root_folder, kept))
    except OSError:
        return None
    return kept


def _numbered(name: str, number: int) -> str:
    ending = f".{number}"
    return name[: MAX_JOB_NAME - len(ending)].rstrip("._-") + ending


def sweep(folder: str) -> None:
    """Undo what starts that were killed have left. The caller holds the lock, so no start is going on."""
    for name in os.listdir(folder):
        if name.startswith(_ASIDE) and not is_job(os.path.join(folder, name.removeprefix(_ASIDE))):
            shutil.rmtree(os.path.join(folder, name.removeprefix(_ASIDE)), ignore_errors=True)
            with contextlib.suppress(OSError):  # tried again at the next start
                os.rename(os.path.join(folder, name), os.path.join(folder, name.removeprefix(_ASIDE)))
        elif name.startswith(_ASIDE):
            keep(folder, name.removeprefix(_ASIDE))
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not (name.startswith(".") or os.path.islink(path) or not os.path.isdir(path) or is_job(path)):
            shutil.rmtree(path, ignore_errors=True)  # the rest is not a job, and is removed by the next attempt
