"""An executor with planned commands, and a sink that records its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal

from atlctl.backends.base import Argv, Event, ExecRequest, Exited, Lost, Output, Started, Stream, TerminalSize
from atlctl.fanout.outcome import Outcome
from atlctl.jobs.model import State, Worker

REQUEST = ExecRequest(Argv(("true",)))
FOREVER = 3600.0

#: An event to yield, an exception to raise, or seconds to wait (shortened by `end`).
Step = Event | Exception | float


def workers(count: int) -> list[Worker]:
    return [Worker(f"worker-{index}", index, State.RUNNING) for index in range(count)]


def events(*steps: Step, code: int = 0) -> tuple[Step, ...]:
    return (Started(guarded=True), *steps, Exited(exit_code=code))


@dataclass
class Plan:
    """`on_end`: the behaviour of `end`. proven: True, then `Exited`; unproven: False, then `Lost`; silent: True and
    never an event; hangs: never returns; raises: a RuntimeError."""

    steps: tuple[Step, ...] = events()
    on_end: Literal["proven", "unproven", "silent", "hangs", "raises"] = "proven"
    close_error: Exception | None = None
    close_delay: float = 0.0
    reads: Callable[[bytes], bool] | None = None
    write_delay: float = 0.0


@dataclass(eq=False)
class FakeExecution:
    executor: FakeExecutor
    worker: Worker
    request: ExecRequest
    plan: Plan
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    ends: int = 0
    closes: int = 0
    running: bool = False
    received: bytearray = field(default_factory=bytearray)
    input_closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aiter__(self) -> AsyncIterator[Event]:
        counts = self.executor.counts
        counts["connecting"].enter()
        counts["all"].enter()
        try:
            for step in self.plan.steps:
                if isinstance(step, float):
                    await self._pause(step)
                    if self.ended.is_set():
                        if self.plan.on_end == "silent":
                            await asyncio.sleep(FOREVER)
                        yield Exited(signal=15) if self.plan.on_end == "proven" else Lost("ended")
                        return
                elif isinstance(step, Exception):
                    raise step
                else:
                    if isinstance(step, Started):
                        counts["connecting"].leave()
                        self.running = True
                    yield step
        finally:
            if not self.running:
                counts["connecting"].leave()
            counts["all"].leave()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            return

    async def write(self, data: bytes) -> bool:
        if self.plan.write_delay:
            await asyncio.sleep(self.plan.write_delay)
        if self.plan.reads is not None and not self.plan.reads(bytes(self.received)):
            return False
        self.received += data
        return True

    async def close_stdin(self) -> None:
        self.input_closed.set()
        self.ended.set()

    def resize(self, size: TerminalSize) -> None:
        raise AssertionError("nobody resizes here")

    async def end(self, grace: float) -> bool:
        self.ends += 1
        self.executor.graces.append(grace)
        if self.plan.on_end == "hangs":
            await asyncio.sleep(FOREVER)
        self.ended.set()
        if self.plan.on_end == "raises":
            raise RuntimeError("no way to end it")
        return self.plan.on_end != "unproven"

    async def aclose(self) -> None:
        self.closes += 1
        await asyncio.sleep(self.plan.close_delay)
        if self.plan.close_error is not None:
            raise self.plan.close_error


class Count:
    def __init__(self) -> None:
        self.now = self.most = 0

    def enter(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def leave(self) -> None:
        self.now -= 1


class FakeExecutor:
    """Runs `plans[name]`, or `default`. If the plan is an exception, `run` itself raises it."""

    def __init__(self, default: Plan | None = None, **plans: Plan | Exception) -> None:
        self.default = default or Plan()
        self.plans = {name.replace("_", "-"): plan for name, plan in plans.items()}
        self.executions: dict[str, FakeExecution] = {}
        self.counts = {"connecting": Count(), "all": Count()}
        self.graces: list[float] = []

    def run(self, worker: Worker, request: ExecRequest) -> FakeExecution:
        plan = self.plans.get(worker.name, self.default)
        if isinstance(plan, Exception):
            raise plan
        execution = FakeExecution(self, worker, request, plan)
        self.executions[worker.name] = execution
        return execution

    async def aclose(self) -> None:
        return None

    def all_closed(self) -> bool:
        return all(execution.closes == 1 for execution in self.executions.values())


class FakeSink:
    """Records calls as `(what, worker)`; `hook` may wait or raise in any of them."""

    def __init__(self, hook: Callable[[str, str], object] | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.data: dict[str, bytes] = {}
        self.outcomes: list[Outcome] = []
        self.hook = hook

    async def _call(self, what: str, worker: Worker) -> None:
        self.calls.append((what, worker.name))
        if self.hook is not None:
            waiting = self.hook(what, worker.name)
            if asyncio.iscoroutine(waiting):
                await waiting

    async def started(self, worker: Worker) -> None:
        await self._call("started", worker)

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        self.data[worker.name] = self.data.get(worker.name, b"") + data
        await self._call("output", worker)

    async def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        await self._call("finished", outcome.worker)

    def told(self) -> list[str]:
        return sorted(outcome.worker.name for outcome in self.outcomes)


def out(text: str) -> Output:
    return Output("stdout", text.encode())
