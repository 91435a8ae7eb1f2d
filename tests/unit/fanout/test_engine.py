import asyncio
import errno
import logging
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from atlctl.backends.base import Argv, Event, ExecRequest, Exited, FailedToStart, Lost, Output, Started
from atlctl.fanout import engine
from atlctl.fanout.engine import FanOut, Limits, run
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.jobs.errors import AtlctlError, NotAllowed, Unreachable, UsageError
from atlctl.jobs.model import Worker
from tests.support.pace import within
from tests.support.waiting import until
from tests.unit.fanout.fake import (
    FOREVER,
    REQUEST,
    FakeExecution,
    FakeExecutor,
    FakeSink,
    Plan,
    events,
    out,
    workers,
)

UNANSWERED = "the command may have been sent, but no answer came"


def fan_out(
    executor: FakeExecutor, count: int, limits: Limits | None = None, sink: FakeSink | None = None
) -> list[Outcome]:
    return asyncio.run(run(executor, workers(count), REQUEST, limits or Limits(), sink or FakeSink()))


def test_outcomes_come_in_worker_order_and_say_how_each_ended() -> None:
    executor = FakeExecutor(
        worker_0=Plan(events(0.05, code=3)),
        worker_1=Plan(events(out("a"), out("b"))),
        worker_2=Plan((Started(guarded=False), Exited(signal=9))),
        worker_3=Plan((FailedToStart(127, "no such command"),)),
        worker_4=Plan((Started(guarded=True), Lost("reset"))),
    )
    sink = FakeSink()
    outcomes = fan_out(executor, 5, sink=sink)
    assert [outcome.worker.index for outcome in outcomes] == [0, 1, 2, 3, 4]
    assert [(o.kind, o.exit_code, o.signal, o.guarded, o.may_still_run) for o in outcomes] == [
        (EndKind.EXITED, 3, None, True, False),
        (EndKind.EXITED, 0, None, True, False),
        (EndKind.EXITED, None, 9, False, False),
        (EndKind.FAILED_TO_START, 127, None, None, False),
        (EndKind.LOST, None, None, True, True),
    ]
    assert sink.data == {"worker-1": b"ab"}
    assert [what for what, name in sink.calls if name == "worker-1"] == ["started", "output", "output", "finished"]
    assert executor.all_closed()


def test_no_workers() -> None:
    assert fan_out(FakeExecutor(), 0) == []


def test_a_request_may_depend_on_the_worker() -> None:
    executor = FakeExecutor()

    def request(worker: Worker) -> ExecRequest:
        if worker.index == 1:
            raise AtlctlError("no such file")
        return ExecRequest(Argv((worker.name,)))

    outcomes = asyncio.run(run(executor, workers(2), request, Limits(), FakeSink()))
    assert executor.executions["worker-0"].request.argv == Argv(("worker-0",))
    assert outcomes[1].kind is EndKind.FAILED_TO_START
    assert outcomes[1].reason == "no such file"


@pytest.mark.parametrize(
    ("end", "reason"),
    [((), "before the exit status"), ((Exited(),), "before the exit status"), ((Lost("cut off"),), "cut off")],
)
def test_only_an_explicit_code_or_signal_is_an_end(end: tuple[Event, ...], reason: str) -> None:
    (outcome,) = fan_out(FakeExecutor(Plan((Started(guarded=True), out("x"), *end))), 1)
    assert outcome.kind is EndKind.LOST
    assert reason in outcome.reason
    assert outcome.code == 255


