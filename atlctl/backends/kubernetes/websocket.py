"""WebSockets to the API server over aiohttp, which only this module imports: it takes 130 ms of CPU time."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from yarl import URL

from atlctl.backends.kubernetes.api import NoServer
from atlctl.backends.kubernetes.client import masked, refusal, start, unpacked
from atlctl.backends.kubernetes.wire import CONNECT_SECONDS
from atlctl.i18n import Message

if TYPE_CHECKING:
    from atlctl.backends.kubernetes.access import Access

# At import aiohttp reads the system's CAs twice (50 ms of CPU time), for requests without TLS settings. All requests
# here have settings; one without them would trust no CA.
_stated = os.environ.get("SSL_CERT_FILE")
os.environ["SSL_CERT_FILE"] = os.devnull
try:
    import aiohttp
finally:
    del os.environ["SSL_CERT_FILE"]
    if _stated is not None:
        os.environ["SSL_CERT_FILE"] = _stated

#: Errors of opening a socket: the server does not answer; the request did not reach it.
FAILURES = (aiohttp.ClientError, OSError)
NEVER_ASKED = (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError)
#: Maximum bytes of a message; a kubelet sends 32 KiB.
_MESSAGE_BYTES = 16 << 20
#: Seconds without a message until a ping, random within this range: a thousand sockets opened at once must not ping at
#: once. Kubelets and load balancers drop streams that are idle for a minute. A connection with output is not pinged: if
#: the server has closed it while output is buffered, it answers with a reset, which discards that output.
PING_SECONDS = (20.0, 30.0)
#: Seconds after a ping without data, while reading, until the connection counts as lost.
PONG_SECONDS = 15.0
CLOSE_SECONDS = 0.8


class Sockets:
    """WebSockets to one server, each over a new connection: aiohttp repeats a request if a kept connection turns out to
    be closed, and a command must not run twice."""

    def __init__(self, access: Access, headers: Mapping[str, str]) -> None:
        """`headers` are sent with each request."""
        self._access = access
        #: TLS settings for a plain HTTP server: those for its HTTPS proxy, if any.
        secured = access.tls is None and (access.proxy or "").startswith("https:")
        self._plain_tls = ssl.create_default_context() if secured else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
            headers={**headers, "Accept-Encoding": "gzip"},
            auto_decompress=False,  # aiohttp would decompress without a limit
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            middlewares=(_tell_refusal,),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def open(self, url: str, headers: Mapping[str, str], protocols: Sequence[str]) -> AioSocket:
        """Raises ApiError with the server's message if it refuses, one of `FAILURES` if it does not answer."""
        access = self._access
        settings: dict[str, Any] = {"ssl": access.tls if access.tls is not None else self._plain_tls}
        if access.tls_name:
            settings["server_hostname"] = access.tls_name
        if access.proxy:
            settings["proxy"] = access.proxy
        async with asyncio.timeout(CONNECT_SECONDS):
            opened = await self._session.ws_connect(
                URL(url, encoded=True),
                protocols=tuple(protocols),
                headers=headers,
                max_msg_size=_MESSAGE_BYTES,
                autoclose=False,
                autoping=False,
                **settings,
            )
        return AioSocket(opened)

    async def aclose(self) -> None:
        await self._session.close()


class AioSocket:
    """See `atlctl.backends.kubernetes.api.Socket`. Only one task at a time may receive.

    aiohttp stops reading when 128 KiB are buffered, so a slow reader slows the server. aiohttp's own heartbeat is not
    used: it mistakes a reader that pauses for a lost connection.
    """

    def __init__(self, opened: aiohttp.ClientWebSocketResponse) -> None:
        """`opened`: connected without autoping, message size limit and compression."""
        self.protocol: str | None = opened.protocol
        self._socket = opened
        connection = getattr(getattr(opened, "_response", None), "connection", None)
        self._transport: asyncio.Transport | None = getattr(connection, "transport", None)
        self._loop = asyncio.get_running_loop()
        #: Start time of the read in progress; None if there is none.
        self._listening: float | None = None
        self._pinged = 0.0
        self._heard = self._loop.time()
        self._over = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(random.uniform(*PING_SECONDS), self._ping)  # noqa: S311 - no secret

    async def receive(self) -> bytes | None:
        socket = self._socket
        while True:
            self._listening = self._loop.time()
            try:
                message = await socket.receive()
            finally:
                self._listening = None
            self._heard = self._loop.time()
            kind = message.type
            if kind is aiohttp.WSMsgType.BINARY:
                data: bytes = message.data
                return data
            if kind is aiohttp.WSMsgType.PING:
                with suppress(ConnectionError, RuntimeError):
                    await socket.pong(message.data)
            elif kind not in (aiohttp.WSMsgType.PONG, aiohttp.WSMsgType.TEXT):
                self._stop()
                self._over = True
                return None

    async def send(self, data: bytes) -> None:
        try:
            if self._over:
                raise ConnectionError
            await self._socket.send_bytes(data)
        except (aiohttp.ClientConnectionResetError, ConnectionError, RuntimeError) as error:
            raise NoServer(Message("the connection to the API server was lost")) from error

    async def close(self) -> None:
        self._stop()
        try:
            with suppress(TimeoutError):  # the server does not answer
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._socket.close()
        finally:
            if self._transport is not None:
                # The TLS close would happen after the end of the event loop.
                self._transport.abort()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ping(self) -> None:
        quiet = self._loop.time() - self._heard
        if quiet < PING_SECONDS[0]:
            self._timer = self._loop.call_later(random.uniform(*PING_SECONDS) - quiet, self._ping)  # noqa: S311 - no secret
            return
        self._pinged = self._loop.time()
        self._task = self._loop.create_task(self._send_ping())
        self._timer = self._loop.call_later(PONG_SECONDS, self._judge)

    async def _send_ping(self) -> None:
        with suppress(ConnectionError, RuntimeError):
            await self._socket.ping()

    def _judge(self) -> None:
        """The connection is lost if a read that began before the ping has received nothing since."""
        if self._listening is not None and self._listening <= self._pinged:
            self._task = self._loop.create_task(self.close())
            return
        rest = random.uniform(*PING_SECONDS) - PONG_SECONDS  # noqa: S311 - no secret
        self._timer = self._loop.call_later(rest, self._ping)


async def _tell_refusal(request: Any, handler: Any) -> Any:
    """Middleware that raises a refused upgrade with the server's message, before aiohttp discards it."""
    response = await handler(request)
    if response.status != 101:
        headers = response.headers
        said = b""
        with suppress(aiohttp.ClientError):
            said = await start(unpacked(headers.get("Content-Encoding"), response.content.iter_any()))
        response.close()
        raise refusal(response.status, headers.get("Retry-After"), masked(said, request.headers))
    return response
