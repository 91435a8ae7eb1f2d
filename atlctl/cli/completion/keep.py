"""Write the cache of names that `cache` reads: names that a command or a refresh has seen.

Only names, and only those that may be shown. Completion works without the cache, so errors here never fail a command.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atlctl.cli.completion import cache
from atlctl.cli.completion.cache import Scope
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.statedir import ensure_dir, write_atomic

if TYPE_CHECKING:
    from atlctl.jobs.model import Job

#: The most files in the cache, and the age in seconds at which one is removed.
MOST_FILES, OLD = 64, 7 * 24 * 3600.0

_log = logging.getLogger(__name__)


def seen_jobs(jobs: Sequence[Job], *, whole: bool, everywhere: bool = False) -> None:
    """Jobs of a cluster that the command that runs has seen. `whole`: there are no others in that namespace;
    `everywhere`: they are of all namespaces."""
    from atlctl.cli.runtime import context

    asked = context()
    if asked.selector is not None or asked.hostfile is not None:
        return
    options = (asked.kubeconfig or "", asked.context or "")
    if not everywhere:
        _jobs(cache.cluster_scope("jobs", *options, asked.namespace or ""), jobs, whole=whole)
        return
    spaces: dict[str, list[Job]] = {}
    for job in jobs:
        spaces.setdefault(job.namespace or "", []).append(job)
    for namespace in sorted(spaces)[: MOST_FILES // 2]:
        _jobs(cache.cluster_scope("jobs", *options, namespace), spaces[namespace], whole=whole)


def seen_names(scope: Scope, names: Mapping[str, Iterable[str]]) -> None:
    """Store all names of a scope, each with its workers if it has any."""
    now = time.time()
    _write(scope, now, 0.0, {name: _about(now, workers, (), active=False) for name, workers in names.items()})


def trying(scope: Scope) -> None:
    """A refresh of the scope begins. Unless it ends well, the next one waits."""
    entry = cache.load(scope)
    _write(scope, entry.get("listed", 0.0), time.time(), cache.known(entry))


def _jobs(scope: Scope | None, jobs: Sequence[Job], *, whole: bool) -> None:
    if scope is None:
        return
    now = time.time()
    entry = cache.load(scope)
    names = {} if whole else cache.known(entry)
    count = Counter(job.name for job in jobs)
    for job in jobs:
        form = f"{job.resource}/{job.name}"
        name = form if count[job.name] > 1 or form in names else job.name
        workers = [worker.name for worker in job.workers]
        roles = [worker.role for worker in job.workers if worker.role]
        names[name] = _about(now, workers, roles, active=any(worker.state.active for worker in job.workers))
    _write(scope, now if whole else entry.get("listed", 0.0), 0.0 if whole else entry.get("tried", 0.0), names)


def _about(now: float, workers: Iterable[str], roles: Iterable[str], *, active: bool) -> dict[str, Any]:
    return {"seen": now, "active": active, "workers": cache.safe([*workers]), "roles": cache.safe([*roles])}


def _write(scope: Scope, listed: float, tried: float, names: Mapping[str, Mapping[str, Any]]) -> None:
    entry = {
        "schema": cache.SCHEMA,
        "scope": scope.key,
        "stamp": scope.stamp(),
        "listed": listed,
        "tried": tried,
        "names": _bounded(names),
    }
    folder = cache.folder()
    try:
        ensure_dir(folder, os.path.dirname(folder))
        write_atomic(scope.path(), json.dumps(entry, separators=(",", ":")).encode())
        _tidy(folder)
    except (AtlctlError, OSError) as error:
        _log.debug("names for completion were not kept: %s", error)


def _bounded(names: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The names that fit in a file: active jobs first, without workers if those do not fit."""
    kept: dict[str, Mapping[str, Any]] = {}
    room = cache.MAX_FILE // 2
    for name in sorted(filter(cache.is_safe, names), key=lambda name: not names[name]["active"]):
        about = names[name]
        room -= len(name) + 100
        if room < 0:
            break
        size = sum(len(below) + 3 for part in ("workers", "roles") for below in about[part])
        kept[name] = about if size <= room else {**about, "workers": [], "roles": []}
        room -= size if size <= room else 0
    return kept


def _tidy(folder: str) -> None:
    """Remove old files, and the oldest if there are too many."""
    files = [entry for entry in os.scandir(folder) if entry.name != cache.LOCK]
    ages = sorted((time.time() - entry.stat(follow_symlinks=False).st_mtime, entry.path) for entry in files)
    for place, (age, path) in enumerate(ages):
        if place >= MOST_FILES or age > OLD:
            os.unlink(path)
