"""Builds a pod's status from the states of its containers."""

from __future__ import annotations

from typing import Any

from tests.apiserver.store import now

Object = dict[str, Any]

NODE_IP = "10.99.0.10"


def containers(pod: Object) -> list[Object]:
    return pod.get("spec", {}).get("containers") or []


def init_containers(pod: Object) -> list[Object]:
    return pod.get("spec", {}).get("initContainers") or []


def container_status(pod: Object, name: str) -> Object | None:
    """The status of a container of any type; None if the pod has none of this name."""
    status = pod.get("status", {})
    groups = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    listed: list[Object] = [one for group in groups for one in status.get(group) or []]
    return next((one for one in listed if one.get("name") == name), None)


def is_running(pod: Object, name: str) -> bool:
    status = container_status(pod, name)
    return status is not None and "running" in (status.get("state") or {})


def waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def running(started: str) -> Object:
    return {"running": {"startedAt": started}}


def terminated(code: int, reason: str, started: str, container_id: str, message: str = "") -> Object:
    state: Object = {"exitCode": code, "reason": reason}
    if message:
        state["message"] = message
    return {"terminated": state | {"startedAt": started, "finishedAt": now(), "containerID": container_id}}


def one_container(spec: Object, state: Object, last: Object, restarts: int, container_id: str) -> Object:
    live = "running" in state
    return {
        "name": spec["name"],
        "state": state,
        "lastState": last,
        "ready": live,
        "restartCount": restarts,
        "image": spec.get("image", "test/image:1"),
        "imageID": "",
        "containerID": container_id,
        "started": live,
    }


def pod_status(pod: Object, statuses: list[Object], init: list[Object], started: str) -> Object:
    """A complete status: phase, conditions, containers. Keeps the reason of an earlier status (Evicted, ...)."""
    states = [status["state"] for status in statuses]
    failed_init = any((s["state"].get("terminated") or {}).get("exitCode") for s in init)
    if states and all("terminated" in state for state in states):
        phase = "Failed" if any(state["terminated"]["exitCode"] for state in states) else "Succeeded"
    elif failed_init and pod["spec"].get("restartPolicy") == "Never":
        phase = "Failed"
    elif any("running" in state or status["restartCount"] for state, status in zip(states, statuses, strict=True)):
        phase = "Running"
    else:
        phase = "Pending"
    ready = bool(states) and all("running" in state for state in states)
    old = pod.get("status") or {}
    status: Object = {
        "phase": phase,
        "conditions": conditions(old, {"Initialized": phase != "Pending" or not init, "Ready": ready}),
        "hostIP": NODE_IP,
        "podIP": old.get("podIP") or "127.0.0.1",
        "startTime": started,
        "qosClass": "BestEffort",
        "containerStatuses": statuses,
    }
    if init:
        status["initContainerStatuses"] = init
    if old.get("reason"):
        status |= {"phase": "Failed", "reason": old["reason"], "message": old.get("message", "")}
    return status


def conditions(old: Object, wanted: dict[str, bool]) -> list[Object]:
    """The pod's conditions; a transition time changes only with its value."""
    values = {"PodReadyToStartContainers": True, "Initialized": True, "Ready": False} | wanted
    values |= {"ContainersReady": values["Ready"], "PodScheduled": True}
    known = {condition["type"]: condition for condition in old.get("conditions") or []}
    found = []
    for kind, value in values.items():
        text = "True" if value else "False"
        was = known.pop(kind, None)
        same = was is not None and was["status"] == text
        found.append(
            was if same else {"type": kind, "status": text, "lastProbeTime": None, "lastTransitionTime": now()}
        )
    return found + [c for kind, c in known.items() if kind in ("DisruptionTarget", "PodResizePending")]


def fake_running(pod: Object, started: str | None = None) -> Object:
    """The status of a pod whose containers run, without processes."""
    at = started or now()
    name = pod["metadata"]["name"]
    statuses = [
        one_container(spec, running(at), {}, 0, f"containerd://fake-{name}-{spec['name']}") for spec in containers(pod)
    ]
    return pod_status(pod, statuses, [], at)
