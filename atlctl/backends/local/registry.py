"""The registry of local jobs: one folder a job under `STATE/local/`, 0700, locked while it changes.

    STATE/local/.lock                    held while an entry is made or removed
    STATE/local/JOB/spec.json            what was asked for
    STATE/local/JOB/env.json             the environment the workers were started with, 0600
    STATE/local/JOB/job.json             spec.json and who supervises; written by the supervisor when all workers run
    STATE/local/JOB/control.sock         the supervisor's socket
    STATE/local/JOB/supervisor.log       what the supervisor had to say
    STATE/local/JOB/workers/NAME/work/   the worker's working folder
    STATE/local/JOB/workers/NAME/log/    its log (CRI format)
    STATE/local/JOB/workers/NAME/*.json  proc: pid and start; trainer: its trainer failed; exit: how it ended

A folder without `job.json` is no job: its start was never finished.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from atlctl.backends.local.supervisor import folders, processes
from atlctl.backends.supervised.entries import load_each
from atlctl.backends.supervised.states import IDLE_PROGRAMS, Presence, Written, confirm_held, job_state, state_of
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched
from atlctl.jobs.model import Job, State, Worker
from atlctl.jobs.naming import check_job_name, natural_key, safe_file_name
from atlctl.jobs.statedir import check_private, ensure_dir, file_error, read_bytes, state_dir

#: No file of an entry is larger; an environment of this size could not be started.
MAX_FILE = 16 * 1024 * 1024

#: Whether a recorded process lives, and where it is when that cannot be seen from here.
presence = processes.presence

#: An ended job's folder, while a start of the same name is tried.
_ASIDE = ".aside-"


@dataclass(frozen=True, slots=True)
class Entry:
    """One job as the registry has it. `job.workers` are complete, in order of their index."""

    job: Job
    folder: str
    presence: Presence
    master_port: int | None


def root() -> str:
    """The folder of all entries. Nothing is created."""
    return os.path.join(state_dir(), "local")


@contextlib.contextmanager
def locked(wait: float = 30.0) -> Iterator[str]:
    """The registry's folder, made if needed, with its lock held. Raises AtlctlError after `wait` seconds."""
    folder = root()
    ensure_dir(folder, state_dir())
    path = os.path.join(folder, ".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise file_error(error, path) from error
    try:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise AtlctlError(
                        "another atlctl is starting or removing a local job and does not finish",
                        f"see who holds {path}: fuser -v {path}",
                    ) from None
                time.sleep(0.05)
        yield folder
    finally:
        os.close(descriptor)


def names() -> list[str]:
    """Names of all entries, in natural order; [] where there is no registry yet."""
    folder = root()
    try:
        check_private(folder, state_dir())
        found = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(folder, error) from error
    return sorted((name for name in found if _is_entry(folder, name)), key=natural_key)


def _is_entry(folder: str, name: str) -> bool:
    """True also for one that may not be looked at: it is reported, not passed over."""
    if name.startswith("."):
        return False
    try:
        os.stat(f"{folder}/{name}/job.json")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


@dataclass(frozen=True, slots=True)
class Glance:
    """Which job has a name, and whether it is supervised: all that most requests need to know of it."""

    uid: str
    folder: str
    presence: Presence
    place: str
    supervisor: dict[str, Any]


def glance(name: str) -> Glance:
    """A quick look at the entry of that name. Raises as `load` does."""
    folder, record = _record(name)
    try:
        here, place = presence(record["supervisor"])
        return Glance(record["uid"], folder, here, place, record["supervisor"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(name, folder) from error


def load(name: str) -> Entry:
    """The entry of that name. Raises NothingMatched naming the jobs there are."""
    folder, record = _record(name)
    try:
        return _entry(folder, record)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(name, folder) from error


def job_folder(name: str) -> str:
    """The folder of the entry of that name, which is the user's alone. Raises FileNotFoundError, and NotAllowed if it,
    or one above it up to the state folder, may be forged."""
    folder = os.path.join(root(), name)
    check_private(folder, state_dir())
    return folder


def _record(name: str) -> tuple[str, dict[str, Any]]:
    check_job_name(name)
    folder, record = "", None
    with contextlib.suppress(FileNotFoundError):
        folder = job_folder(name)
        record = _json(f"{folder}/job.json")
    if record is None:
        existing = names()
        raise NothingMatched(
            f"no job named {name}",
            f"jobs here: {', '.join(existing)}"
            if existing
            else "no local jobs yet; start one: atlctl local run --help; where else is looked: atlctl doctor",
        )
    return folder, record


def _damaged(name: str, folder: str) -> AtlctlError:
    return AtlctlError(
        f"the entry of job {name} cannot be read: {folder}/job.json is damaged",
        f"remove it by hand when nothing of it runs: rm -r {folder}",
    )


def load_all() -> tuple[list[Entry], list[AtlctlError]]:
    """All entries that can be read, and an error for each one that cannot."""
    return load_each(names(), load)


def environment(name: str) -> dict[str, str]:
    """The environment that all workers of a job were started with; each has a few variables more."""
    try:
        found = _json(os.path.join(job_folder(name), "env.json"))
    except FileNotFoundError:
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def remove(folder: str) -> None:
    """Remove an entry's folder. The caller holds the lock. `job.json` goes first: what is left is no job."""
    try:
        folders.remove(folder)
    except OSError as error:
        raise file_error(error, error.filename or folder) from error


def set_aside(root_folder: str, name: str) -> str | None:
    """Move an ended job's folder out of the way of a new start; its new path, None where there is none."""
    folder = os.path.join(root_folder, name)
    if os.path.islink(folder):
        raise NotAllowed(f"{folder} is a symbolic link, which is not followed", "remove the link")
    aside = os.path.join(root_folder, f"{_ASIDE}{name}")
    try:
        os.rename(folder, aside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error(error, folder) from error
    return aside


def sweep(folder: str) -> None:
    """Undo what starts that were killed have left. The caller holds the lock, so no start is going on."""
    for name in os.listdir(folder):
        if name.startswith(_ASIDE) and not _is_entry(folder, name.removeprefix(_ASIDE)):
            shutil.rmtree(os.path.join(folder, name.removeprefix(_ASIDE)), ignore_errors=True)
            with contextlib.suppress(OSError):  # tried again at the next start
                os.rename(os.path.join(folder, name), os.path.join(folder, name.removeprefix(_ASIDE)))
        elif name.startswith(_ASIDE):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.startswith(".") or os.path.islink(path) or not os.path.isdir(path) or _is_entry(folder, name):
            continue
        shutil.rmtree(path, ignore_errors=True)  # what stays is still no job, and is tried again


def _unreadable(path: str, error: OSError) -> AtlctlError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotAllowed(
            f"the registry of local jobs cannot be read: {path}: {error.strerror}",
            "make it yours again (chown, chmod u+rwx), or set ATLCTL_STATE_DIR to a folder of your own",
        )
    return file_error(error, path)


def _json(path: str) -> dict[str, Any] | None:
    """The object in a file: None where there is no file, an empty one where it is damaged."""
    try:
        found = json.loads(read_bytes(path, MAX_FILE))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def runs(found: Glance, exit_file: str) -> bool:
    """Whether the worker with this exit file may still write to its log."""
    return not os.path.exists(exit_file) and presence(found.supervisor)[0] == "alive"


def _entry(folder: str, record: dict[str, Any]) -> Entry:
    here, place = presence(record["supervisor"])
    workers = tuple(_worker(folder, spec, record, index, here, place) for index, spec in enumerate(record["workers"]))
    if any(worker.state is State.HELD for worker in workers):
        workers = _confirm_held(workers)
    state, reason = job_state(workers, f"runs on {place}" if here == "elsewhere" else "")
    ends = [worker.ended for worker in workers]
    job = Job(
        name=record["name"],
        kind="Local",
        backend="local",
        state=state,
        uid=record["uid"],
        expected=len(workers),
        workers=workers,
        reason=reason,
        created=record["created"],
        ended=None
        if any(worker.state.active for worker in workers)
        else max((end for end in ends if end is not None), default=None),
    )
    port = record.get("master_port")
    return Entry(job, folder, here, port if isinstance(port, int) else None)


def worker_folder(folder: str, name: str) -> str:
    """Where the entry in `folder` keeps a worker. A name is never taken for a path."""
    return f"{folder}/workers/{safe_file_name(name)}"


def _worker(
    folder: str, spec: dict[str, Any], record: dict[str, Any], index: int, here: Presence, place: str
) -> Worker:
    own = worker_folder(folder, spec["name"])
    process = _json(f"{own}/proc.json") or {}
    # The order matters: a worker that ends meanwhile has its exit written by now, or is seen as running.
    exit_record = _json(f"{own}/exit.json")
    worker = Worker(
        name=spec["name"],
        index=index,
        state=State.RUNNING,
        node_rank=index,
        role="worker",
        host=str(record["supervisor"]["host"]),
        address="127.0.0.1",
        started=process.get("started"),
        pid=process.get("pid"),
    )
    written = Written(
        here, place, exit_record, os.path.exists(f"{own}/trainer.json"), os.path.exists(f"{own}/stopping")
    )
    return state_of(worker, written)


def _confirm_held(workers: tuple[Worker, ...]) -> tuple[Worker, ...]:
    """Held only where nothing but idle programs are left: a script that starts its trainer again is running."""
    table = processes.everything()
    children = processes.children_of(table)

    def idle(root_pid: int | None) -> bool:
        family = set() if root_pid is None else processes.below(children, (root_pid,)) | {root_pid}
        own = [pid for pid in family if pid in table]
        return all(table[pid].comm in IDLE_PROGRAMS for pid in own)

    return tuple(confirm_held(worker, functools.partial(idle, worker.pid)) for worker in workers)
