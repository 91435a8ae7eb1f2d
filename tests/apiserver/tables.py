"""Tables for kubectl: pods with the columns of `kubectl get pods`, other objects with name and age."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.apiserver.resources import Resource
from tests.apiserver.store import Record

Object = dict[str, Any]

#: Columns and their priority: 1 is for `-o wide`.
PODS = [(name, 0) for name in ("Name", "Ready", "Status", "Restarts", "Age")]
PODS += [(name, 1) for name in ("IP", "Node", "Nominated Node", "Readiness Gates")]
OTHERS = [("Name", 0), ("Age", 0)]


def table(resource: Resource, records: list[Record], version: str, include: str) -> Object:
    """A Table. `include`: the query's includeObject; by default rows contain only the objects' metadata."""
    pods = resource.plural == "pods"
    columns = [
        {
            "name": name,
            "type": "string",
            "format": "name" if name == "Name" else "",
            "description": "",
            "priority": priority,
        }
        for name, priority in (PODS if pods else OTHERS)
    ]
    rows = []
    for record in records:
        age = _age(record.obj["metadata"].get("creationTimestamp"))
        cells = _pod_cells(record.obj, age) if pods else [record.name, age]
        rows.append({"cells": cells, "object": _object(resource, record, include)})
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": columns,
        "rows": rows,
    }


def _object(resource: Resource, record: Record, include: str) -> Object | None:
    if include == "None":
        return None
    if include == "Object":
        return record.obj
    head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    return head | {"metadata": record.obj["metadata"]}


def _age(created: str | None) -> str:
    if not created:
        return "<unknown>"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"


def _pod_cells(pod: Object, age: str) -> list[str]:
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    listed = status.get("containerStatuses") or []
    beside = [one["name"] for one in spec.get("initContainers") or [] if one.get("restartPolicy") == "Always"]
    listed = listed + [one for one in status.get("initContainerStatuses") or [] if one["name"] in beside]
    restarts = sum(one.get("restartCount", 0) for one in listed)
    ready = sum(bool(one.get("ready")) and "running" in (one.get("state") or {}) for one in listed)
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(spec.get('containers') or []) + len(beside)}",
        pod_word(pod),
        str(restarts),
        age,
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        "<none>",
    ]


def pod_word(pod: Object) -> str:
    """The STATUS column: a container's reason overrides the pod's, a deletion overrides both."""
    status = pod.get("status") or {}
    word = status.get("reason") or status.get("phase") or "Unknown"
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            word = "SchedulingGated"
    init = _init_word(pod)
    if init:
        word = init
    else:
        running = False
        for one in reversed(status.get("containerStatuses") or []):
            state = one.get("state") or {}
            if reason := (state.get("waiting") or {}).get("reason"):
                word = reason
            elif ended := state.get("terminated"):
                word = ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}"
            elif "running" in state and one.get("ready"):
                running = True
        if word == "Completed" and running:
            word = "Running"
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return str(word)


def _init_word(pod: Object) -> str:
    specs = {one["name"]: one for one in pod.get("spec", {}).get("initContainers") or []}
    listed = pod.get("status", {}).get("initContainerStatuses") or []
    for index, one in enumerate(listed):
        state = one.get("state") or {}
        sidecar = specs.get(one["name"], {}).get("restartPolicy") == "Always"
        ended = state.get("terminated")
        if (ended and ended.get("exitCode", 0) == 0) or (sidecar and one.get("started")):
            continue
        if ended:
            return f"Init:{ended.get('reason') or 'ExitCode:' + str(ended['exitCode'])}"
        reason = (state.get("waiting") or {}).get("reason")
        if reason and reason != "PodInitializing":
            return f"Init:{reason}"
        return f"Init:{index}/{len(specs)}"
    return ""
