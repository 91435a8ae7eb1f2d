"""`atlctl ps`: a job's workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched, Replaced, UsageError
from atlctl.jobs.model import State

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.jobs.model import Job, Worker
    from atlctl.jobs.selection import Selection

WATCH_SECONDS = 1.0
#: The same for a server that others use as well.
_REMOTE_WATCH_SECONDS = 5.0
_HOME_AND_CLEAR = "\x1b[H\x1b[2J"


TEXT = Message("Also spelled 'atlctl workers'.")
EXAMPLES = Message(
    """\
atlctl ps train-7
atlctl ps train-7 --failed -o wide
atlctl ps train-7 --watch"""
)


@options.selecting
def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    selection: options.Selected = options.NO_SELECTION,
    watch: Annotated[bool, typer.Option("--watch", help=Message("show it again whenever something changes"))] = False,
    output: Annotated[str, options.output("table", "wide", "json", "yaml", "name")] = "table",
) -> int:
    return run_async(lambda: _show(job, job_option, selection, watch, output))


async def _show(argument: str | None, option: str | None, selection: Selection, watch: bool, output: str) -> int:
    from atlctl.cli.target import backend, find_job

    source = backend(argument, option)
    job = await find_job(source, argument, option, reads_only=True)
    shown = await _render(source, job, selection, output)
    if not watch:
        say.out(shown)
        return 0
    await _watch(source, job.name, selection, output, shown)
    return 0


async def _watch(source: Backend, name: str, selection: Selection, output: str, shown: str) -> None:
    """Show it again when it changed, until no worker is active any more; wait for a server that is not there."""
    screen = context().streams.stdout_tty and output in ("table", "wide")
    said, waits = "", False
    while True:
        if shown != said:
            said = shown
            say.out((_HOME_AND_CLEAR if screen else "") + shown)
            await context().writer.drain()
        try:
            job = await source.get_job(name)
            shown = await _render(source, job, selection, output)
        except (NothingMatched, NotAllowed, Replaced, UsageError):
            raise
        except AtlctlError as error:
            if not waits:
                say.note(say.waiting(error.message))
            waits = True
        else:
            if waits:
                say.note(Message("job {job} can be asked for again", job=name))
                said = "" if screen else said  # notes stand on it
            waits = False
            if shown == said and not any(worker.state.active for worker in job.workers):
                return
        await asyncio.sleep(WATCH_SECONDS if source.name == "local" else _REMOTE_WATCH_SECONDS)


async def _render(source: Backend, job: Job, selection: Selection, output: str) -> str:
    from atlctl.backends.base import Looking
    from atlctl.cli.evidence import held
    from atlctl.cli.target import choose
    from atlctl.cli.views import workers_table
    from atlctl.render.sanitize import clean

    job = await source.look(job) if isinstance(source, Looking) else await held.look(source, job)
    # A job that waits or sleeps has no worker, and is worth a look all the same.
    workers = await choose(source, job, selection, looked=True) if job.workers or not selection.empty else ()
    if output in ("json", "yaml"):
        return _document(job, workers)
    if output == "name":
        return "".join(f"{clean(worker.name)}\n" for worker in workers)
    missing = job.missing if selection.empty or selection.all else ()
    if job.reason and job.state in (State.PENDING, State.QUEUED, State.SUSPENDED):
        state = Message("job {job} is {state}", job=job.name, state=say.state(job.state, job.reason))
        say.note(Message("{what}: {why}", what=state, why=job.message) if job.message else state)
    return workers_table(workers, missing, context().streams, output == "wide")


def _document(job: Job, workers: Sequence[Worker]) -> str:
    from atlctl.cli.views import job_data, worker_data

    return say.as_document({"job": job_data(job), "workers": [worker_data(worker) for worker in workers]})
