"""Judges the platform's reports about workers and nodes.

Reasons are those of Kubernetes: states of pods and containers, conditions, events of the kubelet, the scheduler, the
node controller and node-problem-detector. Few of them prove anything: a reason is often set by the component that saw
the end, not by the one that caused it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from atlctl.diagnosis.result import GpuIdentity
from atlctl.diagnosis.signatures import builtin_matcher, signature_of_xid
from atlctl.i18n import Message, given, joined
from atlctl.jobs.errors import by_signal

#: `proves`: it happened to this worker or node, without another explanation. `hints`: other causes fit as well.
Certainty = Literal["proves", "hints"]


@dataclass(frozen=True, slots=True)
class PlatformState:
    """A worker as its platform saw it last. `finished` is in seconds since the epoch by the node's clock.

    `reason` is the pod's if it has one (`Evicted`), else the container's (`OOMKilled`) or the condition's
    (`PreemptionByScheduler`); `exit_code` and `signal` are the container's.
    """

    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    message: str = ""
    finished: float | None = None
    restarts: int = 0
    node: str | None = None
    host_ip: str | None = None
    addresses: tuple[str, ...] = ()
    gpus: tuple[GpuIdentity, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `kind` is the kind of the object it is about (`Pod`, `Node`).

    `time` is its last occurrence, `first` its first one, in seconds. `worker` is the name that the event uses: on
    Kubernetes the pod's, also if the event is about the job and names a pod.
    """

    time: float | None
    worker: str | None
    node: str | None
    kind: str
    reason: str
    message: str
    first: float | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The conclusion from one report. `strong`: two signs agree, though they still prove nothing."""

    category: str
    certainty: Certainty
    text: str
    strong: bool = False


def judge_state(state: PlatformState) -> Judgement | None:
    """Judges a worker's end by its state; None if it proves nothing, like exit code 0 and `Succeeded`."""
    killed = state.signal == 9 or state.exit_code == 137
    if state.reason == "OOMKilled":
        return _oom_killed(killed)
    if state.reason == "Evicted":
        return _evicted(state.message)
    if found := _STATES.get(state.reason):
        return found
    if state.reason in _NEVER_STARTED:
        return _never_started(state)
    if state.reason.startswith("OutOf") or state.reason in ("UnexpectedAdmissionError", "NodeAffinity"):
        return Judgement("admission", "proves", Message("the node refused the worker before its container started"))
    return _ended_by_signal(state)


def judge_event(event: Event) -> Judgement | None:
    """Judges a worker's failure by an event; None for most events."""
    if number := xid(event.message):
        return _of_xid(number[1])
    if "fallen off the bus" in event.message:
        return _of_xid(79)
    if event.reason == "Evicted":
        return _evicted(event.message)
    if event.reason == "OOMKilling":
        return _oom_event(event.message)
    if event.reason == "EvictionThresholdMet":
        return _short(event.message)
    if event.reason in ("Failed", "BackOff"):
        return _failed_to_start(event.message)
    if event.reason == "Killing" and "liveness probe" in event.message:
        return Judgement(
            "liveness_probe", "proves", Message("the kubelet restarted the container: its liveness probe failed")
        )
    if event.reason == "TaintManagerEviction" and event.message.startswith("Cancelling"):
        return None
    return _EVENTS.get(event.reason) or _STATES.get(event.reason)


def _of_xid(number: int) -> Judgement:
    signature = signature_of_xid(number)
    meaning = given(signature.meaning.en.rstrip("."), signature.meaning.zh.rstrip("。"))
    text = Message("Xid {number}: {meaning}", number=number, meaning=meaning)
    return Judgement(signature.category, "proves" if signature.hardware else "hints", text)


_PCI = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?"
_XID = re.compile(
    rf"\bXid(?: (?:error|code|event))?[ :=]{{0,3}}(?:\((?:PCI:)?({_PCI})\): )?(\d{{1,3}})\b", re.IGNORECASE
)


def xid(message: str) -> tuple[str | None, int] | None:
    """PCI address and number of the first Xid in a kernel's message: `NVRM: Xid (PCI:0000:3b:00): 79, pid=...`."""
    match = _XID.search(message)
    return (match[1] or None, int(match[2])) if match else None


