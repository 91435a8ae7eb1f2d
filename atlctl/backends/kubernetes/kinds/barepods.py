"""Pods without a job: one by name, or those of a selector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.base import Common, JobRole, JobStatus, PodPlace, Resource, Sight, derived
from atlctl.backends.kubernetes.kinds.mechanism import Mechanism, Refuse, kubectl
from atlctl.i18n import Message
from atlctl.jobs.model import Worker

#: Labels in which users put a node rank.
RANK_LABELS = ("node-rank", "node_rank", "rank")


class BarePods(Common):
    """Pods keep their names, which never change, in natural order."""

    resource = Resource("", "pods", "Pod", ("v1",), ("po",))
    own_names = True

    def place(self, pod: Object, _top: Object, /) -> PodPlace:
        return PodPlace(objects.name(pod), None, None)

    def roles(self, _sight: Sight, seen: Mapping[str, int], /) -> tuple[JobRole, ...]:
        return (JobRole("", sum(seen.values())),)

    def suspended(self, _top: Object, /) -> bool:
        return False

    def state(self, _sight: Sight, workers: Sequence[Worker], /) -> JobStatus:
        return derived(workers, final=True)

    def stop(self, top: Object, /) -> Mechanism:
        name = objects.name(top)
        command = kubectl(top, "delete", "pod", name) if name else kubectl(top, "delete", "pods", "-l", "SELECTOR")
        return Refuse(Message("a pod without a job cannot be suspended"), command, deletable=True)

    def resume(self, top: Object, /) -> Mechanism:
        command = kubectl(top, "apply", "-f", "FILE")
        return Refuse(Message("a pod that has ended does not start again; create a new one"), command)


def user_ranks(pods: Sequence[Object]) -> list[int] | None:
    """Node ranks from the user's labels; None unless a label numbers all pods from 0."""
    for key in RANK_LABELS:
        ranks = [objects.count(objects.labels(pod).get(key)) for pod in pods]
        stated = [rank for rank in ranks if rank is not None]
        if len(stated) == len(pods) and set(stated) == set(range(len(pods))):
            return stated
    return None
