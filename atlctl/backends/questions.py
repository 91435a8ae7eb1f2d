"""Many questions at once, to one server or to many hosts, with a bound on how many are open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Who = TypeVar("Who")
Answer = TypeVar("Answer")


async def ask_each(asked: Iterable[Who], question: Callable[[Who], Awaitable[Answer]], parallel: int) -> list[Answer]:
    """All answers, in the order of `asked`, `parallel` questions at once. Raises the first error of a question."""
    tasks = _start(asked, question, parallel)
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def ask_all(
    asked: Iterable[Who], question: Callable[[Who], Awaitable[Answer]], seconds: float, parallel: int
) -> dict[Who, Answer]:
    """The answers that came within `seconds`, `parallel` questions at once. Raises the first error of a question."""
    named = list(asked)
    tasks = _start(named, question, parallel)
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await _end(tasks)
    return {who: task.result() for who, task in zip(named, tasks, strict=True) if not task.cancelled()}


def _start(
    asked: Iterable[Who], question: Callable[[Who], Awaitable[Answer]], parallel: int
) -> list[asyncio.Task[Answer]]:
    turns = asyncio.Semaphore(parallel)

    async def one(who: Who) -> Answer:
        async with turns:
            return await question(who)

    return [asyncio.create_task(one(who)) for who in asked]


async def _end(tasks: list[asyncio.Task[Answer]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
