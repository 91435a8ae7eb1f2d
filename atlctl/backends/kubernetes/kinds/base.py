"""What a kind of training job has to say, and what most kinds say alike.

A kind is a pure reader: objects as the server sent them go in, plain data comes out. Absent and wrongly typed fields
never raise. A job's pods are told by their owner's UID; labels alone survive a job that is created again.
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
    """A kind as the API addresses it. `versions`: those this reader knows, the preferred one first."""

    group: str
    plural: str
    kind: str
    versions: tuple[str, ...]
    short: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`plural.group`, which is unique where `jobs` alone is not."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, version: str, namespace: str | None, name: str | None = None) -> str:
        """The path of one object, or of the list of a namespace (None: of all). Every part is quoted."""
        parts = ["apis", self.group, version] if self.group else ["api", version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        # surrogatepass: an argument may hold bytes that are no UTF-8
        return "/" + "/".join(quote(part.encode("utf-8", "surrogatepass"), safe="") for part in parts)


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where a pod stands in its job: the `number`th of `role`, in its `attempt`th try.

    `role` also begins the worker's name; `shown` is what a user is told, None where there are no roles.
    `number` is None where the pod does not say it.
    """

    role: str
    number: int | None
    shown: str | None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class JobRole:
    """A group of like workers. `first_rank` is the node rank of its first one, None where it has no ranks.

    `counted`: its workers train; helpers (launchers, initializers, submitters) are not expected to run on.
    """

    name: str
    count: int
    first_rank: int | None = None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job's state, a word for why, and the platform's sentence."""

    state: State
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """A pod that its controller reports as created, and as deleted (`ended`), in seconds since the epoch."""

    name: str
    created: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """What could be read of a job: its object (empty where it could not be read) and objects that it made.

    `past`: pods that its events report, read only if `JobKind.vanished` counts some.
    """

    top: Object
    children: tuple[Object, ...] = ()
    past: tuple[Past, ...] = ()


class JobKind(Protocol):
    """One kind of job. `top` is its object."""

    resource: Resource
    #: atlctl may stop and resume it.
    full: bool
    #: Pods are controlled by the object itself, not by something that it makes.
    direct: bool
    #: The first container trains, whatever its name.
    first_trains: bool
    #: Workers are named like their pods, in natural order.
    own_names: bool

    @property
    def title(self) -> str:
        """The kind as users read it, different for each."""

    @property
    def name_labels(self) -> tuple[str, ...]:
        """Labels whose value is the job's name."""

    @property
    def containers(self) -> tuple[str, ...]:
        """Known names of the container that trains."""

    def selectors(self, top: Object, /) -> tuple[str, ...]:
        """Label selectors for its pods, tried in order until one finds some."""

    def children(self, top: Object, /) -> tuple[tuple[str, str], ...]:
        """Objects of its own that tell more: (`plural.group`, name)."""

    def place(self, pod: Object, top: Object, /) -> PodPlace: ...

    def vanished(self, top: Object, pods: Sequence[Object], /) -> int:
        """How many pods it has made that are not among `pods`, if pods have no numbers of their own; else 0."""

    def roles(self, sight: Sight, seen: Mapping[str, int], /) -> tuple[JobRole, ...]:
        """Its roles in the job's order. `seen`: roles of pods, with the number of workers each must have at least."""

    def suspended(self, top: Object, /) -> bool:
        """It was asked to be suspended."""

    def state(self, sight: Sight, workers: Sequence[Worker], /) -> JobStatus: ...

    def stop(self, top: Object, /) -> Mechanism: ...

    def resume(self, top: Object, /) -> Mechanism: ...


class Common:
    """What most kinds have in common."""

    resource: Resource
    full = True
    direct = True
    name_labels: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    first_trains = False
    own_names = False
    #: Where the field is that suspends it.
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
        """Conditions are looked up by type: the last one of the list, or the last True one, may be history."""
        found = objects.conditions(sight.top)
        if failed := objects.holds(found, *self.failed_conditions):
            return JobStatus(State.FAILED, *objects.word(failed))
        if complete := objects.holds(found, *self.complete_conditions):
            return JobStatus(State.SUCCEEDED, *objects.word(complete))
        return self.unfinished(sight, workers)

    def unfinished(self, sight: Sight, workers: Sequence[Worker], /) -> JobStatus:
        """The state of a job that no condition calls ended."""
        if objects.meta(sight.top).get("deletionTimestamp"):
            return JobStatus(State.STOPPING, "Terminating")
        if self.suspended(sight.top):
            return asleep(sight.top, workers)
        if workers:
            return derived(workers)
        return JobStatus(self.hint(sight.top))

    def hint(self, _top: Object, /) -> State:
        """The state of a job without a pod that could be read."""
        return State.PENDING

    def stop(self, _top: Object, /) -> Mechanism:
        return Suspend(self.suspend_path, True)

    def resume(self, _top: Object, /) -> Mechanism:
        return Suspend(self.suspend_path, False)


def asleep(top: Object, workers: Iterable[Worker]) -> JobStatus:
    """A job that is asked to sleep: right after the patch its pods run on and no condition has changed."""
    if any(worker.state.active for worker in workers):
        return JobStatus(State.STOPPING, "Suspending")
    condition = objects.holds(objects.conditions(top), "Suspended") or {}
    if queue_of(top):  # Kueue suspends what it has not admitted
        return JobStatus(State.QUEUED, *objects.word(condition))
    return JobStatus(State.SUSPENDED, *objects.word(condition))


#: What a job is while its workers are so, the first that fits.
_LEADING = (
    State.RUNNING,
    State.HELD,
    State.RESTARTING,
    State.STARTING,
    State.UNKNOWN,
    State.PENDING,
    State.QUEUED,
    State.STOPPING,
)


def derived(workers: Sequence[Worker], *, final: bool = False) -> JobStatus:
    """A job's state from its workers.

    `final`: nobody would start them again. Else a job whose workers have all ended is not called so: its
    controller has not decided yet, and may try again.
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
    """Kueue's LocalQueue that the job was given to."""
    return fields.text(objects.labels(top).get(QUEUE_LABEL)) or None


def on_other_cluster(top: Object) -> bool:
    """MultiKueue runs it: its pods are in another cluster."""
    spec = objects.spec(top)
    return MULTIKUEUE in (spec.get("managedBy"), objects.dig(spec, "runPolicy", "managedBy"))
