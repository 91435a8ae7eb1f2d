"""Finds the pod and container of a request to a node, and whether the node answers."""

from __future__ import annotations

from typing import Any

from tests.apiserver import podstatus, statuses
from tests.apiserver.cluster import Call
from tests.apiserver.statuses import Refusal
from tests.apiserver.store import Record

Object = dict[str, Any]


def container(call: Call) -> tuple[Record, str]:
    """Pod and container of an exec or log request. Raises Refusal: 404, or 400 if the container is ambiguous."""
    record = call.cluster.store.pod(call.namespace, call.name)
    if record is None:
        raise statuses.not_found(call.resource, call.name)
    names = [one["name"] for one in podstatus.containers(record.obj)]
    inits = [one["name"] for one in podstatus.init_containers(record.obj)]
    ephemeral = [one["name"] for one in record.obj["spec"].get("ephemeralContainers") or []]
    wanted = call.get("container")
    if not wanted:
        if len(names) == 1:
            return record, names[0]
        text = f"a container name must be specified for pod {call.name}, choose one of: [{' '.join(names)}]"
        if inits:
            text += f" or one of the init containers: [{' '.join(inits)}]"
        raise statuses.bad_request(text)
    if wanted not in names + inits + ephemeral:
        raise statuses.bad_request(f"container {wanted} is not valid for pod {call.name}")
    return record, wanted


def container_spec(pod: Object, name: str) -> Object | None:
    listed = podstatus.containers(pod) + podstatus.init_containers(pod)
    return next((one for one in listed if one["name"] == name), None)


def is_running(record: Record, name: str) -> bool:
    return podstatus.is_running(record.obj, name)


def reachable(call: Call, record: Record, name: str) -> None:
    """Raises Refusal (500) if the pod's node does not answer."""
    if record.obj["spec"].get("nodeName") in call.cluster.kubelet.down:
        address = record.obj.get("status", {}).get("hostIP", podstatus.NODE_IP)
        text = f"dial tcp {address}:10250: connect: connection refused"
        if call.sub == "log":
            text = f'Get "https://{address}:10250/containerLogs/{call.namespace}/{call.name}/{name}": {text}'
        else:
            text = f"error dialing backend: {text}"
        raise Refusal(500, "", text)
