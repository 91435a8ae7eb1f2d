"""The names of a job's workers, from the name of the first and their number. None where nothing fits: no guess.

tj-node-0-0.tj           TrainJob: tj-node-0-0.tj, tj-node-0-1.tj, ...
job-master-0             PyTorchJob: the master, then job-worker-0, job-worker-1, ...
job-worker-0             PyTorchJob without a master: job-worker-0, job-worker-1, ...
js-rj-0-0.js, sts-0.svc  JobSet, indexed Job, StatefulSet: the last number counts
lws-2.svc                LeaderWorkerSet: lws-2.svc, lws-2-1.svc, lws-2-2.svc, ...
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_TRAINJOB = re.compile(r"(?P<job>[^.]+)-node-0-0\.(?P=job)(?:\..+)?")
_MASTER = re.compile(r"(?P<job>[^.]+)-master-0(?P<domain>\..+)?")
_FIRST = re.compile(r"(?P<stem>[^.]+)-0(?P<domain>\..+)?")
_LEADER = re.compile(r"(?P<leader>[^.]+-[0-9]+)(?P<domain>\..+)?")


def workers(first: str, count: int, hostname: str) -> tuple[str, ...] | None:
    """All `count` workers of a job, in the order of their node ranks.

    `hostname`, of this worker, has a say: one that is among the names vouches for them, one of the same family that
    is not among them disproves them. Where it is called otherwise (a host network) the pattern must be one that
    only a controller makes.
    """
    master = _MASTER.fullmatch(first)
    if master is not None:
        job, domain = master["job"], master["domain"] or ""
        names = (first, *_numbered(f"{job}-worker", domain, count - 1))
        if _is_of(f"{job}-worker", hostname):
            return names if _among(names, hostname) else None
        if short(hostname) == short(first) or not _is_of(f"{job}-master", hostname):
            # A StatefulSet may be called *-master, too, but its pods have the domain of a service.
            return names if domain == "" or f"{domain}.".startswith(f".{job}.") else None
    numbered = _FIRST.fullmatch(first)
    if numbered is None:
        return None
    stem = numbered["stem"]
    names = _numbered(stem, numbered["domain"] or "", count)
    if _is_of(stem, hostname):
        return names if _among(names, hostname) else None
    return names if stem.endswith("-worker") or _TRAINJOB.fullmatch(first) else None


def group(leader: str, count: int) -> tuple[str, ...] | None:
    """The workers of one group of a LeaderWorkerSet, by the address of its leader."""
    match = _LEADER.fullmatch(leader)
    if match is None:
        return None
    return (leader, *(f"{match['leader']}-{number}{match['domain'] or ''}" for number in range(1, count)))


def short(name: str) -> str:
    """The first label of a name, in the form in which names are compared."""
    return name.partition(".")[0].lower()


def _numbered(stem: str, domain: str, count: int) -> tuple[str, ...]:
    return tuple(f"{stem}-{number}{domain}" for number in range(count))


def _is_of(stem: str, hostname: str) -> bool:
    """Whether a host is called like those of a family."""
    start, _, number = short(hostname).rpartition("-")
    return start == stem.lower() and number.isdecimal()


def _among(names: Iterable[str], hostname: str) -> bool:
    return short(hostname) in map(short, names)
