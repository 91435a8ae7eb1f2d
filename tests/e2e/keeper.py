"""Holds a namespace while its standard input is open, and sends the tests' requests to the server.

A separate program: `python -m tests.e2e.keeper NAMESPACE`. The tests' process has no network access and may die at any
time: the end of the input, for any reason, and signals delete the namespace. Requests and answers are JSON lines.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from atlctl.backends.kubernetes import access
from atlctl.backends.kubernetes.api import ApiError, NotFound
from atlctl.backends.kubernetes.client import Client
from atlctl.backends.kubernetes.discovery import discover
from atlctl.jobs.errors import AtlctlError
from tests.e2e.settings import LABEL

#: Seconds until a new namespace accepts pods, and until a deleted one is gone.
READY = 60.0
GONE = 240.0
#: A request or an answer may contain many objects.
LINE = 64 * 1024 * 1024

Object = dict[str, Any]


class Keeper:
    """A namespace with a client."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.path = f"/api/v1/namespaces/{namespace}"
        self.namespace = namespace
        self.uid = ""

    async def make(self) -> Object:
        """Create the namespace and wait until it accepts pods; returns the served resources."""
        labels = {LABEL: "true", "pod-security.kubernetes.io/enforce": "baseline"}
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": labels}}
        answer = await self.client.send("POST", "/api/v1/namespaces", made)
        self.uid = answer.data["metadata"]["uid"]
        async with asyncio.timeout(READY):
            await self._account()
        return {"kinds": (await discover(self.client)).versions, "server": self.client.server}

    async def remove(self) -> str:
        """Delete the namespace and wait; returns what is left of it, empty if nothing is."""
        if not self.uid:
            return ""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": self.uid}}
        said = ""
        try:
            async with asyncio.timeout(GONE):
                while True:
                    try:
                        await self.client.send("DELETE", self.path, body)
                    except NotFound:
                        return ""
                    except AtlctlError as error:  # 409: it is being deleted. Other errors may be temporary, too.
                        said = error.message
                    await asyncio.sleep(1)
        except TimeoutError:
            return said or "the server took every request to delete it"

    async def answer(self, asked: Object) -> Object:
        """A request: `method`, `path`, and optionally `query`, `body`."""
        method, path, query = asked["method"], asked["path"], asked.get("query") or {}
        try:
            if method == "LIST":
                return {"data": (await self.client.list(path, query)).items}
            if method == "GET":
                return {"data": await self.client.get(path, query)}
            sent = await self.client.send(method, path, asked.get("body"), query, merge_patch=method == "PATCH")
        except ApiError as error:
            return {"error": f"{method} {path}: {error.status} {error.text or error.reason}", "status": error.status}
        except AtlctlError as error:
            return {"error": f"{method} {path}: {error.message}", "status": 0}
        return {"data": sent.data}

    async def _account(self) -> None:
        """Wait for the pods' service account: without it no pod is accepted."""
        while True:
            try:
                await self.client.get(f"{self.path}/serviceaccounts/default")
            except NotFound:
                await asyncio.sleep(0.2)
            else:
                return


async def main(namespace: str) -> int:
    loop = asyncio.get_running_loop()
    asked = asyncio.StreamReader(limit=LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, asked.feed_eof)
    client = Client(access.load())
    keeper = Keeper(client, namespace)
    try:
        await serve(keeper, asked)
    finally:
        left = await keeper.remove()
        await client.aclose()
    if left:
        sys.stderr.write(f"namespace {namespace} is not gone after {GONE:g} s: {left}\n")
    return 1 if left else 0


async def serve(keeper: Keeper, asked: asyncio.StreamReader) -> None:
    """Create the namespace, then answer requests until the input ends."""
    try:
        tell({"id": 0, "data": await keeper.make()})
        while line := await asked.readline():
            request = json.loads(line)
            tell({"id": request["id"], **await keeper.answer(request)})
    except (AtlctlError, TimeoutError) as error:
        tell({"id": 0, "error": str(error) or "the namespace did not become ready", "status": 0})
    except (BrokenPipeError, ValueError):
        return  # the tests have died, maybe in the middle of a line


def tell(answer: Object) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
