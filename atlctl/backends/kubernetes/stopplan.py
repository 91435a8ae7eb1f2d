"""Plans a stop or resume: turns a found job into requests with preconditions.

Sends no request. Every write has the UID of its object, so that a new object of the same name is left alone. Cluster
texts in a plan are untrusted and must be cleaned before display.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from atlctl.backends.base import Plan, StopRequest, as_it_is, some_of
from atlctl.backends.kubernetes import discovery, objects, queueing
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.discovery import Served
from atlctl.backends.kubernetes.inventory import FoundJob
from atlctl.backends.kubernetes.kinds import registry
from atlctl.backends.kubernetes.kinds.base import JobKind, on_other_cluster, queue_of
from atlctl.backends.kubernetes.kinds.mechanism import Mechanism, Refuse, Suspend, VolcanoCommand, Workload
from atlctl.backends.kubernetes.kinds.trainingoperator import TrainingJob
from atlctl.i18n import COMMA, Message, joined, plural
from atlctl.jobs import fields
from atlctl.jobs.errors import LEAVE_ONE_OUT, AtlctlError, NotAllowed, UsageError
from atlctl.jobs.model import State, Worker

#: Goals: the job is suspended, deleted or resumed, or its processes have ended.
Goal = Literal["asleep", "gone", "awake", "processes"]


#: Suffixes of annotations and labels in which platforms record the creator of a job.
_PEOPLE = frozenset(
    ("creator", "creatorid", "created-by", "createdby", "owner", "user", "username", "submitted-by", "submitter")
)
_TEXT = 120
_SOON = Message("try again in a moment")

Fact = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Write:
    """A request. `uid`: of its object, also in the body.

    `verify`: an object to read first, whose UID must be `uid`, because a POST has no preconditions. `expect`: a field
    with its value that the answer must contain; otherwise the request had no effect.
    """

    method: Literal["PATCH", "POST", "DELETE"]
    path: str
    body: Object
    what: str
    uid: str
    verify: str = ""
    expect: tuple[tuple[str, ...], object] | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """Private part of a plan. `quick`: done as soon as the server accepts it."""

    found: FoundJob
    goal: Goal
    writes: tuple[Write, ...] = ()
    grace: float = 0.0
    quick: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """The environment of the job.

    `workloads`: those of Kueue for this job; `problems`: errors by `plural.group` that could not be listed. `place`:
    shown to the user; `options`: command-line options that select it. `now`: seconds since the epoch.
    """

    served: Served
    workloads: Sequence[Object]
    problems: Mapping[str, AtlctlError]
    place: str
    options: tuple[str, ...]
    now: float


def stop(found: FoundJob, world: World, workers: Sequence[Worker], request: StopRequest) -> Plan:
    """Plan a stop. Raises UsageError or AtlctlError with the native command, NotAllowed."""
    if request.delete and request.keep:
        raise UsageError(Message("--delete and --keep exclude each other"), LEAVE_ONE_OUT)
    running = tuple(worker for worker in workers if worker.state.active)
    if request.keep:
        return _processes(found, world, running, request)
    if {worker.name for worker in workers} != {worker.name for worker in found.job.workers}:
        raise UsageError(
            Message("a cluster job can only be stopped as a whole"),
            Message("--keep ends the processes of some of its workers"),
        )
    _known(found)
    if request.delete:
        return _delete(found, world, running)
    mechanism, note = _mechanism(found, world, resume=False)
    if isinstance(mechanism, Refuse):
        why = mechanism.why
        if mechanism.deletable:
            why = Message("{why}; --delete deletes it for good", why=why)
        raise UsageError(Message("job {job}: {why}", job=found.job.name, why=why), mechanism.command)
    job, top = found.job, found.sight.top
    asked = _asked(found, world, mechanism)
    left = [worker for worker in running if worker.state is not State.STOPPING]
    if not job.state.active and left:
        text = Message("job {job} is {state}, so it cannot be suspended, and {count} of its workers still run")
        raise AtlctlError(
            text.filled(job=job.name, state=job.state, count=len(left)),
            shlex.join(["atlctl", "stop", _form(found), *world.options, "--delete"]),
        )
    if objects.meta(top).get("deletionTimestamp"):
        return Plan(job, (), "delete", nothing=Message("job {job} is being deleted", job=job.name))
    if not job.state.active or (asked and not running):
        return Plan(job, (), "suspend", nothing=as_it_is(job))
    how, sentence, writes = _requests(found, world, mechanism)
    if note:
        sentence = Message("{request} ({note})", request=sentence, note=note)
    undo = shlex.join(["atlctl", "resume", _form(found), *world.options])
    facts = [
        *_about(found, world.place, world.now, running),
        ("how", Message("{request}; already requested before", request=sentence) if asked else sentence),
        ("lost", _lost(found.kind)),
        ("back", Message("{command}  (new pods, from the last checkpoint)", command=undo)),
        *_doubts(world),
    ]
    steps = Steps(found, "asleep", () if asked else writes)
    return Plan(job, running, how, tuple(facts), world.place, undo, loses_logs=True, ends_terminal=True, steps=steps)


def resume(found: FoundJob, world: World) -> Plan:
    """Plan a resume. Raises as `stop`."""
    _known(found)
    job, kind, top = found.job, found.kind, found.sight.top
    mechanism, _ = _mechanism(found, world, resume=True)
    if isinstance(mechanism, Refuse):
        raise UsageError(Message("job {job}: {why}", job=job.name, why=mechanism.why), mechanism.command)
    if not _asked(found, world, mechanism):
        if not job.state.active:
            raise AtlctlError(
                Message("job {job} is {state}: it cannot be resumed", job=job.name, state=job.state.label),
                Message("start it again"),
            )
        return Plan(job, (), "resume", nothing=as_it_is(job))
    if objects.meta(top).get("deletionTimestamp"):
        raise AtlctlError(
            Message("job {job} is being deleted: it cannot be resumed", job=job.name), f"atlctl ps {job.name}"
        )
    how, sentence, writes = _requests(found, world, mechanism)
    undo = shlex.join(["atlctl", "stop", _form(found), *world.options])
    facts = [*_about(found, world.place, world.now, ()), ("how", sentence)]
    if isinstance(mechanism, Workload):
        facts.append(("then", Message("it goes back to its queue, and may wait there")))
    if kind.suspended(top) and any(worker.state.active for worker in job.workers):
        facts.append(("note", Message("earlier pods are still ending")))
    quick = not isinstance(mechanism, VolcanoCommand)
    return Plan(job, (), how, tuple(facts), world.place, undo, steps=Steps(found, "awake", writes, quick=quick))


def _known(found: FoundJob) -> None:
    """Raises NotAllowed if the job's object may not be read: its owner, and so the effect of a stop, is unknown."""
    if not found.readable and found.kind is not registry.PODS:
        resource = found.kind.resource.name
        raise NotAllowed(
            Message(
                "job {job} is not stopped: not allowed to read it ({resource})", job=found.job.name, resource=resource
            ),
            "atlctl doctor",
        )


