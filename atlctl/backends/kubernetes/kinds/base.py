"""The interface of a job kind, and its common implementation.

A kind only reads: it takes objects from the server and returns plain data. Missing fields and fields of the wrong type
never raise. Pods belong to a job by their owner's UID, because a new job of the same name has the same labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.mechanism import Mechanism, Suspend
from atlctl.jobs import fields
from atlctl.jobs.model import State, Worker

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
MULTIKUEUE = "kueue.x-k8s.io/multikueue"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the API. `versions`: versions that this reader knows, the preferred one first."""

    group: str
    plural: str
    kind: str
    versions: tuple[str, ...]
    short: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`plural.group`, which is unique (`jobs` alone is not)."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, version: str, namespace: str | None, name: str | None = None) -> str:
        """The path of an object, or of the list of a namespace (None: of all). All parts are percent-encoded."""
        parts = ["apis", self.group, version] if self.group else ["api", version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        # surrogatepass: an argument may contain bytes that are not UTF-8
        return "/" + "/".join(quote(part.encode("utf-8", "surrogatepass"), safe="") for part in parts)


@dataclass(frozen=True, slots=True)
class PodPlace:
    """The position of a pod in its job: number `number` of `role`, in attempt `attempt`.

    The worker's name begins with `role`; `shown` is displayed, None if there are no roles. `number` is None if the pod
    does not have it.
    """

    role: str
    number: int | None
    shown: str | None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class JobRole:
    """A group of equal workers. `first_rank`: node rank of the first one; None if the role has no ranks.

    `counted`: its workers train; helpers (launchers, initializers, submitters) are not expected to keep running.
    """

    name: str
    count: int
    first_rank: int | None = None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job's state, with a one-word reason and the platform's message."""

    state: State
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """A pod that its controller reports as created and, if `ended` is set, deleted; in seconds since the epoch."""

    name: str
    created: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """The readable objects of a job: its own (empty if unreadable) and its children.

    `past`: pods that its events report; read only if `JobKind.vanished` is positive.
    """

    top: Object
    children: tuple[Object, ...] = ()
    past: tuple[Past, ...] = ()


class JobKind(Protocol):
    """Interface of a job kind. `top` is the job's object."""

    resource: Resource
    #: Whether atlctl can stop and resume it.
    full: bool
    #: Whether the job's object controls the pods, not one of its children.
    direct: bool
    #: Whether the first container is the one that trains, whatever its name.
    first_trains: bool
    #: Whether workers have the names of their pods, in natural order.
    own_names: bool

    @property
    def title(self) -> str:
        """The kind as shown to users, different for each."""

    @property
    def name_labels(self) -> tuple[str, ...]:
        """Labels whose value is the job's name."""

    @property
    def containers(self) -> tuple[str, ...]:
        """Known names of the training container."""

    def selectors(self, top: Object, /) -> tuple[str, ...]:
        """Label selectors for its pods, tried in order until one matches."""

    def children(self, top: Object, /) -> tuple[tuple[str, str], ...]:
        """Child objects with more details: (`plural.group`, name)."""

    def place(self, pod: Object, top: Object, /) -> PodPlace: ...

    def vanished(self, top: Object, pods: Sequence[Object], /) -> int:
        """Number of created pods that are missing in `pods`, for kinds whose pods are not numbered; else 0."""

    def roles(self, sight: Sight, seen: Mapping[str, int], /) -> tuple[JobRole, ...]:
        """Roles in the job's order. `seen`: roles of pods, with the minimum number of workers in each."""

    def suspended(self, top: Object, /) -> bool:
        """Whether the job was asked to suspend."""

    def state(self, sight: Sight, workers: Sequence[Worker], /) -> JobStatus: ...

    def stop(self, top: Object, /) -> Mechanism: ...

    def resume(self, top: Object, /) -> Mechanism: ...


class Common:
    resource: Resource
    full = True
    direct = True
    name_labels: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    first_trains = False
    own_names = False
    #: Path of the field that suspends the job.
    suspend_path: tuple[str, ...] = ("spec", "suspend")
    failed_conditions: tuple[str, ...] = ("Failed",)
    complete_conditions: tuple[str, ...] = ("Complete",)

    @property
    def title(self) -> str:
        return self.resource.kind

    def selectors(self, top: Object, /) -> tuple[str, ...]:
        return tuple(f"{key}={objects.name(top)}" for key in self.name_labels)

    def children(self, _top: Object, /) -> tuple[tuple[str, str], ...]:
        return ()

    def vanished(self, _top: Object, _pods: Sequence[Object], /) -> int:
        return 0

    def roles(self, _sight: Sight, seen: Mapping[str, int], /) -> tuple[JobRole, ...]:
        return tuple(JobRole(name, count) for name, count in seen.items())

    def suspended(self, top: Object, /) -> bool:
        return objects.dig(top, *self.suspend_path) is True

    def state(self, sight: Sight, workers: Sequence[Worker], /) -> JobStatus:
        """Looks conditions up by type: the last one in the list, or the last one that is True, may be outdated."""
        found = objects.conditions(sight.top)
        if failed := objects.holds(found, *self.failed_conditions):
            return JobStatus(State.FAILED, *objects.word(failed))
        if complete := objects.holds(found, *self.complete_conditions):
            return JobStatus(State.SUCCEEDED, *objects.word(complete))
        return self.unfinished(sight, workers)

    def unfinished(self, sight: Sight, workers: Sequence[Worker], /) -> JobStatus:
        """The state of a job without a condition that it ended."""
        if objects.meta(sight.top).get("deletionTimestamp"):
            return JobStatus(State.STOPPING, "Terminating")
        if self.suspended(sight.top):
            return asleep(sight.top, workers)
        if workers:
            return derived(workers)
        return JobStatus(self.hint(sight.top))

    def hint(self, _top: Object, /) -> State:
        """The state of a job without readable pods."""
        return State.PENDING

    def stop(self, _top: Object, /) -> Mechanism:
        return Suspend(self.suspend_path, True)

    def resume(self, _top: Object, /) -> Mechanism:
        return Suspend(self.suspend_path, False)


def asleep(top: Object, workers: Iterable[Worker]) -> JobStatus:
    """The state of a suspended job. Right after the patch its pods still run and no condition has changed."""
    if any(worker.state.active for worker in workers):
        return JobStatus(State.STOPPING, "Suspending")
    condition = objects.holds(objects.conditions(top), "Suspended") or {}
    if queue_of(top):  # Kueue suspends jobs that it has not admitted
        return JobStatus(State.QUEUED, *objects.word(condition))
    return JobStatus(State.SUSPENDED, *objects.word(condition))


#: The job's state is that of its workers; the first match in this order.
_LEADING = (
    *(State.RUNNING, State.HELD, State.RESTARTING, State.STARTING),
    *(State.UNKNOWN, State.PENDING, State.QUEUED, State.STOPPING),
)


def derived(workers: Sequence[Worker], *, final: bool = False) -> JobStatus:
    """The job's state, derived from its workers.

    `final`: no controller restarts the workers. Otherwise a job whose workers have all ended does not count as ended:
    its controller may still retry.
    """
    firsts: dict[State, Worker] = {}
    for worker in workers:
        firsts.setdefault(worker.state, worker)
    for state in _LEADING:
        if (first := firsts.get(state)) is not None:
            told = ("", "") if state is State.RUNNING else (first.reason, first.message)
            return JobStatus(state, *told)
    if (failed := firsts.get(State.FAILED)) is not None:
        return JobStatus(State.FAILED if final else State.RESTARTING, failed.reason, failed.message)
    if firsts:
        return JobStatus(State.SUCCEEDED if final else State.RUNNING, "" if final else "Completing")
    return JobStatus(State.PENDING)


def queue_of(top: Object) -> str | None:
    """The job's LocalQueue in Kueue."""
    return fields.text(objects.labels(top).get(QUEUE_LABEL)) or None


def on_other_cluster(top: Object) -> bool:
    """Whether MultiKueue runs the job, so that its pods are in another cluster."""
    spec = objects.spec(top)
    return MULTIKUEUE in (spec.get("managedBy"), objects.dig(spec, "runPolicy", "managedBy"))
