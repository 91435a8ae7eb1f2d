"""ElasticJob of DLRover (elastic.iml.github.io). Its master process creates the workers' pods itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.base import Common, JobRole, JobStatus, PodPlace, Resource, Sight, derived
from atlctl.backends.kubernetes.kinds.mechanism import Mechanism, Refuse, kubectl, not_resumed, patch
from atlctl.i18n import Message
from atlctl.jobs import fields
from atlctl.jobs.model import State, Worker

NAME_LABEL = "elasticjob.dlrover/name"
_PREFIX = "elasticjob.dlrover/"
_MASTER = "dlrover-master"
_ORDER = ("chief", "worker", "ps", "evaluator")


class ElasticJob(Common):
    """`suspend` only freezes scaling: the workers keep training in phase Suspended."""

    resource = Resource("elastic.iml.github.io", "elasticjobs", "ElasticJob", ("v1alpha1",))
    full = False
    name_labels = (NAME_LABEL,)
    containers = ("main",)

    def place(self, pod: Object, _top: Object, /) -> PodPlace:
        """The number is the rank index: the replica index is the node's id, which grows with each relaunch."""
        labels = objects.labels(pod)
        role = fields.text(labels.get(_PREFIX + "replica-type")) or "worker"
        number = objects.count(labels.get(_PREFIX + "rank-index"))
        if number is None:
            number = objects.count(labels.get(_PREFIX + "replica-index"))
        return PodPlace(role, number, role, objects.count(labels.get(_PREFIX + "relaunch-count")))

    def roles(self, sight: Sight, seen: Mapping[str, int], /) -> tuple[JobRole, ...]:
        specs = fields.mapping(objects.spec(sight.top).get("replicaSpecs"))
        stated = {}
        for name, item in specs.items():
            replicas = objects.count(fields.mapping(item).get("replicas", 1))
            stated[name] = 0 if replicas is None else replicas
        stated = stated or dict(seen)
        order = [name for name in _ORDER if name in stated] + sorted(set(stated) - {*_ORDER, _MASTER})
        roles = [
            JobRole(name, stated[name], 0 if name == "worker" and "chief" not in stated else None) for name in order
        ]
        masters = max(seen.get(_MASTER, 0), stated.get(_MASTER, 0))
        return (*roles, JobRole(_MASTER, masters, counted=False)) if masters else tuple(roles)

    def suspended(self, _top: Object, /) -> bool:
        return False

    def state(self, sight: Sight, workers: Sequence[Worker], /) -> JobStatus:
        phase = fields.text(objects.status(sight.top).get("phase"))
        said = objects.word(objects.conditions(sight.top).get(phase, {}))
        if phase in ("Succeeded", "Failed"):
            return JobStatus(State.SUCCEEDED if phase == "Succeeded" else State.FAILED, *said)
        if objects.meta(sight.top).get("deletionTimestamp"):
            return JobStatus(State.STOPPING, "Terminating")
        training = [worker for worker in workers if worker.role != _MASTER]
        frozen = phase == "Suspended" or objects.spec(sight.top).get("suspend") is True
        if frozen and not any(worker.state.active for worker in training):
            return JobStatus(State.SUSPENDED, *said)
        verdict = derived(training or workers)
        return replace(verdict, reason=Message("scaling suspended")) if frozen else verdict

    def stop(self, top: Object, /) -> Mechanism:
        command = kubectl(top, "delete", f"{self.resource.name}/{objects.name(top)}")
        return Refuse(
            Message("an ElasticJob cannot be stopped reversibly: suspend leaves its workers running"), command
        )

    def resume(self, top: Object, /) -> Mechanism:
        command = patch(top, self.resource.name, '{"spec":{"suspend":false}}')
        return Refuse(not_resumed("ElasticJobs"), command)
