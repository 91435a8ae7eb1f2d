"""MPIJob v2beta1 of mpi-operator. Its CRD has the same name as training-operator's MPIJob; only the version differs."""

from __future__ import annotations

from collections.abc import Mapping

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.base import JobRole, PodPlace, Resource, Sight
from atlctl.backends.kubernetes.kinds.mechanism import Mechanism, Refuse, not_resumed, not_stopped, patch
from atlctl.backends.kubernetes.kinds.trainingoperator import GROUP, TrainingJob, in_order, label, replica_specs

_LAUNCHER = "launcher"
_KIND = "MPIJobs of mpi-operator"


class MPIJobV2(TrainingJob):
    """Workers are pods of the MPIJob; the launcher is a pod of its batch Job."""

    resource = Resource(GROUP, "mpijobs", "MPIJob", ("v2beta1",))
    full = False
    direct = False

    def children(self, top: Object, /) -> tuple[tuple[str, str], ...]:
        return (("jobs.batch", f"{objects.name(top)}-launcher"),)

    def place(self, pod: Object, _top: Object, /) -> PodPlace:
        role = label(pod, "job-role").lower() or label(pod, "replica-type").lower() or "worker"
        number = 0 if role == _LAUNCHER else objects.count(label(pod, "replica-index"))
        return PodPlace(role, number, role)

    def roles(self, sight: Sight, seen: Mapping[str, int], /) -> tuple[JobRole, ...]:
        """The launcher is first, with rank 0, if it also works; else it is a helper."""
        stated = replica_specs(sight.top, "mpiReplicaSpecs") or in_order(seen)
        works = objects.spec(sight.top).get("runLauncherAsWorker") is True
        launchers = stated.get(_LAUNCHER, 0)
        workers = [JobRole(n, c, launchers if works else 0) for n, c in stated.items() if n != _LAUNCHER]
        launcher = [JobRole(_LAUNCHER, launchers, 0 if works else None, counted=works)] if launchers else []
        return (*launcher, *workers) if works else (*workers, *launcher)

    def stop(self, top: Object, /) -> Mechanism:
        return Refuse(not_stopped(_KIND), _suspend(top, "true"), deletable=True)

    def resume(self, top: Object, /) -> Mechanism:
        return Refuse(not_resumed(_KIND), _suspend(top, "false"))


def _suspend(top: Object, value: str) -> str:
    return patch(top, MPIJobV2.resource.name, f'{{"spec":{{"runPolicy":{{"suspend":{value}}}}}}}')
