"""GET of an object and of lists: selectors, pages, and tables for kubectl."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

from tests.apiserver import selecting, statuses, tables
from tests.apiserver.cluster import Call
from tests.apiserver.resources import Resource
from tests.apiserver.statuses import Refusal
from tests.apiserver.store import Record, dumps

Object = dict[str, Any]


def serve(call: Call) -> bytes:
    """The body of the answer."""
    return get(call) if call.verb == "get" else lists(call)


def get(call: Call) -> bytes:
    record = call.cluster.store.get(call.resource, call.namespace, call.name)
    if record is None and (call.resource.group, call.resource.plural) == ("", "namespaces") and _inhabited(call):
        meta = {"name": call.name, "uid": f"namespace-{call.name}", "resourceVersion": "1"}
        record = Record({"metadata": meta, "status": {"phase": "Active"}})
    if record is None:
        raise statuses.not_found(call.resource, call.name)
    if wants_table(call):
        return dumps(tables.table(call.resource, [record], record.version, call.get("includeObject"))) + b"\n"
    return whole(call.resource, record) + b"\n"


def _inhabited(call: Call) -> bool:
    """Whether a namespace exists without having been created: `default`, and any that contains an object."""
    return call.name == "default" or any(key[0] == call.name for _, key, _ in call.cluster.store.everything())


def whole(resource: Resource, record: Record) -> bytes:
    """An object with its kind."""
    return _head(resource, resource.kind) + b"," + view(resource, record)


def view(resource: Resource, record: Record) -> bytes:
    """The part of an object after its kind; an event in the format of the requested group."""
    if resource.group == "events.k8s.io":
        return dumps(new_event(record.obj))[1:]
    return record.rest


def _head(resource: Resource, kind: str) -> bytes:
    kind_text, version = json.dumps(kind), json.dumps(resource.group_version)
    if resource.builtin:
        return f'{{"kind":{kind_text},"apiVersion":{version}'.encode()
    return f'{{"apiVersion":{version},"kind":{kind_text}'.encode()


def wants_table(call: Call) -> bool:
    return "as=Table" in call.request.headers.get("Accept", "").partition(",")[0]


def chosen(call: Call) -> list[Record]:
    """The objects of a collection that match the selectors, by name."""
    test = selecting.selector(call.get("labelSelector"), call.get("fieldSelector"))
    found = call.cluster.store.all(call.resource)
    return [
        record
        for (namespace, _), record in sorted(found.items())
        if (not call.namespace or namespace == call.namespace) and (test is None or test(record.obj))
    ]


def lists(call: Call) -> bytes:
    """A list or a page of it. Raises Refusal: 410 for a version or page that is too old."""
    store = call.cluster.store
    exact = call.get("resourceVersionMatch") == "Exact"
    if exact and int(call.get("resourceVersion") or 0) < store.oldest:
        raise Refusal(410, "Expired", "The resourceVersion for the provided list is too old.")
    records = chosen(call)
    metadata: Object = {"resourceVersion": str(store.version)}
    # A list from the server's cache is never paged.
    limit = 0 if call.get("resourceVersion") == "0" else int(call.get("limit") or 0)
    limit = min(limit, call.cluster.page) if call.cluster.page and limit else limit
    if token := call.get("continue"):
        version, after = _unpack(token)
        if version < store.oldest:
            text = "The provided continue parameter is too old to display a consistent list result. "
            text += "You can start a new list without the continue parameter."
            raise Refusal(410, "Expired", text)
        metadata["resourceVersion"] = str(version)
        records = [record for record in records if _place(record) > after]
    if limit and len(records) > limit:
        rest = len(records) - limit
        records = records[:limit]
        metadata["continue"] = _pack(int(metadata["resourceVersion"]), _place(records[-1]))
        if not (call.get("labelSelector") or call.get("fieldSelector")):
            metadata["remainingItemCount"] = rest
    if wants_table(call):
        found = tables.table(call.resource, records, "", call.get("includeObject"))
        return dumps(found | {"metadata": metadata}) + b"\n"
    resource = call.resource
    if "as=PartialObjectMetadata" in call.request.headers.get("Accept", ""):
        head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
        listed = [head | {"metadata": record.obj["metadata"]} for record in records]
        head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return dumps(head | {"metadata": metadata, "items": listed}) + b"\n"
    if resource.builtin:
        items = b",".join(b"{" + view(resource, record) for record in records)
    else:
        metadata = {"continue": ""} | metadata
        kind = _head(resource, resource.kind) + b","
        items = b",".join(kind + record.rest for record in records)
    start = _head(resource, f"{resource.kind}List") + b',"metadata":' + dumps(metadata)
    return start + b',"items":[' + items + b"]}\n"


def _place(record: Record) -> list[str]:
    return [record.obj["metadata"].get("namespace", ""), record.name]


def _pack(version: int, after: list[str]) -> str:
    return base64.urlsafe_b64encode(dumps({"rv": version, "start": after})).decode()


def from_the_start() -> str:
    """A new continue token that returns the first page again."""
    return base64.urlsafe_b64encode(dumps({"rv": 1 << 62, "start": [], "n": uuid.uuid4().hex})).decode()


def _unpack(token: str) -> tuple[int, list[str]]:
    try:
        found = json.loads(base64.urlsafe_b64decode(token))
        return int(found["rv"]), list(found["start"])
    except (ValueError, KeyError, TypeError):
        text = f"invalid continue token: continue key is not valid: {token[:64]}"
        raise statuses.bad_request(text) from None


def new_event(event: Object) -> Object:
    """A core event in the format of events.k8s.io/v1."""
    names = {
        "message": "note",
        "involvedObject": "regarding",
        "firstTimestamp": "deprecatedFirstTimestamp",
        "lastTimestamp": "deprecatedLastTimestamp",
        "count": "deprecatedCount",
        "source": "deprecatedSource",
        "reportingComponent": "reportingController",
    }
    return {names.get(key, key): value for key, value in event.items() if key not in ("kind", "apiVersion")}
