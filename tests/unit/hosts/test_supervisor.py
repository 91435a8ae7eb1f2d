"""The environment of workers and executed commands under the supervisor, and its records."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import sys
import time

import pytest

from atlctl.backends.base import Argv, ExecRequest
from atlctl.jobs.model import State
from tests.contract.drive import execute, fan_out
from tests.contract.world import REPOSITORY
from tests.support.pace import within
from tests.support.proc import alive, marked, wait_until
from tests.unit.hosts.local import Local


def fields(text: str) -> dict[str, str]:
    """Parse the lines of /proc/PID/status."""
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def of_worker_and_command(local: Local, script: str) -> list[str]:
    """The output of `script` as a worker, and as a command executed in one."""
    job = local.sh(f"{script}; echo end; sleep 4600")
    log = local.file("log/0.log")
    assert wait_until(lambda: b" end\n" in log.read_bytes())
    own = [line.split(b" ", 3)[3].decode() for line in log.read_bytes().splitlines()[:-1]]
    return ["\n".join(own) + "\n", execute(local, job, ["sh", "-c", script]).stdout.decode()]


#: The signals 32 and 33 belong to the C library: programs cannot set them, and some launchers leave one ignored.
C_LIBRARY_SIGNALS = 0b11 << 31


def test_signals_are_at_their_defaults(local: Local) -> None:
    """Even if the starting process ignores some: a shell's background job, nohup, Python's SIGPIPE."""
    ignored = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    old = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
    try:
        # Not with a shell builtin, which would show the shell's own signals.
        for text in of_worker_and_command(local, "exec 3>&1; grep ^Sig /proc/self/status"):
            found = fields(text)
            assert int(found["SigIgn"], 16) & ~C_LIBRARY_SIGNALS == 0
            assert int(found["SigBlk"], 16) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in old.items():
            signal.signal(number, handler)


def test_the_descriptor_limit_is_the_launchers(local: Local) -> None:
    """The supervisor needs more; its workers get the limit they would have without it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        assert of_worker_and_command(local, "ulimit -n") == ["300\n", "300\n"]
        own = resource.prlimit(local.supervisor(), resource.RLIMIT_NOFILE)
        assert own == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_only_standard_streams_are_open(local: Local) -> None:
    # Three, and the listed folder.
    assert of_worker_and_command(local, "ls /proc/self/fd | wc -l") == ["4\n", "4\n"]


def test_folder_and_umask(local: Local) -> None:
    old = os.umask(0o027)
    try:
        texts = of_worker_and_command(local, "pwd; umask; echo $PWD; echo $OLDPWD")
    finally:
        os.umask(old)
    work = local.file("work")
    assert texts == [f"{work}\n0027\n{work}\n\n"] * 2


def test_sessions_and_groups(local: Local) -> None:
    job = local.run()
    (worker,) = local.inside(job)
    assert worker.session == worker.group == worker.pid
    with local.client(job, ["sleep", "4601"], stdin=False) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"started\n"
        (command,) = [process for process in local.inside(job) if "4601" in process.command]
        assert command.group == command.pid
        assert command.session not in (worker.session, os.getsid(0))
        client.kill()


def test_executed_commands_get_the_workers_environment(local: Local) -> None:
    job = local.run(workers=2, env={"MINE": "1"})
    outcomes, kept = fan_out(local, job, ["sh", "-c", "echo $RANK $WORLD_SIZE $ATLCTL_JOB $ATLCTL_WORKER $MINE"])
    assert all(outcome.ok for outcome in outcomes)
    assert kept.output_of == {"worker-0": b"0 2 job worker-0 1\n", "worker-1": b"1 2 job worker-1 1\n"}


def test_what_commands_print_of_their_environment_differs_by_the_worker_alone(local: Local) -> None:
    """Equal outputs are folded, so no variable of atlctl may differ without need."""
    job = local.run(workers=2)
    _, kept = fan_out(local, job, ["env"])
    first, second = (set(kept.output_of[name].splitlines()) for name in ("worker-0", "worker-1"))
    assert {line.split(b"=")[0] for line in first ^ second} == {b"RANK", b"ATLCTL_WORKER", b"PWD"} - (
        {b"PWD"} if not any(line.startswith(b"PWD=") for line in first) else set()
    )


def test_exit_codes_are_written_whole(local: Local) -> None:
    """A reader during the write sees nothing or the whole code."""
    local.sh("sleep 0.1; exit 7", workers=20)
    seen = 0

    def all_there() -> bool:
        nonlocal seen
        texts = [path.read_bytes() for path in local.folder().glob("workers/*/exit.json")]
        assert all(json.loads(text)["exit_code"] == 7 for text in texts)
        seen = len(texts)
        return seen == 20

    assert wait_until(all_there, interval=0.0)
    assert list(local.folder().rglob("*.new")) == []


def test_a_workers_end_takes_what_it_left_along(local: Local) -> None:
    """Processes in the background, in other sessions, forked twice, stopped."""
    script = "sleep 4602 & setsid sleep 4603 & (setsid sh -c 'sleep 4604 & kill -STOP $$' &); sleep 0.2; exit 3"
    job = local.sh(script)
    assert wait_until(lambda: len(local.inside(job)) >= 5)
    found = local.ended()
    assert (found.state, found.workers[0].exit_code) == (State.FAILED, 3)
    assert local.inside(job) == []


