"""HTTP/1.1 client on asyncio: requests and streams to one API server, directly or through a proxy.

Importing aiohttp takes 130 ms of CPU time, a third of `ps`. Only WebSockets use it (`websocket.py`).
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult, unquote, urlsplit

if TYPE_CHECKING:
    from atlctl.backends.kubernetes.access import Access

CONNECT_SECONDS = 10.0
#: Seconds to keep a connection for the next request.
_KEPT_SECONDS = 15.0
#: Bytes to buffer before reading pauses; of an answer's head; of a chunk's line.
_BUFFER, _HEAD_BYTES, _CHUNK_LINE = 128 * 1024, 64 * 1024, 4096
#: Methods that may be sent twice (a deletion contains a UID).
_REPEATABLE = ("GET", "DELETE")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_PORTS = {"http": 80, "https": 443}


class NotHttp(ConnectionError):
    """The peer does not speak HTTP/1.1, or refuses the tunnel."""


class HttpAnswer:
    """An answer whose head was received. `headers`: values by lower-case names."""

    def __init__(self, wire: _Wire, head: list[bytes], silence: float | None) -> None:
        """`silence`: seconds without data after which reading raises TimeoutError. Raises NotHttp."""
        if not head or (found := _STATUS.fullmatch(head[0])) is None:
            raise NotHttp("the answer is not HTTP/1.1")
        self.status = int(found[2])
        self.headers: dict[str, list[str]] = {}
        for line in head[1:]:
            name, colon, value = line.decode("utf-8", "surrogateescape").partition(":")
            if not colon or name != name.strip() or not name:
                raise NotHttp("the answer has a malformed header")
            self.headers.setdefault(name.lower(), []).append(value.strip())
        self._wire = wire
        self._silence = silence
        coding = self._tokens("transfer-encoding")
        self._chunked = coding[-1:] == ["chunked"]
        #: Bytes of the body; None: until the connection ends.
        self._length: int | None = None
        if self.status in (204, 304):
            self._chunked, self._length = False, 0
        elif not coding and "content-length" in self.headers:
            stated = set(self.headers["content-length"])
            text = stated.pop()
            if stated or not (text.isascii() and text.isdigit() and len(text) < 19):
                raise NotHttp("the answer has no proper length")
            self._length = int(text)
        #: Whether the body has been read to its end.
        self.whole = self._length == 0
        #: Whether the connection can be reused after the body.
        self.keeps = (
            found[1] == b"1"
            and (self._chunked or self._length is not None)
            and "close" not in self._tokens("connection")
        )

    def header(self, name: str) -> str | None:
        """The first value of a header, by lower-case name."""
        return self.headers.get(name, [None])[0]

    def _tokens(self, name: str) -> list[str]:
        return [token.strip().lower() for token in ",".join(self.headers.get(name, ())).split(",") if token.strip()]

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives. Raises OSError (ended early), NotHttp, TimeoutError."""
        wire, left = self._wire, self._length
        if self._chunked:
            async for piece in self._chunks():
                yield piece
            left = 0
        while left != 0:
            if not wire.received:
                if left is None and wire.over and wire.error is None:
                    break
                await wire.more(self._silence)
                continue
            piece = wire.take(left)
            left = left if left is None else left - len(piece)
            yield piece
        self.whole = True

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        """The received chunks, joined: a server may send many small ones."""
        wire, left, before, last = self._wire, 0, b"", False
        while not last:
            got, at, parts = wire.received, 0, []
            while not last:
                if left:
                    parts.append(got[at : at + left])
                    at += len(parts[-1])
                    left -= len(parts[-1])
                    if left:
                        break
                begin = at + len(before)
                if (end := got.find(b"\r\n", begin, begin + _CHUNK_LINE)) < 0 and len(got) < begin + _CHUNK_LINE:
                    break
                if got[at:begin] != before or not (size := _CHUNK.fullmatch(got, begin, max(end, begin))):
                    raise NotHttp("the answer has a malformed chunk")
                at, before, left = end + 2, b"\r\n", int(size[1], 16)
                last = left == 0
            del got[:at]
            if piece := b"".join(parts):
                yield piece
            elif not at:  # look at data received during the yield before waiting
                await wire.more(self._silence)
        while await wire.line(self._silence):  # trailer fields
            pass


