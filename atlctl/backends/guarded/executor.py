"""Runs guarded commands on the workers of one job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from atlctl.backends.base import ExecRequest, FailedToStart
from atlctl.backends.guarded.channel import Place
from atlctl.backends.guarded.execution import GuardedExecution
from atlctl.i18n import Message
from atlctl.jobs.model import Worker


class GuardedExecutor:
    """See `atlctl.backends.base.Executor`."""

    def __init__(self, place: Callable[[Worker], Place | FailedToStart]) -> None:
        """`place`: where a worker is reached, or why there is no such place."""
        self._place = place
        self._open: set[GuardedExecution] = set()
        #: Places without `sh`: tried once.
        self._shellless: set[str] = set()

    def run(self, worker: Worker, request: ExecRequest) -> GuardedExecution:
        place = _impossible(request.argv.words) or self._place(worker)
        execution = GuardedExecution(place, request, self._shellless, self._open.discard)
        self._open.add(execution)
        return execution

    async def aclose(self) -> None:
        await asyncio.gather(*[execution.aclose() for execution in list(self._open)])


def _impossible(words: tuple[str, ...]) -> FailedToStart | None:
    """Why these words are no command anywhere, None where they are one."""
    if not words:
        return FailedToStart(125, Message("no command"))
    if any("\0" in word for word in words):
        return FailedToStart(125, Message("{word!r}: a word holds a NUL byte", word=words[0]))
    return None
