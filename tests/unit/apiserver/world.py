"""The recorded cluster, as far as the recorded requests need it, and a client that replays them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.apiserver import podstatus
from tests.apiserver.server import ApiServer

Object = dict[str, Any]

#: Programs in the recorded image, which had no bash and no nvidia-smi.
PROGRAMS = ("sh", "python3", "cat", "sleep", "true", "wc", "id", "stty", "tty", "date")

PODS = {"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"], "namespace": "ml-team"}
JOBS = {"verbs": ["get", "list"], "apiGroups": ["batch"], "resources": ["jobs"], "namespace": "ml-team"}
LOG = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"], "namespace": "ml-team", "role": "rec-both"}


def _exec(role: str, *verbs: str) -> Object:
    rule = {"verbs": list(verbs), "apiGroups": [""], "resources": ["pods/exec"], "namespace": "ml-team"}
    return rule | {"role": role}


USERS = {
    "bob": [PODS, JOBS, _exec("rec-get", "get")],
    "carol": [PODS, JOBS, _exec("rec-create", "create")],
    "eve": [PODS, JOBS],
    "frank": [PODS, JOBS, _exec("rec-both", "get", "create"), LOG],
}


def pod(name: str, *containers: str, node: str | None = "node1", **spec: Any) -> Object:
    """A pod in the recordings' namespace."""
    names = containers or ("main",)
    made = {"containers": [{"name": one, "image": "x"} for one in names], "restartPolicy": "Never", **spec}
    if node:
        made["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ml-team"}, "spec": made}


def in_state(made: Object, state: Object, phase: str, last: Object | None = None) -> Object:
    """The pod with all containers in `state`."""
    statuses = [
        podstatus.one_container(spec, state, last or {}, 1 if last else 0, "containerd://1")
        for spec in made["spec"]["containers"]
    ]
    return made | {"status": {"phase": phase, "containerStatuses": statuses, "hostIP": "10.99.0.1"}}


@dataclass
class World:
    """A running server and its client."""

    api: ApiServer
    session: aiohttp.ClientSession

    async def send(
        self, request: Object, *, path: str | None = None, body: Any = None
    ) -> tuple[int, dict[str, str], Any]:
        """Replay a recorded request; returns status, headers and the body (parsed if it is JSON)."""
        url = self.url(request, path)
        headers = self.headers(request)
        data = body if body is not None else request.get("body")
        text = data if isinstance(data, str | None) else json.dumps(data)
        async with self.session.request(request["method"], url, headers=headers, data=text) as response:
            content = await response.read()
            kind = response.headers.get("Content-Type", "")
            parsed = json.loads(content) if kind.startswith("application/json") else content.decode()
            return response.status, dict(response.headers), parsed

    def url(self, request: Object, path: str | None = None) -> Any:
        from yarl import URL

        query = request.get("raw_query", "")
        return URL(self.api.url + (path or request["path"]) + (f"?{query}" if query else ""), encoded=True)

    def headers(self, request: Object) -> dict[str, str]:
        kept = {key: value for key, value in request["headers"].items() if key != "Host"}
        user = request.get("user")
        return kept | ({} if user == "anon" else {"Authorization": f"Bearer token-{user}"})


def run(work: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Run `work` on a new world: users, pods for exec and logs, and no job."""

    async def main() -> None:
        async with ApiServer() as api:
            context = ssl.create_default_context(cafile=api.authority)
            connector = aiohttp.TCPConnector(ssl=context)
            async with aiohttp.ClientSession(connector=connector) as session:
                _fill(api)
                await work(World(api, session))

    asyncio.run(main())


def _fill(api: ApiServer) -> None:
    tools = Path(api.folder, "bin")
    tools.mkdir()
    for program in PROGRAMS:
        if found := sys.executable if program == "python3" else shutil.which(program):
            tools.joinpath(program).symlink_to(os.path.realpath(found))
    busy, empty = Path(api.folder, "busybox"), Path(api.folder, "empty")
    for folder in (busy, empty):
        folder.mkdir()
    busy.joinpath("sh").symlink_to(tools / "sh")
    control = api.control
    control.settings({"path": str(tools)})
    for name, rules in USERS.items():
        control.user(name, rules, ["researchers2"])
    control.put(pod("x-py", "main", "sidecar"), fake=True)
    for name, path in (("x-busybox", busy), ("x-noshell", empty)):
        made = pod(name)
        made["spec"]["containers"][0]["env"] = [{"name": "PATH", "value": str(path)}]
        control.put(made, fake=True)
    control.put(pod("x-py-pending", node=None) | {"status": {"phase": "Pending"}})
    done = podstatus.terminated(0, "Completed", "2026-11-20T18:30:00Z", "containerd://1")
    failed = podstatus.terminated(1, "Error", "2026-11-20T18:30:00Z", "containerd://1")
    control.put(in_state(pod("x-py-done"), done, "Succeeded"))
    control.put(in_state(pod("x-py-failed"), failed, "Failed"))
    control.put(in_state(pod("x-py-crash"), podstatus.waiting("CrashLoopBackOff"), "Running", failed))
    starting = podstatus.waiting("PodInitializing")
    control.put(in_state(pod("x-py-init", initContainers=[{"name": "setup"}]), starting, "Pending"))


#: The relevant fields of a Status.
PARTS = ("kind", "status", "reason", "message", "details", "code")


def same_refusal(found: Any, recorded: Any) -> None:
    """Fail if a refusal differs from the recorded one in a relevant field."""
    if isinstance(recorded, dict):
        assert {key: found.get(key) for key in PARTS} == {key: recorded.get(key) for key in PARTS}
    else:
        assert found == recorded


def content_type(headers: Object) -> str:
    return str({key.lower(): value for key, value in headers.items()}.get("content-type", ""))
