"""API client: requests, streams and WebSockets, with retries. See `Api` in `api.py`.

The number of connections is not limited, because each running command holds one. Answers are plain JSON objects.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from atlctl import __version__
from atlctl.backends.kubernetes.api import (
    LATE,
    Api,
    ApiError,
    Busy,
    Conflict,
    Denied,
    Items,
    JsonAnswer,
    NoServer,
    NotFound,
    Object,
    Query,
    Socket,
    Stream,
    TooLarge,
)
from atlctl.backends.kubernetes.wire import HttpAnswer, Wires
from atlctl.i18n import Message

if TYPE_CHECKING:
    from atlctl.backends.kubernetes.access import Access
    from atlctl.backends.kubernetes.websocket import Sockets

T = TypeVar("T")
_log = logging.getLogger("atlctl.kubernetes")

#: Items per page of a list, as in kubectl.
PAGE = 500
#: Maximum number of pages: some hundred thousand objects.
MOST_PAGES = 400
#: Seconds for an answer, including retries: for a read; for a write, to which the server itself allows a minute because
#: webhooks may be slow; for a list with all its pages.
DEADLINE, WRITE_DEADLINE, LIST_DEADLINE = 30.0, 60.0, 120.0
#: Seconds without data before a read is retried over a new connection.
READ_SECONDS = 15.0
#: Seconds before a pending answer is reported.
NOTICE_SECONDS = 2.0
#: Maximum size in bytes of an unpacked answer. Only one answer at a time may grow beyond the second figure, which
#: bounds the memory of many.
ANSWER_BYTES, _LARGE = 64 << 20, 4 << 20
#: Maximum memory in bytes, estimated by `_weight`, of a parsed answer or a list with all its pages.
PARSED_BYTES = 512 << 20
#: Bytes to unpack at once.
_PIECE = 1 << 20
#: Seconds before each retry of a failed read without Retry-After, varied by half.
_PAUSES = (0.2, 0.5, 1.5)
#: Bytes to read of a refusal.
_REFUSAL = 64 * 1024
#: asyncio keeps two buffers of this size for each TLS connection, 256 KiB by default: 1,000 of them need 350 MB.
_TLS_BUFFER = 32 * 1024
#: Requests all groups with their resources in one answer (by default from 1.27).
_DISCOVERY = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)
_MERGE_PATCH = "application/merge-patch+json"
#: Sent with each request.
_OUR_NAME = {"User-Agent": f"atlctl/{__version__}"}


class Client:
    """A client for one server with one set of credentials. Close it with `aclose`."""

    def __init__(self, access: Access, waiting: Callable[[str], None] | None = None) -> None:
        """`waiting` is called once, with a note that the server is slow to answer."""
        self._waiting = waiting
        self.server = access.server
        self.context = access.context
        self.namespace = access.namespace
        self.access = access
        self._wires: Wires | None = None
        self._sockets: Sockets | None = None
        self._one_large = asyncio.Semaphore(1)

    async def get(self, path: str, query: Query = ()) -> Object:
        return _parsed(await self._read(path, query))

    async def list(self, path: str, query: Query = ()) -> Items:
        asked = list(query.items() if isinstance(query, Mapping) else query)
        restarts, pages, weight = 0, 0, 0
        found, token = Items(), ""
        until = time.monotonic() + LIST_DEADLINE
        while True:
            page = [*asked, ("limit", str(PAGE)), *([("continue", token)] if token else [])]
            try:
                raw = await self._read(path, page)
            except ApiError as error:
                # The continue token has expired: the list changed during slow paging.
                if error.status != 410 or not token or restarts == 2:
                    raise
                restarts += 1
                found, token = Items(), ""
                continue
            pages, weight = pages + 1, weight + _weight(raw)
            if pages > MOST_PAGES or weight > PARSED_BYTES:
                found.items.clear()
                raw.clear()
                text = Message("the API server {host} does not end its list: {pages} pages, {size} MiB: {path}")
                raise TooLarge(text.filled(host=self._host(), pages=pages, size=weight >> 20, path=path))
            data = _parsed(raw)
            metadata = data.get("metadata") or {}
            found.items.extend(item for item in data.get("items") or () if isinstance(item, dict))
            token = str(metadata.get("continue") or "")
            if not token:
                return found
            if time.monotonic() > until:
                text = Message("the API server {host} did not send the whole list within {seconds:.0f} s: {path}")
                raise NoServer(text.filled(host=self._host(), seconds=LIST_DEADLINE, path=path), self._hint())

    async def send(
        self, method: str, path: str, body: Object | None, query: Query = (), *, merge_patch: bool = False
    ) -> JsonAnswer:
        kind = _MERGE_PATCH if merge_patch else "application/json"

        async def once() -> JsonAnswer:
            async with self._request(method, path, query, body=body, kind=kind) as response:
                data = _parsed(await self._whole(response, path))
                return JsonAnswer(data, tuple(_warning(text) for text in response.headers.get("warning", ())))

        return await self._patiently(once, WRITE_DEADLINE, only_when_told=True)

    @asynccontextmanager
    async def stream(self, path: str, query: Query = ()) -> AsyncIterator[tuple[int, Stream]]:
        async with AsyncExitStack() as held:

            async def once() -> HttpAnswer:
                return await held.enter_async_context(self._request("GET", path, query, endless=True))

            response = await self._patiently(once, only_when_told=True)  # readers retry: they know what has arrived
            yield response.status, _Body(response)

    async def socket(self, path: str, query: Query, protocols: Sequence[str]) -> Socket:
        from atlctl.backends.kubernetes import websocket

        if self._sockets is None:
            _thrifty()
            self._sockets = websocket.Sockets(self.access, _OUR_NAME)
        sockets = self._sockets

        async def once() -> Socket:
            headers = await self._headers()
            try:
                return await sockets.open(self._url(path, query), headers, protocols)
            except websocket.FAILURES as error:
                raise self._no_server(error, asked=not isinstance(error, websocket.NEVER_ASKED)) from error

        return await self._patiently(once, dialing=True)

    async def aclose(self) -> None:
        if self._wires is not None:
            self._wires.close()
            self._wires = None
        if self._sockets is not None:
            await self._sockets.aclose()
            self._sockets = None

    def _url(self, path: str, query: Query) -> str:
        pairs = query.items() if isinstance(query, Mapping) else query
        text = urlencode(list(pairs), quote_via=quote)
        return f"{self.server}{path}{'?' if text else ''}{text}"

    async def _headers(self) -> dict[str, str]:
        at_hand = self.access.headers_at_hand()
        return at_hand if at_hand is not None else await asyncio.to_thread(self.access.headers)

    async def _read(self, path: str, query: Query) -> bytearray:
        async def once() -> bytearray:
            async with self._request("GET", path, query) as response:
                return await self._whole(response, path)

        return await self._patiently(once)

    async def _whole(self, response: HttpAnswer, path: str) -> bytearray:
        """The unpacked body. Raises TooLarge."""
        got = bytearray()
        async with AsyncExitStack() as held:
            pieces = await held.enter_async_context(aclosing(_pieces(response)))
            large = False
            async for piece in pieces:
                got += piece
                if len(got) > _LARGE and not large:
                    large = True
                    await held.enter_async_context(self._one_large)
                if len(got) > ANSWER_BYTES:
                    break
        if len(got) > ANSWER_BYTES or _weight(got) > PARSED_BYTES:
            got.clear()  # an exception keeps the variables of its frames alive
            text = Message("the API server {host} returned an answer that is too large: {path}")
            raise TooLarge(text.filled(host=self._host(), path=path))
        return got

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        query: Query,
        *,
        body: Object | None = None,
        kind: str = "application/json",
        endless: bool = False,
    ) -> AsyncIterator[HttpAnswer]:
        accept = _DISCOVERY if path in ("/api", "/apis") else "*/*" if endless else "application/json"
        headers = {**await self._headers(), "Accept": accept, "Accept-Encoding": "identity" if endless else "gzip"}
        data = None
        if body is not None:
            headers["Content-Type"] = kind
            data = json.dumps(body).encode()
        silence = READ_SECONDS if method == "GET" and not endless else None
        _log.debug("%s %s", method, path)
        if self._wires is None:
            _thrifty()
            self._wires = Wires(self.access, _OUR_NAME)
        async with AsyncExitStack() as held:
            asked = self._wires.request(method, self._url(path, query), headers, data, silence)
            try:
                response = await held.enter_async_context(asked)
            except (OSError, ValueError) as error:
                raise self._no_server(error) from error
            try:
                if response.status >= 300:
                    body_start = await start(_pieces(response))
                    raise refusal(response.status, response.header("retry-after"), masked(body_start, headers))
                yield response
            except OSError as error:
                raise NoServer(
                    Message("the connection to {host} broke: {why}", host=self._host(), why=_why(error)),
                    Message("try again"),
                ) from error

    def _no_server(self, error: Exception, *, asked: bool = False) -> NoServer:
        where: str = self._host()
        if self.access.proxy:
            where = Message("{server} through the proxy {proxy}", server=where, proxy=_host_of(self.access.proxy))
        return NoServer(
            Message("the API server {where} cannot be reached: {why}", where=where, why=_why(error)),
            self._hint(),
            asked=asked,
        )

    def _hint(self) -> str:
        hint = Message("check the network of this pod")
        if self.context:
            hint = Message("check the context {context}", context=self.context)
        return Message("{hint}; jobs of this machine or of hosts: --backend local, --backend ssh", hint=hint)

    def _host(self) -> str:
        return _host_of(self.server)

    async def _patiently(
        self,
        once: Callable[[], Awaitable[T]],
        seconds: float | None = None,
        *,
        only_when_told: bool = False,
        dialing: bool = False,
    ) -> T:
        """Retry temporary failures for `seconds` in total (None: `DEADLINE`).

        `only_when_told`: only if the server reports that it did nothing. `dialing`: otherwise retry only failures of
        the tunnel to the node ("error dialing backend").
        """
        seconds = DEADLINE if seconds is None else seconds
        renewed = False
        while True:
            await self._headers()  # outside the time limit: the user may have to log in with a browser
            notice = asyncio.get_running_loop().call_later(NOTICE_SECONDS, self._tell_waiting)
            try:
                async with asyncio.timeout(seconds) as clock:
                    return await self._repeatedly(once, time.monotonic() + seconds, only_when_told, dialing)
            except Denied as error:
                if error.status != 401 or renewed:
                    raise
                refused = error
            except TimeoutError as error:
                if not clock.expired():
                    raise
                text = Message("the API server {host} did not answer within {seconds:.0f} s")
                raise NoServer(text.filled(host=self._host(), seconds=seconds), self._hint(), asked=True) from error
            finally:
                notice.cancel()
            renewed = True
            if not await asyncio.to_thread(self.access.renew, self.access.headers_at_hand() or {}):
                raise refused

    def _tell_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting(Message("waiting for the API server {host}...", host=self._host()))
            self._waiting = None

    async def _repeatedly(
        self, once: Callable[[], Awaitable[T]], until: float, only_when_told: bool, dialing: bool
    ) -> T:
        pauses = list(_PAUSES)
        while True:
            try:
                return await once()
            except Busy as error:
                pause = error.retry_after if error.retry_after is not None else 1.0
                if time.monotonic() + pause + 0.3 > until:
                    raise
                await asyncio.sleep(pause + random.uniform(0, 0.3))  # noqa: S311 - spreads clients, no secret
            except (NoServer, ApiError) as error:
                if only_when_told or not pauses or not _passing(error, dialing):
                    raise
                await asyncio.sleep(pauses.pop(0) * random.uniform(0.5, 1.5))  # noqa: S311 - the same


class LaterApi:
    """An `Api` that connects when first used. `server` and `context` are unknown before; `namespace` is the job's."""

    def __init__(self, opening: Callable[[], Awaitable[Api]], namespace: str) -> None:
        self.server = ""
        self.context: str | None = None
        self.namespace = namespace
        self._opening = opening

    async def get(self, path: str, query: Query = ()) -> Object:
        return await (await self._opening()).get(path, query)

    async def list(self, path: str, query: Query = ()) -> Items:
        return await (await self._opening()).list(path, query)

    async def send(
        self, method: str, path: str, body: Object | None, query: Query = (), *, merge_patch: bool = False
    ) -> JsonAnswer:
        return await (await self._opening()).send(method, path, body, query, merge_patch=merge_patch)

    @asynccontextmanager
    async def stream(self, path: str, query: Query = ()) -> AsyncIterator[tuple[int, Stream]]:
        async with (await self._opening()).stream(path, query) as opened:
            yield opened

    async def socket(self, path: str, query: Query, protocols: Sequence[str]) -> Socket:
        return await (await self._opening()).socket(path, query, protocols)


