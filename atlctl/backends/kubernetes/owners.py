"""From an object up to the job at the top of its owners, and which job pods alone speak of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from atlctl.backends.kubernetes.api import Api, Missing, Object, Refused
from atlctl.backends.kubernetes.discovery import Served
from atlctl.backends.kubernetes.kinds import fields, jobset, registry
from atlctl.backends.kubernetes.kinds.base import Kind
from atlctl.jobs.naming import MAX_JOB_NAME

#: More owners above one another than any platform has; what is deeper goes in a circle.
_MAX_DEPTH = 10
_MAX_NAME = 253
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-")


@dataclass(frozen=True, slots=True)
class Hit:
    """An object that a name means. `readable` is False where only a reference or a label told of it.

    `owner` refers to a controller above it that is no kind of job: who created it, for the plan of a stop.
    """

    kind: Kind
    version: str
    top: Object
    readable: bool = True
    owner: Object | None = None

    @property
    def identity(self) -> tuple[str, str]:
        uid = fields.uid(self.top)
        return ("", uid) if uid else (self.kind.resource.name, fields.name(self.top))


def valid_name(name: str) -> bool:
    """Whether an object may have this name. What is none reaches no path."""
    return 0 < len(name) <= _MAX_NAME and _NAME_CHARS.issuperset(name) and name[0] not in ".-" and name[-1] not in ".-"


def valid_label(value: str) -> bool:
    """Whether a label may have this name as its value."""
    return valid_name(value) and len(value) <= MAX_JOB_NAME


def distinct(hits: Iterable[Hit]) -> list[Hit]:
    """Every job once, one that was read before one that was not."""
    found: dict[tuple[str, str], Hit] = {}
    for hit in sorted(hits, key=lambda hit: not hit.readable):
        found.setdefault(hit.identity, hit)
    return list(found.values())


async def to_top(api: Api, hit: Hit, served: Served, place: str) -> Hit:
    """The job at the top of the controllers above `hit`, which lies in the namespace `place`, as its owners do.

    An owner that is gone, or was created anew under its name, is none. One that may not be read is the top as far
    as its reference tells. Raises ApiError other than 403 and 404, and NoServer.
    """
    for _ in range(_MAX_DEPTH):
        owner = fields.controller(hit.top)
        if owner is None:
            return hit
        resource = registry.of_owner(owner.get("apiVersion"), owner.get("kind"))
        known = None if resource is None else served.kind(resource)
        name, uid = fields.text(owner.get("name")), fields.text(owner.get("uid"))
        if known is None or not valid_name(name):
            return replace(hit, owner=owner)
        kind, version = known
        try:
            top = await api.get(kind.resource.path(version, place, name))
        except Missing:
            return hit
        except Refused:
            return _unreadable(hit, kind, version, {"name": name, "namespace": place, "uid": uid}, served)
        if fields.uid(top) != uid:
            return hit
        hit = Hit(kind, version, top)
    return hit


def _unreadable(hit: Hit, kind: Kind, version: str, metadata: Object, served: Served) -> Hit:
    """The owner as its reference tells. A pod of a JobSet names that one, which is nearer to the top than its Job."""
    labels = fields.labels(hit.top)
    name, uid = fields.text(labels.get(jobset.NAME_LABEL)), fields.text(labels.get(jobset.UID_LABEL))
    if kind.resource.name == "jobs.batch" and valid_label(name) and uid:
        known = served.kind(jobset.RESOURCE) or (jobset.JobSet(), jobset.JobSet.resource.versions[0])
        return Hit(*known, {"metadata": {**metadata, "name": name, "uid": uid}}, readable=False)
    return Hit(kind, version, {"metadata": metadata}, readable=False)


def newest_owner(kinds: Sequence[Kind], pods: Sequence[Object]) -> tuple[Kind, str, list[Object]]:
    """Of pods that name one job: the job's kind and UID, and its own pods.

    Pods of a job that had the name before are left out: the newest pod's owner counts. A JobSet that a TrainJob made
    looks like any JobSet from here, so it is called one.
    """
    newest = max(pods, key=lambda pod: (fields.created(pod) or 0.0, fields.name(pod)))
    owner = fields.controller(newest) or {}
    kind = next((kind for kind in kinds if kind.direct and kind.resource.kind == owner.get("kind")), kinds[-1])
    key = jobset.UID_LABEL
    if uid := fields.text(fields.labels(newest).get(key)):
        return kind, uid, [pod for pod in pods if fields.labels(pod).get(key) == uid]
    uid = fields.text(owner.get("uid"))
    if not kind.direct:  # between the job and its pods stands what it made, of which there may be several
        return kind, "", list(pods)
    return kind, uid, [pod for pod in pods if fields.text((fields.controller(pod) or {}).get("uid")) == uid]
