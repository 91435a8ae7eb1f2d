"""Ending a command, or killing its client, also ends everything that the command started."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from atlctl.backends.base import Argv, Event, ExecRequest, Exited, FailedToStart, Output
from atlctl.fanout.engine import Limits
from atlctl.fanout.outcome import EndKind
from atlctl.jobs.model import Job
from tests.contract.drive import executing, fan_out
from tests.contract.world import World, eventually
from tests.support.pace import within
from tests.support.proc import wait_until

DOUBLE_FORKED = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "4105"])
    os._exit(0)
os.wait()
print("begun", flush=True)
os.execvp("sleep", ["sleep", "4106"])
"""

#: Commands that print "begun" and leave processes named `sleep 41NN`.
COMMANDS = {
    "plain": ["sh", "-c", "echo begun; exec sleep 4101"],
    "child": ["sh", "-c", "echo begun; sleep 4102; echo never"],
    "many": ["sh", "-c", "for i in 1 2 3 4 5; do sleep 410$i & done; echo begun; wait"],
    "pipeline": ["sh", "-c", "echo begun; sleep 4107 | sleep 4108 | cat"],
    "session": ["sh", "-c", "setsid sleep 4104 & echo begun; wait"],
    "double-forked": [sys.executable, "-c", DOUBLE_FORKED],
    "stopped": ["sh", "-c", "sleep 4110 & echo begun; kill -STOP $$; wait"],
    "chatty": ["sh", "-c", "sleep 4111 & echo begun; yes"],
}
DEAF = {
    "deaf": ["sh", "-c", "trap '' TERM; echo begun; sleep 4112"],
    "deaf-child": [
        "sh",
        "-c",
        "(trap '' TERM HUP INT; exec setsid sleep 4113) & sleep 0.1; echo begun; exec sleep 4114",
    ],
}


def left(world: World, job: Job) -> list[str]:
    """Processes that a test's commands left in the workers."""
    return [
        process.command
        for worker in job.workers
        for process in world.inside(job, worker.index)
        if "sleep 41" in process.command or process.command == "yes"
    ]


async def begin_and_end(
    world: World, job: Job, argv: list[str], grace: float, *, twice: bool = False, settled: bool = True
) -> tuple[bool, Event | None]:
    """Run `argv` until it has started (with `settled`, until its processes are visible), then end it."""
    last: Event | None = None
    said = b""
    async with executing(world, job, argv) as execution:
        ending: asyncio.Task[bool] | None = None
        async for event in execution:
            last = event
            if ending is None and isinstance(event, Output):
                said += event.data
            if ending is None and b"begun" in said:
                if settled:
                    await asyncio.to_thread(wait_until, lambda: left(world, job))
                if twice:
                    assert all(await asyncio.gather(execution.end(grace), execution.end(grace)))
                ending = asyncio.create_task(execution.end(grace))
        assert ending is not None
        return await ending, last


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "at-once"])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_ended_command_is_gone_with_its_children(world: World, name: str, settled: bool) -> None:
    job = world.start()
    begun = time.monotonic()
    proven, last = asyncio.run(asyncio.wait_for(begin_and_end(world, job, COMMANDS[name], 30.0, settled=settled), 100))
    assert proven
    assert left(world, job) == [], "proven means gone"
    assert isinstance(last, Exited)
    assert last.exit_code != 0
    assert within(time.monotonic() - begun, 10), "no grace is spent where SIGTERM is enough"


@pytest.mark.parametrize("name", DEAF)
def test_what_ignores_sigterm_is_killed_after_the_grace(world: World, name: str) -> None:
    job = world.start()
    begun = time.monotonic()
    proven, _ = asyncio.run(asyncio.wait_for(begin_and_end(world, job, DEAF[name], 0.5), 100))
    assert proven
    assert left(world, job) == []
    assert (seconds := time.monotonic() - begun) > 0.5
    assert within(seconds, 10)


def test_a_command_may_clean_up(world: World) -> None:
    argv = ["sh", "-c", "trap 'sleep 0.2; touch cleaned; exit 7' TERM; echo begun; sleep 4115 & wait"]
    job = world.start()
    proven, last = asyncio.run(begin_and_end(world, job, argv, 30.0))
    assert proven
    assert isinstance(last, Exited)
    assert last.exit_code == 7
    assert asyncio.run(world.backend.read_file(job, job.workers[0], "cleaned", 10)) == b""


def test_a_script_does_not_go_on_to_its_next_command(world: World) -> None:
    job = world.start()
    argv = ["sh", "-c", "echo begun; sleep 4124; touch went-on; sleep 4125; touch went-on"]
    for _ in range(5):
        proven, last = asyncio.run(begin_and_end(world, job, argv, 30.0))
        assert proven
        assert isinstance(last, Exited)
        assert last.signal == 15
    assert asyncio.run(world.backend.read_file(job, job.workers[0], "went-on", 1)) is None


