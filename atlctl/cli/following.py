"""Staying with a job that was just started: its logs until it ends, its end when the client is interrupted."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.cli.runtime import context
from atlctl.i18n import Message
from atlctl.jobs.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from atlctl.backends.base import Backend
    from atlctl.backends.hosts.starting import StartSpec
    from atlctl.jobs.model import Job, Worker

GRACE_SECONDS = 5.0


def spec(
    cmd: list[str], name: str | None, env: list[str] | None, master_port: int | None, **of_hosts: str | None
) -> StartSpec:
    """What to start, from the options that both ways have, and those of hosts alone. Raises UsageError."""
    from atlctl.backends.base import Argv
    from atlctl.backends.hosts.starting import StartSpec
    from atlctl.diagnosis.torchelastic import FAILURE_MARKERS

    given = dict(_pair(text) for text in env or [])
    markers = [marker.decode() for marker in FAILURE_MARKERS]
    return StartSpec(Argv(tuple(cmd)), name, given, master_port, markers, **of_hosts)


def _pair(text: str) -> tuple[str, str]:
    """The value of `--env`. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        # Not shown: it may be a secret whose name was forgotten.
        raise UsageError(
            Message("--env takes NAME=VALUE, and one of its values has no name"),
            Message("write {example}", example="--env NAME=VALUE"),
        )
    return name, value


async def begin(source: Backend, starting: Coroutine[Any, Any, str], detach: bool) -> int:
    """Start a job (`starting` returns its name), then stay with it unless it is to be left alone."""
    task = asyncio.create_task(starting)
    try:
        with say.doing(Message("starting the workers")):
            name = await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await interrupted(source, await source.get_job(task.result()))
        raise
    if detach:
        say.out(f"{name}\n")
        return 0
    return await stay(source, await source.get_job(name))


async def stay(source: Backend, job: Job) -> int:
    """The job's logs until it has ended, then its exit code. Ctrl-C and SIGTERM stop it."""
    say.note(Message("job {job} runs with {workers}; Ctrl-C stops it", job=job.name, workers=say.workers(job.expected)))
    try:
        await _follow(source, job)
    except asyncio.CancelledError:
        await interrupted(source, job)
        raise
    return _exit_code(await source.get_job(job.name))


async def _follow(source: Backend, job: Job) -> None:
    from atlctl.backends.base import LogRequest
    from atlctl.cli.loglines import TextLines
    from atlctl.fanout.merge import merge

    writer, request = context().writer, LogRequest(follow=True)
    shown = TextLines(writer, context().streams, prefix=job.expected > 1, apart=True)
    with say.doing(Message("job {job} runs with {workers}", job=job.name, workers=say.workers(job.expected))):
        async for chunk in merge(job.workers, lambda worker: source.lines(job, worker, request), shown.ended):
            shown.put(chunk)
            await writer.drain()


async def interrupted(source: Backend, job: Job) -> None:
    """Ctrl-C and SIGTERM stop the job; a terminal that goes away (SIGHUP) leaves it running."""
    if context().leaving == 128 + signal.SIGHUP:
        return
    say.note(Message("stopping job {job}; once more leaves at once", job=job.name))
    running = Message("job {job} may still be running: atlctl stop {job}", job=job.name)
    context().on_second = lambda: say.now(running)
    current = await source.get_job(job.name)
    with say.doing(Message("stopping job {job}", job=job.name)):
        results = await source.stop(current, current.workers, GRACE_SECONDS)
    for result in results:
        if result.how == "not-stopped":
            say.warning(Message("{worker} may still run: {why}", worker=result.worker, why=result.reason))


def _exit_code(job: Job) -> int:
    """As `exec` of several workers: lost 255, else the highest code, a signal counting as 128 and its number."""
    from atlctl.jobs.model import State

    failed = [worker for worker in job.workers if worker.state is not State.SUCCEEDED]
    if failed:
        state = say.state(job.state, job.reason)
        say.line(Message("job {job}: {state}; look closer: atlctl errors {job}", job=job.name, state=state))
    if any(worker.state in (State.LOST, State.UNKNOWN) for worker in job.workers):
        return int(ExitCode.UNREACHABLE)
    return max(_code(worker) for worker in job.workers)


def _code(worker: Worker) -> int:
    return 128 + worker.signal if worker.signal is not None else (worker.exit_code or 0)
