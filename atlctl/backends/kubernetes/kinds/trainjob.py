"""TrainJob of Kubeflow Trainer v2, which creates a JobSet of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds import jobset
from atlctl.backends.kubernetes.kinds.base import Common, JobRole, JobStatus, PodPlace, Resource, Sight
from atlctl.jobs import fields
from atlctl.jobs.model import State, Worker

_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_NODE = "node"
_LAUNCHER = "launcher"


class TrainJob(Common):
    """It has neither a Created nor a Running condition; its pods show whether it runs."""

    resource = Resource("trainer.kubeflow.org", "trainjobs", "TrainJob", ("v1alpha1",))
    direct = False
    name_labels = (jobset.NAME_LABEL,)
    containers = (_NODE,)

    def children(self, top: Object) -> tuple[tuple[str, str], ...]:
        return ((jobset.RESOURCE, objects.name(top)),)

    def place(self, pod: Object, top: Object) -> PodPlace:
        return jobset.place(pod, top)

    def roles(self, sight: Sight, seen: Mapping[str, int]) -> tuple[JobRole, ...]:
        """Training roles come first. The runtime names them; a label of the template marks them."""
        made = [item for child in sight.children for item in jobset.replicated_jobs(child)]
        stated = {fields.text(item.get("name")): jobset.replicas(item) for item in made}
        trains = {fields.text(item.get("name")) for item in made if _step(item) == "trainer"}
        if not stated:
            nodes = objects.count(objects.dig(sight.top, "spec", "trainer", "numNodes"))
            stated = dict(seen) if nodes is None else {_NODE: nodes, **{k: v for k, v in seen.items() if k != _NODE}}
        trains = trains or ({_NODE} & set(stated)) or set(stated)
        order = sorted(stated, key=lambda name: name not in trains)
        if any(item.get("name") == _LAUNCHER and _has_node(item) for item in made):
            trains.add(_LAUNCHER)  # MPI with the launcher as the first node
            order = [_LAUNCHER, *(name for name in order if name != _LAUNCHER)]
        ranked = bool(made) or _LAUNCHER not in stated
        roles, rank = [], 0
        for name in order:
            train = name in trains
            roles.append(JobRole(name, stated[name], rank if train and ranked else None, counted=train))
            rank += stated[name] if train else 0
        return tuple(roles)

    def unfinished(self, sight: Sight, workers: Sequence[Worker]) -> JobStatus:
        return jobset.restarting(super().unfinished(sight, workers), sight.children, workers)

    def hint(self, top: Object) -> State:
        return jobset.from_counts(fields.entries(objects.status(top).get("jobsStatus")))


def _step(replicated: Object) -> str:
    return fields.text(objects.dig(replicated, "template", "metadata", "labels", _STEP))


def _has_node(replicated: Object) -> bool:
    containers = fields.entries(objects.dig(replicated, "template", "spec", "template", "spec", "containers"))
    return any(item.get("name") == _NODE for item in containers)
