"""A program on each of many workers: a task writes its input, a sink keeps its output; why a worker did not answer."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

from atlctl.backends.base import Event, ExecRequest, Execution, Executor, Started, Stream, TerminalSize, end_words
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.i18n import Message
from atlctl.jobs.errors import (
    NO_PYTHON,
    AtlctlError,
    ExitCode,
    NothingMatched,
    TimedOut,
    Unreachable,
    without_python,
)
from atlctl.jobs.model import Worker

#: Characters of a program's last line.
_SAID = 400

_log = logging.getLogger(__name__)


class ExecutionAround(ABC):
    """See `Execution`."""

    def __init__(self, inner: Execution) -> None:
        self._inner = inner

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Event]:
        """The events that are handed on."""

    async def write(self, data: bytes) -> bool:
        return await self._inner.write(data)

    async def close_stdin(self) -> None:
        await self._inner.close_stdin()

    def resize(self, size: TerminalSize) -> None:
        self._inner.resize(size)

    async def end(self, grace: float) -> bool:
        return await self._inner.end(grace)

    async def aclose(self) -> None:
        await self._inner.aclose()


class ExecutorAround:
    """Runs commands through `inner`; `around(worker, execution)` is what stands for each execution."""

    def __init__(self, inner: Executor, around: Callable[[Worker, Execution], Execution]) -> None:
        self._inner = inner
        self._around = around

    def run(self, worker: Worker, request: ExecRequest) -> Execution:
        return self._around(worker, self._inner.run(worker, request))

    async def aclose(self) -> None:
        await self._inner.aclose()


class FedExecution(ExecutionAround):
    """An execution that is given its input by a task of its own, from its start to its end."""

    async def __aiter__(self) -> AsyncIterator[Event]:
        events = aiter(self._inner)
        feeding: asyncio.Task[None] | None = None
        try:
            async for event in events:
                if isinstance(event, Started):
                    feeding = asyncio.create_task(self._feeding())
                yield event
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.wait([feeding])
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _feeding(self) -> None:
        try:
            await self.feed()
        except (AtlctlError, OSError) as error:
            _log.debug("the input of a command is gone: %r", error)  # its last event tells how it ended

    @abstractmethod
    async def feed(self) -> None:
        """Writes the input. May raise AtlctlError and OSError where nobody reads any more."""


class KeepingSink:
    """A sink that keeps the beginning of each worker's output, until it is taken."""

    def __init__(self, limits: Mapping[Stream, int]) -> None:
        """`limits`: bytes of each stream of one worker."""
        self._limits = limits
        self._held: dict[tuple[str, Stream], bytearray] = {}

    async def started(self, worker: Worker) -> None:
        """Nothing is shown before the end."""

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        held = self._held.setdefault((worker.name, stream), bytearray())
        held += data[: self._limits[stream] - len(held)]

    async def finished(self, outcome: Outcome) -> None:
        """Read when all are."""

    def take(self, worker: Worker, stream: Stream) -> bytes:
        return bytes(self._held.pop((worker.name, stream), b""))


def ended(worker: Worker) -> AtlctlError:
    """Why a worker that has ended was not asked."""
    return NothingMatched(Message("not running ({state})", state=worker.state))


def last_words(outcome: Outcome, stderr: bytes | bytearray) -> str:
    """The last line that a program which a shell found a Python for wrote to stderr, or why that found none."""
    said = stderr.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2][:_SAID]
    return without_python(said) if said and outcome.code == NO_PYTHON else said


def ended_with(outcome: Outcome, program: str) -> Message:
    """How a program ended by itself."""
    how = end_words(outcome.exit_code, outcome.signal)
    return Message("{program} ended with {how}", program=program, how=how)


def unanswered(outcome: Outcome, program: str, missing: str, exited: str, *, lost: str = "lost: ") -> AtlctlError:
    """Why a worker gave no answer. `program` asked it, `missing` was not found there; `exited`: what an end of its own
    means, if more is known than how it ended; `lost` goes before the reason of a lost connection.
    """

    def whole(why: str) -> str:
        if not outcome.may_still_run:
            return why
        return Message("{said}; {program} may still run there", said=why, program=program)

    if outcome.kind is EndKind.TIMEOUT:
        return TimedOut(whole(outcome.reason))
    if outcome.code == ExitCode.NOT_FOUND:
        return AtlctlError(Message("{program} not found", program=missing))
    if outcome.kind is EndKind.EXITED:
        return AtlctlError(exited or ended_with(outcome, program))
    if outcome.code == ExitCode.UNREACHABLE:
        return Unreachable(whole(Message("lost: {why}", why=outcome.reason) if lost else outcome.reason))
    return AtlctlError(whole(outcome.reason))
