"""DELETE with its special cases, evictions, and the garbage collector."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.apiserver import listing, statuses
from tests.apiserver.cluster import Call, Cluster
from tests.apiserver.resources import Resource
from tests.apiserver.store import Record, dumps, now

Object = dict[str, Any]

ORPHANS = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them "
ORPHANS += "or set propagationPolicy=Orphan to suppress this warning"


async def serve(call: Call) -> tuple[bytes | Object, dict[str, str]]:
    """The answer to DELETE of an object or a collection, with its headers."""
    options = _options(call)
    if call.verb == "deletecollection":
        chosen = listing.chosen(call)
        head = {"kind": f"{call.resource.kind}List", "apiVersion": call.resource.group_version}
        found = head | {"metadata": {"resourceVersion": str(call.cluster.store.version)}}
        for one in chosen:
            delete(call.cluster, call.resource, one, options)
        return dumps(found | {"items": [one.obj for one in chosen]}) + b"\n", {}
    record = call.cluster.store.get(call.resource, call.namespace, call.name)
    if record is None:
        raise statuses.not_found(call.resource, call.name)
    headers: dict[str, str] = {}
    if _orphans_by_default(call.resource) and "propagationPolicy" not in options:
        headers["Warning"] = f'299 - "{ORPHANS}"'
    wanted = options.get("preconditions") or {}
    for field, value in (("uid", record.uid), ("resourceVersion", record.version)):
        if wanted.get(field, value) != value:
            refusal = statuses.precondition(call.resource, call.name, field, wanted[field], value)
            refusal.headers |= headers
            raise refusal
    answer = delete(call.cluster, call.resource, record, options)
    return answer, headers


def _options(call: Call) -> Object:
    """DeleteOptions: only those of the body if there is a body, else those of the query."""
    body = call.entry["body"]
    if body and body.strip():
        try:
            found = json.loads(body)
        except ValueError as error:
            raise statuses.bad_request(f"error decoding: {error}") from None
        return {key: value for key, value in found.items() if value is not None}
    options: Object = {}
    for key, value in call.query:
        if key == "dryRun":
            options["dryRun"] = [value]
        elif key == "gracePeriodSeconds":
            options[key] = int(value)
        elif key == "propagationPolicy":
            options[key] = value
    return options


def _orphans_by_default(resource: Resource) -> bool:
    return (resource.group, resource.plural) == ("batch", "jobs")


def delete(cluster: Cluster, resource: Resource, record: Record, options: Object) -> bytes | Object:
    """Delete an object with the given options; returns the real server's answer."""
    dry = "All" in (options.get("dryRun") or [])
    if resource.plural == "pods" and not resource.group:
        return _delete_pod(cluster, resource, record, options.get("gracePeriodSeconds"), dry)
    policy = options.get("propagationPolicy") or ("Orphan" if _orphans_by_default(resource) else "Background")
    finalizers = list(record.obj["metadata"].get("finalizers") or [])
    extra = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(policy)
    if extra and extra not in finalizers:
        finalizers.append(extra)
    if not finalizers:
        if not dry:
            cluster.store.remove(resource, record.obj["metadata"].get("namespace", ""), record.name)
            cluster.kubelet.spawn(_collect(cluster, record.uid, orphan=False))
        return statuses.success(resource, record.name, record.uid)
    if record.obj["metadata"].get("deletionTimestamp"):
        return listing.whole(resource, record) + b"\n"
    metadata = record.obj["metadata"] | {
        "deletionTimestamp": now(),
        "deletionGracePeriodSeconds": 0,
        "finalizers": finalizers,
        "generation": record.obj["metadata"].get("generation", 1) + 1,
    }
    if dry:
        return listing.whole(resource, Record(record.obj | {"metadata": metadata})) + b"\n"
    marked = cluster.store.write(resource, record.obj | {"metadata": metadata})
    cluster.kubelet.spawn(_finalize(cluster, resource, marked, policy))
    return listing.whole(resource, marked) + b"\n"


