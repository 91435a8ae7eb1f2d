"""`atlctl record`: follow a job's logs, states and events to disk, and print the root cause at its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context
from atlctl.i18n import COMMA, Message, joined
from atlctl.jobs.config import load_config
from atlctl.jobs.errors import AtlctlError, ExitCode, NothingMatched
from atlctl.jobs.model import State

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.jobs.model import Job
    from atlctl.recording.recorder.recorder import Result

KEEP_MIB = 64
#: Seconds between two looks for a job that does not exist yet.
WAIT_SECONDS = 2.0


TEXT = Message(
    "Started with the job, it keeps what a platform deletes within seconds of a failure. Started again, it "
    "continues where it ended; 'atlctl errors JOB' reads what it has kept. It waits for a job that does not exist "
    "yet."
)
EXAMPLES = Message(
    """\
atlctl record train-7
atlctl record train-7 --out /shared/train-7 --keep-mib 256
atlctl record train-7 --notify team
atlctl record train-7 --on-failure 'date >> failures.txt'"""
)


async def command(
    argument: options.Job = None,
    option: options.JobOption = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help=Message("record into this folder, new or of an earlier record (default: one in the state folder)"),
        ),
    ] = None,
    keep_mib: Annotated[
        int, typer.Option("--keep-mib", min=1, metavar="N", help=Message("keep the last N MiB of each worker's log"))
    ] = KEEP_MIB,
    on_failure: Annotated[
        str | None,
        typer.Option(
            "--on-failure",
            metavar="CMD",
            help=Message("run this with sh when a worker fails (ATLCTL_JOB, ATLCTL_RECORDING, ATLCTL_FAILED_WORKERS)"),
        ),
    ] = None,
    notify: Annotated[
        str | None,
        typer.Option(
            "--notify",
            metavar="NAME",
            help=Message("send there why a worker failed, and that the job is slow, as 'atlctl notify NAME' does"),
        ),
    ] = None,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json", "yaml")] = "table",
) -> int:
    from atlctl.backends.base import ManyLogs
    from atlctl.cli.evidence import recorded
    from atlctl.cli.evidence.findings import Display, own_signatures, tell_saved
    from atlctl.cli.target import backend
    from atlctl.recording.recorder.recorder import Recorder
    from atlctl.recording.recorder.roll import begun
    from atlctl.recording.recorder.store import Store

    if notify is not None:
        load_config(os.environ).notified(notify)
    context().container = container
    source = backend(argument, option)
    job = await _wait_for(source, argument, option)
    store = Store(recorded.new_folder(job) if out is None else out)
    recorder = None
    told = False
    try:
        before = begun(store, job)
        if out is not None:
            try:
                recorded.remember(job, store.path)
            except (AtlctlError, OSError) as error:
                why = error.message if isinstance(error, AtlctlError) else str(error)
                text = Message("'atlctl errors {job}' will not find this recording by itself: {why}")
                say.note(text.filled(job=job.name, why=why))
        own_signatures()  # so that a mistake in them is reported now, not after the job
        if isinstance(source, ManyLogs):
            source.allow_logs(max(job.expected, len(job.workers)))
        find = _finder(source, job)
        recorder = Recorder(
            source, job, store, before, find, say, keep=keep_mib << 20, on_failure=on_failure, notify=notify
        )
        _tell_begin(job, store.path, keep_mib << 20, goes_on=bool(before))
        context().on_first = lambda: say.line(Message("interrupted: the recording so far is kept"))
        recording = Message("recording job {job}; Ctrl-C ends this", job=job.name)
        with say.doing(recording, done=recorder.size, size=True):
            result = await recorder.run()
        _tell_end(result, job, store.path)
        about = {"job": job.name, "uid": job.uid, "state": str(result.state)}
        if not result.bytes and output == "table":
            say.note(Message("no worker of job {job} has printed anything", job=job.name))
        else:
            tell_saved(
                [store.path],
                Display(output, bool(context().verbose)),
                error_files=True,
                about=about,
                budget=recorded.BUDGET,
                stopped=_stopped(result) is not None,
            )
        told = True
        return int(ExitCode.FAILED if result.incomplete else ExitCode.OK)
    except asyncio.CancelledError:
        text = Message("read it: atlctl errors --from {folder}; go on: atlctl record {job} --out {folder}")
        say.line(text.filled(folder=store.path, job=job.name))
        raise
    finally:
        context().on_first = None
        if recorder is not None:
            await recorder.close(wait=told)
        else:
            store.close()


async def _wait_for(source: Backend, argument: str | None, option: str | None) -> Job:
    """The job; one that was named and does not exist yet is waited for."""
    from atlctl.cli.target import find_logged

    waits = False
    while True:
        try:
            return await find_logged(source, argument, option)
        except NothingMatched as error:
            if options.stated_job(argument, option) is None:
                raise
            if not waits:
                waiting = say.waiting(error.message)
                say.note(joined((waiting, error.hint)) if error.hint else waiting)
            waits = True
            with say.doing(Message("waiting for job {job}", job=argument or option)):
                await asyncio.sleep(WAIT_SECONDS)


def _finder(source: Backend, job: Job) -> Callable[[], Awaitable[Job]]:
    """Asks for exactly this job again."""
    name = context().selector or job.reference
    return lambda: source.get_job(name)


def _tell_begin(job: Job, folder: str, keep: int, *, goes_on: bool) -> None:
    none = Message("no workers yet, they are waited for")
    workers = say.workers(len(job.workers)) if job.workers else none
    about = joined((job.kind, job.state.label, workers), COMMA)
    goes_on_text = Message("goes on recording job {job} ({about}) in {folder}")
    text = goes_on_text if goes_on else Message("records job {job} ({about}) in {folder}")
    say.line(text.filled(job=job.name, about=about, folder=folder))
    most = max(job.expected, len(job.workers)) * keep
    free = os.statvfs(folder)
    room = free.f_bavail * free.f_frsize
    if most > room:
        warning = Message("its logs may take {most} MiB, and {free} MiB are free: --keep-mib bounds each")
        say.warning(warning.filled(most=most >> 20, free=room >> 20))


def _stopped(result: Result) -> Message | None:
    """The action of a user that ended the workers (stop, deletion, suspension); None if the job ended by itself."""
    if result.gone:
        return Message("job {job} was deleted")
    return {State.STOPPED: Message("job {job} was stopped"), State.SUSPENDED: Message("job {job} was suspended")}.get(
        result.state
    )


def _tell_end(result: Result, job: Job, folder: str) -> None:
    from atlctl.diagnosis.stepwatch import slow_text

    context().on_first = None
    ended = (_stopped(result) or Message("job {job} has ended")).filled(job=job.name)
    kept = Message("{size:.1f} MiB of logs are in {folder}", size=result.bytes / 2**20, folder=folder)
    say.line(joined((ended, kept)))
    for slow in result.slow:
        say.line(slow_text(slow))
    for names, why in say.by_reason(result.incomplete.items()):
        say.warning(Message("the log of {workers} is not whole: {why}", workers=names, why=why) if names else why)
