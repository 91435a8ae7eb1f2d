"""The API port: parses requests, checks permissions, and passes them to their handlers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
import uuid
import zlib
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from tests.apiserver import deleting, execs, listing, logs, resources, statuses, watching, writing
from tests.apiserver.cluster import Call, Cluster
from tests.apiserver.faults import Fault
from tests.apiserver.resources import Resource
from tests.apiserver.statuses import Refusal
from tests.apiserver.store import dumps

VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2",
    "gitCommit": "0" * 40,
    "gitTreeState": "clean",
    "buildDate": "2026-08-21T00:00:00Z",
    "goVersion": "go1.26.10",
    "compiler": "gc",
    "platform": "linux/amd64",
}

#: Longer request lines are refused with 431, as by Go's server.
LINE = 1 << 20
#: Longer JSON answers are compressed if the client accepts gzip.
GZIP = 128 * 1024
#: Noted as the status of a request whose client has disconnected before the answer.
GONE = 499

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def application(cluster: Cluster) -> web.Application:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await dispatch(cluster, request)

    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{tail:.*}", handle)
    return app


async def dispatch(cluster: Cluster, request: web.Request) -> web.StreamResponse:
    raw, _, raw_query = request.raw_path.partition("?")
    query = parse_qsl(raw_query, keep_blank_values=True)
    entry: dict[str, Any] = {
        "time": time.time(),
        "method": request.method,
        "path": raw,
        "query": query,
        "headers": {name.lower(): value for name, value in request.headers.items()},
        "user": None,
        "status": None,
        "fault": None,
        "body": None,
    }
    cluster.requests.append(entry)
    try:
        if len(request.raw_path) > LINE:
            raise Refusal(431, text="431 Request Header Fields Too Large", close=True)
        user = cluster.access.who(request.headers, _certified(request))
        entry["user"] = user.name
        if request.method in ("POST", "PUT", "PATCH", "DELETE"):
            body = await request.read()
            entry["body"] = body.decode(errors="replace")
        parts = [unquote(part) for part in raw.split("/")[1:]]
        if (plain := _path(cluster, request, parts)) is not None:
            cluster.access.check_path(user, raw)
            entry["status"] = plain.status
            fault = cluster.faults.ask("discovery", "", raw)
            if fault is None:
                return plain
            entry["fault"] = fault.action
            if refusal := fault.refusal():
                raise refusal
            return await _rough(request, fault, plain)
        call = _call(cluster, request, user, query, parts, entry)
        response = await _answer(call)
    except Refusal as refusal:
        response = _refused(refusal)
    except ConnectionError:
        response = web.Response(status=GONE)
    entry["status"] = response.status
    return response


def _certified(request: web.Request) -> str:
    """The common name of the client's certificate; empty if there is none."""
    shown = request.transport.get_extra_info("peercert") if request.transport else None
    names = [value for part in (shown or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else ""


def _path(cluster: Cluster, request: web.Request, parts: list[str]) -> web.Response | None:
    """Answers about the server itself; None for requests about resources."""
    path = "/" + "/".join(parts).rstrip("/")
    if path in ("/healthz", "/livez", "/readyz"):
        headers = {"X-Content-Type-Options": "nosniff"}
        return web.Response(text="ok", headers=headers)
    if path == "/version":
        return answer(VERSION)
    if path in ("/api", "/apis"):
        return _discovery(cluster, request, core=path == "/api")
    if parts[0] == "apis" and len(parts) > 2 and parts[1] in cluster.served.broken:
        raise Refusal(503, text="service unavailable\n", headers={"X-Content-Type-Options": "nosniff"})
    found: dict[str, Any] | None = None
    if len(parts) == 2 and parts[0] == "api":
        found = cluster.served.resource_list("", parts[1])
    elif len(parts) == 2 and parts[0] == "apis":
        group = cluster.served.group(parts[1])
        found = {"kind": "APIGroup", "apiVersion": "v1"} | group if group else None
    elif len(parts) == 3 and parts[0] == "apis":
        found = cluster.served.resource_list(parts[1], parts[2])
    elif parts[0] in ("api", "apis") and len(parts) > 2:
        return None
    if found is None:
        raise statuses.page_not_found()
    return answer(found)


def _discovery(cluster: Cluster, request: web.Request, *, core: bool) -> web.Response:
    form = resources.negotiate(request.headers.get("Accept", ""))
    if form is None:
        text = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
        raise Refusal(406, "NotAcceptable", f"only the following media types are accepted: {text}")
    if form == "classic":
        if core:
            cidr = {"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:6443"}
            return answer({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [cidr]})
        groups = [cluster.served.group(name) for name in cluster.served.groups()]
        return answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    body = dumps(cluster.served.aggregated(core))
    tag = f'"{zlib.crc32(body):08X}"'
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers={"Etag": tag, "Vary": "Accept"})
    headers = {"Etag": tag, "Vary": "Accept", "Cache-Control": "public", "Content-Type": form.partition(";q=")[0]}
    return web.Response(body=body, headers=headers)


def _call(
    cluster: Cluster, request: web.Request, user: Any, query: list[tuple[str, str]], parts: list[str], entry: Any
) -> Call:
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    version = parts[1] if parts[0] == "api" else parts[2]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    name, sub = [*rest[1:], "", ""][:2]
    resource = cluster.served.find(group, version, rest[0])
    if resource is None or len(rest) > 3 or (sub and sub not in resource.subresources):
        # The real server checks RBAC first: an unknown resource is 404 for permitted users.
        cluster.access.check(user, "get", Resource(group, version, rest[0], rest[0]), namespace, name, sub)
        raise statuses.page_not_found()
    flags = dict(query)
    if request.method in ("GET", "HEAD"):
        verb = "get" if name else "watch" if flags.get("watch", "").lower() in ("true", "1") else "list"
    elif request.method in _VERBS:
        verb = _VERBS[request.method]
        verb = "deletecollection" if verb == "delete" and not name else verb
    else:
        raise statuses.method_not_allowed()
    return Call(cluster, request, user, query, verb, resource, namespace, name, sub, entry)


async def _answer(call: Call) -> web.StreamResponse:
    access = call.cluster.access
    if "protobuf" in call.request.headers.get("Content-Type", ""):
        raise Refusal(415, "UnsupportedMediaType", "the test server takes no protobuf")
    access.check(call.user, call.verb, call.resource, call.namespace, call.name, call.sub)
    await _trouble(call)
    response = await _own_answer(call)
    if call.fault is None or not isinstance(response, web.Response):
        return response
    return await _rough(call.request, call.fault, response)


async def _own_answer(call: Call) -> web.StreamResponse:
    """The request's answer before a fault changes it."""
    access = call.cluster.access
    if call.sub == "exec":
        return await execs.serve(call)
    if call.sub == "log":
        return await logs.serve(call)
    if call.sub == "eviction":
        return answer(await deleting.evict(call), 201)
    if call.resource.review:
        if call.verb != "create":
            raise statuses.method_not_allowed()
        return answer(access.review(call.user, call.resource.kind, json.loads(call.entry["body"] or "{}")), 201)
    if call.verb == "watch":
        return await watching.serve(call)
    if call.verb in ("get", "list"):
        return _compressed(call, listing.serve(call))
    if call.verb in ("delete", "deletecollection"):
        found, headers = await deleting.serve(call)
        return answer(found, headers=headers)
    found, status, headers = writing.serve(call)
    return answer(found, status, headers)


async def _trouble(call: Call) -> None:
    """Apply a fault that acts before the answer; other faults are stored in the call."""
    kind = call.sub if call.sub in ("exec", "log") else call.verb
    fault = call.cluster.faults.ask(kind, call.resource.plural, call.name)
    if fault is None:
        return
    call.entry["fault"] = fault.action
    if refusal := fault.refusal():
        if fault.action == "dialing":
            await asyncio.sleep(fault.seconds)
        raise refusal
    if fault.action == "drop":
        cut(call.request)
        raise Refusal(500, text="cut")
    if fault.action == "delay":
        await asyncio.sleep(fault.seconds)
        return
    if fault.action == "silence" or (fault.action == "drip" and call.sub == "exec"):
        await _gone(call.request)
    call.fault = fault


async def _gone(request: web.Request) -> None:
    """Wait until the client has disconnected."""
    while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110 - has no event
        await asyncio.sleep(0.05)
    raise Refusal(500, text="cut")


async def _rough(request: web.Request, fault: Fault, response: web.Response) -> web.StreamResponse:
    """The answer as changed by a fault; unchanged if the fault does not concern answers."""
    body = response.body if isinstance(response.body, bytes) else b""
    match fault.action:
        case "silence":
            await _gone(request)
        case "drop":
            cut(request)
        case "drip":
            head = f"HTTP/1.1 {response.status} OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            await _drip(request, head.encode() + b"\r\n" + body, fault)
        case "bomb":
            return web.Response(body=_bomb(), headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})
        case "endless":
            begun = web.StreamResponse(headers={"Content-Type": "application/json"})
            await begun.prepare(request)
            await begun.write(b'{"metadata":{},"items":[{}')
            with contextlib.suppress(ConnectionError):
                while request.transport is not None and not request.transport.is_closing():
                    await begun.write(b',{"kind":"Pod"}' * 4000)
                    await asyncio.sleep(0)  # no write waits for a fast client, nor for one that is gone
            return begun
        case "endless-pages":
            page = json.loads(body)
            page["metadata"] = {**page.get("metadata", {}), "continue": listing.from_the_start()}
            return answer(page)
    return response