def _mechanism(found: FoundJob, world: World, *, resume: bool) -> tuple[Mechanism, str]:
    """The mechanism, with a remark."""
    kind, top = found.kind, found.sight.top
    own = sorted(world.workloads, key=lambda item: not _owned(item, objects.uid(top)))
    mechanism = queueing.stopping(kind, top, own, resume=resume)
    if not isinstance(mechanism, Workload) or mechanism.name:
        return mechanism, ""
    refused = world.problems.get(discovery.WORKLOADS.name)
    if refused is not None:
        raise NotAllowed(
            Message("Kueue manages job {job}, and {why}", job=found.job.name, why=refused.message), "atlctl doctor"
        )
    if discovery.WORKLOADS.name in world.served.versions and kind.suspended(top) and not on_other_cluster(top):
        raise AtlctlError(Message("Kueue has made no Workload for job {job} yet", job=found.job.name), _SOON)
    return (
        kind.resume(top) if resume else kind.stop(top),
        Message("its label names the queue {queue}, but Kueue has no Workload of it", queue=queue_of(top)),
    )


def _owned(obj: Object, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in fields.entries(objects.meta(obj).get("ownerReferences")))


def _asked(found: FoundJob, world: World, mechanism: Mechanism) -> bool:
    """Whether suspension was already requested."""
    if isinstance(mechanism, Workload):
        entry = next((item for item in world.workloads if objects.uid(item) == mechanism.uid), {})
        return not queueing.workload(entry).active
    return found.kind.suspended(found.sight.top)


