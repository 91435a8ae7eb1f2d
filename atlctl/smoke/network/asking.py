"""Asking all agents at once without waiting long for one that is stuck, and reading answers that may be anything."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any

from atlctl.smoke.session import Answer, Fields, Session


async def ask(
    session: Session, commands: Mapping[str, Mapping[str, Any]], timeout: float, patience: float
) -> dict[str, Answer]:
    """As `Session.ask`; but once half have answered, the others are given up when none does for `patience` seconds,
    or for as long as it took until then, where that is more: on a starved machine all are slow."""
    answers: dict[str, Answer] = {}
    moved = asyncio.Event()

    def heard(name: str, event: Fields) -> None:
        if event.get("end"):
            problem = str(event.get("error", "")) if event.get("ev") == "problem" else ""
            answers[name] = Answer(None if problem else event, problem)
            moved.set()

    begun = time.monotonic()
    asking = asyncio.create_task(session.ask(commands, timeout, heard))
    waiting: asyncio.Task[bool] | None = None
    try:
        while not asking.done():
            moved.clear()
            waiting = asyncio.create_task(moved.wait())
            enough = 2 * len(answers) >= len(commands)
            limit = max(patience, time.monotonic() - begun) if enough else timeout
            await asyncio.wait({asking, waiting}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            stuck = not waiting.done()
            waiting.cancel()
            if stuck and not asking.done() and enough:
                break
        if asking.done():
            return asking.result()
    finally:
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
    gone = session.gone()
    late = Answer(None, f"no answer within {time.monotonic() - begun:.1f} s", late=True)
    return {name: answers.get(name) or (Answer(None, gone[name]) if name in gone else late) for name in commands}


def number(value: object) -> float | None:
    """A finite number that is not negative, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def text(value: object) -> str:
    """Words of a worker, shortened; hostile still."""
    return value[:200] if isinstance(value, str) else ""
