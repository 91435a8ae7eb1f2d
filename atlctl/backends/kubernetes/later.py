"""A server that is opened with the first question: what needs no answer yet need not wait for one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from atlctl.backends.kubernetes.api import Answer, Api, Items, Object, Query, Socket, Stream


class LaterApi:
    """See `Api`. `server` and `context` are not known before; `namespace` is the job's."""

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
    ) -> Answer:
        return await (await self._opening()).send(method, path, body, query, merge_patch=merge_patch)

    @asynccontextmanager
    async def stream(self, path: str, query: Query = ()) -> AsyncIterator[tuple[int, Stream]]:
        async with (await self._opening()).stream(path, query) as opened:
            yield opened

    async def socket(self, path: str, query: Query, protocols: Sequence[str]) -> Socket:
        return await (await self._opening()).socket(path, query, protocols)
