"""An execution around another one, for those who see to its bytes: all but the events goes through."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator

from atlctl.backends.base import Event, Execution, Started, TerminalSize
from atlctl.jobs.errors import AtlctlError

_log = logging.getLogger(__name__)


class Around(ABC):
    """See `Execution`."""

    def __init__(self, inner: Execution) -> None:
        self._inner = inner

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Event]:
        """The events that are handed on."""

    async def write(self, data: bytes) -> bool:
        return await self._inner.write(data)

    async def close_stdin(self) -> None:
        await self._inner.close_stdin()

    def resize(self, size: TerminalSize) -> None:
        self._inner.resize(size)

    async def end(self, grace: float) -> bool:
        return await self._inner.end(grace)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Fed(Around):
    """An execution that is given its input by a task of its own, from its start to its end."""

    async def __aiter__(self) -> AsyncIterator[Event]:
        events = aiter(self._inner)
        feeding: asyncio.Task[None] | None = None
        try:
            async for event in events:
                if isinstance(event, Started):
                    feeding = asyncio.create_task(self._feeding())
                yield event
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.wait([feeding])
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _feeding(self) -> None:
        try:
            await self.feed()
        except (AtlctlError, OSError) as error:
            _log.debug("the input of a command is gone: %r", error)  # its last event tells how it ended

    @abstractmethod
    async def feed(self) -> None:
        """Writes the input. May raise AtlctlError and OSError where nobody reads any more."""
