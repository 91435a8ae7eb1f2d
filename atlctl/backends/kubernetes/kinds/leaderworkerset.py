"""LeaderWorkerSet (leaderworkerset.x-k8s.io): groups of a leader and its workers. It never finishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.base import Common, JobRole, JobStatus, PodPlace, Resource, Sight, asleep, derived
from atlctl.backends.kubernetes.kinds.mechanism import Mechanism, Refuse, not_resumed, scale
from atlctl.i18n import Message
from atlctl.jobs import fields
from atlctl.jobs.model import State, Worker

NAME_LABEL = "leaderworkerset.sigs.k8s.io/name"
_PREFIX = "leaderworkerset.sigs.k8s.io/"
_ROLE = "worker"


def replicas(top: Object) -> int | None:
    return objects.count(objects.spec(top).get("replicas", 1))


class Scaled(Common):
    """A kind that runs until it is scaled to zero, which atlctl does not do."""

    full = False

    def suspended(self, top: Object, /) -> bool:
        return replicas(top) == 0

    def state(self, sight: Sight, workers: Sequence[Worker], /) -> JobStatus:
        if objects.meta(sight.top).get("deletionTimestamp"):
            return JobStatus(State.STOPPING, "Terminating")
        return asleep(sight.top, workers) if self.suspended(sight.top) else derived(workers)

    def stop(self, top: Object, /) -> Mechanism:
        why = Message("atlctl does not stop {kind}; to restore it later, note its number of replicas: {count}")
        text = why.filled(kind=f"{self.title}s", count=replicas(top))
        return Refuse(text, scale(top, self.resource.name, 0), deletable=True)

    def resume(self, top: Object, /) -> Mechanism:
        return Refuse(not_resumed(f"{self.title}s"), scale(top, self.resource.name, replicas(top) or 1))


class LeaderWorkerSet(Scaled):
    """Workers are numbered across groups. Each group is a separate world, so there are no ranks in the job."""

    resource = Resource("leaderworkerset.x-k8s.io", "leaderworkersets", "LeaderWorkerSet", ("v1",), ("lws",))
    direct = False
    name_labels = (NAME_LABEL,)

    def children(self, top: Object, /) -> tuple[tuple[str, str], ...]:
        return (("statefulsets.apps", objects.name(top)),)

    def place(self, pod: Object, top: Object, /) -> PodPlace:
        labels = objects.labels(pod)
        group = objects.count(labels.get(_PREFIX + "group-index"))
        worker = objects.count(labels.get(_PREFIX + "worker-index"))
        size = _size(top) or objects.count(objects.notes(pod).get(_PREFIX + "size"))
        number = None
        if group is not None and worker is not None and size:
            number = objects.count(group * size + worker)
        return PodPlace(_ROLE, number, "leader" if worker == 0 else _ROLE)

    def roles(self, sight: Sight, seen: Mapping[str, int], /) -> tuple[JobRole, ...]:
        groups = replicas(sight.top) if objects.spec(sight.top) else None
        size = _size(sight.top)
        stated = seen.get(_ROLE, 0) if groups is None or size is None else objects.total([groups * size])
        return (JobRole(_ROLE, stated),)


def _size(top: Object) -> int | None:
    template = objects.spec(top).get("leaderWorkerTemplate")
    return objects.count(fields.mapping(template).get("size", 1)) if type(template) is dict else None