def _oom_killed(killed: bool) -> Judgement:
    if killed:
        text = Message("out of memory: the kernel killed a process of the container, which ended by SIGKILL")
    else:
        text = Message(
            "the kernel killed a process of the container to free memory: a child, or a command of exec; "
            "the container itself may have ended for another reason"
        )
    return Judgement("memory_limit_kill", "hints", text, strong=killed)


def _oom_event(message: str) -> Judgement:
    """Judges an event with the kernel's OOM line, which shows whether a limit or the host's memory was exceeded."""
    found = builtin_matcher().match(message)
    known = found is not None and found.signature.id in ("oom_cgroup", "oom_host")
    category = found.signature.category if found is not None and known else "oom_kill"
    text = Message("the kernel killed a process on the node to free memory; its message may name the process")
    return Judgement(category, "hints", text)


def _evicted(message: str) -> Judgement:
    """Judges an eviction by the kubelet. Its message names the scarce resource."""
    if "emptydir" in message.lower():
        text = Message(
            "the kubelet evicted the worker: an emptyDir volume was over its limit (of memory medium: /dev/shm)"
        )
        return Judgement("disk_full", "proves", text)
    if _of_disk(message):
        return Judgement("disk_full", "proves", Message("the kubelet evicted the worker: local disk was short"))
    if "memory" in message.lower():
        return Judgement(
            "host_oom_kill", "proves", Message("the kubelet evicted the worker: the node was short of memory")
        )
    return Judgement("preemption", "proves", Message("the worker was evicted from its node"))


def _short(message: str) -> Judgement:
    """Judges a node on which the kubelet reclaims resources."""
    if _of_disk(message):
        return Judgement("disk_full", "hints", Message("the node was short of local disk"))
    return Judgement("host_oom_kill", "hints", Message("the node was short of memory"))


def _of_disk(message: str) -> bool:
    low = message.lower()
    return any(word in low for word in ("ephemeral", "inode", "diskpressure", "disk pressure"))


def _never_started(state: PlatformState) -> Judgement:
    category, text = _NEVER_STARTED[state.reason]
    ran = state.exit_code is not None and state.reason not in _MADE_UP_CODE
    if state.restarts or ran:
        ran_before = Message("it had run before, and that end may have another reason")
        return Judgement(category, "hints", joined([text, ran_before]))
    return Judgement(category, "proves", Message("{why}: the worker never started", why=text))


def _ended_by_signal(state: PlatformState) -> Judgement | None:
    """Judges exit codes of 128 + N. A launch script may return its child's exit code or any other."""
    number = state.signal
    if not number and state.exit_code is not None:
        number = state.exit_code - 128
    if not number or not 0 < number <= 64:
        return None
    category, text = _SIGNALS.get(number, ("terminated", by_signal(number)))
    return Judgement(category, "hints", text)


def _failed_to_start(message: str) -> Judgement | None:
    """Events `Failed` and `BackOff` distinguish images and containers only in their message."""
    if "image" in message or "ImagePull" in message:
        return Judgement("image_pull", "hints", Message("the image could not be pulled"))
    if message.startswith("Error: ") and "exit" not in message:
        return Judgement("container_config", "hints", Message("the container could not be made"))
    return None


_SIGNALS: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        1: ("terminal_hangup", Message("ended by SIGHUP: its terminal or session was closed")),
        2: ("interrupted", Message("ended by SIGINT")),
        4: ("native_crash", Message("ended by SIGILL: an instruction that this CPU does not have")),
        6: ("native_crash", Message("ended by SIGABRT")),
        7: ("shm_bus_error", Message("ended by SIGBUS: often /dev/shm is full")),
        8: ("native_crash", Message("ended by SIGFPE")),
        9: (
            "killed",
            Message(
                "killed by SIGKILL: out of memory (not reported as OOMKilled), the end of a grace period, or a user"
            ),
        ),
        11: ("native_crash", Message("ended by SIGSEGV")),
        15: ("preemption", Message("ended by SIGTERM: an eviction, a preemption, a deletion, or its own launcher")),
    }
)