class Wires:
    """Connections to one server, kept for reuse and not limited in number. Close them with `close`."""

    def __init__(self, access: Access, headers: Mapping[str, str]) -> None:
        """`headers` are sent with each request."""
        self._access = access
        self._headers = headers
        self._kept: list[_Wire] = []

    @asynccontextmanager
    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, silence: float | None
    ) -> AsyncIterator[HttpAnswer]:
        """An answer of any status, once its head was received. `silence`: see `HttpAnswer`.

        Raises OSError, ValueError if no server is reachable or the peer does not speak HTTP. If the answer is not read
        to its end, its connection is dropped.
        """
        request = _head(method, url, self._access.proxy, {**self._headers, **headers}, body) + (body or b"")
        while True:
            kept = self._take()
            wire = kept or await self._connect()
            try:
                wire.transport.write(request)
                answer = await wire.answer(silence)
                break
            except BaseException as error:
                wire.transport.abort()
                # The server closed a kept connection before it received the request.
                if kept is None or not isinstance(error, ConnectionError) or wire.heard or method not in _REPEATABLE:
                    raise
        try:
            yield answer
        finally:
            if answer.whole and answer.keeps and not wire.over and not wire.received:
                wire.freed = time.monotonic()
                self._kept.append(wire)
            else:
                wire.transport.abort()

    def close(self) -> None:
        for wire in self._kept:
            wire.transport.abort()
        self._kept.clear()

    def _take(self) -> _Wire | None:
        """The last used connection that is still usable."""
        now = time.monotonic()
        while self._kept:
            wire = self._kept.pop()
            if (
                not wire.over
                and not wire.received
                and wire.tls is self._access.tls
                and now - wire.freed < _KEPT_SECONDS
            ):
                wire.heard = False
                return wire
            wire.transport.abort()
        return None

    async def _connect(self) -> _Wire:
        """A new connection to the server. Raises OSError, ValueError."""
        access, server = self._access, urlsplit(self._access.server)
        proxy = urlsplit(access.proxy) if access.proxy else None
        near = proxy or server
        async with asyncio.timeout(CONNECT_SECONDS):
            first, wire = await asyncio.get_running_loop().create_connection(
                _Wire, near.hostname or "", near.port or _PORTS[near.scheme], happy_eyeballs_delay=0.25
            )
            try:
                if proxy is not None and proxy.scheme == "https":
                    await wire.secure(access.tls or ssl.create_default_context(), proxy.hostname or "")
                if proxy is not None and server.scheme == "https":
                    await _tunnel(wire, proxy, server)
                if access.tls is not None:
                    await wire.secure(access.tls, access.tls_name or (server.hostname or "").rstrip("."))
            except BaseException:
                first.abort()
                raise
        wire.tls = access.tls
        return wire


class _Wire(asyncio.Protocol):
    """A connection. `received`: data that has not been read yet."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = bytearray()
        #: No more data will arrive.
        self.over = False
        #: Whether data arrived since this was last set to False.
        self.heard = False
        self.tls: ssl.SSLContext | None = None
        self.freed = 0.0
        self.error: Exception | None = None
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        self.received += data
        if len(self.received) > _BUFFER and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.over = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.eof_received()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self, most: int | None) -> bytes:
        """Received bytes, up to `most` (None: all)."""
        taken = bytes(self.received if most is None or len(self.received) <= most else self.received[:most])
        del self.received[: len(taken)]
        return taken

    async def more(self, silence: float | None) -> None:
        """Wait for more data or the connection's end. Raises OSError (ended, broken), TimeoutError."""
        if self.error is not None:
            raise self.error
        if self.over:
            raise ConnectionError("Server disconnected")
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(silence):
            await self._waiter

    async def line(self, silence: float | None) -> bytes:
        """The next line, without its end. Raises OSError, NotHttp."""
        while (end := self.received.find(b"\r\n")) < 0:
            if len(self.received) > _HEAD_BYTES:
                raise NotHttp("the answer has an endless line")
            await self.more(silence)
        line = self.take(end)
        del self.received[:2]
        return line

    async def answer(self, silence: float | None) -> HttpAnswer:
        """The next answer, skipping interim ones (1xx). Raises OSError."""
        while True:
            head: list[bytes] = []
            size = 0
            while line := await self.line(silence):
                head.append(line)
                if (size := size + len(line)) > _HEAD_BYTES:
                    raise NotHttp("the answer has an endless head")
            if (answer := HttpAnswer(self, head, silence)).status >= 200:
                return answer

    async def secure(self, context: ssl.SSLContext, name: str) -> None:
        """Start TLS with the peer, whose certificate must be valid for `name`. Raises OSError."""
        secured = await asyncio.get_running_loop().start_tls(self.transport, self, context, server_hostname=name)
        if self.over or secured is None:
            raise ConnectionError("Server disconnected")
        self.transport = secured


async def _tunnel(wire: _Wire, proxy: SplitResult, server: SplitResult) -> None:
    """Request a tunnel to the server from the proxy. Raises OSError."""
    host = server.hostname or ""
    there = f"{f'[{host}]' if ':' in host else host}:{server.port or _PORTS[server.scheme]}"
    wire.transport.write(_lines(f"CONNECT {there} HTTP/1.1", {"Host": there, **_proxy_login(proxy)}))
    answer = await wire.answer(None)
    if answer.status != 200:
        raise NotHttp(f"the proxy answered {answer.status}")


def _head(method: str, url: str, proxy: str | None, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """The head of a request. Raises ValueError if it would be more than one request."""
    parts = urlsplit(url)
    target = url[url.index("/", len(parts.scheme) + 3) :]
    host = parts.netloc.rpartition("@")[2].removesuffix(f":{_PORTS[parts.scheme]}")
    sent = {"Host": host, **headers}
    if proxy is not None and parts.scheme == "http":
        target = f"http://{host}{target}"
        sent |= _proxy_login(urlsplit(proxy))
    if body is not None or method not in _REPEATABLE:
        sent["Content-Length"] = str(len(body or b""))
    return _lines(f"{method} {target} HTTP/1.1", sent)


def _proxy_login(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(words.encode()).decode()}


def _lines(first: str, headers: Mapping[str, str]) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    if first.count(" ") != 2 or any(not line.isprintable() for line in lines):
        raise ValueError("a request or its headers have a character that HTTP does not allow")
    return "\r\n".join([*lines, "", ""]).encode()
