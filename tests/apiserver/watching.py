"""Watches: events from a version on, bookmarks, and the real server's ways to end."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiohttp import web

from tests.apiserver import listing, selecting, statuses, tables
from tests.apiserver.cluster import Call
from tests.apiserver.statuses import Refusal
from tests.apiserver.store import Event, Record, dumps

Object = dict[str, Any]

#: Seconds of a watch without timeoutSeconds.
LONGEST = 1800.0


async def serve(call: Call) -> web.StreamResponse:
    """Send events, one JSON object per line."""
    store = call.cluster.store
    wanted = call.get("resourceVersion")
    initial = call.flag("sendInitialEvents")
    if wanted and not wanted.isdigit():
        text = f'resourceVersion: Invalid value: "{wanted}": strconv.ParseUint: parsing "{wanted}": invalid syntax'
        raise Refusal(500, "", text)
    if initial and call.get("resourceVersionMatch") != "NotOlderThan":
        text = (
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        )
        raise statuses.bad_request(text)
    test = selecting.selector(call.get("labelSelector"), call.get("fieldSelector"))
    response = web.StreamResponse(headers={"Cache-Control": "no-cache, private", "Content-Type": "application/json"})
    response.enable_chunked_encoding()
    version = store.version
    first: list[bytes] = []
    if wanted in ("", "0") or initial:
        records = listing.chosen(call)
        first = [_line(call, "ADDED", record) for record in records]
        if initial and call.flag("allowWatchBookmarks"):
            first.append(_bookmark(call, store.version, initial=True))
    elif int(wanted) < store.oldest:
        text = f"too old resource version: {wanted} ({store.oldest})"
        first = [dumps({"type": "ERROR", "object": statuses.failure(410, "Expired", text)}) + b"\n"]
        version = -1
    else:
        version = int(wanted)
    await response.prepare(call.request)
    call.entry["status"] = 200
    try:
        if first:
            await response.write(b"".join(first))
        if version >= 0:
            await _follow(call, response, version, test)
    except ConnectionError:
        return response
    return response


async def _follow(call: Call, response: web.StreamResponse, version: int, test: selecting.Test | None) -> None:
    store = call.cluster.store
    storage = store.storage(call.resource)
    deadline = time.monotonic() + float(call.get("timeoutSeconds") or LONGEST)
    fault = call.fault
    left = fault.bytes if fault and fault.action in ("drop-after", "end-early") else None
    while (rest := deadline - time.monotonic()) > 0:
        transport = call.request.transport
        if transport is None or transport.is_closing():
            return
        lines = []
        for event in store.since(version):
            version = event.version
            if event.storage == storage and (line := _event(call, event, test)):
                lines.append(line)
        if lines:
            await response.write(b"".join(lines))
            if left is not None:
                left -= len(lines)
                if left <= 0:
                    if fault and fault.action == "drop-after" and transport is not None:
                        await asyncio.sleep(0.02)
                        transport.abort()
                    return
            continue
        await store.changed(min(rest, 1.0))
    if call.flag("allowWatchBookmarks"):
        await response.write(_bookmark(call, store.version))


def _event(call: Call, event: Event, test: selecting.Test | None) -> bytes | None:
    """An event for this watch: an object that no longer matches is reported as deleted."""
    one = event.new or event.old
    assert one is not None
    if call.namespace and one.obj["metadata"].get("namespace") != call.namespace:
        return None
    was = event.old is not None and (test is None or test(event.old.obj))
    now = event.new is not None and (test is None or test(event.new.obj))
    if event.new is None:
        return _line(call, "DELETED", one) if was else None
    if now:
        return _line(call, "MODIFIED" if was else "ADDED", event.new)
    return _line(call, "DELETED", event.new) if was else None


def _line(call: Call, kind: str, record: Record) -> bytes:
    if listing.wants_table(call):
        found = tables.table(call.resource, [record], record.version, call.get("includeObject"))
        return dumps({"type": kind, "object": found}) + b"\n"
    return b'{"type":"' + kind.encode() + b'","object":' + listing.whole(call.resource, record) + b"}\n"


def _bookmark(call: Call, version: int, *, initial: bool = False) -> bytes:
    metadata: Object = {"resourceVersion": str(version)}
    if initial:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    resource = call.resource
    found: Object = {"kind": resource.kind, "apiVersion": resource.group_version, "metadata": metadata}
    if resource.plural == "pods":
        found |= {"spec": {"containers": None}, "status": {}}
    if listing.wants_table(call):
        found = tables.table(resource, [], str(version), "") | {"rows": [{"cells": [], "object": found}]}
    return dumps({"type": "BOOKMARK", "object": found}) + b"\n"