def test_a_leftover_may_not_hold_up_the_end(local: Local) -> None:
    """An unknown process keeps the log's pipe open: the exit is still written."""
    job = local.run()
    (worker,) = local.inside(job)
    # This process holds the worker's stdout now.
    held = os.open(f"/proc/{worker.pid}/fd/1", os.O_WRONLY)
    try:
        local.end_worker(job)
        assert local.ended().workers[0].signal == signal.SIGKILL
    finally:
        os.close(held)


def test_the_supervisor_ends_with_its_last_worker(local: Local) -> None:
    local.sh("[ $RANK = 0 ] || sleep 0.3", workers=2)
    assert local.gone()
    assert wait_until(lambda: not marked()), "the guard, too"
    assert local.load("job").state is State.SUCCEEDED
    assert (local.folder() / "supervisor.log").read_bytes() == b"", "it had nothing to say"


@pytest.mark.parametrize("whom", ["supervisor", "guard"])
def test_sigterm_stops_the_job(local: Local, whom: str) -> None:
    job = local.sh("trap 'touch cleaned; exit 4' TERM; touch up; while :; do sleep 0.02; done")
    assert wait_until(local.file("work/up").exists)
    os.kill(local.supervisor() if whom == "supervisor" else local.guard(), signal.SIGTERM)
    found = local.ended()
    assert (found.state, found.workers[0].exit_code) == (State.STOPPED, 4)
    assert local.file("work/cleaned").exists()
    assert local.inside(job) == []


def test_a_terminal_that_goes_away_does_not_matter(local: Local) -> None:
    local.run()
    os.kill(local.supervisor(), signal.SIGHUP)
    os.kill(local.guard(), signal.SIGHUP)
    time.sleep(0.1)
    assert local.load("job").state is State.RUNNING


@pytest.mark.parametrize("workers", [256, 400])
def test_many_workers(local: Local, workers: int) -> None:
    begun = time.monotonic()
    job = local.run(workers=workers)
    started = time.monotonic() - begun
    assert job.ready == workers
    assert [worker.index for worker in job.workers] == list(range(workers))
    begun = time.monotonic()
    results = asyncio.run(local.backend.stop(job, job.workers, 10.0))
    stopped = time.monotonic() - begun
    assert {result.how for result in results} == {"terminated"}
    assert local.load("job").state is State.STOPPED
    # Generous for a busy machine, but small enough to detect quadratic time: one scan of /proc for each worker.
    assert started < 10
    assert stopped < 6


def test_a_client_that_is_slow_to_read_hears_of_every_worker(local: Local) -> None:
    """A socket buffers fewer than 300 of 400 answers, and the supervisor ends with the last worker."""
    job = local.run(workers=400)
    names = [worker.name for worker in job.workers]
    with local.connect() as sock, sock.makefile("rb") as answers:
        wanted = {"id": 1, "uid": job.uid, "fds": 0, "op": "stop", "workers": names, "grace": 10.0}
        sock.sendall(json.dumps(wanted).encode() + b"\n")
        assert wait_until(lambda: all(local.file("exit.json", index).exists() for index in range(400)))
        told = [json.loads(line) for line in answers]
    assert sorted(one["worker"] for one in told[:-1]) == sorted(names)
    assert told[-1]["event"] == "stop-done"
    assert local.gone()


def test_300_commands_at_once_through_one_connection(local: Local) -> None:
    """More descriptors than one message can carry."""
    job = local.run()

    async def main() -> list[bool]:
        executor = local.backend.executor(job)

        async def one() -> bool:
            execution = executor.run(job.workers[0], ExecRequest(Argv(("sleep", "4606"))))
            events = execution.__aiter__()
            await anext(events)
            ended = await execution.end(5.0)
            await execution.aclose()
            return ended

        try:
            return list(await asyncio.gather(*(one() for _ in range(300))))
        finally:
            await executor.aclose()

    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, old[1]), old[1]))
    try:
        assert asyncio.run(asyncio.wait_for(main(), 100)) == [True] * 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
    assert len(local.inside(job)) == 1


def test_a_job_started_inside_a_worker_is_that_workers(local: Local) -> None:
    """Its workers have the same names, but belong to no other worker."""
    job = local.run(workers=2)
    inner = (
        "from atlctl.backends.base import Argv; from atlctl.backends.hosts.starting import *;"
        "start_here(StartSpec(Argv(('sleep', '4607')), 'inner'), 2)"
    )
    script = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-c", inner]

    async def main() -> None:
        executor = local.backend.executor(job)
        async for event in executor.run(job.workers[1], ExecRequest(Argv(tuple(script)))):
            last = event
        await executor.aclose()
        assert getattr(last, "exit_code", None) == 0, last

    asyncio.run(main())
    nested = local.load("inner")
    pids = [worker.pid for worker in nested.workers]
    asyncio.run(local.backend.stop(job, job.workers[:1], 2.0))
    assert all(pid is not None and alive(pid) for pid in pids)
    begun = time.monotonic()
    asyncio.run(local.backend.stop(job, job.workers[1:], 10.0))
    assert not any(pid is not None and alive(pid) for pid in pids)
    assert within(time.monotonic() - begun, 9), "its end is not waited for"


@pytest.mark.parametrize("folder", ["work", "log"])
def test_a_folder_that_is_removed_by_hand_costs_no_worker(local: Local, folder: str) -> None:
    job = local.sh("while :; do echo x; sleep 0.02; done")
    shutil.rmtree(local.file(folder))
    time.sleep(0.1)
    assert local.load("job").state is State.RUNNING
    ran = execute(local, job, ["true"])
    assert getattr(ran.end, "exit_code", None) == (125 if folder == "work" else 0)
