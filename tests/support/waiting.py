"""Waits for conditions that set no event, in the event loop of a test. Without one: `proc.wait_until`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], seconds: float = 100.0) -> None:
    """Wait until `holds` is true. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - nothing sets an event
            await asyncio.sleep(0.005)
