"""Concurrent requests to one server or many hosts, with a limit on how many run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Who = TypeVar("Who")
Answer = TypeVar("Answer")


async def ask_each(asked: Iterable[Who], question: Callable[[Who], Awaitable[Answer]], parallel: int) -> list[Answer]:
    """All answers, in the order of `asked`, with up to `parallel` requests at once. Raises the first error."""
    tasks = _start(asked, question, parallel)
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def ask_all(
    asked: Iterable[Who], question: Callable[[Who], Awaitable[Answer]], seconds: float, parallel: int
) -> dict[Who, Answer]:
    """The answers that arrive within `seconds`, with up to `parallel` requests at once. Raises the first error."""
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
