"""The result of a command is reported correctly: exit codes, signals, failures to start, losses."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path

import pytest

from atlctl.backends.base import Event, Exited, FailedToStart, Lost, Output, Started
from atlctl.fanout.outcome import EndKind, fold_codes
from atlctl.jobs.errors import AtlctlError
from tests.contract.drive import collect, execute, executing, fan_out
from tests.contract.world import World, eventually
from tests.support.proc import wait_until


@pytest.mark.parametrize("code", [0, 3, 77, 255])
def test_exit_codes(world: World, code: int) -> None:
    ran = execute(world, world.start(), ["sh", "-c", f"exit {code}"])
    assert ran.exited == Exited(exit_code=code)
    assert len(ran.started) == 1
    assert isinstance(ran.events[0], Started)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE])
def test_signals(world: World, number: signal.Signals) -> None:
    job = world.start()
    ended = execute(world, job, ["sh", "-c", f"ulimit -c 0; kill -{number:d} $$"]).exited
    if job.backend == "local" or number != signal.SIGPIPE:
        assert ended == Exited(signal=number)
    else:  # a container's shell reports signals, but dash and busybox not this one
        assert ended in (Exited(signal=number), Exited(exit_code=128 + number))
    (outcome,), _ = fan_out(world, job, ["sh", "-c", f"ulimit -c 0; kill -{number:d} $$"])
    assert outcome.code == 128 + number


def test_a_command_that_does_not_exist(world: World) -> None:
    ran = execute(world, world.start(), ["no-such-command-anywhere"])
    assert isinstance(ran.end, FailedToStart)
    assert ran.end.exit_code == 127
    assert "no-such-command-anywhere" in ran.end.reason
    assert ran.started == []


@pytest.mark.parametrize("what", ["no-x-bit", "folder", "no-shebang"])
def test_a_command_that_cannot_be_executed(world: World, what: str, tmp_path: Path) -> None:
    path = tmp_path / what
    if what == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\0\1\2" if what == "no-shebang" else b"#!/bin/sh\n")
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if what == "no-shebang" else 0))
    ran = execute(world, world.start(), [str(path)])
    assert isinstance(ran.end, FailedToStart)
    assert ran.end.exit_code == 126


def test_a_word_with_a_nul_cannot_be_started(world: World) -> None:
    ran = execute(world, world.start(), ["echo", "a\0b"])
    assert isinstance(ran.end, FailedToStart)
    assert ran.end.exit_code == 125


def test_codes_of_several_workers_are_folded(world: World) -> None:
    job = world.start(workers=3)
    outcomes, _ = fan_out(world, job, ["sh", "-c", "exit $RANK"])
    assert [outcome.exit_code for outcome in outcomes] == [0, 1, 2]
    assert fold_codes(outcomes) == 2
    assert [outcome.guarded for outcome in outcomes] == [True] * 3


def test_a_worker_that_has_ended_is_not_running(world: World) -> None:
    job = world.start()
    world.end_worker(job)
    ended = eventually(world, job.name, lambda found: not found.workers[0].state.active)
    # Also for a caller with outdated data; but a host outlives its worker and accepts commands.
    for known in (job, ended) if job.backend != "ssh" else (ended,):
        ran = execute(world, known, ["true"])
        assert isinstance(ran.end, FailedToStart)
        assert ran.end.exit_code == 255
        assert "not running" in ran.end.reason


def test_one_ended_worker_of_several(world: World) -> None:
    job = world.start(workers=2)
    world.end_worker(job, 1)
    job = eventually(world, job.name, lambda found: not found.workers[1].state.active)
    outcomes, kept = fan_out(world, job, ["echo", "here"])
    assert [(outcome.kind, outcome.code) for outcome in outcomes] == [
        (EndKind.EXITED, 0),
        (EndKind.FAILED_TO_START, 255),
    ]
    assert kept.output_of == {"worker-0": b"here\n"}
    assert fold_codes(outcomes) == 255


def test_a_worker_that_ends_while_a_command_runs_in_it(world: World) -> None:
    job = world.start()
    ends: list[Event] = []

    async def main() -> None:
        async with executing(world, job, ["sh", "-c", "echo begun; exec sleep 4001"]) as execution:
            async for event in execution:
                if isinstance(event, Output):
                    world.end_worker(job)
                ends.append(event)

    if job.backend == "ssh":
        # A host outlives its worker, and so does the command.
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(main(), 2))
        return
    asyncio.run(asyncio.wait_for(main(), 100))
    # As in a container whose first process ends: the command is killed with it, and this is never a success. For a pod
    # only the end of the shell that ran the command is known.
    assert isinstance(ends[-1], Lost) if job.backend == "kubernetes" else ends[-1] == Exited(signal=signal.SIGKILL)
    assert not any("sleep 4001" in process.command for process in world.inside(job))


def test_a_loss_is_lost_and_never_a_success(world: World) -> None:
    job = world.start(workers=2)

    async def main() -> Event:
        async with executing(world, job, ["sh", "-c", "trap 'exit 0' TERM; echo begun; sleep 4002"]) as execution:
            ran = await collect(execution, lambda: asyncio.to_thread(world.lose, job))
            assert await execution.end(0.1) is False
            return ran.end

    end = asyncio.run(asyncio.wait_for(main(), 100))
    assert isinstance(end, Lost)
    assert end.reason
    found = job
    if job.backend == "local":
        found = eventually(world, job.name, lambda found: all(worker.state == "Lost" for worker in found.workers))
        assert found.state == "Lost"
    # From then on nothing can be started.
    outcomes, _ = fan_out(world, found, ["true"])
    assert [outcome.code for outcome in outcomes] == [255, 255]


def test_a_loss_in_a_fan_out(world: World) -> None:
    job = world.start(workers=2)
    reader, writer = os.pipe()

    def lose() -> None:
        assert wait_until(lambda: all(len(world.inside(job, index)) >= 2 for index in range(2)))
        world.lose(job)

    try:

        async def main() -> list[EndKind]:
            losing = asyncio.create_task(asyncio.to_thread(lose))
            outcomes, _ = await asyncio.to_thread(fan_out, world, job, ["cat"], stdin=reader)
            await losing
            return [outcome.kind for outcome in outcomes]

        assert asyncio.run(main()) == [EndKind.LOST, EndKind.LOST]
    finally:
        os.close(reader)
        os.close(writer)


def test_an_executor_of_a_replaced_job_is_refused(world: World) -> None:
    old = world.start()
    new = world.replace(old)
    assert new.uid != old.uid
    if old.backend != "kubernetes":
        with pytest.raises(AtlctlError, match="replaced"):
            world.backend.executor(old)
        return
    # Other backends have to ask a server, which happens when a command is started.
    (end,) = execute(world, old, ["true"]).events
    assert isinstance(end, FailedToStart)
    assert "replaced" in end.reason