class _Body:
    """See `Stream`."""

    def __init__(self, response: HttpAnswer) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async with aclosing(_pieces(self._response)) as pieces:
                async for piece in pieces:
                    yield piece
        except OSError as error:
            raise NoServer(Message("the connection broke: {why}", why=_why(error))) from error


def _pieces(response: HttpAnswer) -> AsyncGenerator[bytes, None]:
    return unpacked(response.header("content-encoding"), response.pieces())


async def unpacked(encoding: str | None, pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """The decompressed data of an answer, in bounded pieces. Raises NoServer if decompression fails."""
    packed = (encoding or "identity").lower()
    unpacker = None if packed == "identity" else zlib.decompressobj(31)
    if packed not in ("identity", "gzip"):
        raise NoServer(
            Message("the API server's answer has an encoding that was not requested: {encoding}", encoding=packed[:40])
        )
    async for data in pieces:
        if unpacker is None:
            yield data
            continue
        rest = b"" if unpacker.eof else data
        while rest:
            try:
                piece = unpacker.decompress(rest, _PIECE)
            except zlib.error as error:
                raise NoServer(Message("cannot decompress the API server's answer: {why}", why=error)) from error
            rest = unpacker.unconsumed_tail
            yield piece
    if unpacker is not None and not unpacker.eof:
        yield unpacker.flush()


def refusal(status: int, retry_after: str | None, body: bytes) -> ApiError:
    """The error for a refused request. `body`: a Status object or plain text; `retry_after`: the header."""
    told: Object = {}
    with suppress(ValueError, RecursionError):
        parsed = json.loads(body)
        told = parsed if isinstance(parsed, dict) else {}
    reason = str(told.get("reason") or "")
    text = " ".join(str(told.get("message") or body[:1000].decode("utf-8", "replace")).split())
    if status == 401:
        failed = Message("authentication failed (401 Unauthorized)")
        hint = Message("log in again, or check the context: kubectl config current-context")
        return Denied(status, reason, text, message=failed, hint=hint)
    if status == 403:
        return Denied(status, reason, text, message=Message("not allowed: {why}", why=text), hint="atlctl doctor")
    if status == 404:
        return NotFound(status, reason, text, message=text or Message("not found"))
    if status == 409:
        return Conflict(status, reason, text, message=text)
    if status in (429, 503):
        return Busy(status, reason, text, retry_after=_seconds(retry_after))
    return ApiError(status, reason, text)


def _passing(error: NoServer | ApiError, dialing: bool) -> bool:
    """Whether the failure is temporary, so that a retry may succeed."""
    if isinstance(error, NoServer):
        return not dialing
    if error.status == 500 and "error dialing backend" in error.text:
        return True
    return not dialing and error.status in (500, 502, 504)


def _seconds(text: str | None) -> float | None:
    try:
        return min(max(float(text or ""), 0.0), 3600.0)
    except ValueError:
        return None


def _warning(text: str) -> str:
    """The text of a Warning header: `299 - "text"`."""
    _, _, rest = text.partition('"')
    return rest.strip().removesuffix('"').replace('\\"', '"') or text


def _weight(data: bytes | bytearray) -> int:
    """Estimated lower bound of the memory for parsed JSON, in bytes: an empty object of two bytes takes 64."""
    return len(data) + 64 * (data.count(b"{") + data.count(b"["))


def _parsed(data: bytes | bytearray) -> Object:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NoServer(
            Message("the API server's answer is not JSON"), Message("check whether a proxy is in between")
        ) from error
    return found if isinstance(found, dict) else {}


async def start(pieces: AsyncGenerator[bytes, None]) -> bytes:
    """The first bytes of a refusal, as far as they arrive."""
    got = b""
    with suppress(OSError, NoServer):
        async with asyncio.timeout(5), aclosing(pieces):
            async for piece in pieces:
                got += piece
                if len(got) >= _REFUSAL:
                    break
    return got[:_REFUSAL]


def masked(body: bytes, sent: Mapping[str, str]) -> bytes:
    """The body of a refusal without the request's credential, which some proxies echo."""
    secret = sent.get("Authorization", "").rpartition(" ")[2].encode()
    return body.replace(secret, b"***") if len(secret) > 3 else body


def _host_of(url: str | None) -> str:
    parts = urlsplit(url or "")
    return parts.netloc.rpartition("@")[2] + parts.path.rstrip("/")


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return LATE
    return str(getattr(error, "os_error", None) or error) or type(error).__name__


def _thrifty() -> None:
    """Reduce memory per TLS connection."""
    from asyncio import sslproto

    protocol = getattr(sslproto, "SSLProtocol", None)
    if isinstance(getattr(protocol, "max_size", None), int):
        protocol.max_size = _TLS_BUFFER  # type: ignore[union-attr]
