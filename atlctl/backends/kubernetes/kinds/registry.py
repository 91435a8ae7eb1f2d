"""Registry of job kinds, with lookup by the names that users type."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from atlctl.backends.kubernetes.kinds.barepods import BarePods
from atlctl.backends.kubernetes.kinds.base import JobKind, Resource
from atlctl.backends.kubernetes.kinds.batch import BatchJob
from atlctl.backends.kubernetes.kinds.elasticjob import ElasticJob
from atlctl.backends.kubernetes.kinds.jobset import JobSet
from atlctl.backends.kubernetes.kinds.leaderworkerset import LeaderWorkerSet
from atlctl.backends.kubernetes.kinds.mpijob import MPIJobV2
from atlctl.backends.kubernetes.kinds.ray import RayCluster, RayJob
from atlctl.backends.kubernetes.kinds.statefulset import StatefulSet
from atlctl.backends.kubernetes.kinds.trainingoperator import JAXJob, MPIJobV1, PaddleJob, PyTorchJob, TFJob, XGBoostJob
from atlctl.backends.kubernetes.kinds.trainjob import TrainJob
from atlctl.backends.kubernetes.kinds.volcano import VolcanoJob
from atlctl.jobs import fields

PODS = BarePods()

#: All job kinds, owners before their children. If two share a resource, their versions differ.
KINDS: tuple[JobKind, ...] = (
    TrainJob(),
    RayJob(),
    MPIJobV2(),
    MPIJobV1(),
    PyTorchJob(),
    TFJob(),
    XGBoostJob(),
    PaddleJob(),
    JAXJob(),
    VolcanoJob(),
    ElasticJob(),
    LeaderWorkerSet(),
    JobSet(),
    RayCluster(),
    BatchJob(),
    StatefulSet(),
)

_BY_RESOURCE: dict[str, list[JobKind]] = {}
for _kind in (*KINDS, PODS):
    _BY_RESOURCE.setdefault(_kind.resource.name, []).append(_kind)
_BY_OWNER = {(_kind.resource.group, _kind.resource.kind): _kind.resource.name for _kind in (*KINDS, PODS)}


def kind_of(resource: str, version: str) -> JobKind | None:
    """The reader of a `plural.group` at a version; for an unknown version the most similar one."""
    kinds = _BY_RESOURCE.get(resource, [])
    for kind in kinds:
        if version in kind.resource.versions:
            return kind
    for kind in kinds:
        if any(version.startswith(known[:2]) for known in kind.resource.versions):
            return kind
    return kinds[-1] if kinds else None


def of_owner(api_version: object, kind: object) -> str | None:
    """The `plural.group` in an owner reference; None if it is not a job kind."""
    group = fields.text(api_version).rpartition("/")[0]
    return _BY_OWNER.get((group, fields.text(kind)))


def typed(word: str, served: Collection[str]) -> list[str]:
    """The served resources that `word` of `WORD/NAME` may mean: `plural.group`, plural, singular, short name or
    kind."""
    lower = word.lower()
    found = []
    for name, kinds in _BY_RESOURCE.items():
        resource = kinds[0].resource
        forms = {name, resource.plural, resource.kind.lower(), *resource.short}
        forms |= {f"{form}.{resource.group}" for form in (resource.kind.lower(),) if resource.group}
        if lower in forms and (name in served or name == PODS.resource.name):
            found.append(name)
    return found


def form(resource: Resource, name: str) -> str:
    """The unambiguous name of an object: `trainjob/x`, or `jobs.batch/x` because `job/x` is ambiguous."""
    alike = {other.resource.name for other in (*KINDS, PODS) if other.resource.kind == resource.kind}
    return f"{resource.kind.lower() if len(alike) == 1 else resource.name}/{name}"


def name_labels(kinds: Iterable[JobKind]) -> dict[str, list[JobKind]]:
    """Labels whose value is a job's name, with the kinds that set them."""
    found: dict[str, list[JobKind]] = {}
    for kind in kinds:
        for key in kind.name_labels:
            found.setdefault(key, []).append(kind)
    return found
