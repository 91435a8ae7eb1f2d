"""Jobs are found, described and stopped; files of workers are read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from atlctl.backends.base import StopResult
from atlctl.jobs.errors import AtlctlError, NothingMatched
from atlctl.jobs.model import Job, State
from tests.contract.world import World, eventually
from tests.support.pace import within
from tests.support.proc import wait_until


def stop(world: World, job: Job, indexes: Sequence[int] | None = None, grace: float = 30.0) -> list[StopResult]:
    workers = job.workers if indexes is None else [job.workers[index] for index in indexes]
    return list(asyncio.run(asyncio.wait_for(world.backend.stop(job, workers, grace), 100)))


def load(world: World, name: str = "job") -> Job:
    return asyncio.run(world.backend.get_job(name))


# Inventory


def test_jobs_are_listed_with_their_workers(world: World) -> None:
    assert asyncio.run(world.backend.list_jobs()).jobs == ()
    world.start(name="b-2", workers=3)
    world.start(name="b-10")
    listing = asyncio.run(world.backend.list_jobs())
    assert [job.name for job in listing.jobs] == ["b-2", "b-10"]
    assert listing.problems == ()
    job = listing.jobs[0]
    assert (job.state, job.expected, job.ready, job.missing) == (State.RUNNING, 3, 3, ())
    assert [worker.name for worker in job.workers] == ["worker-0", "worker-1", "worker-2"]
    assert [(worker.index, worker.node_rank) for worker in job.workers] == [(0, 0), (1, 1), (2, 2)]
    assert all(worker.started and abs(worker.started - time.time()) < 60 for worker in job.workers)
    assert load(world, "b-2") == job


def test_an_unknown_job(world: World) -> None:
    world.start(name="present")
    with pytest.raises(NothingMatched) as caught:
        load(world, "absent")
    assert "absent" in caught.value.message
    assert "present" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["../job", "", "a b", "-x", ".lock", "a\nb"])
def test_names_with_odd_characters_match_nothing(world: World, name: str) -> None:
    with pytest.raises(AtlctlError):
        load(world, name)


def test_states_follow_the_workers(world: World) -> None:
    job = world.start(["sh", "-c", "[ $RANK = 1 ] && exit 3; sleep 4300"], workers=2)
    found = eventually(world, job.name, lambda found: found.workers[1].state is State.FAILED)
    # A failing worker makes the job failed at once; the other workers keep running.
    assert found.state is State.FAILED
    assert found.workers[0].state is State.RUNNING
    assert (found.workers[1].exit_code, found.workers[1].signal) == (3, None)
    # A platform may report a job as ended while some of its workers still run.
    assert found.ended is None or found.backend != "local"
    assert world.inside(job, 0)


def until(gate: Path) -> str:
    """Shell text that waits for a file: all workers run on this machine."""
    return f"until [ -e {gate} ]; do sleep 0.05; done"


def test_success_needs_every_worker(world: World, tmp_path: Path) -> None:
    job = world.start(["sh", "-c", f"[ $RANK = 0 ] || {until(tmp_path / 'gate')}"], workers=2)
    found = eventually(world, job.name, lambda found: found.workers[0].state is State.SUCCEEDED)
    assert found.state is State.RUNNING
    (tmp_path / "gate").touch()
    found = eventually(world, job.name, lambda found: found.state is not State.RUNNING)
    assert found.state is State.SUCCEEDED
    assert found.ended is not None


def test_a_signal_is_a_failure(world: World) -> None:
    job = world.start()
    world.end_worker(job)
    # The controller may not have decided yet.
    found = eventually(world, job.name, lambda found: found.state not in (State.RUNNING, State.RESTARTING))
    assert found.state is State.FAILED
    # A kubelet reports the shell's code for the signal.
    assert (found.workers[0].exit_code, found.workers[0].signal) in (
        [(137, None)] if job.backend == "kubernetes" else [(None, 9)]
    )


def test_what_a_worker_leaves_behind_ends_with_it(world: World, tmp_path: Path) -> None:
    job = world.start(["sh", "-c", f"setsid sleep 4301 & {until(tmp_path / 'gate')}"])
    assert wait_until(lambda: any("sleep 4301" in process.command for process in world.inside(job)))
    (tmp_path / "gate").touch()
    eventually(world, job.name, lambda found: found.state is State.SUCCEEDED)
    assert world.inside(job) == []


# Stop: workers on this machine are ended one by one. Elsewhere the platform is asked to end the job.


def test_stop_terminates(local: World) -> None:
    job = local.start(workers=3)
    results = stop(local, job)
    assert [(r.worker, r.how, r.processes) for r in results] == [
        (worker.name, "terminated", 1) for worker in job.workers
    ]
    assert not any(local.inside(job, index) for index in range(3))
    # A requested stop is shown immediately, also as the result.
    found = load(local)
    assert found.state is State.STOPPED
    assert [worker.state for worker in found.workers] == [State.STOPPED] * 3


def test_stop_lets_workers_clean_up(local: World) -> None:
    job = local.start(
        ["sh", "-c", "trap 'sleep 0.2; touch cleaned; exit 0' TERM; touch up; while :; do sleep 0.02; done"]
    )
    assert wait_until(lambda: asyncio.run(local.backend.read_file(job, job.workers[0], "up", 1)) == b"")
    assert [result.how for result in stop(local, job)] == ["terminated"]
    assert asyncio.run(local.backend.read_file(job, job.workers[0], "cleaned", 1)) == b""
    # Stopped, whatever the exit code.
    assert load(local).state is State.STOPPED


def test_stop_kills_after_the_grace(local: World) -> None:
    job = local.start(["sh", "-c", "trap '' TERM; touch up; while :; do sleep 0.02; done"])
    assert wait_until(lambda: asyncio.run(local.backend.read_file(job, job.workers[0], "up", 1)) == b"")
    begun = time.monotonic()
    results = stop(local, job, grace=0.4)
    assert (seconds := time.monotonic() - begun) > 0.4
    assert within(seconds, 10)
    assert [result.how for result in results] == ["killed"]
    assert local.inside(job) == []


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("setsid sleep 4302 & touch up; sleep 4303", id="session"),
        pytest.param("touch up; kill -STOP $$", id="stopped"),
        pytest.param("touch up; sleep 4304 | sleep 4305", id="pipeline"),
        pytest.param("(setsid sh -c 'sleep 4308 & sleep 4309' &); touch up; sleep 4310", id="daemon"),
    ],
)
def test_stop_leaves_nothing_and_wastes_no_grace(local: World, script: str) -> None:
    job = local.start(["sh", "-c", script])
    assert wait_until(lambda: asyncio.run(local.backend.read_file(job, job.workers[0], "up", 1)) == b"")
    begun = time.monotonic()
    assert [result.how for result in stop(local, job, grace=30.0)] == ["terminated"]
    assert within(time.monotonic() - begun, 10)
    assert local.inside(job) == []


def test_stop_ends_commands_executed_in_a_worker(local: World) -> None:
    job = local.start()
    with local.client(job, ["sh", "-c", "setsid sleep 4306"], stdin=False) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"started\n"
        stop(local, job)
        assert local.inside(job) == []
        client.wait(100)


def test_stop_of_some_workers(local: World) -> None:
    job = local.start(workers=3)
    assert [result.worker for result in stop(local, job, [2, 0])] == ["worker-2", "worker-0"]
    found = load(local)
    assert [worker.state for worker in found.workers] == [State.STOPPED, State.RUNNING, State.STOPPED]
    assert found.state is State.RUNNING
    assert [len(local.inside(job, index)) for index in range(3)] == [0, 1, 0]
    # Stopping again is safe and reports the current state.
    assert [result.how for result in stop(local, job)] == ["already-ended", "terminated", "already-ended"]


def test_stop_of_an_ended_job(local: World) -> None:
    job = local.start(["true"])
    ended = eventually(local, job.name, lambda found: found.state is State.SUCCEEDED)
    for known in (job, ended):
        assert [result.how for result in stop(local, known)] == ["already-ended"]
    assert load(local).state is State.SUCCEEDED


def test_stop_of_a_worker_that_is_not_there(local: World) -> None:
    job = local.start()
    known = replace(job, workers=(*job.workers, replace(job.workers[0], name="worker-7", index=7)))
    (result,) = stop(local, known, [1])
    assert (result.worker, result.how) == ("worker-7", "not-stopped")
    assert result.reason
    assert load(local).state is State.RUNNING


def test_stop_of_a_lost_job(local: World) -> None:
    job = local.start()
    local.lose(job)
    eventually(local, job.name, lambda found: found.state is State.LOST)
    assert [result.how for result in stop(local, job)] == ["already-ended"]


def test_two_stops_at_once_both_wait_for_the_end(local: World) -> None:
    job = local.start(["sh", "-c", "trap 'sleep 0.3; exit 0' TERM; touch up; while :; do sleep 0.02; done"])
    assert wait_until(lambda: asyncio.run(local.backend.read_file(job, job.workers[0], "up", 1)) == b"")

    async def main() -> list[bool]:
        async def one() -> bool:
            await local.backend.stop(job, job.workers, 5.0)
            return bool(local.inside(job))

        return list(await asyncio.gather(one(), one()))

    assert asyncio.run(asyncio.wait_for(main(), 100)) == [False, False]


def test_a_second_stop_may_be_less_patient(local: World) -> None:
    job = local.start(["sh", "-c", "trap '' TERM; touch up; while :; do sleep 0.02; done"])
    assert wait_until(lambda: asyncio.run(local.backend.read_file(job, job.workers[0], "up", 1)) == b"")

    async def main() -> float:
        patient = asyncio.create_task(_stopped(local, job, 600.0))
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        await _stopped(local, job, 0.1)
        await patient
        return time.monotonic() - begun

    assert asyncio.run(asyncio.wait_for(main(), 100)) < 20


async def _stopped(local: World, job: Job, grace: float) -> Sequence[StopResult]:
    return await local.backend.stop(job, job.workers, grace)


def test_a_job_started_anew_under_the_same_name_is_left_alone(local: World) -> None:
    old = local.start()
    new = local.replace(old)
    with pytest.raises(AtlctlError, match="replaced"):
        stop(local, old)
    assert load(local) == new
    assert local.inside(new)


# Files of workers


def file(world: World, job: Job, path: str, limit: int = 1000) -> bytes | None:
    return asyncio.run(asyncio.wait_for(world.backend.read_file(job, job.workers[0], path, limit), 100))


def test_files_as_the_worker_sees_them(world: World) -> None:
    script = (
        "printf 'a\\000b' > plain; mkdir folder; ln -s plain link; mkfifo pipe; "
        'printf here > "$PWD/folder/deep"; echo $PWD; touch up; sleep 4307'
    )
    job = world.start(["sh", "-c", script])
    assert wait_until(lambda: file(world, job, "up") == b"")
    assert file(world, job, "plain") == b"a\0b"
    assert file(world, job, "plain", 2) == b"a\0"
    assert file(world, job, "folder/deep") == b"here"
    assert file(world, job, "/dev/null") is None, "no regular file"
    assert file(world, job, "link") is None, "links are not followed"
    assert file(world, job, "pipe") is None, "nobody waits for a pipe"
    assert file(world, job, "folder") is None
    assert file(world, job, "missing") is None
    assert file(world, job, "nul\0byte") is None
    assert file(world, job, "plain/below") is None