async def _drip(request: web.Request, raw: bytes, fault: Fault) -> None:
    start, rest = raw[: fault.bytes], raw[fault.bytes :]
    for piece in (start, *(rest[at : at + 1] for at in range(len(rest)))):
        if request.transport is None or request.transport.is_closing():
            return
        request.transport.write(piece)
        await asyncio.sleep(fault.seconds or 1.0)


@functools.cache
def _bomb() -> bytes:
    """A truncated gzip stream: a client that unpacks so much does not need its end."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = packer.compress(b'{"metadata":{},"items":[{}') + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b",{}" * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + block * 1400


def cut(request: web.Request) -> None:
    """Abort the TCP connection."""
    if request.transport is not None:
        request.transport.abort()


def answer(found: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON response (bytes are sent as they are), with a newline at the end."""
    body = found if isinstance(found, bytes) else dumps(found) + b"\n"
    common = {"Audit-Id": str(uuid.uuid4()), "Cache-Control": "no-cache, private", "Content-Type": "application/json"}
    return web.Response(body=body, status=status, headers=common | (headers or {}))


def _refused(refusal: Refusal) -> web.Response:
    if refusal.text is None:
        return answer(refusal.status, refusal.code, refusal.headers)
    headers = {"Content-Type": "text/plain; charset=utf-8"} if refusal.text else {}
    response = web.Response(body=refusal.text.encode(), status=refusal.code, headers=headers | refusal.headers)
    if refusal.close:
        response.force_close()
        response.headers["Connection"] = "close"
    return response


def _compressed(call: Call, body: bytes) -> web.Response:
    response = answer(body)
    if len(body) > GZIP and "gzip" in call.request.headers.get("Accept-Encoding", ""):
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        response.body = packer.compress(body) + packer.flush()
        response.headers["Content-Encoding"] = "gzip"
    return response