@pytest.mark.parametrize(
    ("error", "before", "code"),
    [
        (ConnectionResetError(errno.ECONNRESET, "reset by peer"), "reset by peer", 255),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files", 125),
        (TimeoutError(), "TimeoutError", 255),
        (Unreachable("no route"), "no route", 255),
        (NotAllowed("bad key"), "bad key", 255),
        (AtlctlError("bad frame"), "bad frame", 125),
        (KeyError("causes"), "KeyError: 'causes'", 125),
    ],
)
def test_an_exception_is_the_outcome_of_its_worker_alone(
    error: Exception, before: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    executor = FakeExecutor(
        Plan(events(0.02)),
        worker_0=error,
        worker_1=Plan((error,)),
        worker_2=Plan((Started(guarded=True), out("x"), error)),
    )
    at_once, connecting, running, other = fan_out(executor, 4)
    for outcome in (at_once, connecting):
        assert (outcome.kind, outcome.reason, outcome.code) == (EndKind.FAILED_TO_START, before, code)
        assert outcome.not_allowed is isinstance(error, NotAllowed)
    assert (running.kind, running.reason, running.may_still_run) == (EndKind.LOST, before, True)
    assert other.ok
    assert executor.all_closed()
    traces = [record for record in caplog.records if record.exc_info and record.name.startswith("atlctl")]
    assert len(traces) == (3 if isinstance(error, KeyError) else 0)


def test_a_failing_close_changes_nothing() -> None:
    outcomes = fan_out(FakeExecutor(Plan(close_error=OSError("bad descriptor"))), 2)
    assert all(outcome.ok for outcome in outcomes)


def test_parallel_bounds_connecting_and_not_running() -> None:
    executor = FakeExecutor(Plan((0.01, *events(0.4))))
    outcomes = fan_out(executor, 20, Limits(parallel=3))
    assert all(outcome.ok for outcome in outcomes)
    assert executor.counts["connecting"].most == 3
    assert executor.counts["all"].most > 10


def test_workers_that_never_start_give_their_place_back() -> None:
    executor = FakeExecutor(Plan((FailedToStart(255, "down"),)), worker_1=Plan((OSError("down"),)), worker_2=KeyError())
    assert len(fan_out(executor, 10, Limits(parallel=1))) == 10


def test_batch_bounds_running() -> None:
    executor = FakeExecutor(Plan(events(0.02)))
    outcomes = fan_out(executor, 12, Limits(batch=4))
    assert all(outcome.ok for outcome in outcomes)
    assert executor.counts["all"].most == 4


@pytest.mark.parametrize("limits", [{"parallel": 0}, {"batch": 0}])
def test_limits_that_allow_nothing_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Limits(**limits)


@pytest.mark.parametrize(
    ("on_end", "may_still_run"), [("proven", False), ("unproven", True), ("silent", False), ("raises", True)]
)
def test_a_deadline_ends_the_command(on_end: str, may_still_run: bool) -> None:
    executor = FakeExecutor(
        Plan(events()),
        worker_0=Plan(events(out("partial"), FOREVER), on_end=on_end),  # type: ignore[arg-type]
    )
    sink = FakeSink()
    slow, quick = fan_out(executor, 2, Limits(timeout=0.4, grace=0.7), sink)
    assert (slow.kind, slow.may_still_run, slow.guarded) == (EndKind.TIMEOUT, may_still_run, True)
    assert slow.reason == "not done within 0.4 s"
    assert slow.truncated == (on_end == "silent")
    assert quick.ok
    assert sink.data["worker-0"] == b"partial"
    assert executor.graces == [0.7]
    assert executor.all_closed()


def test_the_deadline_counts_from_started() -> None:
    executor = FakeExecutor(Plan((0.5, *events())))
    assert fan_out(executor, 1, Limits(timeout=0.4))[0].ok


def test_connecting_has_its_own_deadline() -> None:
    executor = FakeExecutor(Plan(events(0.15)), worker_0=Plan((FOREVER, *events())))
    outcomes = fan_out(executor, 3, Limits(parallel=1, connect_timeout=0.4))
    assert (outcomes[0].kind, outcomes[0].reason) == (EndKind.TIMEOUT, f"not started within 0.4 s: {UNANSWERED}")
    assert outcomes[0].guarded is None
    assert [outcome.ok for outcome in outcomes[1:]] == [True, True]


def test_a_worker_that_is_never_reached_ends_with_the_time_of_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short timeout leaves enough time for the connection."""
    monkeypatch.setattr(engine, "REACHING", 1.0)
    executor = FakeExecutor(Plan((0.15, *events())), worker_0=Plan((FOREVER, *events())))
    slow, quick = fan_out(executor, 2, Limits(timeout=0.4))
    assert (slow.kind, slow.reason) == (EndKind.TIMEOUT, f"not started within 1 s: {UNANSWERED}")
    assert quick.ok
    assert fan_out(executor, 1, Limits(timeout=1.2))[0].reason == f"not started within 1.2 s: {UNANSWERED}"


def test_what_a_slow_reader_has_not_taken_is_not_cut_off_by_a_deadline() -> None:
    async def slow(what: str) -> None:
        if what == "output":
            await asyncio.sleep(1.2)

    sink = FakeSink(lambda what, _: slow(what))
    executor = FakeExecutor(Plan(events(out("x" * 9), FOREVER)))
    (outcome,) = fan_out(executor, 1, Limits(timeout=0.05), sink)
    assert (outcome.kind, outcome.truncated) == (EndKind.TIMEOUT, False)
    assert ("output", "worker-0") in sink.calls


def all_begun(executor: FakeExecutor, count: int) -> bool:
    return sum(execution.running for execution in executor.executions.values()) == count


async def interrupted(
    fan: FanOut, when: Callable[[], object], again: float | None = None
) -> tuple[engine.RunInterrupted, float]:
    """Cancel a run once `when` holds; returns the exception, and the time until it was raised."""
    task = asyncio.create_task(fan.run())
    await until(when)
    began = time.monotonic()
    task.cancel()
    if again is not None:
        await asyncio.sleep(again)
        task.cancel()
    with pytest.raises(engine.RunInterrupted) as caught:
        await task
    assert task.cancelled()
    return caught.value, time.monotonic() - began


def test_cancelled_in_every_phase() -> None:
    executor = FakeExecutor(
        worker_0=Plan(events()),
        worker_1=Plan(events(FOREVER)),
        worker_2=Plan(events(FOREVER), on_end="unproven"),
        worker_3=Plan(events(), close_delay=1.0),
        worker_4=Plan((FOREVER, *events())),
    )
    sink = FakeSink()
    fan = FanOut(executor, workers(7), REQUEST, Limits(parallel=1, grace=0.2), sink)

    def in_every_phase() -> bool:
        if [worker.index for worker in fan.running()] != [1, 2, 3, 4]:
            return False
        assert [worker.index for worker in fan.unfinished()] == [1, 2, 3, 4, 5, 6]
        return True

    error, _ = asyncio.run(interrupted(fan, in_every_phase))
    found = error.outcomes
    assert [(o.kind, o.may_still_run, o.reason) for o in found] == [
        (EndKind.EXITED, False, ""),
        (EndKind.CANCELLED, False, "interrupted"),
        (EndKind.CANCELLED, True, "interrupted"),
        (EndKind.EXITED, False, ""),
        (EndKind.CANCELLED, False, "interrupted"),
        (EndKind.CANCELLED, False, "not started"),
        (EndKind.CANCELLED, False, "not started"),
    ]
    assert sink.told() == [f"worker-{index}" for index in range(7)]
    assert sorted(executor.executions) == [f"worker-{index}" for index in range(5)]
    assert executor.graces == [0.2] * 3
    assert executor.all_closed()
    assert fan.running() == fan.unfinished() == []


def test_ends_run_at_once_and_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_ENDING", 0.3)
    executor = FakeExecutor(Plan(events(FOREVER), on_end="hangs"), worker_0=Plan(events(FOREVER)))
    sink = FakeSink()
    fan = FanOut(executor, workers(30), REQUEST, Limits(grace=0.1), sink)
    error, seconds = asyncio.run(interrupted(fan, lambda: all_begun(executor, 30)))
    assert [(o.kind, o.may_still_run) for o in error.outcomes] == [
        (EndKind.CANCELLED, False),
        *[(EndKind.CANCELLED, True)] * 29,
    ]
    assert seconds >= 0.4
    assert within(seconds, 6)
    assert len(executor.graces) == 30
    assert len(sink.outcomes) == 30
    assert executor.all_closed()


def test_a_sink_that_takes_nothing_cannot_hold_a_cancelled_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_ENDING", 0.2)
    monkeypatch.setattr(engine, "_TELLING", 0.2)
    sink = FakeSink(lambda what, _: asyncio.sleep(0 if what == "started" else FOREVER))
    executor = FakeExecutor(Plan(events(out("x"), FOREVER)), worker_0=Plan(events()))
    fan = FanOut(executor, workers(3), REQUEST, Limits(grace=0.1), sink)
    blocked = [("finished", "worker-0"), ("output", "worker-1"), ("output", "worker-2")]
    error, seconds = asyncio.run(interrupted(fan, lambda: set(blocked) <= set(sink.calls)))
    assert [o.kind for o in error.outcomes] == [EndKind.EXITED, EndKind.CANCELLED, EndKind.CANCELLED]
    assert within(seconds, 15)


def test_a_second_cancellation_leaves_at_once() -> None:
    executor = FakeExecutor(Plan(events(FOREVER), on_end="hangs"), worker_0=Plan(events()))
    fan = FanOut(executor, workers(4), REQUEST, Limits(grace=20, batch=3), FakeSink())
    error, seconds = asyncio.run(interrupted(fan, lambda: all_begun(executor, 4), again=0.1))
    assert [(o.kind, o.may_still_run) for o in error.outcomes] == [
        (EndKind.EXITED, False),
        *[(EndKind.CANCELLED, True)] * 3,
    ]
    assert within(seconds, 15)


def test_an_interrupted_run_stays_a_cancellation() -> None:
    """As seen by callers that do not know RunInterrupted: task groups, wait_for, uncancel."""

    def fan() -> FanOut:
        return FanOut(FakeExecutor(Plan(events(FOREVER))), workers(2), REQUEST, Limits(), FakeSink())

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fan().run(), 0.05)

        async def with_a_failing_sibling() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(fan().run())
                await asyncio.sleep(0.05)
                raise ValueError("sibling")

        with pytest.raises(ExceptionGroup) as caught:
            await with_a_failing_sibling()
        assert len(caught.value.exceptions) == 1

        async def summarise() -> int:
            try:
                await fan().run()
            except engine.RunInterrupted as error:
                task = asyncio.current_task()
                assert task is not None
                assert task.uncancel() == 0
                await asyncio.sleep(0.01)
                return len(error.outcomes)
            return 0

        task = asyncio.create_task(summarise())
        await asyncio.sleep(0.05)
        task.cancel()
        assert await task == 2
        assert not task.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["started", "output", "finished"])
def test_a_failing_sink_ends_the_run_in_order_and_is_raised(where: str) -> None:
    def full(what: str, name: str) -> None:
        if what == where and name == "worker-1":
            raise AtlctlError("no space left on the disk of /out")

    executor = FakeExecutor(Plan(events(FOREVER)), worker_1=Plan(events(0.05, out("x"), 0.05)))
    sink = FakeSink(full)
    with pytest.raises(AtlctlError, match="no space left"):
        fan_out(executor, 6, Limits(batch=4), sink)
    assert sink.told() == [f"worker-{index}" for index in range(6)]
    begun = 2 if where == "started" else 4  # that one fails before the others have started
    assert sorted(executor.executions) == [f"worker-{index}" for index in range(begun)]
    assert sum(outcome.reason == "not started" for outcome in sink.outcomes) == 6 - begun
    assert executor.all_closed()
    ended = {name for name, execution in executor.executions.items() if execution.ends}
    assert ended == {f"worker-{index}" for index in range(begun)} - ({"worker-1"} if where == "finished" else set())


def test_a_cancellation_while_a_failed_sink_is_cleaned_up_leaves_at_once() -> None:
    def full(what: str, _: str) -> None:
        if what == "output":
            raise OSError(errno.ENOSPC, "no space")

    executor = FakeExecutor(Plan(events(0.02, out("x"), FOREVER), on_end="hangs"))
    fan = FanOut(executor, workers(2), REQUEST, Limits(grace=20), FakeSink(full))
    error, seconds = asyncio.run(interrupted(fan, lambda: len(executor.graces) == 2))
    assert all(outcome.may_still_run for outcome in error.outcomes)
    assert within(seconds, 15)


def test_a_thousand_workers_run_at_once() -> None:
    executor = FakeExecutor(Plan(events(out("x\n"), 3.0)))
    outcomes = fan_out(executor, 1000)
    assert all(outcome.ok for outcome in outcomes)
    assert executor.counts["all"].most == 1000
    assert executor.counts["connecting"].most <= 64


def test_slow_readers_slow_the_commands_and_not_the_memory() -> None:
    class Flood(FakeExecution):
        """Blocks of 64 KiB without end, counted when they are read."""

        async def __aiter__(self) -> AsyncIterator[Event]:
            yield Started(guarded=True)
            for _ in range(400):
                await asyncio.sleep(0)
                produced[self.worker.index] += 1
                yield Output("stdout", bytes(65536))
            yield Exited(exit_code=0)

    class Flooding(FakeExecutor):
        def run(self, worker: Worker, request: ExecRequest) -> Flood:
            return Flood(self, worker, request, self.default)

    class Slow:
        async def started(self, worker: Worker) -> None: ...

        async def output(self, worker: Worker, stream: str, data: bytes) -> None:
            taken[worker.index] += 1
            assert produced[worker.index] == taken[worker.index]
            if worker.index:
                await asyncio.sleep(0.02)

        async def finished(self, outcome: Outcome) -> None:
            kinds.append(outcome.kind)

    produced, taken, kinds = [0] * 64, [0] * 64, list[EndKind]()

    async def main() -> None:
        task = asyncio.create_task(run(Flooding(), workers(64), REQUEST, Limits(), Slow()))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(engine.RunInterrupted):
            await task

    tracemalloc.start()
    asyncio.run(main())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken[0] > 2 * max(taken[1:])  # a slow reader of one worker does not slow the others
    assert peak < 64 * 65536 * 2 + (4 << 20)
    assert len(kinds) == 64


def test_an_outcome_is_never_changed_by_a_backend_that_ignores_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_ENDING", 0.1)

    class Stubborn(FakeExecution):
        async def __aiter__(self) -> AsyncIterator[Event]:
            yield Started(guarded=True)
            while True:
                try:
                    await asyncio.sleep(FOREVER)
                except asyncio.CancelledError:
                    yield Exited(exit_code=0)

    class Executor(FakeExecutor):
        def run(self, worker: Worker, request: ExecRequest) -> Stubborn:
            return Stubborn(self, worker, request, replace(self.default, on_end="hangs"))

    sink = FakeSink()
    fan = FanOut(Executor(), workers(1), REQUEST, Limits(grace=0.1), sink)
    error, _ = asyncio.run(interrupted(fan, fan.running))
    assert [(o.kind, o.may_still_run) for o in error.outcomes] == [(EndKind.CANCELLED, True)]
    assert sink.outcomes == error.outcomes
