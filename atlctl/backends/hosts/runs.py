"""Records of jobs whose workers are wrapped by `atlctl run`: `STATE/run/JOB/WRAPPER.json`, one for each wrapper.

A wrapper writes its record when it has found the others, again when they change, and removes it at its end. With the
record a client in the same container finds the job without an environment, and gets the job's secret: it is 0600.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, replace
from typing import Any

from atlctl.backends.hosts.jobkeys import JobAccess
from atlctl.backends.hosts.records import RUN, Record, parsed
from atlctl.backends.hosts.registry import MAX_FILE
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NothingMatched
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import check_private, ensure_dir, read_bytes, state_dir, write_atomic
from atlctl.remote.supervisor import processes


def root() -> str:
    """The folder of all records. Nothing is created."""
    return os.path.join(state_dir(), "run")


def write(record: Record, wrapper: dict[str, int | str]) -> str:
    """Write the record of the wrapper that is the process `wrapper` (see `processes.identity`); returns its path.
    Raises AtlctlError."""
    assert record.access is not None, "a wrapper has the job's secret"
    folder = os.path.join(root(), safe_file_name(record.name))
    ensure_dir(folder, state_dir())
    path = os.path.join(folder, f"{str(wrapper['boot_id'])[:8]}-{wrapper['pid']}-{wrapper['start']}.json")
    access = {"secret": record.access.secret.hex(), "start": record.access.start}
    fields = {**asdict(replace(record, access=None)), "access": access}
    write_atomic(path, json.dumps({"schema": 1, **fields, "wrapper": wrapper}).encode())
    return path


def forget(path: str) -> None:
    """Remove a record, and the folder of its job with the last one."""
    with contextlib.suppress(OSError):
        os.unlink(path)
        os.rmdir(os.path.dirname(path))


def here() -> list[Record]:
    """The jobs of the living wrappers of this container: those that belong to no other job first, then the newest.
    Records that cannot be read do not count."""
    with contextlib.suppress(OSError, AtlctlError):
        check_private(root(), state_dir())
        return sorted(_alive(), key=lambda record: (record.owner is not None, -record.created))
    return []


def _alive() -> list[Record]:
    found: dict[str, Record] = {}
    for job in os.listdir(root()):
        with contextlib.suppress(OSError):
            for name in os.listdir(os.path.join(root(), job)):
                record = _read(os.path.join(root(), job, name))
                if record is not None:
                    found.setdefault(record.uid, record)
    return list(found.values())


def _read(path: str) -> Record | None:
    """The record in a file; None unless its wrapper lives in this container."""
    try:
        raw: dict[str, Any] = json.loads(read_bytes(path, MAX_FILE))
        if raw.get("schema") != 1 or processes.presence(raw["wrapper"])[0] != "alive":
            return None
        access = JobAccess(bytes.fromhex(raw["access"]["secret"]), str(raw["access"]["start"]))
        own, owner = (None if raw.get(key) is None else str(raw[key]) for key in ("own", "owner"))
        return replace(parsed(raw), kind=RUN, access=access, own=own, owner=owner)
    except (OSError, AtlctlError, ValueError, KeyError, TypeError, RecursionError):
        return None


def owned_by(name: str) -> Record | None:
    """The record of the wrappers whose workers belong to the job `name` of another backend."""
    return next((record for record in here() if record.owner == name), None)


def load(name: str) -> Record:
    """The record of the job `name`. Raises NothingMatched."""
    for record in here():
        if record.name == name:
            return record
    raise NothingMatched(Message("no job {job} is wrapped by 'atlctl run' in this container", job=name))
