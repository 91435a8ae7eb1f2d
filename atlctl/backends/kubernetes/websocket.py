"""One WebSocket of aiohttp as the `Socket` of api.py: whole messages, pings, back pressure, a close that ends."""

from __future__ import annotations

import asyncio
import contextlib
import random

from aiohttp import ClientConnectionResetError, ClientWebSocketResponse, WSMsgType

from atlctl.backends.kubernetes.api import NoServer

#: Seconds between pings, at random between the two: a thousand sockets opened at once must not ping at once. Kubelets
#: and load balancers drop streams that are idle for a minute.
PING_SECONDS = (20.0, 30.0)
#: Seconds after a ping, with nothing heard while we listened, until the connection counts as gone.
PONG_SECONDS = 15.0
CLOSE_SECONDS = 0.8


class AioSocket:
    """See `atlctl.backends.kubernetes.api.Socket`. One task at a time may receive.

    aiohttp stops reading from the connection when 128 KiB wait here, so a slow reader slows the server. Its own
    heartbeat is not used: that takes a reader who does not ask for a long time for a connection that is gone.
    """

    def __init__(self, opened: ClientWebSocketResponse) -> None:
        """`opened`: connected without autoping, a limit on the size of messages and compression."""
        self.protocol: str | None = opened.protocol
        self._socket = opened
        connection = getattr(getattr(opened, "_response", None), "connection", None)
        self._transport: asyncio.Transport | None = getattr(connection, "transport", None)
        self._loop = asyncio.get_running_loop()
        #: Since when somebody waits for a message, None where nobody does.
        self._listening: float | None = None
        self._pinged = 0.0
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
            kind = message.type
            if kind is WSMsgType.BINARY:
                data: bytes = message.data
                return data
            if kind is WSMsgType.PING:
                with contextlib.suppress(ConnectionError, RuntimeError):
                    await socket.pong(message.data)
            elif kind not in (WSMsgType.PONG, WSMsgType.TEXT):
                self._stop()
                self._over = True
                return None

    async def send(self, data: bytes) -> None:
        if self._over:
            raise NoServer("the connection to the API server is gone")
        try:
            await self._socket.send_bytes(data)
        except (ClientConnectionResetError, ConnectionError, RuntimeError) as error:
            raise NoServer("the connection to the API server is gone") from error

    async def close(self) -> None:
        self._stop()
        try:
            with contextlib.suppress(TimeoutError):  # a server that does not answer
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._socket.close()
        finally:
            if self._transport is not None:
                # The farewell of TLS would come after the event loop's end.
                self._transport.abort()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ping(self) -> None:
        self._pinged = self._loop.time()
        self._task = self._loop.create_task(self._send_ping())
        self._timer = self._loop.call_later(PONG_SECONDS, self._judge)

    async def _send_ping(self) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            await self._socket.ping()

    def _judge(self) -> None:
        """A listener who began before the ping and has heard nothing since listens to nobody."""
        if self._listening is not None and self._listening <= self._pinged:
            self._task = self._loop.create_task(self.close())
            return
        rest = random.uniform(*PING_SECONDS) - PONG_SECONDS  # noqa: S311 - no secret
        self._timer = self._loop.call_later(rest, self._ping)