def test_ending_twice(world: World) -> None:
    job = world.start()
    proven, _ = asyncio.run(asyncio.wait_for(begin_and_end(world, job, COMMANDS["plain"], 1.0, twice=True), 100))
    assert proven


def test_ending_before_the_start(world: World) -> None:
    job = world.start()

    async def main() -> None:
        async with executing(world, job, ["sleep", "4116"]) as execution:
            assert await execution.end(1.0)
            events = [event async for event in execution]
            assert len(events) == 1
            assert isinstance(events[0], FailedToStart)

    asyncio.run(asyncio.wait_for(main(), 100))
    assert left(world, job) == []


def test_ending_a_command_that_has_ended_ends_its_children(world: World) -> None:
    job = world.start()

    async def main() -> None:
        async with executing(world, job, ["sh", "-c", "sleep 4117 >/dev/null 2>&1 & exit 0"]) as execution:
            events = [event async for event in execution]
            assert events[-1] == Exited(exit_code=0)
            assert wait_until(lambda: left(world, job) == ["sleep 4117"])
            assert await execution.end(1.0)
            assert left(world, job) == []

    asyncio.run(asyncio.wait_for(main(), 100))


def test_a_background_process_outlives_its_command(world: World) -> None:
    """As with ssh: a background process that is detached from the command's output stays."""
    job = world.start()

    async def main() -> None:
        async with executing(world, job, ["sh", "-c", "sleep 4118 >/dev/null 2>&1 & exit 0"]) as execution:
            assert [event async for event in execution][-1] == Exited(exit_code=0)

    asyncio.run(asyncio.wait_for(main(), 100))
    time.sleep(0.1)
    assert wait_until(lambda: left(world, job) == ["sleep 4118"])


def test_two_commands_in_one_worker_are_two(world: World) -> None:
    job = world.start()

    async def main() -> None:
        executor = world.backend.executor(job)
        runs = [executor.run(job.workers[0], ExecRequest(Argv(("sleep", number)))) for number in ("4119", "4120")]
        following = [run.__aiter__() for run in runs]
        for events in following:
            await anext(events)
        assert await runs[0].end(1.0)
        assert wait_until(lambda: left(world, job) == ["sleep 4120"])
        assert await runs[1].end(1.0)
        for run in runs:
            await run.aclose()
        await executor.aclose()

    asyncio.run(asyncio.wait_for(main(), 100))
    assert left(world, job) == []


def test_giving_an_executor_back_ends_what_still_runs(world: World) -> None:
    job = world.start()

    async def main() -> None:
        async with executing(world, job, COMMANDS["session"]) as execution:
            async for event in execution:
                if isinstance(event, Output):
                    return

    asyncio.run(asyncio.wait_for(main(), 100))
    assert wait_until(lambda: not left(world, job))


def test_cancellation_leaves_no_process(world: World) -> None:
    job = world.start(workers=8)
    outcomes, _ = fan_out(world, job, ["sh", "-c", "setsid sleep 4121 & sleep 4122"], cancel_when_all_run=True)
    assert left(world, job) == []
    assert [(o.kind, o.may_still_run) for o in outcomes] == [(EndKind.CANCELLED, False)] * 8


def test_deadline(world: World) -> None:
    job = world.start(workers=2)
    begun = time.monotonic()
    outcomes, kept = fan_out(world, job, ["sh", "-c", "echo begun; sleep 4123"], Limits(timeout=1.5))
    assert within(time.monotonic() - begun, 10)
    assert [(o.kind, o.code, o.may_still_run) for o in outcomes] == [(EndKind.TIMEOUT, 124, False)] * 2
    assert set(kept.output_of.values()) == {b"begun\n"}
    assert left(world, job) == []


@pytest.mark.parametrize("stdin", [False, True], ids=["null", "stdin"])
@pytest.mark.parametrize("name", ["child", "session", "double-forked", "stopped"])
def test_a_client_that_is_killed_takes_its_command_along(world: World, name: str, stdin: bool) -> None:
    job = world.start()
    with world.client(job, COMMANDS[name], stdin=stdin) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"started\n"
        assert wait_until(lambda: left(world, job))
        client.kill()
    assert wait_until(lambda: not left(world, job)), left(world, job)
    assert eventually(world, job.name, lambda _: True).workers[0].state == "Running"


def test_a_long_grace_dies_with_its_client(world: World) -> None:
    """A command ending with a long grace is killed once its client is gone."""
    job = world.start()

    async def main() -> None:
        async with executing(world, job, DEAF["deaf"]) as execution:
            async for event in execution:
                if isinstance(event, Output):
                    ending = asyncio.create_task(execution.end(600.0))
                    await asyncio.sleep(0.1)
                    assert left(world, job)
                    ending.cancel()
                    return

    asyncio.run(asyncio.wait_for(main(), 100))
    assert wait_until(lambda: not left(world, job)), left(world, job)
