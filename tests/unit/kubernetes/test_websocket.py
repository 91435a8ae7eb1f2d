"""The socket over a real connection: pings, back pressure, and closing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from atlctl.backends.kubernetes import websocket
from atlctl.backends.kubernetes.api import NoServer
from atlctl.backends.kubernetes.websocket import AioSocket
from tests.support.pace import within

Serve = Callable[[web.WebSocketResponse], Awaitable[None]]


@asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[AioSocket]:
    """A socket to a server that runs `serve` and closes."""

    async def handle(request: web.Request) -> web.WebSocketResponse:
        there = web.WebSocketResponse(protocols=("v5.channel.k8s.io",), compress=False, max_msg_size=0, timeout=0.1)
        await there.prepare(request)
        await serve(there)
        return there

    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession() as session:
        port = runner.addresses[0][1]
        opened = await session.ws_connect(
            f"http://127.0.0.1:{port}/",
            protocols=("v5.channel.k8s.io",),
            max_msg_size=0,
            autoclose=False,
            autoping=False,
        )
        here = AioSocket(opened)
        try:
            yield here
        finally:
            await here.close()
    await runner.cleanup()


def run(serve: Serve, body: Callable[[AioSocket], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connected(serve) as here:
            await body(here)

    asyncio.run(asyncio.wait_for(main(), 100))


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_SECONDS", (0.1, 0.12))
    monkeypatch.setattr(websocket, "PONG_SECONDS", 0.1)


async def listening(there: web.WebSocketResponse) -> None:
    """Read while the client is connected, which also answers pings."""
    async for _ in there:
        pass


async def deaf(there: web.WebSocketResponse) -> None:
    """Like a connection whose other end has disappeared."""
    await asyncio.sleep(20)


def test_messages_of_all_sizes() -> None:
    sizes = [0, 1, 32_769, 20 * 1024 * 1024]

    async def serve(there: web.WebSocketResponse) -> None:
        await there.send_str("no message of the protocol")
        for size in sizes:
            await there.send_bytes(b"x" * size)
        assert (await there.receive()).data == b"\0in"
        await there.close()

    async def body(here: AioSocket) -> None:
        assert here.protocol == "v5.channel.k8s.io"
        for size in sizes:
            assert await here.receive() == b"x" * size
        await here.send(b"\0in")
        assert await here.receive() is None

    run(serve, body)


def test_a_dead_connection_is_noticed(quick_pings: None) -> None:
    async def body(here: AioSocket) -> None:
        begun = time.monotonic()
        assert await here.receive() is None
        assert within(time.monotonic() - begun, 15)
        with pytest.raises(NoServer):
            await here.send(b"late")

    run(deaf, body)


def test_a_silent_connection_lives(quick_pings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PONG_SECONDS", 0.8)

    async def body(here: AioSocket) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(here.receive(), 2.0)

    run(listening, body)


def test_a_connection_that_carries_output_is_not_pinged(quick_pings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has closed answers a ping with a reset, which discards its buffered data."""
    monkeypatch.setattr(websocket, "PING_SECONDS", (0.6, 0.62))
    pings = 0

    async def serve(there: web.WebSocketResponse) -> None:
        there._autoping = False  # so that pings are visible here

        async def answer() -> None:
            nonlocal pings
            while (message := await there.receive()).type is aiohttp.WSMsgType.PING:
                pings += 1
                await there.pong(message.data)

        answering = asyncio.ensure_future(answer())
        for _ in range(20):
            await there.send_bytes(b"x")
            await asyncio.sleep(0.04)
        await there.send_bytes(b"silence")
        await asyncio.sleep(1.2)
        await there.send_bytes(b"end")
        await answering

    async def body(here: AioSocket) -> None:
        while await here.receive() != b"silence":
            pass
        assert pings == 0
        while await here.receive() != b"end":
            pass
        assert pings > 0

    run(serve, body)


def test_a_reader_who_does_not_ask_loses_nothing(quick_pings: None) -> None:
    async def serve(there: web.WebSocketResponse) -> None:
        answering = asyncio.ensure_future(listening(there))
        for _ in range(64):
            await there.send_bytes(bytes(100_000))
        await there.close()
        await answering

    async def body(here: AioSocket) -> None:
        await asyncio.sleep(1.0)
        got = 0
        while (message := await here.receive()) is not None:
            got += len(message)
        assert got == 6_400_000

    run(serve, body)


def test_a_slow_reader_slows_the_server() -> None:
    sent = 0

    async def serve(there: web.WebSocketResponse) -> None:
        nonlocal sent
        try:
            for _ in range(1000):
                await there.send_bytes(bytes(100_000))
                sent += 1
        except ConnectionError:
            pass

    async def body(here: AioSocket) -> None:
        await asyncio.sleep(0.5)
        assert sent < 300, "what fits into the buffers of two kernels, and no more"

    run(serve, body)


def test_closing_takes_a_second_at_most() -> None:
    async def body(here: AioSocket) -> None:
        begun = time.monotonic()
        await here.close()
        await here.close()
        assert within(time.monotonic() - begun, 15)

    run(deaf, body)
