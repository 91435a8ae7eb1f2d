"""Pod state: a pod's state and reason, its training container and its ranks, from the API.

The API does not show a failed trainer whose script keeps sleeping (Held): `cli/evidence/held.py` reads the logs. Phase
Succeeded and exit code 0 describe the container's end, not the training's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.objects import MAX_COUNT, spec
from atlctl.i18n import Message
from atlctl.jobs.fields import entries, mapping, moment, text, texts, whole
from atlctl.jobs.model import Job, RankMap, State, Worker

#: The annotation with which users choose the container; kubectl uses it, too.
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"

#: Names of the training container on many platforms, for any kind of job.
_USUAL = ("trainer", "pytorch", "node", "main")
_LAUNCHER = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed|mpirun)\b")
_RANK_VARIABLES = frozenset({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "NODE_RANK"})
#: Waiting reasons during a normal start; all others name an obstacle.
_ON_ITS_WAY = frozenset({"", "ContainerCreating", "PodInitializing"})
#: Init containers with a known purpose.
_WAITS = {"init-pytorch": Message("waits for the master's address: the master is not up")}
#: Reasons without information.
_PLAIN_ENDS = frozenset({"", "Error", "Completed"})
_PER_NODE = "PET_NPROC_PER_NODE"
#: With any other rendezvous, torchrun assigns node ranks as agents join.
_RENDEZVOUS = "PET_RDZV_BACKEND"


@dataclass(frozen=True, slots=True)
class Container:
    """The training container. `guessed`: the pod has several containers and nothing names it."""

    name: str | None
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """A pod's state. `reason`: one word of the platform; `message`: its sentence (untrusted text).

    `exit_code` and `signal`: of the trainer's last end; times in seconds since the epoch.
    """

    state: State
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None
    started: float | None = None
    ended: float | None = None


def trainer_container(pod: Object, known: Sequence[str] = (), *, first: bool = False) -> Container:
    """The training container: never an init container or a native sidecar.

    The first match of: the one in the annotation; one of the kind's `known` names; the first container if the kind
    trains there (`first`); the only one with accelerators; a usual name; the only one that starts a launcher or has its
    variables; the first container. Matches from the accelerators on are guesses, except for a usual name.
    """
    containers = {text(item.get("name")): item for item in entries(objects.spec(pod).get("containers"))}
    containers.pop("", None)
    names = list(containers)
    if len(names) <= 1:
        return Container(names[0] if names else None)
    wanted = text(objects.notes(pod).get(DEFAULT_CONTAINER))
    for name in (wanted, *known):
        if name in names:
            return Container(name)
    if first:
        return Container(names[0])
    usual = [name for name in _USUAL if name in names]
    with_cards = [name for name, item in containers.items() if cards(item)]
    if len(with_cards) == 1:
        return Container(with_cards[0], guessed=with_cards[0] not in usual)
    if usual:
        return Container(usual[0])
    for sign in (_launches, _has_ranks):
        having = [name for name, item in containers.items() if sign(item)]
        if len(having) == 1:
            return Container(having[0], guessed=True)
    return Container(names[0], guessed=True)


def _launches(container: Object) -> bool:
    """Whether its command line contains a training launcher."""
    words = (word for key in ("command", "args") for word in texts(container.get(key)))
    return any(_LAUNCHER.search(word) for word in words)


def _has_ranks(container: Object) -> bool:
    """Whether it has environment variables that only training reads."""
    stated = (text(item.get("name")) for item in entries(container.get("env")))
    return any(name.startswith("PET_") or name in _RANK_VARIABLES for name in stated)


def worker_of(pod: Object, container: Container) -> Worker:
    """The worker of a pod. The kind adds name, index, role and ranks."""
    meta, state = objects.meta(pod), objects.status(pod)
    main = _status_of(state, container.name)
    now = _condition(pod, meta, state, main, container.name)
    return Worker(
        name=text(meta.get("name")),
        index=0,
        state=now.state,
        reason=now.reason,
        message=now.message,
        pod=text(meta.get("name")) or None,
        uid=text(meta.get("uid")) or None,
        namespace=text(meta.get("namespace")) or None,
        node=text(objects.spec(pod).get("nodeName")) or None,
        address=text(state.get("podIP")) or None,
        restarts=objects.count(main.get("restartCount")) or 0,
        gpus=pod_cards(pod),
        started=now.started,
        ended=now.ended,
        exit_code=now.exit_code,
        signal=now.signal,
        container=container.name,
        container_guessed=container.guessed,
        image=_image(pod, container.name, main),
    )


def _image(pod: Object, container: str | None, main: Object) -> str | None:
    """The image of a container, with the start of its digest: one tag may name several images."""
    specs = entries(objects.spec(pod).get("containers"))
    image = next((text(item.get("image")) for item in specs if text(item.get("name")) == container), "")
    digest = text(main.get("imageID")).partition("@")[2]
    return f"{image}@{digest[:19]}" if digest and "@" not in image else image or None


def condition(pod: Object, container: str | None) -> Condition:
    """The state of a pod, from its training container (None: the first one)."""
    state = objects.status(pod)
    return _condition(pod, objects.meta(pod), state, _status_of(state, container), container)


def _condition(pod: Object, meta: Object, state: Object, main: Object, container: str | None) -> Condition:
    phase = text(state.get("phase"))
    found = objects.conditions(pod)
    if phase in ("Failed", "Succeeded"):
        return _ended(pod, state, main, container, found)
    lost = phase == "Unknown" or _on_lost_node(found)
    if meta.get("deletionTimestamp"):
        reason, message = objects.word(objects.holds(found, "DisruptionTarget") or {})
        reason = reason or ("NodeLost" if lost else "Terminating")
        return Condition(State.STOPPING, reason, message, started=_started(main))
    if lost:
        reason = text(state.get("reason")) or "NodeLost"
        return Condition(State.UNKNOWN, reason, text(state.get("message")), started=_started(main))
    if phase not in ("Running", "Pending"):
        return Condition(State.UNKNOWN, text(state.get("reason")), text(state.get("message")))
    now = mapping(main.get("state"))
    if type(now.get("running")) is dict:
        return _running(found, now)
    if type(now.get("terminated")) is dict:
        return _ended_in_living_pod(pod, mapping(now["terminated"]))
    return _before(pod, state, main, now, found)


def _running(found: dict[str, Object], now: Object) -> Condition:
    reason, message = objects.word(objects.holds(found, "DisruptionTarget") or {})
    ready = found.get("Ready")
    if not reason and ready is not None and ready.get("status") == "False":
        reason, message = "NotReady", text(ready.get("message"))
    started = moment(mapping(now.get("running")).get("startedAt"))
    return Condition(State.RUNNING, reason, message, started=started)


def _ended_in_living_pod(pod: Object, end: Object) -> Condition:
    """The trainer has ended but the pod has not: a sidecar runs, the phase lags, or the kubelet will restart it."""
    policy = text(objects.spec(pod).get("restartPolicy"))
    failed = end.get("exitCode") != 0
    if policy == "Always" or (failed and policy == "OnFailure"):
        state = State.RESTARTING
    else:
        state = State.FAILED if failed else State.SUCCEEDED
    return _with_end(state, end)


def _before(pod: Object, state: Object, main: Object, now: Object, found: dict[str, Object]) -> Condition:
    """The trainer waits: for a node, init containers, its image or its next attempt."""
    waiting = mapping(now.get("waiting"))
    reason, message = text(waiting.get("reason")), text(waiting.get("message"))
    last = mapping(mapping(main.get("lastState")).get("terminated"))
    if reason == "CrashLoopBackOff" or (last and reason not in _ON_ITS_WAY):
        return replace(_with_end(State.RESTARTING, last), reason=reason, message=message)
    scheduled = found.get("PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False":
        why, says = objects.word(scheduled)
        return Condition(State.QUEUED if why == "SchedulingGated" else State.PENDING, why, says)
    if reason not in _ON_ITS_WAY:
        return Condition(State.PENDING, reason, message)
    if (init := _init(pod, state)) is not None:
        return init
    if not objects.spec(pod).get("nodeName"):
        return Condition(State.PENDING, reason or text(state.get("reason")), message or text(state.get("message")))
    return Condition(State.RESTARTING if last else State.STARTING, reason, message)


def _init(pod: Object, state: Object) -> Condition | None:
    """The state of the first unfinished init container; None if all are done."""
    statuses = {text(item.get("name")): item for item in entries(state.get("initContainerStatuses"))}
    stated = entries(objects.spec(pod).get("initContainers"))
    for done, item in enumerate(stated):
        name = text(item.get("name"))
        status = statuses.get(name, {})
        now = mapping(status.get("state"))
        end = mapping(now.get("terminated"))
        if end and end.get("exitCode") == 0:
            continue
        if item.get("restartPolicy") == "Always" and status.get("started") is True:
            continue  # a native sidecar runs beside the trainer
        waiting = mapping(now.get("waiting"))
        word = text(waiting.get("reason"))
        if end:
            return Condition(State.PENDING, f"Init:{text(end.get('reason')) or 'Error'}", _init_end(name, end))
        if word not in _ON_ITS_WAY:
            return Condition(State.PENDING, f"Init:{word}", text(waiting.get("message")))
        last = mapping(mapping(status.get("lastState")).get("terminated"))
        message = _init_end(name, last) if last else _WAITS.get(name, "")
        return Condition(State.STARTING, f"Init:{done}/{len(stated)}", message)
    return None


def _init_end(name: str, end: Object) -> str:
    return Message(
        "init container {name} ended with exit code {code}", name=name, code=whole(end.get("exitCode"), bits=32)
    )


def _ended(pod: Object, state: Object, main: Object, container: str | None, found: dict[str, Object]) -> Condition:
    """The state of an ended pod. Its own reason takes precedence over its container's: DeadlineExceeded over
    Completed."""
    succeeded = state.get("phase") == "Succeeded"
    now = mapping(main.get("state"))
    end = mapping(now.get("terminated")) or mapping(mapping(main.get("lastState")).get("terminated"))
    result = _with_end(State.SUCCEEDED if succeeded else State.FAILED, end)
    if reason := text(state.get("reason")):
        return replace(result, reason=reason, message=text(state.get("message")) or result.message)
    target = objects.holds(found, "DisruptionTarget")
    if not succeeded and target is not None and result.reason in _PLAIN_ENDS:
        reason, message = objects.word(target)
        return replace(result, reason=reason, message=message)
    if not succeeded and (not end or end.get("exitCode") == 0):
        return _other_failed(pod, state, container, result)
    return result


def _other_failed(pod: Object, state: Object, container: str | None, result: Condition) -> Condition:
    """The pod failed but its trainer did not: names the container that failed."""
    init = _init(pod, state)
    if init is not None and init.reason:
        return replace(result, reason=init.reason, message=init.message)
    for status in entries(state.get("containerStatuses")):
        end = mapping(mapping(status.get("state")).get("terminated"))
        name = text(status.get("name"))
        if name != container and end and end.get("exitCode") != 0:
            return replace(
                result, reason=f"{name}: {text(end.get('reason')) or 'Error'}", message=text(end.get("message"))
            )
    return result


def _with_end(state: State, end: Object) -> Condition:
    """The state from a container's end. If the kubelet lost the status, the exit code is not real."""
    reason = text(end.get("reason"))
    known = reason != "ContainerStatusUnknown"
    return Condition(
        state,
        reason,
        text(end.get("message")),
        whole(end.get("exitCode"), bits=32) if known else None,
        whole(end.get("signal"), bits=32) or None,
        moment(end.get("startedAt")),
        moment(end.get("finishedAt")),
    )


