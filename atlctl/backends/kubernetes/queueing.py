"""Queue state: Kueue's Workloads and PodGroups (Volcano, coscheduling) of a job that does not run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.base import JobKind, on_other_cluster, queue_of
from atlctl.backends.kubernetes.kinds.mechanism import Mechanism, Refuse, Workload, kubectl
from atlctl.i18n import Message
from atlctl.jobs import fields
from atlctl.jobs.model import Job, State

#: Annotation of Volcano and labels of coscheduling with the name of a pod's PodGroup.
_GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
_GROUP_LABELS = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
_JOB_UID = "kueue.x-k8s.io/job-uid"


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A job's entry in a queue or gang. `phase`: the platform's, or derived from its conditions.

    `waits`: the entry keeps the job from running. `active` is False for a deactivated Workload; `cluster`: where
    MultiKueue runs it. `reason` and `message`: why it waits (untrusted text).
    """

    kind: str
    name: str
    phase: str
    waits: bool
    reason: str = ""
    message: str = ""
    queue: str | None = None
    active: bool = True
    cluster: str | None = None


def pod_group(obj: Object) -> QueueEntry:
    """The entry of a PodGroup. Volcano's has a condition Unschedulable, coscheduling's has counts."""
    spec, status = objects.spec(obj), objects.status(obj)
    phase = fields.text(status.get("phase"))
    waits = phase in ("", "Pending", "Inqueue", "PreScheduling", "Scheduling", "Unknown")
    reason = message = ""
    unschedulable = objects.holds(objects.conditions(obj), "Unschedulable")
    if waits and unschedulable is not None:
        reason, message = objects.word(unschedulable)
        reason = reason or "Unschedulable"
    elif waits and (scheduled := objects.count(status.get("scheduled"))) is not None:
        message = Message(
            "{count} of {expected} pods scheduled", count=scheduled, expected=objects.count(spec.get("minMember")) or 0
        )
    queue = fields.text(spec.get("queue")) or None
    return QueueEntry("PodGroup", objects.name(obj), phase, waits, reason, message, queue)


#: Conditions of a Workload, the most specific first: (type, phase, it waits).
_WORKLOAD = (
    ("Finished", "Finished", False),
    ("Evicted", "Evicted", True),
    ("Admitted", "Admitted", False),
    ("QuotaReserved", "QuotaReserved", True),
)


def workload(obj: Object) -> QueueEntry:
    """The entry of a Kueue Workload. Evicted stays True after a new admission: then Admitted counts."""
    found = objects.conditions(obj)
    active = objects.spec(obj).get("active") is not False
    phase, waits, condition = "Pending", True, found.get("QuotaReserved", {})
    for kind, word, waiting in _WORKLOAD:
        held = objects.holds(found, kind)
        if held is None or (kind == "Evicted" and objects.holds(found, "Admitted") is not None):
            continue
        phase, waits, condition = word, waiting, held
        break
    if phase == "QuotaReserved":  # waits for admission checks
        condition = found.get("Admitted", {})
    reason, message = objects.word(condition) if waits or phase == "Finished" else ("", "")
    if not active and phase != "Finished":
        phase, waits, reason = "Deactivated", True, reason or "Deactivated"
    queue = fields.text(objects.spec(obj).get("queueName")) or None
    cluster = fields.text(objects.status(obj).get("clusterName")) or None
    return QueueEntry("Workload", objects.name(obj), phase, waits, reason, message, queue, active, cluster)


def workloads_of(workloads: Iterable[Object], uids: Sequence[str]) -> list[Object]:
    """The Workloads of a job: owned by one of these UIDs, or labelled with it."""
    wanted = frozenset(uids) - {""}
    return [
        obj for obj in workloads if _owners(obj) & wanted or fields.text(objects.labels(obj).get(_JOB_UID)) in wanted
    ]


def pod_groups_of(groups: Iterable[Object], uids: Sequence[str], pods: Iterable[Object]) -> list[Object]:
    """The PodGroups of a job: owned by one of these UIDs, or named by its pods."""
    wanted = frozenset(uids) - {""}
    named = {(objects.namespace(pod), name) for pod in pods if (name := group_of(pod))}
    return [obj for obj in groups if _owners(obj) & wanted or (objects.namespace(obj), objects.name(obj)) in named]


def group_of(pod: Object) -> str | None:
    labels = objects.labels(pod)
    values = (objects.notes(pod).get(_GROUP_ANNOTATION), *(labels.get(key) for key in _GROUP_LABELS))
    return next((value for value in map(fields.text, values) if value), None)


def refined(job: Job, entries: Sequence[QueueEntry]) -> Job:
    """`job` with the reason why it is queued, if none of its workers runs."""
    queue = job.queue or next((entry.queue for entry in entries if entry.queue), None)
    waiting = next((entry for entry in entries if entry.waits), None)
    early = job.state in (State.PENDING, State.QUEUED, State.SUSPENDED)
    if waiting is None or not early:
        return replace(job, queue=queue)
    state = State.SUSPENDED if not waiting.active else State.QUEUED
    if waiting.kind == "PodGroup" and (job.suspended or not (waiting.reason or waiting.message or waiting.phase)):
        return replace(job, queue=queue)
    words = (waiting.reason or waiting.phase, waiting.message)
    return replace(job, state=state, reason=words[0], message=words[1], queue=queue)


def stopping(kind: JobKind, top: Object, workloads: Sequence[Object], *, resume: bool = False) -> Mechanism:
    """The mechanism to stop (or resume) this job: through Kueue if Kueue would revert the kind's own mechanism.

    `workloads`: those of the job. If the queue's label exists but no Workload was found, the mechanism's name is empty.
    """
    if on_other_cluster(top):
        clusters = ", ".join(entry.cluster for obj in workloads if (entry := workload(obj)).cluster)
        where = Message("the cluster {clusters}", clusters=clusters) if clusters else Message("another cluster")
        return Refuse(
            Message("MultiKueue runs it in {where}", where=where),
            kubectl(top, "get", "workloads.kueue.x-k8s.io", "-l", f"{_JOB_UID}={objects.uid(top)}"),
        )
    if workloads or queue_of(top) is not None:
        first = workloads[0] if workloads else {}
        return Workload(objects.name(first), objects.uid(first), active=resume)
    return kind.resume(top) if resume else kind.stop(top)


def _owners(obj: Object) -> set[str]:
    return {fields.text(owner.get("uid")) for owner in fields.entries(objects.meta(obj).get("ownerReferences"))}
