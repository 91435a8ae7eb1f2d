"""JobSet (jobset.x-k8s.io)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.base import Common, JobRole, JobStatus, PodPlace, Resource, Sight
from atlctl.backends.kubernetes.kinds.batch import completion_index
from atlctl.jobs import fields
from atlctl.jobs.model import State, Worker

NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
UID_LABEL = "jobset.sigs.k8s.io/jobset-uid"
RESOURCE = "jobsets.jobset.x-k8s.io"
_PREFIX = "jobset.sigs.k8s.io/"


def parallelism(replicated: Object) -> int:
    """Pods of each Job of a replicatedJob."""
    stated = objects.count(objects.dig(replicated, "template", "spec", "parallelism"))
    return 1 if stated is None else stated


def replicas(replicated: Object) -> int:
    stated = objects.count(replicated.get("replicas"))
    return objects.total([(1 if stated is None else stated) * parallelism(replicated)])


def replicated_jobs(jobset: Object) -> list[Object]:
    return fields.entries(objects.spec(jobset).get("replicatedJobs"))


def place(pod: Object, jobset: Object) -> PodPlace:
    """The pod's place, from its labels. `jobset` has the number of pods in each Job of a role."""
    labels = objects.labels(pod)
    role = fields.text(labels.get(_PREFIX + "replicatedjob-name")) or "worker"
    number = completion_index(pod)
    job = objects.count(labels.get(_PREFIX + "job-index"))
    if job and number is not None:
        each = next((parallelism(item) for item in replicated_jobs(jobset) if item.get("name") == role), None)
        number = None if each is None else objects.count(job * each + number)
    return PodPlace(role, number, role, objects.count(labels.get(_PREFIX + "restart-attempt")))


def restarting(verdict: JobStatus, jobsets: Sequence[Object], workers: Sequence[Worker]) -> JobStatus:
    """`verdict`, or that of a restart in progress.

    Its condition stays True while the new attempt runs, so it counts only until a worker of that attempt runs.
    """
    for jobset in jobsets if verdict.state not in (State.STOPPING, State.SUSPENDED, State.QUEUED) else ():
        condition = objects.holds(objects.conditions(jobset), "RestartingJobSet")
        attempt = objects.count(objects.status(jobset).get("restarts")) or 0
        running = any(worker.state is State.RUNNING and (worker.attempt or 0) >= attempt for worker in workers)
        if condition is not None and not running:
            return JobStatus(State.RESTARTING, *objects.word(condition))
    return verdict


class JobSet(Common):
    """Node ranks are known if there is a single replicatedJob; several may be separate worlds."""

    resource = Resource("jobset.x-k8s.io", "jobsets", "JobSet", ("v1alpha2",))
    direct = False
    name_labels = (NAME_LABEL,)
    complete_conditions = ("Completed",)

    def place(self, pod: Object, top: Object) -> PodPlace:
        return place(pod, top)

    def roles(self, sight: Sight, seen: Mapping[str, int]) -> tuple[JobRole, ...]:
        stated = {fields.text(item.get("name")): replicas(item) for item in replicated_jobs(sight.top)} or dict(seen)
        first_rank = 0 if len(stated) == 1 else None
        return tuple(JobRole(name, count, first_rank) for name, count in stated.items())

    def unfinished(self, sight: Sight, workers: Sequence[Worker]) -> JobStatus:
        return restarting(super().unfinished(sight, workers), [sight.top], workers)

    def hint(self, top: Object) -> State:
        return from_counts(fields.entries(objects.status(top).get("replicatedJobsStatus")))


def from_counts(jobs: Sequence[Object]) -> State:
    """The state from the counts of Jobs: all pods of a `ready` Job are running."""
    if any(objects.count(item.get("ready")) for item in jobs):
        return State.RUNNING
    return State.STARTING if any(objects.count(item.get("active")) for item in jobs) else State.PENDING
