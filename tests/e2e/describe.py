"""The state of the suite's pods and jobs, for the report of a failed test."""

from __future__ import annotations

from typing import Any

from tests.e2e.cluster import Cluster, ServerError

#: Lines of each part: the last ones, which are the most relevant to a failure.
LINES = 60
_JOBS = ("jobs.batch", "jobsets.jobset.x-k8s.io", "trainjobs.trainer.kubeflow.org", "pytorchjobs.kubeflow.org")
Object = dict[str, Any]


def describe(cluster: Cluster) -> str:
    """Never raises an error of the server, because it is called while a failure is reported."""
    try:
        pods = [pod_line(pod) for pod in by_age(cluster.list("pods"))]
        jobs = [
            job_line(resource, job)
            for resource in _JOBS
            if resource in cluster.kinds
            for job in by_age(cluster.list(resource))
        ]
        events = [event_line(event) for event in sorted(cluster.list("events"), key=_time)]
    except (ServerError, OSError) as error:
        return f"the cluster could not be asked: {error}"
    parts = {"pods": pods, "jobs": jobs, "events": events}
    return "\n".join(f"-- {name} of {cluster.namespace}\n" + "\n".join(told[-LINES:]) for name, told in parts.items())


def by_age(objects: list[Object]) -> list[Object]:
    return sorted(objects, key=lambda one: str(one["metadata"].get("creationTimestamp", "")))


def pod_line(pod: Object) -> str:
    status = pod.get("status") or {}
    words = [pod["metadata"]["name"], str(status.get("phase")), f"node={pod['spec'].get('nodeName')}"]
    if pod["metadata"].get("deletionTimestamp"):
        words.append("terminating")
    words += [str(status[name]) for name in ("reason", "message") if status.get(name)]
    for one in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        words.append(f"{one['name']}: {_state(one.get('state'))}")
        if one.get("restartCount"):
            words.append(f"restarts={one['restartCount']} last: {_state(one.get('lastState'))}")
    words += [
        f"{one['type']}=False {one.get('reason', '')} {one.get('message', '')}"
        for one in status.get("conditions") or []
        if one.get("status") == "False" and one.get("message")
    ]
    return "  ".join(words)


def _state(state: Object | None) -> str:
    """The name of a container's state and its scalars, as `terminated exitCode=1 reason=Error`."""
    for name, values in (state or {}).items():
        return " ".join([name, *(f"{key}={value}" for key, value in values.items() if key != "containerID")])
    return "unknown"


def job_line(resource: str, job: Object) -> str:
    said = [
        f"{one['type']}={one['status']} {one.get('reason', '')} {one.get('message', '')}".strip()
        for one in (job.get("status") or {}).get("conditions") or []
    ]
    return "  ".join([f"{resource}/{job['metadata']['name']}", *said])


def event_line(event: Object) -> str:
    about = event.get("involvedObject") or {}
    return f"{_time(event)} {about.get('kind')}/{about.get('name')} {event.get('reason')}: {event.get('message')}"


def _time(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp"))
