"""Second streams to where a command runs: the watcher of one whose own stream cannot be the lifeline, and a look."""

from __future__ import annotations

import asyncio
import contextlib

from atlctl.backends.guarded import guard
from atlctl.backends.guarded.channel import Channel, Ended, Place
from atlctl.jobs.errors import AtlctlError

#: Seconds for a watcher to say that it reads.
READY_SECONDS = 30.0


class Watcher:
    """Ends a command, see guard.py."""

    def __init__(self, channel: Channel, mark: str) -> None:
        self._channel = channel
        self._words = guard.WordFilter(mark)
        self._heard: list[str] = []
        self._over = False
        self._news = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

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

    async def ask(self) -> None:
        """Have it look whether the command's shell lives: `death` returns if not."""
        await self._channel.send(b"?\n")

    async def death(self) -> bool:
        """Wait until it reports that the command's shell was killed; False when it ends without that."""
        return await self._hear("D")

    async def leave(self) -> None:
        """Go, and let live what the command left behind."""
        await self._channel.send(b"q\n")
        await self.close()

    async def left(self) -> bool | None:
        """The answer of a look, None without one."""
        return "L 1" in self._heard if await self._hear("L 0", "L 1") else None

    async def close(self) -> None:
        """Without `leave`, this ends the command."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._channel.close()

    async def _hear(self, *words: str) -> bool:
        while not any(word in self._heard for word in words):
            if self._over:
                return False
            self._news.clear()
            await self._news.wait()
        return True

    async def _read(self) -> None:
        try:
            while (said := await self._channel.receive()) is not None and not isinstance(said, Ended):
                if said.stream == "stderr":
                    self._heard += self._words.feed(said.data)[1]
                    self._news.set()
        finally:
            self._over = True
            self._news.set()


async def anything_left(place: Place, mark: str, start: tuple[str, str]) -> bool | None:
    """Whether a process of the command is left, None if that cannot be found out."""
    try:
        look = Watcher(await place.open(place.command((), guard.LOOK, (mark, *start), stdin=False)), mark)
    except AtlctlError:
        return None
    try:
        return await look.left()
    finally:
        await look.close()