_OUTRANKED = Judgement("preemption", "proves", Message("the scheduler ended the worker for a pod of higher priority"))
_SHUT_DOWN = Judgement("node_lost", "proves", Message("the node was shut down"))
_REMOVED = Judgement("node_lost", "proves", Message("the node was removed from the cluster"))
_TAINTED = Judgement(
    "node_lost", "hints", Message("the worker was deleted for a taint of its node: mostly a node that was not ready")
)
#: Reasons of pods, containers and conditions that have a fixed judgement.
_STATES: Mapping[str, Judgement] = MappingProxyType(
    {
        "Preempting": Judgement("preemption", "proves", Message("the kubelet ended the worker for a critical pod")),
        "Preempted": _OUTRANKED,
        "PreemptionByScheduler": _OUTRANKED,
        "EvictionByEvictionAPI": Judgement(
            "preemption",
            "proves",
            Message("the worker was evicted through the API: a node drain, or an autoscaler"),
        ),
        "TerminationByKubelet": Judgement(
            "preemption",
            "proves",
            Message("the kubelet ended the worker: its node is shutting down, is short of a resource, or needs room"),
        ),
        "DeletionByTaintManager": _TAINTED,
        "DeletionByDeviceTaintManager": Judgement(
            "gpu_hardware", "hints", Message("the worker was deleted for a taint of a device that it used")
        ),
        "DeletionByPodGC": Judgement(
            "node_lost", "hints", Message("the worker's pod was cleaned up: mostly its node does not exist any more")
        ),
        "NodeLost": Judgement(
            "node_lost", "hints", Message("the node stopped reporting; the worker itself may have gone on")
        ),
        "NodeShutdown": _SHUT_DOWN,
        "Shutdown": _SHUT_DOWN,
        "Terminated": Judgement("node_lost", "proves", Message("the kubelet ended the worker: its node was shut down")),
        "ContainerStatusUnknown": Judgement(
            "node_lost", "hints", Message("the kubelet lost track of the container; its exit code 137 is a placeholder")
        ),
        "DeadlineExceeded": Judgement(
            "deadline", "proves", Message("the worker ran longer than its job allows (activeDeadlineSeconds)")
        ),
    }
)

_NOT_PULLED = ("image_pull", Message("its image could not be pulled"))
_NOT_RUN = ("container_config", Message("its container could not be run"))
#: Reasons of a waiting container, or of an unscheduled pod -> category, text.
_NEVER_STARTED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "Unschedulable": ("not_scheduled", Message("no node had room for it")),
        "SchedulingGated": ("not_scheduled", Message("its scheduling is held back (a queue)")),
        "ImagePullBackOff": _NOT_PULLED,
        "ErrImagePull": _NOT_PULLED,
        "ErrImageNeverPull": ("image_pull", Message("its image is not on the node and must not be pulled")),
        "InvalidImageName": ("image_pull", Message("its image's name is not valid")),
        "CreateContainerConfigError": (
            "container_config",
            Message("a secret, a configuration or a key that it needs is missing"),
        ),
        "CreateContainerError": ("container_config", Message("its container could not be made")),
        "RunContainerError": _NOT_RUN,
        "ContainerCannotRun": _NOT_RUN,
        "StartError": ("container_config", Message("its command could not be started")),
    }
)

#: Of these, the runtime sets an exit code (128) though nothing ran.
_MADE_UP_CODE = ("StartError", "ContainerCannotRun", "RunContainerError", "CreateContainerError")

#: Reasons of events that are not in `_STATES`.
_EVENTS: Mapping[str, Judgement] = MappingProxyType(
    {
        "SystemOOM": Judgement(
            "host_oom_kill",
            "hints",
            Message("the node itself was out of memory; the killed process may belong to another pod"),
        ),
        "TaintManagerEviction": _TAINTED,
        "NodeNotReady": Judgement(
            "node_lost", "hints", Message("the node stopped reporting; its workers may have gone on without it")
        ),
        "Rebooted": Judgement("node_lost", "proves", Message("the node was rebooted")),
        "DeletingNode": _REMOVED,
        "RemovingNode": _REMOVED,
        "FailedScheduling": Judgement("not_scheduled", "hints", Message("no node had room for the worker then")),
        "FailedMount": Judgement(
            "volume_mount", "hints", Message("a volume could not be mounted then; the kubelet tries again")
        ),
        "FailedAttachVolume": Judgement("volume_mount", "hints", Message("a volume could not be attached then")),
        "FailedCreatePodSandBox": Judgement(
            "container_config", "hints", Message("the pod's network or sandbox was not made")
        ),
        "ErrImageNeverPull": Judgement(
            "image_pull", "hints", Message("the image is not on the node and must not be pulled")
        ),
    }
)
