"""Kinds of training-operator v1 (kubeflow.org): PyTorchJob, TFJob, XGBoostJob, PaddleJob, JAXJob and MPIJob v1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.base import Common, JobRole, JobStatus, PodPlace, Resource, Sight
from atlctl.jobs import fields
from atlctl.jobs.model import State, Worker

GROUP = "kubeflow.org"
NAME_LABEL = "training.kubeflow.org/job-name"
#: Operators before 1.4 and their forks use labels without a prefix.
OLD_NAME_LABEL = "job-name"
_OLD_GROUP = "group-name=kubeflow.org"
_PREFIX = "training.kubeflow.org/"
#: The order of roles in a job.
_ORDER = ("chief", "master", "ps", "worker", "evaluator", "launcher")


def label(pod: Object, key: str) -> str:
    """A label of the operator, with or without its prefix."""
    labels = objects.labels(pod)
    return fields.text(labels.get(_PREFIX + key)) or fields.text(labels.get(key))


def replica_specs(top: Object, field: str) -> dict[str, int]:
    """Replicas by role, in the order of roles; 1 if a role has no number."""
    stated = {}
    for role, item in fields.mapping(objects.spec(top).get(field)).items():
        replicas = objects.count(fields.mapping(item).get("replicas", 1))
        stated[role.lower()] = 0 if replicas is None else replicas
    return in_order(stated)


def in_order(roles: Mapping[str, int]) -> dict[str, int]:
    known = {name: roles[name] for name in _ORDER if name in roles}
    return known | {name: roles[name] for name in sorted(roles) if name not in known}


class TrainingJob(Common):
    """`specs`: the field with its replica specs. Ranks are numbered across the roles in `ranked`, in that order."""

    suspend_path = ("spec", "runPolicy", "suspend")
    complete_conditions = ("Succeeded",)
    name_labels = (NAME_LABEL,)
    specs = ""
    ranked: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()

    def selectors(self, top: Object) -> tuple[str, ...]:
        name = objects.name(top)
        return f"{NAME_LABEL}={name}", f"{OLD_NAME_LABEL}={name},{_OLD_GROUP}"

    def place(self, pod: Object, _top: Object) -> PodPlace:
        role = label(pod, "replica-type").lower() or "worker"
        return PodPlace(role, objects.count(label(pod, "replica-index")), role)

    def roles(self, sight: Sight, seen: Mapping[str, int]) -> tuple[JobRole, ...]:
        stated = replica_specs(sight.top, self.specs) or in_order(seen)
        roles, rank = [], 0
        for name, count in sorted(stated.items(), key=lambda item: item[0] in self.uncounted):
            ranked = name in self.ranked
            roles.append(JobRole(name, count, rank if ranked else None, counted=name not in self.uncounted))
            rank += count if ranked else 0
        return tuple(roles)

    def unfinished(self, sight: Sight, workers: Sequence[Worker]) -> JobStatus:
        """The pods decide, because condition Running may be from before a suspension."""
        verdict = super().unfinished(sight, workers)
        restarting = objects.holds(objects.conditions(sight.top), "Restarting")
        if restarting is not None and verdict.state in (State.PENDING, State.STARTING, State.RESTARTING):
            return JobStatus(State.RESTARTING, *objects.word(restarting))
        return verdict

    def hint(self, top: Object) -> State:
        return State.RUNNING if objects.holds(objects.conditions(top), "Running") else State.PENDING


class PyTorchJob(TrainingJob):
    """Without a Master the workers' ranks begin at 0."""

    resource = Resource(GROUP, "pytorchjobs", "PyTorchJob", ("v1",))
    containers = ("pytorch",)
    specs = "pytorchReplicaSpecs"
    ranked = ("master", "worker")


class TFJob(TrainingJob):
    """TensorFlow numbers tasks by type, so there are no node ranks."""

    resource = Resource(GROUP, "tfjobs", "TFJob", ("v1",))
    containers = ("tensorflow",)
    specs = "tfReplicaSpecs"


class XGBoostJob(TrainingJob):
    resource = Resource(GROUP, "xgboostjobs", "XGBoostJob", ("v1",))
    containers = ("xgboost",)
    specs = "xgbReplicaSpecs"
    ranked = ("master", "worker")


class PaddleJob(TrainingJob):
    """Its master assigns ranks as workers join."""

    resource = Resource(GROUP, "paddlejobs", "PaddleJob", ("v1",))
    containers = ("paddle",)
    specs = "paddleReplicaSpecs"


class JAXJob(TrainingJob):
    resource = Resource(GROUP, "jaxjobs", "JAXJob", ("v1",))
    containers = ("jax",)
    specs = "jaxReplicaSpecs"
    ranked = ("worker",)


class MPIJobV1(TrainingJob):
    """Ranks follow the hostfile, which lists workers by index. The launcher only runs mpirun."""

    resource = Resource(GROUP, "mpijobs", "MPIJob", ("v1",))
    containers = ("mpi",)
    specs = "mpiReplicaSpecs"
    ranked = ("worker",)
    uncounted = ("launcher",)
