"""Kubernetes events of a job: of its object, children, pods, PodGroups, Workloads and nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Api, ApiError, NotFound, Object
from atlctl.backends.kubernetes.kinds.base import Past
from atlctl.backends.questions import ask_each
from atlctl.jobs import fields, podnews
from atlctl.jobs.model import Job

#: Up to this number of objects, events are requested per object; above it, all events of the namespace are listed.
ONE_BY_ONE = 8
#: Concurrent requests.
AT_ONCE = 8
_TEXT = 4096


@dataclass(frozen=True, slots=True)
class About:
    """The worker or node of an object whose events are wanted."""

    worker: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event. `time`: last seen, in seconds since the epoch; `kind`: of the object; `type`: Normal or Warning.

    `count`: number of occurrences. `reason` and `message` come from the cluster (untrusted text).
    """

    time: float | None
    worker: str | None
    node: str | None
    kind: str
    reason: str
    message: str
    count: int
    type: str


async def fetch(
    api: Api, namespace: str, wanted: Mapping[str, About], nodes: Iterable[str] = ()
) -> tuple[list[Object], Mapping[str, About]]:
    """Events that include those of the objects in `wanted` (by UID) and of `nodes` (by name), and the owners by UID.

    Raises the errors of the Api for the job's namespace. Events of nodes are omitted if they may not be read.
    """
    found: list[Object] = []
    path = f"/api/v1/namespaces/{namespace}/events"
    if len(wanted) <= ONE_BY_ONE:

        async def of(uid: str) -> list[Object]:
            return (await api.list(path, {"fieldSelector": f"involvedObject.uid={uid}"})).items

        for items in await ask_each(wanted, of, AT_ONCE):
            found += items
    else:
        found += (await api.list(path)).items
    # The kubelet gives a node's name in place of its UID, other sources no UID.
    of_nodes = {name: About(node=name) for name in nodes}
    if of_nodes:
        found += await _of_nodes(api, of_nodes)
    return found, {**wanted, **of_nodes}


def reported(items: Iterable[Object], about: Mapping[str, About]) -> set[str]:
    """Names of the pods that these objects' events report as created, deleted or exited."""
    own = (item for item in items if str(_object(item).get("uid")) in about)
    found = (podnews.read(str(item.get("reason")), str(item.get("message"))) for item in own)
    return {news.pod for news in found if news is not None}


async def fetch_gone(
    api: Api, namespace: str, job: Job, pods: Collection[str]
) -> tuple[list[Object], dict[str, About]]:
    """Events of deleted pods, known by name only, and their owners by UID; none from before the job."""
    if not pods:
        return [], {}
    path = f"/api/v1/namespaces/{namespace}/events"
    if len(pods) <= ONE_BY_ONE:
        queries = [{"fieldSelector": f"involvedObject.kind=Pod,involvedObject.name={pod}"} for pod in sorted(pods)]
        lists = await asyncio.gather(*(api.list(path, query) for query in queries))
        items = [item for listed in lists for item in listed.items]
    else:
        items = (await api.list(path)).items
    found: list[Object] = []
    about: dict[str, About] = {}
    for item in items:
        its = _object(item)
        pod, uid = str(its.get("name")), str(its.get("uid") or "")
        if its.get("kind") != "Pod" or pod not in pods or not uid:
            continue
        event = _event(item, About())
        if event.time is not None and event.time >= (job.created or 0.0):
            found.append(item)
            about[uid] = About(podnews.worker_of(job.name, pod) or pod)
    return found, about


async def past(api: Api, namespace: str, uid: str) -> tuple[Past, ...]:
    """The pods that a job's events report as created, unordered; empty if the events may not be read."""
    try:
        path = f"/api/v1/namespaces/{namespace}/events"
        listed = await api.list(path, {"fieldSelector": f"involvedObject.uid={uid}"})
    except ApiError:
        return ()
    times: dict[str, dict[str, float]] = {}
    for item in listed.items:
        event = _event(item, About())
        found = podnews.read(event.reason, event.message)
        if found is not None and event.time is not None and _object(item).get("uid") == uid:
            times.setdefault(found.pod, {})[found.what] = event.time
    return tuple(Past(pod, at["created"], at.get("deleted")) for pod, at in times.items() if "created" in at)


