"""HTTP/1.1 with servers and proxies whose answers a test defines byte by byte."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from atlctl.backends.kubernetes.access import Access
from atlctl.backends.kubernetes.wire import NotHttp, Wires
from tests.apiserver import certs

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def closing(peer: Peer) -> Peer:
    """The same peer, which closes the connection at the end."""

    async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await peer(reader, writer)
        finally:
            writer.close()

    return closed


def run(peer: Peer, use: Callable[[Wires, Access], Awaitable[Any]], **settings: Any) -> Any:
    async def go() -> Any:
        server = await asyncio.start_server(closing(peer), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        access = Access(f"http://127.0.0.1:{port}", None, "team", "a test", **settings)
        wires = Wires(access, {"User-Agent": "test"})
        try:
            async with asyncio.timeout(100):
                return await use(wires, access)
        finally:
            wires.close()
            server.close()

    return asyncio.run(go())


def scripted(answers: Sequence[bytes], seen: list[bytes], *, ending: bool = True, slowly: int = 0) -> Peer:
    """A peer that answers each request with the next of these answers, then ends. `slowly`: bytes sent at a time."""

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            step = slowly or max(len(answer), 1)
            for at in range(0, len(answer), step):
                writer.write(answer[at : at + step])
                await writer.drain()
                await asyncio.sleep(0)
        if not ending:
            await reader.read()

    return peer


async def ask(wires: Wires, access: Access, method: str = "GET", path: str = "/api", body: bytes | None = None) -> Any:
    async with wires.request(method, f"{access.server}{path}", {"Accept": "x"}, body, 5) as answer:
        return answer.status, answer.headers, b"".join([piece async for piece in answer.pieces()])


@pytest.mark.parametrize("slowly", [0, 1, 3], ids=["at once", "byte by byte", "three by three"])
@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"{}"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"{}"),
        (b"HTTP/1.0 200 fine\r\n\r\nto the end", 200, b"to the end"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 404\r\ncontent-length:3\r\n\r\nabc", 404, b"abc"),
        (CHUNKED + b"3\r\nabc\r\n00a;x=y\r\n0123456789\r\n0\r\n\r\n", 200, b"abc0123456789"),
        (CHUNKED + b"2\r\n\r\n\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\n", 200, b"\r\n"),
    ],
)
def test_answers(answer: bytes, status: int, body: bytes, slowly: int) -> None:
    found = run(scripted([answer], [], slowly=slowly), ask)
    assert (found[0], found[2]) == (status, body)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: y\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
        CHUNKED + b"-1\r\nabc\r\n",
        CHUNKED + b"0x3\r\nabc\r\n",
        CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
        CHUNKED + b"1" * 100_000,
        CHUNKED + b"0\r\n" + b"x" * 200_000,
    ],
)
def test_an_answer_that_is_not_http(answer: bytes) -> None:
    with pytest.raises(NotHttp):
        run(scripted([answer], []), ask)


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200", OK[:-1], CHUNKED, CHUNKED + b"5\r\nabc", CHUNKED + b"3\r\nabc\r\n0\r\n"],
)
def test_an_answer_that_is_cut_off(answer: bytes) -> None:
    with pytest.raises(ConnectionError):
        run(scripted([answer], []), ask)


def test_a_connection_is_kept_for_the_next_request() -> None:
    seen: list[bytes] = []
    connections: list[None] = []

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(None)
        await scripted([OK, OK, CHUNKED + b"0\r\n\r\n", OK], seen)(reader, writer)

    async def use(wires: Wires, access: Access) -> None:
        for _ in range(4):
            await ask(wires, access)

    run(peer, use)
    assert (len(seen), len(connections)) == (4, 1)
    assert b"\r\nUser-Agent: test\r\n" in seen[0]


@pytest.mark.parametrize(("method", "sent"), [("GET", 2), ("DELETE", 2), ("PATCH", 1), ("POST", 1)])
def test_a_kept_connection_that_the_server_closes(method: str, sent: int) -> None:
    """A request that would change something twice is not repeated."""
    methods: list[bytes] = []

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = True
        while words := (await reader.readuntil(b"\r\n\r\n")).split(b" ")[0]:
            methods.append(words)
            if not first:
                break
            if words == b"GET" or len(methods) > 2:
                writer.write(OK)
            first = False

    async def use(wires: Wires, access: Access) -> Any:
        await ask(wires, access)
        return await ask(wires, access, method, body=b"" if method != "GET" else None)

    if sent == 1:
        with pytest.raises(ConnectionError):
            run(peer, use)
    else:
        assert run(peer, use)[2] == b"{}"
    assert methods[1:] == [method.encode()] * sent


@pytest.mark.parametrize(
    "parts",
    [
        (CHUNKED + b"6\r\nabc", b"def\r\n0\r\n\r\n"),
        (CHUNKED + b"3\r\nabc", b"\r\n3\r\ndef\r\n0\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc", b"def"),
    ],
)
def test_what_comes_while_the_reader_is_busy_is_not_waited_for(parts: tuple[bytes, bytes]) -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(parts[0])
        await busy.wait()
        writer.write(parts[1])
        await reader.read()

    async def use(wires: Wires, access: Access) -> bytes:
        got = b""
        async with wires.request("GET", f"{access.server}/log", {}, None, 2) as answer:
            async for piece in answer.pieces():
                got += piece
                busy.set()
                await asyncio.sleep(0.05)
        return got

    busy = asyncio.Event()
    assert run(peer, use) == b"abcdef"


def test_what_is_left_unread_is_given_up_with_its_connection() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
                sent.append(65536)
        except ConnectionError:
            ended.set()

    async def use(wires: Wires, access: Access) -> None:
        async with wires.request("GET", f"{access.server}/log", {}, None, None) as answer:
            await anext(aiter(answer.pieces()))
            await asyncio.sleep(0.3)
        await ended.wait()

    ended, sent = asyncio.Event(), list[int]()
    run(peer, use)
    assert sum(sent) < 16 << 20  # a waiting reader makes the server wait


def test_a_silent_server_is_left_after_a_while() -> None:
    async def use(wires: Wires, access: Access) -> None:
        async with wires.request("GET", f"{access.server}/x", {}, None, 0.1):
            pass

    with pytest.raises(TimeoutError):
        run(scripted([b""], [], ending=False), use)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/a\0"])
def test_a_request_is_one_request(path: str) -> None:
    seen: list[bytes] = []

    async def use(wires: Wires, access: Access) -> None:
        with pytest.raises(ValueError, match="HTTP does not allow"):
            await ask(wires, access, path=path)
        with pytest.raises(ValueError, match="HTTP does not allow"):
            async with wires.request("GET", f"{access.server}/x", {"Authorization": "Bearer a\r\nX: y"}, None, 1):
                pass

    run(scripted([OK], seen), use)
    assert seen == []


# Through a proxy


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    return certs.write(certs.bundle(), str(tmp_path_factory.mktemp("certs")))


@pytest.mark.parametrize("secured", [False, True], ids=["http proxy", "https proxy"])
def test_a_tunnel_through_a_proxy(certificates: tuple[str, str, str], secured: bool) -> None:
    """The proxy gets its password, the server gets the request, over TLS."""
    asked: list[bytes] = []

    async def go() -> Any:
        there = certs.server_context(*certificates)
        seen: list[bytes] = []
        server = await asyncio.start_server(closing(scripted([OK], seen)), "127.0.0.1", 0, ssl=there)
        port = server.sockets[0].getsockname()[1]

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                writer.write(data)

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))
            finally:
                there_writer.close()

        between = await asyncio.start_server(closing(proxy), "127.0.0.1", 0, ssl=there if secured else None)
        at = between.sockets[0].getsockname()[1]
        access = Access(f"https://127.0.0.1:{port}", None, "team", "a test")
        access.tls = ssl.create_default_context(cafile=certificates[0])
        access.proxy = f"http{'s' if secured else ''}://me:p%40ss@127.0.0.1:{at}"
        wires = Wires(access, {})
        try:
            async with asyncio.timeout(100):
                return await ask(wires, access), seen, port
        finally:
            wires.close()
            server.close()
            between.close()

    (status, _, body), seen, port = asyncio.run(go())
    assert (status, body) == (200, b"{}")
    assert seen[0].startswith(b"GET /api HTTP/1.1\r\n")
    assert b"Proxy-Authorization" not in seen[0]
    assert asked[0].startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % port)
    assert base64.b64encode(b"me:p@ss") in asked[0]


def test_a_proxy_that_refuses() -> None:
    async def use(wires: Wires, access: Access) -> None:
        access.proxy, access.server = access.server, "https://api.test"
        await ask(wires, access)

    with pytest.raises(NotHttp, match=r"the proxy answered 407"):
        run(scripted([b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"], []), use)


def test_a_certificate_of_another_name_or_authority_is_refused(certificates: tuple[str, str, str]) -> None:
    async def go(name: str | None, authority: str | None) -> None:
        there = certs.server_context(*certificates)
        server = await asyncio.start_server(closing(scripted([OK], [])), "127.0.0.1", 0, ssl=there)
        access = Access(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, "team", "a test")
        access.tls, access.tls_name = ssl.create_default_context(cafile=authority), name
        wires = Wires(access, {})
        try:
            await ask(wires, access)
        finally:
            wires.close()
            server.close()

    asyncio.run(go(None, certificates[0]))
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(go("elsewhere.test", certificates[0]))
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(go(None, None))
