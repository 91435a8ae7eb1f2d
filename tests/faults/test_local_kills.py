"""Whichever process is killed: workers never outlive their supervisor, and a loss is never a success."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time

import pytest

from atlctl.backends.hosts import registry
from atlctl.jobs.model import State
from tests.support.proc import marked, wait_until
from tests.unit.hosts.local import Local

#: Only SIGKILL ends it; has children in its group, in a separate session, and forked twice.
STUBBORN = (
    "trap '' TERM HUP INT; sleep 4800 & setsid sleep 4801 & (setsid sh -c 'sleep 4802 & sleep 4803' &); "
    "touch up; while :; do sleep 0.1; done"
)


def test_a_killed_supervisor_takes_everything_along(local: Local) -> None:
    job = local.sh(STUBBORN, workers=2)
    assert wait_until(lambda: all(local.file("work/up", index).exists() for index in range(2)))
    with local.client(job, ["setsid", "sh", "-c", "trap '' TERM; sleep 4804"], stdin=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"started\n"
        os.kill(local.supervisor(), signal.SIGKILL)
        assert wait_until(lambda: not local.inside(job, 0) and not local.inside(job, 1))
        client.wait(100)
    assert wait_until(lambda: not marked()), "the guard, too"
    found = local.load("job")
    assert found.state is State.LOST
    assert [worker.state for worker in found.workers] == [State.LOST] * 2


def test_what_ended_before_the_loss_keeps_its_end(local: Local) -> None:
    local.sh("[ $RANK = 0 ] || sleep 4805", workers=2)
    assert wait_until(local.file("exit.json").exists)
    os.kill(local.supervisor(), signal.SIGKILL)
    assert local.gone()
    found = local.load("job")
    assert [worker.state for worker in found.workers] == [State.SUCCEEDED, State.LOST]
    assert found.state is State.LOST


def test_a_stopped_supervisor_can_still_be_killed(local: Local) -> None:
    job = local.sh(STUBBORN)
    os.kill(local.supervisor(), signal.SIGSTOP)
    os.kill(local.supervisor(), signal.SIGKILL)
    assert wait_until(lambda: not local.inside(job))
    assert local.gone()


def test_a_killed_guard_stops_the_job(local: Local) -> None:
    job = local.sh("trap 'touch cleaned; exit 0' TERM; setsid sleep 4806 & touch up; while :; do sleep 0.02; done")
    assert wait_until(local.file("work/up").exists)
    os.kill(local.guard(), signal.SIGKILL)
    assert local.ended().state is State.STOPPED
    assert local.file("work/cleaned").exists()
    assert local.gone()
    assert wait_until(lambda: not local.inside(job))


def test_a_killed_worker_is_a_failure_and_leaves_the_others(local: Local) -> None:
    job = local.run(workers=3)
    local.end_worker(job, 1)
    assert wait_until(lambda: local.load("job").state is State.FAILED)
    assert [worker.state for worker in local.load("job").workers] == [State.RUNNING, State.FAILED, State.RUNNING]


@pytest.mark.parametrize("pause", [0.0, 0.004, 0.008, 0.012, 0.016, 0.02, 0.03, 0.04])
def test_a_stop_while_the_job_ends_by_itself(local: Local, pause: float) -> None:
    """Each worker gets one correct end, and the stop gets a result for each."""
    job = local.sh("sleep 0.02; exit 3", workers=4)
    time.sleep(pause)
    results = asyncio.run(asyncio.wait_for(local.backend.stop(job, job.workers, 5.0), 100))
    assert {result.how for result in results} <= {"terminated", "already-ended"}
    for result, worker in zip(results, local.ended().workers, strict=True):
        assert worker.state is (State.STOPPED if result.how == "terminated" else State.FAILED)
    assert local.gone()


def test_a_supervisor_killed_while_it_stops(local: Local) -> None:
    job = local.sh(STUBBORN, workers=2)
    assert wait_until(lambda: all(local.file("work/up", index).exists() for index in range(2)))

    async def main() -> list[str]:
        stopping = asyncio.create_task(local.backend.stop(job, job.workers, 600.0))
        await asyncio.sleep(0.1)
        os.kill(local.supervisor(), signal.SIGKILL)
        return [result.how for result in await stopping]

    assert asyncio.run(asyncio.wait_for(main(), 100)) == ["killed", "killed"]
    assert wait_until(lambda: not marked())


def test_fork_storm(local: Local) -> None:
    """Processes created faster than they are searched are found in the end."""
    job = local.sh("storm() { setsid sh -c 'sleep 0.03' & }; while :; do storm; storm; sleep 0.005; done")
    time.sleep(0.2)
    assert [result.how for result in asyncio.run(local.backend.stop(job, job.workers, 0.2))] != ["not-stopped"]
    assert local.inside(job) == []


def test_a_removed_entry_ends_in_order(local: Local) -> None:
    """The folder of a running job is removed by hand: its processes are still guarded."""
    job = local.run(workers=2)
    supervisor = local.supervisor()
    pids = [worker.pid for worker in job.workers]
    subprocess.run(["rm", "-rf", str(local.folder())], check=True)
    assert registry.LOCAL.names() == []
    os.kill(supervisor, signal.SIGTERM)
    assert wait_until(lambda: not marked())
    assert all(pid is not None for pid in pids)
