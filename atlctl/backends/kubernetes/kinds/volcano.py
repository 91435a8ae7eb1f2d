"""Volcano Job (batch.volcano.sh). Commands suspend it, because it has no field for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.base import Common, JobRole, JobStatus, PodPlace, Resource, Sight, derived
from atlctl.backends.kubernetes.kinds.mechanism import Mechanism, VolcanoCommand
from atlctl.jobs import fields
from atlctl.jobs.model import State, Worker

NAME_LABEL = "volcano.sh/job-name"
_PREFIX = "volcano.sh/"

_PHASES = {
    "Pending": State.PENDING,
    "Restarting": State.RESTARTING,
    "Aborting": State.STOPPING,
    "Aborted": State.SUSPENDED,
    "Completing": State.STOPPING,
    "Completed": State.SUCCEEDED,
    "Terminating": State.STOPPING,
    "Terminated": State.STOPPED,
    "Failed": State.FAILED,
}


class VolcanoJob(Common):
    """Training containers have no known name. Ranks are known for a single task and for roles of the pytorch plugin."""

    resource = Resource("batch.volcano.sh", "jobs", "Job", ("v1alpha1",), ("vcjob", "vj", "volcanojob"))
    name_labels = (NAME_LABEL,)

    @property
    def title(self) -> str:
        return "VolcanoJob"

    def place(self, pod: Object, _top: Object, /) -> PodPlace:
        labels, notes = objects.labels(pod), objects.notes(pod)
        role = fields.text(labels.get(_PREFIX + "task-spec")) or fields.text(notes.get(_PREFIX + "task-spec"))
        index = labels.get(_PREFIX + "task-index", notes.get(_PREFIX + "task-index"))
        attempt = objects.count(notes.get(_PREFIX + "job-retry-count"))
        return PodPlace(role or "worker", objects.count(index), role or None, attempt)

    def roles(self, sight: Sight, seen: Mapping[str, int], /) -> tuple[JobRole, ...]:
        stated = {}
        for task in fields.entries(objects.spec(sight.top).get("tasks")):
            replicas = objects.count(task.get("replicas", 1))
            stated[fields.text(task.get("name")) or "worker"] = 0 if replicas is None else replicas
        stated = stated or dict(seen)
        ranked = _ranked(sight.top, stated)
        ranks, rank = {}, 0
        for name in ranked:
            ranks[name] = rank
            rank += stated[name]
        order = [*ranked, *(name for name in stated if name not in ranked)]
        return tuple(JobRole(name, stated[name], ranks.get(name)) for name in order)

    def suspended(self, top: Object, /) -> bool:
        return _phase(top) in ("Aborting", "Aborted")

    def state(self, sight: Sight, workers: Sequence[Worker], /) -> JobStatus:
        found = fields.mapping(objects.status(sight.top).get("state"))
        said = objects.word(found)
        phase = _PHASES.get(_phase(sight.top))
        if phase is State.STOPPED and objects.count(objects.status(sight.top).get("failed")):
            return JobStatus(State.FAILED, said[0] or "Terminated", said[1])  # ended by its own policy
        if phase is not None and not phase.active:
            return JobStatus(phase, *said)
        if objects.meta(sight.top).get("deletionTimestamp"):
            return JobStatus(State.STOPPING, "Terminating")
        if phase is State.SUSPENDED:
            living = any(worker.state.active for worker in workers)
            return JobStatus(State.STOPPING if living else phase, *said)
        if phase in (State.STOPPING, State.RESTARTING):
            return JobStatus(phase, *said)
        if workers:
            return derived(workers)
        return JobStatus(phase or (State.RUNNING if _phase(sight.top) == "Running" else State.PENDING), *said)

    def stop(self, _top: Object, /) -> Mechanism:
        return VolcanoCommand("AbortJob")

    def resume(self, _top: Object, /) -> Mechanism:
        return VolcanoCommand("ResumeJob")


def _phase(top: Object) -> str:
    return fields.text(objects.dig(top, "status", "state", "phase"))


def _ranked(top: Object, tasks: Mapping[str, int]) -> list[str]:
    """The tasks that have torchrun node ranks, in rank order."""
    plugin = objects.dig(top, "spec", "plugins", "pytorch")
    if plugin is None:
        return list(tasks) if len(tasks) == 1 else [name for name in ("master", "worker") if set(tasks) == _BOTH]
    names = {"master": "master", "worker": "worker"}
    for argument in plugin if type(plugin) is list else ():
        key, _, value = fields.text(argument).lstrip("-").partition("=")
        if key in names and value:
            names[key] = value
    return [name for name in dict.fromkeys(names.values()) if name in tasks]


_BOTH = {"master", "worker"}