def _on_lost_node(found: dict[str, Object]) -> bool:
    """Whether the node controller has set Ready=False: without a reason and with ContainersReady kept, unlike a
    kubelet."""
    ready, containers = found.get("Ready"), found.get("ContainersReady")
    return (
        ready is not None
        and containers is not None
        and ready.get("status") == "False"
        and not ready.get("reason")
        and containers.get("status") == "True"
    )


def _started(main: Object) -> float | None:
    return moment(mapping(mapping(main.get("state")).get("running")).get("startedAt"))


def _status_of(state: Object, container: str | None) -> Object:
    """The status of a container; empty if the pod has none."""
    statuses = entries(state.get("containerStatuses"))
    for item in statuses:
        if item.get("name") == container:
            return item
    return statuses[0] if statuses and container is None else {}


def stated_ranks(job: Job, pods: Sequence[Object]) -> RankMap | None:
    """Ranks guessed from node ranks and the number of processes per node, if equal in all pods."""
    by_name = {objects.name(pod): pod for pod in pods}
    counts = {_per_node(by_name.get(worker.pod or "", {}), worker.container) for worker in job.workers}
    if len(counts) != 1 or (count := counts.pop()) is None or job.missing:
        return None
    found: dict[int, str] = {}
    for worker in job.workers:
        if worker.node_rank is None:
            return None
        ranks = range(worker.node_rank * count, (worker.node_rank + 1) * count)
        found.update(dict.fromkeys(ranks, worker.name))
    return RankMap(found, Message("node ranks and {variable}={count}", variable=_PER_NODE, count=count), guess=True)


