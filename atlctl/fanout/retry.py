"""The store behind `exec --retry-failed`: the last `exec` of a job, with the workers on which it failed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atlctl.fanout.outcome import Outcome
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Job
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import check_private, ensure_dir, read_bytes, write_atomic

_VERSION = 1
#: Bytes: thousands of workers with long names, and the longest argument vector on Linux.
_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last `exec` of a job. `argv` may contain surrogate-escaped bytes.

    `failed_workers`: names, in the order of the run, of the workers without a successful outcome.
    """

    argv: tuple[str, ...]
    failed_workers: tuple[str, ...]


def job_key(job: Job) -> str:
    """Identifies a job, also against a later one of its name."""
    return f"{job.backend}-{job.name}-{job.uid}"


def save(
    state_dir: str,
    job_key: str,
    argv: Sequence[str],
    workers: Sequence[str],
    outcomes: Sequence[Outcome] = (),
) -> None:
    """Store a run of `argv` on `workers` (names) in place of the job's previous one.

    A worker without an outcome counts as failed: the store is saved before the run and is right even if this client is
    killed. Raises AtlctlError.
    """
    ok = {outcome.worker.name for outcome in outcomes if outcome.ok}
    record = {
        "version": _VERSION,
        "argv": list(argv),
        "workers": [[name, name in ok] for name in workers],
    }
    path = _path(state_dir, job_key)
    ensure_dir(os.path.dirname(path), state_dir)
    # ASCII escapes preserve lone surrogates (bytes in argv that are not UTF-8).
    write_atomic(path, json.dumps(record).encode("ascii"))


def forget(state_dir: str, job_key: str) -> None:
    """Remove the record of a deleted job, if there is one."""
    path = _path(state_dir, job_key)
    with contextlib.suppress(FileNotFoundError):
        check_private(os.path.dirname(path), state_dir)
        os.unlink(path)


def load(state_dir: str, job_key: str) -> LastRun | None:
    """The last run of a job; None if there is none. Raises AtlctlError for a corrupt file, NotAllowed if it may be
    forged."""
    path = _path(state_dir, job_key)
    try:
        check_private(os.path.dirname(path), state_dir)
        data = read_bytes(path, _LIMIT)
    except FileNotFoundError:
        return None
    try:
        return _parse(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise AtlctlError(
            Message(
                "this version cannot read the run record {path} ({why})",
                path=path,
                why=error.args[0] if error.args else error,
            ),
            Message("run the command again with a selection: that replaces the record"),
        ) from error


def _parse(record: Any) -> LastRun:
    match record:
        case {"version": 1, "argv": [_, *_] as argv, "workers": list() as workers}:
            pass
        case {"version": version} if version != _VERSION:
            raise ValueError(Message("another version"))
        case _:
            raise ValueError(Message("fields are missing"))
    failed: list[str] = []
    for entry in workers:
        match entry:
            case [str() as name, bool() as ok]:
                if not ok:
                    failed.append(name)
            case _:
                raise ValueError(Message("its workers are damaged"))
    if not all(isinstance(word, str) for word in argv):
        raise ValueError(Message("its command is damaged"))
    return LastRun(tuple(argv), tuple(failed))


def _path(state_dir: str, job_key: str) -> str:
    return os.path.join(state_dir, "exec", safe_file_name(job_key) + ".json")
