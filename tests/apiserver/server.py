"""The server in this process, with both ports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from typing import Any, Self

from aiohttp import web

from tests.apiserver import app, certs, control
from tests.apiserver.cluster import Cluster
from tests.apiserver.control import Control

BACKLOG = 4096


class ApiServer:
    """An async context manager. Use `control` directly, or `control_url` from another process."""

    def __init__(self, folder: str | None = None) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="atl-api-")
        self.folder = folder or str(self._temporary and self._temporary.name)
        pods = os.path.join(self.folder, "pods")
        os.makedirs(pods, exist_ok=True)
        self.cluster = Cluster(pods)
        self.control = Control(self.cluster)
        self.url = ""
        self.control_url = ""
        self.authority = ""
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().set_exception_handler(_report)
        self.authority, certificate, key = certs.write(certs.bundle(), self.folder)
        context = certs.server_context(self.authority, certificate, key)
        limits = {"max_line_size": 4 << 20, "max_field_size": 1 << 20, "shutdown_timeout": 0.2}
        api = await self._serve(app.application(self.cluster), context, **limits)
        self.url = f"https://127.0.0.1:{api}"
        self.control_url = f"http://127.0.0.1:{await self._serve(control.application(self.control), None)}"
        return self

    async def _serve(self, application: web.Application, context, **limits) -> int:
        limits.setdefault("shutdown_timeout", 0.2)
        runner = web.AppRunner(application, access_log=None, handle_signals=False, **limits)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context, backlog=BACKLOG)
        await site.start()
        return int(runner.addresses[0][1])

    async def __aexit__(self, *_: object) -> None:
        await self.cluster.kubelet.close()
        await self._stack.aclose()
        if self._temporary is not None:
            self._temporary.cleanup()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Of all but one defect of asyncio: a client's reset that is met while the last bytes of a closing transport
    are sent closes that transport twice."""
    if "_call_connection_lost" not in context["message"] or not isinstance(context.get("exception"), AttributeError):
        loop.default_exception_handler(context)