def _requests(found: FoundJob, world: World, mechanism: Mechanism) -> tuple[str, str, tuple[Write, ...]]:
    """Mechanism for programs, sentence for the user, and requests."""
    top, resource = found.sight.top, found.kind.resource
    place, name, uid = found.job.namespace or "", objects.name(top), objects.uid(top)
    path = resource.path(found.version, place, name)
    what = f"{found.kind.title} {name}"
    match mechanism:
        case Suspend(field, value):
            body = {**mechanism.body, "metadata": {"uid": uid}}
            sentence = Message("{field} of the {kind} is set to {value}")
            sentence = sentence.filled(field=".".join(field), kind=found.kind.title, value=str(value).lower())
            how = "suspend" if value else "resume"
            return how, sentence, (Write("PATCH", path, body, what, uid, expect=(field, value)),)
        case Workload(workload, workload_uid, active):
            where = world.served.path(discovery.WORKLOADS, place, workload)
            if where is None:
                raise AtlctlError(Message("the cluster no longer serves Kueue's Workloads"), _SOON)
            body = {**mechanism.body, "metadata": {"uid": workload_uid}}
            sentence = Message("spec.active of Kueue's Workload {workload} is set to {value}")
            sentence = sentence.filled(workload=workload, value=str(active).lower())
            if not active:
                why = Message("a job that is only suspended would be started again")
                sentence = Message("{request}: {why}", request=sentence, why=why)
            write = Write(
                "PATCH", where, body, f"Workload {workload}", workload_uid, expect=(("spec", "active"), active)
            )
            return ("activate" if active else "deactivate"), sentence, (write,)
        case VolcanoCommand(action):
            where = world.served.path(discovery.COMMANDS, place)
            if where is None:
                raise AtlctlError(
                    Message("the cluster does not serve Volcano's Command (bus.volcano.sh)"), "atlctl doctor"
                )
            write = Write(
                "POST", where, mechanism.body(top, found.version), what, uid, path, expect=(("action",), action)
            )
            how = "abort" if action == "AbortJob" else "resume"
            return how, Message("Volcano's command {action}", action=action), (write,)
        case Refuse():
            raise UsageError(mechanism.why, mechanism.command)


def _delete(found: FoundJob, world: World, running: tuple[Worker, ...]) -> Plan:
    """Plan a deletion. A queue does not prevent it; the kind or another cluster may."""
    mechanism = queueing.stopping(found.kind, found.sight.top, world.workloads)
    if isinstance(mechanism, Refuse) and not mechanism.deletable:
        raise UsageError(Message("job {job}: {why}", job=found.job.name, why=mechanism.why), mechanism.command)
    job, kind = found.job, found.kind
    pods = kind is registry.PODS
    targets = list(found.pods) if pods else [found.sight.top]
    if pods:
        _bare(found)
    writes = []
    for target in targets:
        name, uid = objects.name(target), objects.uid(target)
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background" if pods else "Foreground",
            "preconditions": {"uid": uid},
        }
        path = kind.resource.path(found.version, job.namespace or "", name)
        writes.append(Write("DELETE", path, options, f"{kind.title} {name}", uid))
    if not pods:
        how = Message("deletes the {kind} and everything it created", kind=kind.title)
    else:
        how = plural("deletes the {kind}", "deletes the {kind}s", len(targets), kind=kind.title)
    facts = [
        *_about(found, world.place, world.now, running),
        ("how", how),
        ("lost", Message("all pods with their logs, and the job itself; this cannot be undone")),
        *_doubts(world),
    ]
    steps = Steps(found, "gone", tuple(writes))
    return Plan(
        job, running, "delete", tuple(facts), world.place, loses_logs=bool(found.pods), ends_terminal=True, steps=steps
    )


def _bare(found: FoundJob) -> None:
    """Refuses to delete pods that have a controller."""
    _selective(found)
    owner = found.owner or next((own for pod in found.pods if (own := objects.controller(pod)) is not None), None)
    if owner is not None:
        named = f"{fields.text(owner.get('kind'))}/{fields.text(owner.get('name'))}"
        raise UsageError(
            Message("pods of {owner} are not deleted: it would create new ones", owner=named),
            Message("stop {owner} itself", owner=named),
        )


def _selective(found: FoundJob) -> None:
    """Refuses a selector that may match all pods."""
    if found.kind is registry.PODS and not objects.uid(found.sight.top) and not restricting(found.job.name):
        raise UsageError(
            Message("the selector matches nearly all pods"), Message("name a label that the pods have: -l app=train")
        )


#: Parts of a selector: commas within parentheses do not separate.
_PARTS = re.compile(r"[^,(]{1,1000}(?:\([^)]{0,4000}\))?")
_DENIES = re.compile(r"^\s{0,20}!|!=|\snotin\s")


