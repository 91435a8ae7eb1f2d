"""Interface to the API server, and its errors as errors of this project."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched, TimedOut, Unreachable

#: A JSON object from the server.
Object = dict[str, Any]
#: The reason for a timeout of a server or a worker.
LATE = Message("no answer in time")
#: Query parameters in order; a key may be repeated.
Query = Sequence[tuple[str, str]] | Mapping[str, str]


class ApiError(AtlctlError):
    """The server refused a request. `status` is the HTTP status; `reason` and `text` are the server's (untrusted)."""

    def __init__(self, status: int, reason: str, text: str, *, message: str = "", hint: str | None = None) -> None:
        super().__init__(
            message or Message("the API server answered {status}: {text}", status=status, text=text or reason), hint
        )
        self.status = status
        self.reason = reason
        self.text = text


class Denied(ApiError, NotAllowed):
    """HTTP 401 or 403."""


class Unlisted(Denied):
    """Several lists in one namespace were refused with 403. `resources`: `plural.group` of each."""

    def __init__(self, resources: Sequence[str], where: str, text: str, hint: str) -> None:
        message = Message("not allowed to list {where}: {resources}", where=where, resources=", ".join(resources))
        super().__init__(403, "Forbidden", text, message=message, hint=hint)
        self.resources = tuple(resources)


class NotFound(ApiError, NothingMatched):
    """HTTP 404."""


class Busy(ApiError, TimedOut):
    """HTTP 429 or 503 until the deadline. `retry_after`: seconds."""

    def __init__(self, status: int, reason: str, text: str, *, retry_after: float | None = None) -> None:
        super().__init__(
            status,
            reason,
            text,
            message=Message("the API server is overloaded and asked to come back later"),
            hint=Message("try again"),
        )
        self.retry_after = retry_after


class TooLarge(ApiError):
    """An answer, or a paged list, exceeds the size limit. Not retried: it would be as large again."""

    def __init__(self, message: str) -> None:
        super().__init__(200, "TooLarge", "", message=message, hint=Message("narrow it: -n NAMESPACE, or -l SELECTOR"))


class Conflict(ApiError):
    """HTTP 409: another version or UID, or the object exists already."""


class NoServer(Unreachable):
    """The server is unreachable, or its connection broke.

    `asked`: the server may have received and executed the request.
    """

    def __init__(self, message: str, hint: str | None = None, *, asked: bool = False) -> None:
        super().__init__(message, hint)
        self.asked = asked


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """A JSON answer. `warnings`: texts of its Warning headers."""

    data: Object
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Items:
    """All pages of a list, joined."""

    items: list[Object] = field(default_factory=list)


class Stream(Protocol):
    """The body of a continuing answer: a log or a watch."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Chunks as they arrive. Raises NoServer if the connection breaks; ends when the server ends it."""


class Socket(Protocol):
    """A WebSocket to the server. `protocol`: the subprotocol that the server chose; None if none."""

    protocol: str | None

    async def receive(self) -> bytes | None:
        """The next message; None if the connection is closed. Pings are answered automatically."""

    async def send(self, data: bytes) -> None:
        """Send a binary message. Waits while the connection is full. Raises NoServer if it is closed."""

    async def close(self) -> None:
        """Close the socket within a second, in any state."""


class Api(Protocol):
    """A server with credentials. Paths begin with `/api` or `/apis`.

    Methods raise only ApiError (Denied, NotFound, Busy, Conflict, ...) and NoServer. Reads are retried after broken
    connections, 429 and 5xx, with growing pauses. Writes and streams are retried only if the server reports that it did
    nothing (429). Each answer has a time limit, which includes retries, and a size limit; for a stream the limits apply
    only to its start.
    """

    server: str
    context: str | None
    namespace: str

    async def get(self, path: str, query: Query = ()) -> Object: ...

    async def list(self, path: str, query: Query = ()) -> Items:
        """All pages of a list, joined."""

    async def send(
        self, method: str, path: str, body: Object | None, query: Query = (), *, merge_patch: bool = False
    ) -> JsonAnswer:
        """Send POST, PATCH (merge patch) or DELETE."""

    def stream(self, path: str, query: Query = ()) -> AbstractAsyncContextManager[tuple[int, Stream]]:
        """An open answer: its HTTP status (200, 204) and its body. Raises for other statuses."""

    async def socket(self, path: str, query: Query, protocols: Sequence[str]) -> Socket:
        """Open a WebSocket; retries a dead tunnel. Raises ApiError with the server's message if it refuses."""
