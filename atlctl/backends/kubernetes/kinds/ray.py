"""RayJob and RayCluster of KubeRay (ray.io)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.base import Common, JobRole, JobStatus, PodPlace, Resource, Sight, asleep, derived
from atlctl.backends.kubernetes.kinds.mechanism import Mechanism, Refuse, not_resumed, not_stopped, patch
from atlctl.jobs import fields
from atlctl.jobs.model import State, Worker

CLUSTER_LABEL = "ray.io/cluster"
ORIGIN_LABEL = "ray.io/originated-from-cr-name"
CLUSTERS = "rayclusters.ray.io"
_SUBMITTER = "submitter"

#: jobDeploymentStatus -> state. For "Running" and unknown values the pods decide.
_DEPLOYMENT = {
    "Complete": State.SUCCEEDED,
    "Failed": State.FAILED,
    "ValidationFailed": State.FAILED,
    "Suspending": State.STOPPING,
    "Retrying": State.RESTARTING,
}


class _Ray(Common):
    """The first container of a pod runs Ray. There are no node ranks, because Ray schedules the processes."""

    full = False
    direct = False
    first_trains = True

    def place(self, pod: Object, _top: Object, /) -> PodPlace:
        labels = objects.labels(pod)
        node = fields.text(labels.get("ray.io/node-type"))
        if node == "head":
            return PodPlace("head", 0, "head")
        if node != "worker":
            return PodPlace(_SUBMITTER, None, _SUBMITTER)
        role = fields.text(labels.get("ray.io/group")) or "worker"
        hosts = objects.count(labels.get("ray.io/replica-host-index"))
        # A replica consists of several hosts, and the pod does not have its number among them.
        number = None if hosts else objects.count(labels.get("ray.io/worker-group-replica-index"))
        return PodPlace(role, number, role)

    def _groups(self, cluster: Object) -> Object:
        return objects.spec(cluster)

    def roles(self, sight: Sight, seen: Mapping[str, int], /) -> tuple[JobRole, ...]:
        groups = fields.entries(self._groups(sight.top).get("workerGroupSpecs"))
        stated = {"head": 1}
        for group in groups:
            replicas, hosts = objects.count(group.get("replicas", 1)), objects.count(group.get("numOfHosts", 1))
            stated[fields.text(group.get("groupName")) or "worker"] = objects.total([(replicas or 0) * (hosts or 1)])
        if not groups:
            stated |= {name: count for name, count in seen.items() if name != _SUBMITTER}
        helpers = (JobRole(_SUBMITTER, seen[_SUBMITTER], counted=False),) if _SUBMITTER in seen else ()
        return (*(JobRole(name, count) for name, count in stated.items()), *helpers)

    def stop(self, top: Object, /) -> Mechanism:
        return Refuse(not_stopped(f"{self.resource.kind}s"), self._suspend(top, "true"), deletable=True)

    def resume(self, top: Object, /) -> Mechanism:
        return Refuse(not_resumed(f"{self.resource.kind}s"), self._suspend(top, "false"))

    def _suspend(self, top: Object, value: str) -> str:
        return patch(top, self.resource.name, f'{{"spec":{{"suspend":{value}}}}}')


class RayCluster(_Ray):
    """A RayCluster never finishes."""

    resource = Resource("ray.io", "rayclusters", "RayCluster", ("v1",))
    direct = True
    name_labels = (CLUSTER_LABEL,)

    def state(self, sight: Sight, workers: Sequence[Worker], /) -> JobStatus:
        if objects.meta(sight.top).get("deletionTimestamp"):
            return JobStatus(State.STOPPING, "Terminating")
        return asleep(sight.top, workers) if self.suspended(sight.top) else derived(workers)


class RayJob(_Ray):
    """The pods are those of its RayCluster and a submitter."""

    resource = Resource("ray.io", "rayjobs", "RayJob", ("v1",))
    name_labels = (ORIGIN_LABEL,)

    def selectors(self, top: Object, /) -> tuple[str, ...]:
        cluster = _cluster(top)
        known = (f"{CLUSTER_LABEL}={cluster}",) if cluster else ()
        return (f"{ORIGIN_LABEL}={objects.name(top)},ray.io/originated-from-crd=RayJob", *known)

    def children(self, top: Object, /) -> tuple[tuple[str, str], ...]:
        cluster = _cluster(top)
        clusters = ((CLUSTERS, cluster),) if cluster else ()
        return (*clusters, ("jobs.batch", objects.name(top)))

    def _groups(self, cluster: Object) -> Object:
        return fields.mapping(objects.spec(cluster).get("rayClusterSpec"))

    def state(self, sight: Sight, workers: Sequence[Worker], /) -> JobStatus:
        status = objects.status(sight.top)
        said = objects.word(status)
        deployment = _DEPLOYMENT.get(fields.text(status.get("jobDeploymentStatus")))
        outcome = fields.text(status.get("jobStatus"))
        if outcome == "FAILED" and deployment is not State.RESTARTING:
            return JobStatus(State.FAILED, *said)
        if outcome == "STOPPED":
            return JobStatus(State.STOPPED, *said)
        if outcome == "SUCCEEDED":
            return JobStatus(State.SUCCEEDED, *said)
        if deployment is not None:
            return JobStatus(deployment, *said)
        return self.unfinished(sight, workers)


def _cluster(top: Object) -> str:
    return fields.text(objects.status(top).get("rayClusterName"))
