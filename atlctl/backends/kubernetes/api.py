"""What the parts of this backend need of an API server, and how its answers become errors of the project."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched, TimedOut, Unreachable

#: One JSON object, as the server sent it.
Object = dict[str, Any]
#: The reason for a server or a worker.
LATE = Message("no answer in time")
#: Parameters of a query, in their order; a key may be repeated.
Query = Sequence[tuple[str, str]] | Mapping[str, str]


class ApiError(AtlctlError):
    """The server refused: `status` is the HTTP status, `reason` and `text` are its own words (`text` is hostile)."""

    def __init__(self, status: int, reason: str, text: str, *, message: str = "", hint: str | None = None) -> None:
        super().__init__(
            message or Message("the API server answered {status}: {text}", status=status, text=text or reason), hint
        )
        self.status = status
        self.reason = reason
        self.text = text


class Denied(ApiError, NotAllowed):
    """401 and 403."""


class Unlisted(Denied):
    """Several lists of one place were refused with 403. `resources`: `plural.group` of each."""

    def __init__(self, resources: Sequence[str], where: str, text: str, hint: str) -> None:
        message = Message("not allowed to list {where}: {resources}", where=where, resources=", ".join(resources))
        super().__init__(403, "Forbidden", text, message=message, hint=hint)
        self.resources = tuple(resources)


class NotFound(ApiError, NothingMatched):
    """404."""


class Busy(ApiError, TimedOut):
    """429 and 503 until the deadline: the server asks for patience. `retry_after` is in seconds."""

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
    """An answer, or a list in pages, beyond what is read of one. Not repeated: it would be as large again."""

    def __init__(self, message: str) -> None:
        super().__init__(200, "TooLarge", "", message=message, hint=Message("narrow it: -n NAMESPACE, or -l SELECTOR"))


class Conflict(ApiError):
    """409: another version, another UID, or it exists already."""


class NoServer(Unreachable):
    """The server could not be reached, or the connection to it broke.

    `asked`: it may have got the request, and done what was asked.
    """

    def __init__(self, message: str, hint: str | None = None, *, asked: bool = False) -> None:
        super().__init__(message, hint)
        self.asked = asked


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """A JSON answer. `warnings` are the texts of its Warning headers."""

    data: Object
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Items:
    """All pages of a list, put together."""

    items: list[Object] = field(default_factory=list)


class Stream(Protocol):
    """The body of an answer that goes on: a log, a watch."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Chunks as they come. Raises NoServer where the connection breaks; ends where the server ended it."""


class Socket(Protocol):
    """A WebSocket to the server. `protocol` is the subprotocol that it chose, None where it chose none."""

    protocol: str | None

    async def receive(self) -> bytes | None:
        """The next message; None when the server closed it or the connection is gone. Pongs are answered below."""

    async def send(self, data: bytes) -> None:
        """One binary message. Waits while the connection is full. Raises NoServer where it is gone."""

    async def close(self) -> None:
        """Ends it, within a second, whatever state it is in."""


class Api(Protocol):
    """A server and an identity. Paths begin with `/api` or `/apis`.

    Every method raises ApiError (Denied, NotFound, Busy, Conflict, ...) or NoServer, and nothing else. Reads are
    repeated on a broken connection, 429 and 5xx, with growing pauses; writes only where the server says that it did
    nothing (429), and so streams. Every answer has a total time, its repeats included, and a size; of a stream its
    beginning alone.
    """

    server: str
    context: str | None
    namespace: str

    async def get(self, path: str, query: Query = ()) -> Object: ...

    async def list(self, path: str, query: Query = ()) -> Items:
        """All pages of a list."""

    async def send(
        self, method: str, path: str, body: Object | None, query: Query = (), *, merge_patch: bool = False
    ) -> JsonAnswer:
        """POST, PATCH (merge patch) or DELETE."""

    def stream(self, path: str, query: Query = ()) -> AbstractAsyncContextManager[tuple[int, Stream]]:
        """An open answer: its HTTP status (200, 204) and its body. Other statuses raise."""

    async def socket(self, path: str, query: Query, protocols: Sequence[str]) -> Socket:
        """A WebSocket. A refused upgrade raises ApiError with the server's words; a dead tunnel is tried again."""
