import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator

import pytest

from atlctl.backends.base import Started
from atlctl.fanout.engine import FanOut, Limits, StdinFeed, run
from atlctl.fanout.outcome import Outcome
from atlctl.jobs.errors import AtlctlError, UsageError
from tests.support.waiting import until
from tests.unit.fanout.fake import FOREVER, REQUEST, FakeExecution, FakeExecutor, FakeSink, Plan, events, workers

#: A command that runs until its input ends.
CAT = Plan(events(FOREVER))


class Pipe:
    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def write(self, data: bytes) -> int:
        return os.write(self._writer, data)

    def never_block(self) -> None:
        os.set_blocking(self._writer, False)

    def end(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.end()
    os.close(made.reader)


def feed(executor: FakeExecutor, count: int, fd: int, limits: Limits | None = None) -> list[Outcome]:
    return asyncio.run(run(executor, workers(count), REQUEST, limits or Limits(), FakeSink(), StdinFeed(fd)))


def received(executor: FakeExecutor) -> set[bytes]:
    return {bytes(execution.received) for execution in executor.executions.values()}


def taken(executor: FakeExecutor, name: str) -> bytes:
    return bytes(executor.executions[name].received) if name in executor.executions else b""


def test_a_file_reaches_every_worker_whole() -> None:
    data = os.urandom(200_000)
    executor = FakeExecutor(CAT, worker_3=Plan((0.1, *events(FOREVER))))
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        feed(executor, 5, file.fileno(), Limits(parallel=2))
    assert received(executor) == {data}
    assert all(execution.input_closed.is_set() for execution in executor.executions.values())


def test_an_empty_input_is_an_end_of_input() -> None:
    executor = FakeExecutor(CAT)
    with open(os.devnull, "rb") as null:
        feed(executor, 2, null.fileno())
    assert received(executor) == {b""}


def test_a_pipe_is_read_as_it_is_written(pipe: Pipe) -> None:
    executor = FakeExecutor(CAT)

    async def main() -> None:
        task = asyncio.create_task(run(executor, workers(3), REQUEST, Limits(), FakeSink(), StdinFeed(pipe.reader)))
        await asyncio.sleep(0.05)
        pipe.write(b"one\n")
        await until(lambda: received(executor) == {b"one\n"})
        pipe.write(b"two\n")
        pipe.end()
        await task

    asyncio.run(main())
    assert received(executor) == {b"one\ntwo\n"}


def test_a_terminal_that_hangs_up_ends_the_input() -> None:
    leader, follower = os.openpty()
    os.write(leader, b"ls\n")
    executor = FakeExecutor(CAT)

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.1, os.close, leader)
        await run(executor, workers(1), REQUEST, Limits(), FakeSink(), StdinFeed(follower))

    asyncio.run(main())
    os.close(follower)
    assert received(executor) == {b"ls\n"}


def test_reading_waits_for_the_slowest_receiver(pipe: Pipe) -> None:
    executor = FakeExecutor(CAT, worker_0=Plan(events(FOREVER), write_delay=FOREVER))
    pipe.never_block()

    async def main() -> tuple[int, bytes]:
        task = asyncio.create_task(run(executor, workers(2), REQUEST, Limits(), FakeSink(), StdinFeed(pipe.reader)))
        accepted = 0
        accepted += pipe.write(bytes(65536))
        await until(lambda: taken(executor, "worker-1"))
        for _ in range(20):
            with contextlib.suppress(BlockingIOError):
                accepted += pipe.write(bytes(65536))
            await asyncio.sleep(0.005)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return accepted, bytes(executor.executions["worker-1"].received)

    accepted, got = asyncio.run(main())
    assert len(got) == 65536
    assert accepted <= 3 * 65536  # one chunk in transfer, and the content of the pipe


def test_receivers_that_end_or_stop_reading_are_dropped(pipe: Pipe) -> None:
    executor = FakeExecutor(
        CAT,
        worker_0=Plan(events(0.02)),
        worker_1=Plan(events(0.3), reads=lambda before: len(before) < 4),
        worker_2=Plan(events(0.1), write_delay=FOREVER),
        worker_3=OSError("down"),
    )

    async def main() -> list[Outcome]:
        task = asyncio.create_task(run(executor, workers(5), REQUEST, Limits(), FakeSink(), StdinFeed(pipe.reader)))
        for text in (b"aaaa", b"bbbb", b"cccc"):
            pipe.write(text)
            await until(lambda text=text: taken(executor, "worker-4").endswith(text))  # type: ignore[misc]
        pipe.end()
        return await task

    outcomes = asyncio.run(main())
    assert [outcome.ok for outcome in outcomes[:3]] == [True] * 3
    assert bytes(executor.executions["worker-1"].received) == b"aaaa"
    assert bytes(executor.executions["worker-4"].received) == b"aaaabbbbcccc"
    assert not executor.executions["worker-1"].input_closed.is_set()


def test_a_receiver_whose_write_fails_does_not_stop_the_others() -> None:
    def broken(_: bytes) -> bool:
        raise ConnectionResetError

    executor = FakeExecutor(CAT, worker_0=Plan(events(0.1), reads=broken))
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 100_000)
        file.seek(0)
        outcomes = feed(executor, 2, file.fileno())
    assert outcomes[0].ok
    assert executor.executions["worker-1"].received == b"x" * 100_000


def test_the_run_ends_while_input_is_still_open(pipe: Pipe) -> None:
    outcomes = feed(FakeExecutor(Plan(events(0.05))), 3, pipe.reader)
    assert all(outcome.ok for outcome in outcomes)
    pipe.write(b"left for the next reader")
    assert os.read(pipe.reader, 100) == b"left for the next reader"


def test_input_that_cannot_be_read_ends_the_run() -> None:
    executor = FakeExecutor(CAT)
    with tempfile.TemporaryDirectory() as folder:
        fd = os.open(folder, os.O_RDONLY)
        try:
            with pytest.raises(AtlctlError, match="standard input cannot be read: Is a directory"):
                feed(executor, 2, fd)
        finally:
            os.close(fd)
    assert all(execution.ends == 1 for execution in executor.executions.values())


def test_closed_standard_input_is_said() -> None:
    with pytest.raises(AtlctlError, match="Bad file descriptor"):
        feed(FakeExecutor(CAT), 1, 4000)


def test_input_and_a_smaller_batch_would_wait_for_each_other() -> None:
    def build(batch: int) -> FanOut:
        return FanOut(FakeExecutor(CAT), workers(3), REQUEST, Limits(batch=batch), FakeSink(), StdinFeed(0))

    build(3)
    with pytest.raises(UsageError, match="--batch 2"):
        build(2)


def test_nothing_is_read_before_all_have_started(pipe: Pipe) -> None:
    pipe.write(b"early")
    pipe.end()
    executor = FakeExecutor(CAT, worker_1=Plan((0.2, Started(guarded=True), FOREVER)))
    seen: list[int] = []

    def peek(when: Callable[[], FakeExecution]) -> None:
        seen.append(len(when().received))

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.1, peek, lambda: executor.executions["worker-0"])
        await run(executor, workers(2), REQUEST, Limits(), FakeSink(), StdinFeed(pipe.reader))

    asyncio.run(main())
    assert seen == [0]
    assert received(executor) == {b"early"}
