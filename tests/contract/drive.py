"""Runs a command through an `Executor` and keeps all events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from atlctl.backends.base import (
    Argv,
    Event,
    ExecRequest,
    Execution,
    Exited,
    FailedToStart,
    Lost,
    Output,
    Started,
    Stream,
    TerminalSize,
)
from atlctl.fanout.engine import FanOut, Limits, StdinFeed
from atlctl.fanout.outcome import Outcome
from atlctl.jobs.model import Job, Worker
from tests.contract.world import World

TERMINAL_EVENTS = (Exited, FailedToStart, Lost)


@dataclass
class Ran:
    """All events of an execution."""

    events: list[Event] = field(default_factory=list)

    def take(self, event: Event) -> None:
        self.events.append(event)

    def _bytes(self, stream: Stream) -> bytes:
        return b"".join(event.data for event in self.events if isinstance(event, Output) and event.stream == stream)

    @property
    def stdout(self) -> bytes:
        return self._bytes("stdout")

    @property
    def stderr(self) -> bytes:
        return self._bytes("stderr")

    @property
    def started(self) -> list[Started]:
        return [event for event in self.events if isinstance(event, Started)]

    @property
    def end(self) -> Event:
        """The terminal event, which must be the only and last one."""
        assert [isinstance(event, TERMINAL_EVENTS) for event in self.events].count(True) == 1
        assert isinstance(self.events[-1], TERMINAL_EVENTS)
        return self.events[-1]

    @property
    def exited(self) -> Exited:
        assert isinstance(self.end, Exited), self.end
        return self.end


@contextlib.asynccontextmanager
async def executing(
    world: World, job: Job, argv: Sequence[str], *, stdin: bool = False, tty: TerminalSize | None = None
) -> AsyncIterator[Execution]:
    """An execution of `argv` in worker 0, closed at the end."""
    executor = world.backend.executor(job)
    execution = executor.run(job.workers[0], ExecRequest(Argv(tuple(argv)), stdin=stdin, tty=tty))
    try:
        yield execution
    finally:
        await execution.aclose()
        await executor.aclose()


async def collect(execution: Execution, on_start: Callable[[], Awaitable[object]] | None = None) -> Ran:
    """Follow an execution to its end; `on_start` runs concurrently from `Started` on."""
    ran = Ran()
    beside: asyncio.Future[object] | None = None
    async for event in execution:
        ran.take(event)
        if isinstance(event, Started) and on_start is not None:
            beside = asyncio.ensure_future(on_start())
    if beside is not None:
        await asyncio.wait_for(beside, 100)
    return ran


def execute(
    world: World, job: Job, argv: Sequence[str], *, stdin: bytes | None = None, tty: TerminalSize | None = None
) -> Ran:
    """Run `argv` in worker 0 to its end. `stdin`: its whole input; None for none."""

    async def main() -> Ran:
        async with executing(world, job, argv, stdin=stdin is not None, tty=tty) as execution:

            async def feed() -> None:
                assert stdin is not None
                await execution.write(stdin)
                await execution.close_stdin()

            return await collect(execution, None if stdin is None else feed)

    return asyncio.run(asyncio.wait_for(main(), 100))


class Kept:
    """A sink that keeps the output of each worker."""

    def __init__(self) -> None:
        self.output_of: dict[str, bytes] = {}
        self.running: set[str] = set()
        self.all_run = asyncio.Event()
        self.wanted = 0

    async def started(self, worker: Worker) -> None:
        self.running.add(worker.name)
        if len(self.running) == self.wanted:
            self.all_run.set()

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        self.output_of[worker.name] = self.output_of.get(worker.name, b"") + data

    async def finished(self, outcome: Outcome) -> None:
        self.running.discard(outcome.worker.name)


def fan_out(
    world: World,
    job: Job,
    argv: Sequence[str],
    limits: Limits | None = None,
    *,
    stdin: int | None = None,
    cancel_when_all_run: bool = False,
) -> tuple[list[Outcome], Kept]:
    """Run `argv` on all workers through the engine. `stdin`: a descriptor to broadcast."""

    async def main() -> tuple[list[Outcome], Kept]:
        executor = world.backend.executor(job)
        sink = Kept()
        sink.wanted = job.expected
        request = ExecRequest(Argv(tuple(argv)), stdin=stdin is not None)
        feed = None if stdin is None else StdinFeed(stdin)
        run = asyncio.ensure_future(FanOut(executor, job.workers, request, limits or Limits(), sink, feed).run())
        try:
            if cancel_when_all_run:
                await sink.all_run.wait()
                run.cancel()
            try:
                return await run, sink
            except asyncio.CancelledError as interrupted:
                outcomes: list[Outcome] = getattr(interrupted, "outcomes", [])
                return outcomes, sink
        finally:
            await executor.aclose()

    return asyncio.run(asyncio.wait_for(main(), 100))
