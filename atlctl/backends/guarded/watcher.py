"""The watcher of a command whose own stream cannot be the lifeline: a second stream to the same place."""

from __future__ import annotations

import asyncio
import contextlib

from atlctl.backends.base import Output
from atlctl.backends.guarded import guard
from atlctl.backends.guarded.channel import Channel, Ended, Place
from atlctl.jobs.errors import AtlctlError

#: Seconds for a watcher to say that it reads.
READY_SECONDS = 30.0


class Watcher:
    """Ends a command, see guard.py."""

    def __init__(self, channel: Channel, mark: str) -> None:
        self._channel = channel
        self._words = guard.Words(mark)
        self._heard: list[str] = []

    @classmethod
    async def begin(cls, place: Place, mark: str, start: tuple[str, str], *, terminal: bool) -> Watcher | None:
        """A watcher that reads, None where none can be had."""
        command = place.command((), guard.WATCH, (mark, *start, "HUP" if terminal else ""), stdin=True)
        try:
            watcher = cls(await place.open(command), mark)
        except AtlctlError:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                if await watcher._hear("R"):
                    return watcher
        await watcher.close()
        return None

    async def end(self, tenths: int) -> bool:
        """End the command, and go. True when nothing is left of it."""
        try:
            return await self._channel.send(f"{tenths}\n".encode()) and await self._hear("G")
        finally:
            await self.close()

    async def leave(self) -> None:
        """Go, and let live what the command left behind."""
        await self._channel.send(b"q\n")
        await self.close()

    async def close(self) -> None:
        """Without `leave`, this ends the command."""
        await self._channel.close()

    async def _hear(self, word: str) -> bool:
        while word not in self._heard:
            said = await self._channel.receive()
            if said is None or isinstance(said, Ended):
                return False
            if isinstance(said, Output) and said.stream == "stderr":
                self._heard += self._words.feed(said.data)[1]
        return True
