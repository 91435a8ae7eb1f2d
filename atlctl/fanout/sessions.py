"""Sessions with a program on each of many workers: input, captured output, and the reason if a worker does not
answer."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

from atlctl.backends.base import Event, ExecRequest, Execution, Executor, Started, Stream, TerminalSize, end_words
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.i18n import Message
from atlctl.jobs.errors import NO_PYTHON, AtlctlError, ExitCode, NothingMatched, TimedOut, Unreachable, without_python
from atlctl.jobs.model import Worker

#: Maximum characters of a program's last line.
_SAID = 400

_log = logging.getLogger(__name__)


class ExecutionAround(ABC):
    """See `Execution`."""

    def __init__(self, inner: Execution) -> None:
        self._inner = inner

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Event]:
        """The events that are passed on."""

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
    """Runs commands through `inner`; `around(worker, execution)` wraps each execution."""

    def __init__(self, inner: Executor, around: Callable[[Worker, Execution], Execution]) -> None:
        self._inner = inner
        self._around = around

    def run(self, worker: Worker, request: ExecRequest) -> Execution:
        return self._around(worker, self._inner.run(worker, request))

    async def aclose(self) -> None:
        await self._inner.aclose()


class FedExecution(ExecutionAround):
    """An execution with its own task that writes the input, from start to end."""

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
            _log.debug("the input of a command is gone: %r", error)  # the last event has the result

    @abstractmethod
    async def feed(self) -> None:
        """Write the input. May raise AtlctlError and OSError if the command no longer reads."""


class KeepingSink:
    """A sink that keeps the first bytes of each worker's output until they are taken."""

    def __init__(self, limits: Mapping[Stream, int]) -> None:
        """`limits`: bytes per stream of each worker."""
        self._limits = limits
        self._held: dict[tuple[str, Stream], bytearray] = {}

    async def started(self, worker: Worker) -> None:
        """Nothing to show before the end."""

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        held = self._held.setdefault((worker.name, stream), bytearray())
        held += data[: self._limits[stream] - len(held)]

    async def finished(self, outcome: Outcome) -> None:
        """Nothing to do: outcomes are read when all workers are finished."""

    def take(self, worker: Worker, stream: Stream) -> bytes:
        return bytes(self._held.pop((worker.name, stream), b""))


def ended(worker: Worker) -> AtlctlError:
    """The error for a worker that has ended and was not queried."""
    return NothingMatched(Message("not running ({state})", state=worker.state.label))


def last_words(outcome: Outcome, stderr: bytes | bytearray) -> str:
    """The last stderr line of a Python program, or the reason why the shell found no Python for it."""
    said = stderr.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2][:_SAID]
    return without_python(said) if said and outcome.code == NO_PYTHON else said


def ended_with(outcome: Outcome, program: str) -> Message:
    how = end_words(outcome.exit_code, outcome.signal)
    return Message("{program} ended with {how}", program=program, how=how)


def unanswered(outcome: Outcome, program: str, missing: str, exited: str, *, lost: str = "lost: ") -> AtlctlError:
    """The error for a worker without an answer. `program`: asked it; `missing`: was not found there; `exited`: the
    meaning of a normal exit, if known; `lost`: prefix for the reason of a lost connection."""

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
