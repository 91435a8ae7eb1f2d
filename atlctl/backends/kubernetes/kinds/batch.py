"""batch/v1 Job, indexed and plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.base import Common, JobRole, JobStatus, PodPlace, Resource, Sight
from atlctl.jobs import fields
from atlctl.jobs.model import State, Worker

#: On pods of indexed Jobs: an annotation, from Kubernetes 1.28 on also a label.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
NAME_LABEL = "batch.kubernetes.io/job-name"
WORKER = "worker"


def completion_index(pod: Object) -> int | None:
    index = objects.count(objects.labels(pod).get(COMPLETION_INDEX))
    return objects.count(objects.notes(pod).get(COMPLETION_INDEX)) if index is None else index


class BatchJob(Common):
    """Pods of a plain Job have no index and are numbered by creation time.

    When one fails, the Job controller deletes the others, so the order of the remaining pods does not show their
    numbers.
    """

    resource = Resource("batch", "jobs", "Job", ("v1",))
    name_labels = (NAME_LABEL,)

    def selectors(self, top: Object) -> tuple[str, ...]:
        return (f"batch.kubernetes.io/controller-uid={objects.uid(top)}",)

    def place(self, pod: Object, _top: Object) -> PodPlace:
        failures = objects.notes(pod).get("batch.kubernetes.io/job-index-failure-count")
        return PodPlace(WORKER, completion_index(pod), None, objects.count(failures))

    def vanished(self, top: Object, pods: Sequence[Object]) -> int:
        if objects.spec(top).get("completionMode") == "Indexed":
            return 0
        status = objects.status(top)
        uncounted = fields.mapping(status.get("uncountedTerminatedPods"))
        made = objects.total(status.get(name) for name in ("active", "succeeded", "failed"))
        made += sum(len(uids) for uids in uncounted.values() if isinstance(uids, list))
        return max(0, made - len(pods))

    def roles(self, sight: Sight, seen: Mapping[str, int]) -> tuple[JobRole, ...]:
        spec = objects.spec(sight.top)
        indexed = spec.get("completionMode") == "Indexed" if spec else True
        expected = seen.get(WORKER, 0)
        if spec:
            expected = objects.count(spec.get("parallelism", 1)) or 0
            completions = objects.count(spec.get("completions"))
            expected = expected if completions is None else min(expected, completions)
        return (JobRole(WORKER, expected, 0 if indexed else None),)

    def unfinished(self, sight: Sight, workers: Sequence[Worker]) -> JobStatus:
        decided = objects.holds(objects.conditions(sight.top), "FailureTarget", "SuccessCriteriaMet")
        if decided is not None:  # the outcome is decided, but some pods are still ending
            return JobStatus(State.STOPPING, *objects.word(decided))
        return super().unfinished(sight, workers)

    def hint(self, top: Object) -> State:
        status = objects.status(top)
        if objects.count(status.get("ready")):
            return State.RUNNING
        return State.STARTING if objects.count(status.get("active")) else State.PENDING
