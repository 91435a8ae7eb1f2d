"""`atlctl local run`: start a job on this machine, and stay with it unless --detach."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import say
from atlctl.cli.runtime import context, run_async
from atlctl.jobs.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.backends.local.launch import LaunchSpec
    from atlctl.jobs.model import Job, Worker

GRACE_SECONDS = 5.0


def command(
    cmd: Annotated[list[str], typer.Argument(metavar="CMD")],
    workers: Annotated[int, typer.Option("-w", "--workers", min=1, metavar="N")],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", metavar="K=V")] = None,
    master_port: Annotated[int | None, typer.Option("--master-port", min=1, max=65535, metavar="PORT")] = None,
    detach: Annotated[bool, typer.Option("--detach")] = False,
) -> int:
    from atlctl.backends.base import Argv
    from atlctl.backends.local.launch import LaunchSpec
    from atlctl.diagnosis.torchelastic import FAILURE_MARKERS

    _hint_relative(cmd)
    spec = LaunchSpec(
        argv=Argv(tuple(cmd)),
        workers=workers,
        name=name,
        env=dict(_pair(text) for text in env or []),
        master_port=master_port,
        failure_markers=[marker.decode() for marker in FAILURE_MARKERS],
    )
    return run_async(lambda: _run(spec, detach))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        # Not shown: it may be a secret whose name was forgotten.
        raise UsageError("--env takes NAME=VALUE, and one of its values has no name", "write --env NAME=VALUE")
    return name, value


def _hint_relative(cmd: list[str]) -> None:
    """Workers run in folders of their own: a file named relative to this one will not be found there."""
    import os

    for word in cmd:
        if not word.startswith(("/", "-")) and "." in word and os.path.isfile(word):
            say.note(
                f"each worker runs in a folder of its own: '{word}' will not be found there; write \"$PWD/{word}\""
            )


async def _run(spec: LaunchSpec, detach: bool) -> int:
    from atlctl.backends.local.launch import launch
    from atlctl.cli.target import local

    source = local()
    # In a thread of its own: the start waits for the supervisor, and signals must come through meanwhile.
    starting = asyncio.create_task(asyncio.to_thread(launch, spec))
    try:
        name = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _interrupted(source, await source.get_job(await starting))
        raise
    if detach:
        say.out(f"{name}\n")
        return 0
    job = await source.get_job(name)
    say.note(f"job {name} runs with {job.expected} worker{'' if job.expected == 1 else 's'}; Ctrl-C stops it")
    try:
        await _follow(source, job)
    except asyncio.CancelledError:
        await _interrupted(source, job)
        raise
    return _exit_code(await source.get_job(name))


async def _follow(source: Backend, job: Job) -> None:
    from atlctl.backends.base import LogRequest
    from atlctl.cli.output.loglines import TextLines
    from atlctl.fanout.merge import merge

    writer, request = context().writer, LogRequest(follow=True)
    shown = TextLines(writer, context().streams, prefix=job.expected > 1, apart=True)
    async for chunk in merge(job.workers, lambda worker: source.lines(job, worker, request), shown.ended):
        shown.put(chunk)
        await writer.drain()


async def _interrupted(source: Backend, job: Job) -> None:
    """Ctrl-C and SIGTERM stop the job; a terminal that goes away (SIGHUP) leaves it running."""
    if context().leaving == 128 + signal.SIGHUP:
        return
    say.note(f"stopping job {job.name}; once more leaves at once")
    context().on_second = lambda: say.now(f"job {job.name} may still be running: atlctl stop {job.name}")
    current = await source.get_job(job.name)
    await source.stop(current, current.workers, GRACE_SECONDS)


def _exit_code(job: Job) -> int:
    """As `exec` of several workers: lost 255, else the highest code, a signal counting as 128 and its number."""
    from atlctl.jobs.model import State

    failed = [worker for worker in job.workers if worker.state is not State.SUCCEEDED]
    if failed:
        say.line(f"job {job.name}: {job.state} ({job.reason}); look closer: atlctl errors {job.name}")
    if any(worker.state is State.LOST for worker in job.workers):
        return int(ExitCode.UNREACHABLE)
    return max(_code(worker) for worker in job.workers)


def _code(worker: Worker) -> int:
    return 128 + worker.signal if worker.signal is not None else (worker.exit_code or 0)
