"""A minimal client of a server in the same process, which shows frames, logs and watches as received."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp

from tests.apiserver.control import Control
from tests.apiserver.server import ApiServer

Object = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, *command: str, **more: Any) -> Object:
    """A pod with one container `main`; `more` is added to its spec."""
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "command": list(command) or ["sleep", "100"]}]}
    metadata = {"name": name, "namespace": "default", "labels": {"job": "x"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | more}


@dataclass
class Done:
    """The result of an exec: bytes of each channel, the Status of channel 3, and how the connection ended."""

    channels: dict[int, bytes] = field(default_factory=dict)
    frames: list[tuple[int, bytes]] = field(default_factory=list)
    status: Object | None = None
    close: int | None = None


@dataclass
class Client:
    api: ApiServer
    session: aiohttp.ClientSession
    token: str = "token-admin"

    @property
    def control(self) -> Control:
        return self.api.control

    async def call(
        self, method: str, path: str, body: Any = None, *, merge: bool = False, **query: str
    ) -> tuple[int, Any]:
        """Send a request; returns the status and the body, parsed if it is JSON."""
        headers = {"Authorization": f"Bearer {self.token}"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if merge else "application/json"
        data = None if body is None else json.dumps(body)
        url = f"{self.api.url}{path}{'&' if '?' in path else '?'}{urlencode(query)}"
        async with self.session.request(method, url, data=data, headers=headers) as response:
            text = await response.text()
            return response.status, json.loads(text) if "json" in response.content_type else text

    def open(self, name: str, *argv: str, protocol: str = "v5.channel.k8s.io", **flags: str) -> Any:
        """Open a WebSocket to an exec, as a context manager."""
        query = [("container", "main"), *(("command", word) for word in argv)]
        query += list(({"stdout": "true", "stderr": "true"} | flags).items())
        url = f"{self.api.url}{PODS}/{name}/exec?{urlencode(query)}"
        headers = {"Authorization": f"Bearer {self.token}"}
        return self.session.ws_connect(url, protocols=(protocol,), headers=headers, max_msg_size=0)

    async def exec(self, name: str, *argv: str, **flags: str) -> Done:
        """Run a command to its end."""
        async with self.open(name, *argv, **flags) as socket:
            return await finish(socket)

    def log(self, name: str, **query: str) -> Any:
        """Open a log, as a context manager."""
        url = f"{self.api.url}{PODS}/{name}/log?{urlencode(query)}"
        return self.session.get(url, headers={"Authorization": f"Bearer {self.token}"})

    async def phase(self, name: str, wanted: str) -> Object:
        """Wait until a pod is in a phase."""
        while True:
            found = self.control.get("Pod", name)
            if found is not None and (found.get("status") or {}).get("phase") == wanted:
                return found
            await self.api.cluster.store.changed(0.1)

    async def gone(self, name: str) -> None:
        """Wait until a pod does not exist any more."""
        while self.control.get("Pod", name) is not None:
            await self.api.cluster.store.changed(0.1)

    async def until(self, test: Callable[[], Any]) -> Any:
        """Wait until `test` returns a true value."""
        while not (found := test()):  # noqa: ASYNC110 - processes set no event
            await asyncio.sleep(0.02)
        return found


async def finish(socket: aiohttp.ClientWebSocketResponse) -> Done:
    """All messages until the connection ends."""
    done = Done()
    with suppress(aiohttp.ClientError, ConnectionError):
        async for message in socket:
            channel, data = message.data[0], message.data[1:]
            done.frames.append((channel, data))
            done.channels[channel] = done.channels.get(channel, b"") + data
            if channel == 3:
                done.status = json.loads(data)
    done.close = socket.close_code
    return done


def run(work: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    """Run `work` with a new server, within 100 s."""

    async def main() -> None:
        async with ApiServer() as api:
            context = ssl.create_default_context(cafile=api.authority)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
                await asyncio.wait_for(work(Client(api, session)), 100)

    asyncio.run(main())
