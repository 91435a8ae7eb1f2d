"""pods/log: options with their refusals, then the file in chunks."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import datetime
from typing import Any

from aiohttp import web

from tests.apiserver import placing, podstatus, statuses
from tests.apiserver.cluster import Call
from tests.apiserver.logfile import Options, Run, read
from tests.apiserver.store import Record

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


async def serve(call: Call) -> web.StreamResponse:
    """The log of a container as text/plain."""
    options = _options(call)
    record, container = placing.container(call)
    if not record.obj["spec"].get("nodeName"):
        return web.Response(status=204, headers={"Cache-Control": "no-cache, private"})
    placing.reachable(call, record, container)
    found = _run(call, record, container)
    response = web.StreamResponse(headers={"Cache-Control": "no-cache, private", "Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(call.request)
    call.entry["status"] = 200
    if isinstance(found, str):
        await response.write(found.encode())
        return response
    node, down = record.obj["spec"]["nodeName"], call.cluster.kubelet.down
    options.stopped = lambda: node in down or _closing(call)
    try:
        await _send(call, response, found, options)
    except ConnectionError:
        return response
    return response


async def _send(call: Call, response: web.StreamResponse, run: Run, options: Options) -> None:
    fault = call.fault
    action = fault.action if fault else ""
    left = fault.bytes if fault and action in ("drop-after", "end-early") else None
    if fault and action == "stall":
        await asyncio.sleep(fault.seconds or 86400)
    while fault and action == "endless" and not _closing(call):
        await response.write(b"2026-01-01T00:00:00.000000000Z the same line once more\n" * 1000)
        await asyncio.sleep(0)  # no write waits for a fast client, nor for one that is gone
    async for data in read(run, options):
        if fault and action == "drip":
            await response.write(data[: fault.bytes])
            for at in range(fault.bytes, len(data)):
                await asyncio.sleep(fault.seconds or 1.0)
                await response.write(data[at : at + 1])
            continue
        if fault and action == "slow":
            await asyncio.sleep(fault.seconds)
        if left is not None and len(data) >= left:
            await response.write(data[:left])
            if action == "drop-after":
                await _flushed(call)
                if call.request.transport is not None:
                    call.request.transport.abort()
            return
        if left is not None:
            left -= len(data)
        await response.write(data)


async def _flushed(call: Call) -> None:
    for _ in range(200):
        if _closing(call) or not call.request.transport.get_write_buffer_size():  # type: ignore[union-attr]
            return
        await asyncio.sleep(0.005)


def _closing(call: Call) -> bool:
    transport = call.request.transport
    return transport is None or transport.is_closing()


def _options(call: Call) -> Options:
    """The options of the query. Raises Refusal (400, 422)."""
    tail, limit, seconds = (_number(call, key) for key in ("tailLines", "limitBytes", "sinceSeconds"))
    since = None
    if text := call.get("sinceTime"):
        if not _RFC3339.fullmatch(text):
            raise statuses.bad_request(
                f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse "{text}" as "2006"'
            )
        since = int(datetime.fromisoformat(text).timestamp())
    causes = []
    if call.get("sinceTime") and seconds is not None:
        causes.append(
            ("FieldValueForbidden", "[]", "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified")
        )
    if call.get("stream"):
        causes.append(("FieldValueForbidden", "stream", "Forbidden: may not be specified"))
    for key, value, least in (("tailLines", tail, 0), ("limitBytes", limit, 1), ("sinceSeconds", seconds, 1)):
        if value is not None and value < least:
            words = "must be greater than " + ("or equal to 0" if least == 0 else "0")
            causes.append(("FieldValueInvalid", key, f"Invalid value: {value}: {words}"))
    if causes:
        raise statuses.invalid("PodLogOptions", "", call.name, *causes)
    if seconds is not None:
        since = int(time.time()) - seconds
    return Options(call.flag("follow"), tail, since, call.flag("timestamps"), limit)


def _number(call: Call, key: str) -> int | None:
    text = call.get(key)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise statuses.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _run(call: Call, record: Record, name: str) -> Run | str:
    """The requested run, or the real server's message if there is none."""
    status = podstatus.container_status(record.obj, name)
    state: dict[str, Any] = (status or {}).get("state") or {}
    last = ((status or {}).get("lastState") or {}).get("terminated")
    runs = call.cluster.kubelet.pod(record).logs.setdefault(name, [])
    subject = f'container "{name}" in pod "{call.name}"'
    if status is None:
        if record.obj.get("status", {}).get("phase") == "Failed":
            raise statuses.bad_request(f"{subject} is not available")
        raise statuses.bad_request(f"{subject} is waiting to start: ContainerCreating")
    waits = "waiting" in state
    if call.flag("previous"):
        if not last:
            raise statuses.bad_request(f'previous terminated container "{name}" in pod "{call.name}" not found')
        return _of(runs, -1 if waits else -2, ended=True)
    if waits and not last:
        raise statuses.bad_request(f"{subject} is waiting to start: {state['waiting'].get('reason', '')}")
    if (ended := state.get("terminated")) and not ended.get("containerID"):
        raise statuses.bad_request(f"{subject} is terminated")
    if record.obj.get("status", {}).get("reason") == "Evicted" and not runs:
        return f"unable to retrieve container logs for {status.get('containerID', '')}"
    return _of(runs, -1, ended="running" not in state)


def _of(runs: list[Run], index: int, *, ended: bool) -> Run:
    """A run by its position; an empty one if the container has printed nothing yet."""
    if len(runs) >= -index:
        return runs[index]
    empty = Run("", ended=ended)
    if not runs and not ended:
        runs.append(empty)
    return empty
