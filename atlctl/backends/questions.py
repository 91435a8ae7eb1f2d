"""Many questions at once, to one server or to many hosts, within a time for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Who = TypeVar("Who")
Answer = TypeVar("Answer")


async def ask_all(
    asked: Iterable[Who], question: Callable[[Who], Awaitable[Answer]], seconds: float, parallel: int
) -> dict[Who, Answer]:
    """The answers that came within `seconds`, `parallel` questions at once. Raises the first error of a question."""
    answers: dict[Who, Answer] = {}
    turns = asyncio.Semaphore(parallel)

    async def one(who: Who) -> None:
        async with turns:
            answers[who] = await question(who)

    asking = [asyncio.create_task(one(who)) for who in asked]
    if not asking:
        return answers
    try:
        await asyncio.wait(asking, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in asking:
            task.cancel()
        ended = await asyncio.gather(*asking, return_exceptions=True)
    for result in ended:
        if isinstance(result, Exception):
            raise result
    return answers