def _per_node(pod: Object, container: str | None) -> int | None:
    """Processes per node, if the container sets it and node ranks are static."""
    for entry in entries(objects.spec(pod).get("containers")):
        if entry.get("name") == container:
            env = {item.get("name"): text(item.get("value")) for item in entries(entry.get("env"))}
            count = env.get(_PER_NODE, "")
            static = env.get(_RENDEZVOUS, "static") == "static"
            return int(count) if static and count.isascii() and count.isdigit() and 0 < len(count) < 4 else None
    return None


# Accelerator resources of a container. A table of vendors' names is used, because a search for "gpu" would miss MIG
# slices and NPUs, and find shares of memory and cores. Names are those of the vendors' device plugins and of HAMi.

#: Resources that are cards, or shares that a container sees as a card.
_CARDS = frozenset(
    (
        *("nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu", "google.com/tpu", "habana.ai/gaudi"),
        *("gpu.intel.com/i915", "gpu.intel.com/xe"),
        *("aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice"),
        *("kunlunxin.com/xpu", "baidu.com/xpu", "cambricon.com/mlu", "cambricon.com/vmlu"),
        *("hygon.com/dcu", "hygon.com/dcunum", "metax-tech.com/gpu", "metax-tech.com/sgpu"),
        *("mthreads.com/gpu", "mthreads.com/vgpu", "iluvatar.ai/gpu", "iluvatar.com/gpu"),
        *("enflame.com/gcu", "enflame.com/vgcu", "enflame.com/drs-gcu", "enflame.com/shared-gcu"),
        *("alibabacloud.com/ppu", "birentech.com/gpu"),
    )
)
#: Prefixes of names that continue with a model or slice size, and the suffix that cards have among them: Baidu and
#: Iluvatar have other resources, too.
_FAMILIES = {
    "nvidia.com/mig-": "",
    "huawei.com/Ascend": "",
    "cambricon.com/mlu": "",
    "iluvatar.ai/": "-vgpu",
    "baidu.com/": "_cgpu",
}
#: Suffixes of names for shares of a card (memory, cores), which do not count as cards.
_SHARES = ("mem", "cores", "-core", "_core", "memory", "_percent", "-percentage", ".vcore", ".vmemory")

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