async def _of_nodes(api: Api, nodes: Mapping[str, About]) -> list[Object]:
    # Events of nodes are in the namespace "default", independent of the pods' namespace.
    try:
        query = {"fieldSelector": "involvedObject.kind=Node", "limit": "500"}
        listed = await api.list("/api/v1/namespaces/default/events", query)
    except ApiError as error:
        if error.status in (401, 403) or isinstance(error, NotFound):
            return []
        raise
    return [item for item in listed.items if fields.mapping(item.get("involvedObject")).get("name") in nodes]


def sorted_events(items: Iterable[Object], about: Mapping[str, About]) -> Sequence[JobEvent]:
    """Events of the objects in `about`, without duplicates, by time. Reads core/v1 and events.k8s.io/v1."""
    same: dict[tuple[Any, ...], JobEvent] = {}
    for _, event in _latest(items, about):
        same.setdefault((event.time, event.worker, event.node, event.kind, event.reason, event.message), event)
    return sorted(same.values(), key=_order)


def own_objects(items: Iterable[Object], about: Mapping[str, About]) -> list[Object]:
    """The events of `sorted_events` as objects of the cluster."""
    return [item for item, _ in sorted(_latest(items, about), key=lambda pair: _order(pair[1]))]


def _latest(items: Iterable[Object], about: Mapping[str, About]) -> Iterable[tuple[Object, JobEvent]]:
    """The last version of each event, which has the highest count."""
    latest: dict[str, tuple[Object, JobEvent]] = {}
    for item in items:
        its = _object(item)
        known = about.get(str(its.get("uid") or ""))
        if known is None and its.get("kind") == "Node":
            known = about.get(str(its.get("name") or ""))  # for a node, often only the name is given
        if known is None:
            continue
        event = _event(item, known)
        meta = objects.meta(item)
        key = str(meta.get("uid") or (meta.get("namespace"), meta.get("name")))
        if key not in latest or latest[key][1].count <= event.count:
            latest[key] = (item, event)
    return latest.values()


def _order(event: JobEvent) -> tuple[float, str, str, str]:
    return event.time or 0.0, event.worker or "", event.reason, event.message


def _object(item: Object) -> Mapping[str, Any]:
    return fields.mapping(item.get("involvedObject")) or fields.mapping(item.get("regarding"))


def _event(item: Object, about: About) -> JobEvent:
    series = fields.mapping(item.get("series"))
    times = (
        series.get("lastObservedTime"),
        item.get("lastTimestamp"),
        item.get("deprecatedLastTimestamp"),
        item.get("eventTime"),
        item.get("firstTimestamp"),
        item.get("deprecatedFirstTimestamp"),
        objects.meta(item).get("creationTimestamp"),
    )
    known = [when for text in times if (when := fields.moment(text)) is not None]
    counts = (series.get("count"), item.get("count"), item.get("deprecatedCount"))
    count = next((value for value in counts if isinstance(value, int) and value > 0), 1)
    source = fields.mapping(item.get("source")) or fields.mapping(item.get("deprecatedSource"))
    node = about.node or (str(source["host"])[:_TEXT] if source.get("host") else None)
    return JobEvent(
        time=known[0] if known else None,
        worker=about.worker,
        node=node,
        kind=str(_object(item).get("kind") or "")[:_TEXT],
        reason=str(item.get("reason") or "")[:_TEXT],
        message=str(item.get("message") or item.get("note") or "")[:_TEXT],
        count=count,
        type=str(item.get("type") or "Normal")[:_TEXT],
    )
