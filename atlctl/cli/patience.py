"""Time limits for work that may run an exec plugin of the kubeconfig."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from atlctl.i18n import Message
from atlctl.jobs.errors import TimedOut

T = TypeVar("T")

#: Seconds that the thread has to return once what it waited for was ended.
_RETURNING = 2.0


async def login(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """The result of `work`. After `seconds`, every program that this process started is ended, since a thread waits for
    it and would keep this process alive; `doctor` itself starts none. Raises TimedOut then."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            _end_programs()
            await asyncio.wait([task], timeout=_RETURNING)
            raise TimedOut(
                Message(
                    "authentication timed out after {seconds:g} s: the kubeconfig's exec plugin did not respond",
                    seconds=seconds,
                ),
                Message("run the kubeconfig's plugin by hand, or log in again: kubectl auth whoami"),
            )
        return await task
    finally:
        if not task.done():
            task.cancel()
        elif not task.cancelled():
            task.exception()  # it was reported, or came too late


@contextlib.asynccontextmanager
async def within(limit: float | None) -> AsyncIterator[None]:
    """Around all that a command asks before it turns to its workers, which takes `limit` seconds at most (None: no
    limit) but may always take `REACHING`. Ends programs as `login` does. Raises TimedOut."""
    from atlctl.fanout.engine import REACHING

    seconds = None if limit is None else max(limit, REACHING)
    try:
        async with asyncio.timeout(seconds) as clock:
            yield
    except (TimeoutError, asyncio.CancelledError) as error:
        if not clock.expired():
            raise
        _end_programs()
        raise TimedOut(
            Message("the job and its workers could not be asked for within {seconds:g} s", seconds=seconds),
            Message("see what is slow: atlctl doctor"),
        ) from error


def _end_programs() -> None:
    for pid in _below(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _below(pid: int) -> list[int]:
    """The processes that `pid` has started, with all of theirs, the deepest last."""
    found: list[int] = []
    ahead = [pid]
    while ahead:
        parent = ahead.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{thread}/children") as file:
                    ahead += map(int, file.read().split())
        if parent != pid:
            found.append(parent)
    return found