def restricting(selector: str) -> bool:
    """Whether a label selector requires a label; an empty or negative one may match all pods."""
    return any(part.strip() and not _DENIES.search(part) for part in _PARTS.findall(selector))


def _processes(found: FoundJob, world: World, running: tuple[Worker, ...], request: StopRequest) -> Plan:
    _selective(found)
    job = found.job
    if not running:
        return Plan(
            job,
            (),
            "processes",
            nothing=Message("job {job} is {state}, and none of its pods runs", job=job.name, state=job.state.label),
        )
    again = shlex.join(["atlctl", "rerun", _form(found), *world.options])
    facts = [
        *_about(found, world.place, world.now, running),
        (
            "how",
            Message(
                "SIGTERM to the training in each worker, then SIGKILL after {grace:g} s; pods and GPUs are kept",
                grace=request.grace,
            ),
        ),
        ("lost", Message("the unsaved state of the training")),
        ("risk", _risk(found)),
        ("back", Message("{command}  (in the same pods, from the last checkpoint)", command=again)),
    ]
    steps = Steps(found, "processes", grace=request.grace)
    return Plan(job, running, "processes", tuple(facts), world.place, loses_logs=True, steps=steps)


def _form(found: FoundJob) -> str:
    return registry.form(found.kind.resource, found.job.name)


def _about(found: FoundJob, place: str, now: float, running: Sequence[Worker]) -> list[Fact]:
    """Facts about the job: place, creator, age, and number of running workers."""
    job, top = found.job, found.sight.top
    facts = [("where", place)]
    if made := _creator(top):
        facts.append(("by", made))
    if found.owner is not None:
        owner = f"{fields.text(found.owner.get('kind'))}/{fields.text(found.owner.get('name'))}"
        facts.append(("owner", Message("{owner}, which atlctl does not know: it may undo this", owner=owner)))
    if job.created is not None:
        facts.append(("age", _age(now - job.created)))
    if running:
        cards = [worker.gpus for worker in running if worker.gpus]
        who: str = some_of(job, running)
        if cards:
            who = joined([who, Message("{count} GPUs", count=sum(cards))], COMMA)
        facts.append(("workers", who))
    else:
        facts.append(("workers", Message("none running (0 of {expected})", expected=job.expected)))
    return facts


def _creator(top: Object) -> str:
    """The creator, as far as known: from annotations or labels, and the program that wrote the object first."""
    found = []
    for source in (objects.notes(top), objects.labels(top)):
        for key, value in source.items():
            if key.rpartition("/")[2].lower() in _PEOPLE and fields.text(value):
                found.append(fields.text(value)[:_TEXT])
    managers = [item for item in fields.entries(objects.meta(top).get("managedFields")) if not item.get("subresource")]
    first = min(managers, key=lambda item: fields.moment(item.get("time")) or 0.0, default={})
    program = fields.text(first.get("manager"))[:_TEXT]
    names = ", ".join(dict.fromkeys(found))
    if names and program:
        return Message("{names} (with {program})", names=names, program=program)
    return names or (program and Message("with {program}", program=program))


def _age(seconds: float) -> str:
    """An age in its two largest units."""
    minutes, left = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (left, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{count} {unit}" for at, (count, unit) in enumerate(parts[:2]) if count or at == 0)


def _lost(kind: JobKind) -> str:
    """Losses that undoing the stop does not restore."""
    whose = Message("all pods") if isinstance(kind, TrainingJob) else Message("the running pods")
    return Message("{whose}, with their logs and files; the unsaved state of the training", whose=whose)


def _risk(found: FoundJob) -> str:
    """The possible effects of ending the processes."""
    policies = {fields.text(objects.spec(pod).get("restartPolicy")) for pod in found.pods}
    if policies & {"Always", "OnFailure"}:
        then = Message("the kubelet restarts it")
    elif any(objects.controller(pod) is not None for pod in found.pods):
        then = Message(
            "the {kind} fails or tries again, and its pods may be deleted with their logs", kind=found.kind.title
        )
    else:
        then = Message("the pod has failed")
    return Message("if a container ends with its training, {consequence}", consequence=then)


def _doubts(world: World) -> list[Fact]:
    """Unknown facts that may matter."""
    problem = world.problems.get(discovery.WORKLOADS.name)
    return (
        [("doubt", Message("cannot check whether Kueue manages it: {why}", why=problem.message))]
        if problem is not None
        else []
    )