async def _finalize(cluster: Cluster, resource: Resource, record: Record, policy: str) -> None:
    """The garbage collector's part of a deletion with finalizers; other finalizers must be removed by their owners."""
    await _collect(cluster, record.uid, orphan=policy == "Orphan")
    namespace = record.obj["metadata"].get("namespace", "")
    while policy == "Foreground" and any(_dependents(cluster, record.uid)):
        await cluster.store.changed(0.05)
    current = cluster.store.get(resource, namespace, record.name)
    if current is None or current.uid != record.uid:
        return
    left = [f for f in current.obj["metadata"].get("finalizers") or [] if f not in ("orphan", "foregroundDeletion")]
    if left:
        cluster.store.write(resource, current.obj | {"metadata": current.obj["metadata"] | {"finalizers": left}})
        return
    cluster.store.remove(resource, namespace, record.name)


def _dependents(cluster: Cluster, uid: str) -> list[tuple[Resource, Record]]:
    return [
        (resource, record)
        for resource, _, record in cluster.store.everything()
        if any(owner["uid"] == uid for owner in record.obj["metadata"].get("ownerReferences") or [])
    ]


async def _collect(cluster: Cluster, uid: str, *, orphan: bool) -> None:
    """Orphan or delete the dependents of a deleted owner."""
    await asyncio.sleep(cluster.garbage)
    for resource, record in _dependents(cluster, uid):
        metadata = record.obj["metadata"]
        if orphan:
            owners = [owner for owner in metadata["ownerReferences"] if owner["uid"] != uid]
            kept = {key: value for key, value in metadata.items() if key != "ownerReferences"}
            kept |= {"ownerReferences": owners} if owners else {}
            cluster.store.write(resource, record.obj | {"metadata": kept})
        elif not metadata.get("deletionTimestamp"):
            policy = "Foreground" if resource.plural != "pods" else "Background"
            delete(cluster, resource, record, {"propagationPolicy": policy})


# pods


async def evict(call: Call) -> Object:
    record = call.cluster.store.pod(call.namespace, call.name)
    if record is None:
        raise statuses.not_found(call.resource, call.name)
    _delete_pod(call.cluster, call.resource, record, None, dry=False)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _delete_pod(cluster: Cluster, resource: Resource, record: Record, grace: int | None, dry: bool) -> bytes:
    """Delete a pod: when its containers have ended, or at once if it never had a node or is finished."""
    spec, metadata = record.obj.get("spec", {}), record.obj["metadata"]
    wanted = grace if grace is not None else spec.get("terminationGracePeriodSeconds", 30)
    phase = record.obj.get("status", {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        wanted = 0
    known = metadata.get("deletionGracePeriodSeconds")
    if known is not None and known <= wanted and metadata.get("deletionTimestamp"):
        return listing.whole(resource, record) + b"\n"
    gone = datetime.now(UTC) + timedelta(seconds=wanted)
    first = "deletionTimestamp" not in metadata
    metadata = metadata | {
        "deletionTimestamp": gone.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "deletionGracePeriodSeconds": wanted,
        "generation": metadata.get("generation", 1) + (1 if first else 0),
    }
    if dry:
        return listing.whole(resource, Record(record.obj | {"metadata": metadata})) + b"\n"
    marked = cluster.store.write(resource, record.obj | {"metadata": metadata})
    cluster.kubelet.spawn(_end_pod(cluster, resource, marked, wanted, force=grace == 0))
    if not wanted and not metadata.get("finalizers"):
        _gone(cluster, resource, marked)
    return listing.whole(resource, marked) + b"\n"


async def _end_pod(cluster: Cluster, resource: Resource, record: Record, grace: float, *, force: bool) -> None:
    await cluster.kubelet.stop(record, grace)
    namespace = record.obj["metadata"]["namespace"]
    current = cluster.store.pod(namespace, record.name)
    if current is None or current.uid != record.uid:
        cluster.kubelet.forget(record.uid)
        return
    if current.obj["metadata"].get("finalizers") and not force:
        return
    if not current.obj["metadata"].get("finalizers"):
        _gone(cluster, resource, current)
        cluster.kubelet.forget(record.uid)


def _gone(cluster: Cluster, resource: Resource, record: Record) -> None:
    cluster.store.remove(resource, record.obj["metadata"]["namespace"], record.name)
