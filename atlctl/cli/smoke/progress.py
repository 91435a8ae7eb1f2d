"""What is done right now, as one line on the terminal that is written again and again, and taken away at the end."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import Self

from atlctl.cli.runtime import context
from atlctl.cli.smoke.telling import progress_text
from atlctl.cli.smoke.words import Words

_TICK_SECONDS = 0.2
_ERASE = b"\r\x1b[K"


class Progress:
    """`async with Progress(words, total) as progress: ... progress.now("mesh")`. Silent where nobody watches."""

    def __init__(self, words: Words, total: int) -> None:
        self._words = words
        self._total = total
        self._seen: list[str] = []
        self._begun = time.monotonic()
        self._showing: asyncio.Task[None] | None = None

    def now(self, name: str) -> None:
        """The check `name` begins."""
        if name not in self._seen:
            self._seen.append(name)

    async def __aenter__(self) -> Self:
        if context().streams.stderr_tty and not context().quiet and os.environ.get("TERM") != "dumb":
            self._showing = asyncio.create_task(self._show())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._showing is not None:
            self._showing.cancel()
            with suppress(asyncio.CancelledError):
                await self._showing

    async def _show(self) -> None:
        writer = context().writer
        shown = False
        try:
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                # Behind a terminal that is not read, lines would only pile up.
                if self._seen and not writer.pending_bytes:
                    seconds, width = time.monotonic() - self._begun, max(1, context().streams.width - 1)
                    *done, last = self._seen
                    text = progress_text(done, last, self._total, seconds, self._words, width)
                    writer.put("stderr", _ERASE + text.encode())
                    shown = True
        finally:
            if shown:
                writer.put("stderr", _ERASE)
