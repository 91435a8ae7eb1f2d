"""An execution around another one, for those who see to its bytes: all but the events goes through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from atlctl.backends.base import Event, Execution, TerminalSize


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
