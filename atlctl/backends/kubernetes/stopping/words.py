"""What a user is told before a stop: labels and sentences. Texts of the cluster are hostile: who shows them cleans."""

from __future__ import annotations

from collections.abc import Sequence

from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.inventory import Found
from atlctl.backends.kubernetes.kinds import fields
from atlctl.backends.kubernetes.kinds.base import Kind
from atlctl.backends.kubernetes.kinds.trainingoperator import TrainingJob
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Worker
from atlctl.jobs.naming import fold_names

#: Last parts of annotations and labels under which platforms write who made a job.
_PEOPLE = frozenset(
    ("creator", "creatorid", "created-by", "createdby", "owner", "user", "username", "submitted-by", "submitter")
)
_TEXT = 120

Fact = tuple[str, str]


def about(found: Found, place: str, now: float, running: Sequence[Worker]) -> list[Fact]:
    """Where it is, whose, how old, and how much of it runs."""
    job, top = found.job, found.sight.top
    facts = [("where", place)]
    if made := creator(top):
        facts.append(("by", made))
    if found.owner is not None:
        owner = f"{fields.text(found.owner.get('kind'))}/{fields.text(found.owner.get('name'))}"
        facts.append(("owner", f"{owner}, which atlctl does not know: it may undo this"))
    if job.created is not None:
        facts.append(("age", age(now - job.created)))
    if running:
        cards = [worker.gpus for worker in running if worker.gpus]
        gpus = f", {sum(cards)} GPUs" if cards else ""
        facts.append(
            ("workers", f"{fold_names(worker.name for worker in running)} ({len(running)} of {job.expected}){gpus}")
        )
    else:
        facts.append(("workers", f"none runs (0 of {job.expected})"))
    return facts


def creator(top: Object) -> str:
    """Who made it, as far as the object says: a name in annotations or labels, and the program of its first write."""
    found = []
    for source in (fields.notes(top), fields.labels(top)):
        for key, value in source.items():
            if key.rpartition("/")[2].lower() in _PEOPLE and fields.text(value):
                found.append(fields.text(value)[:_TEXT])
    managers = [item for item in fields.entries(fields.meta(top).get("managedFields")) if not item.get("subresource")]
    first = min(managers, key=lambda item: fields.moment(item.get("time")) or 0.0, default={})
    program = fields.text(first.get("manager"))[:_TEXT]
    names = ", ".join(dict.fromkeys(found))
    return f"{names} (with {program})" if names and program else names or (program and f"with {program}")


def age(seconds: float) -> str:
    """An age in its two largest units."""
    left = max(0, int(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for at, (unit, size) in enumerate(units):
        if left >= size or unit == "s":
            text = f"{left // size} {unit}"
            rest = left % size
            if at + 1 < len(units) and rest >= units[at + 1][1]:
                text += f" {rest // units[at + 1][1]} {units[at + 1][0]}"
            return text
    return ""


def lost(kind: Kind) -> str:
    """What a stop that can be taken back destroys all the same."""
    whose = "all pods" if isinstance(kind, TrainingJob) else "the pods that run"
    return f"{whose}, with their logs and files; what the training has not saved"


def risk(found: Found) -> str:
    """What the end of processes may set off."""
    policies = {fields.text(fields.spec(pod).get("restartPolicy")) for pod in found.pods}
    if policies & {"Always", "OnFailure"}:
        then = "the kubelet starts it again"
    elif any(fields.controller(pod) is not None for pod in found.pods):
        then = f"the {found.kind.title} fails or tries again, and its pods may be deleted with their logs"
    else:
        then = "the pod has failed"
    return f"where a container ends with its training, {then}"


def doubts(problems: Sequence[AtlctlError]) -> list[Fact]:
    """What could not be looked at and might matter."""
    unread = [problem for problem in problems if "workloads" in problem.message]
    return [("doubt", f"whether Kueue manages it: {problem.message}") for problem in unread[:1]]