@lru_cache(maxsize=512)
def is_card(resource: str) -> bool:
    """Whether a resource is an accelerator card, or a share that a container sees as one."""
    if resource in _CARDS or resource.lower().endswith(_SHARES):
        return resource in _CARDS
    return any(resource.startswith(start) and resource.endswith(end) for start, end in _FAMILIES.items())


def cards(container: Object) -> dict[str, int]:
    """Cards of a container by resource: its limits, which equal its requests for such resources."""
    resources = mapping(container.get("resources"))
    stated = mapping(resources.get("limits")) or mapping(resources.get("requests"))
    found = {}
    for resource, quantity in stated.items():
        if is_card(resource) and (number := _quantity(quantity)):
            found[resource] = number
    return found


def pod_cards(pod: Object) -> int | None:
    """Cards of all containers of a pod; None if it lists none, as with dynamic resource allocation."""
    found = 0
    for container in entries(spec(pod).get("containers")):
        if "resources" in container:
            found += sum(cards(container).values())
    return min(found, MAX_COUNT) or None


def _quantity(value: object) -> int | None:
    """A whole quantity: `8`, `1k`. Kubernetes does not allow fractions of extended resources."""
    if type(value) is int:
        return value if 0 < value <= MAX_COUNT else None
    written = text(value)
    if len(written) > 20 or not written.isascii():
        return None
    digits = written.rstrip("kKMGi")
    factor = _SUFFIXES.get(written[len(digits) :])
    if factor is None or not digits.isdigit():
        return None
    number = int(digits) * factor
    return number if 0 < number <= MAX_COUNT else None
