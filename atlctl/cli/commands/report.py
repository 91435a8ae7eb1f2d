"""`atlctl report`: everything that a colleague needs to see why a job failed, in one folder or archive."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async, status_line
from atlctl.i18n import Message
from atlctl.jobs.errors import ExitCode, UsageError

TEXT = Message(
    "Has the evidence of a job or of saved logs, the verdict, and an index.html that needs no server; secrets are "
    "hidden. 'atlctl errors --from' reads the folder again. No file is overwritten."
)
EXAMPLES = Message(
    """\
atlctl report train-7
atlctl report train-7 --out train-7.tar.gz --smoke smoke.json
atlctl report --from saved/"""
)


def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    saved: options.SavedLogs = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help=Message("a new folder, or a new file that ends in .tar.gz (default: a folder in the working folder)"),
        ),
    ] = None,
    smoke: Annotated[
        str | None,
        typer.Option("--smoke", metavar="PATH", help=Message("include this output of 'atlctl smoke -o json'")),
    ] = None,
    no_files: options.NoFiles = False,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json", "yaml")] = "table",
) -> int:
    if out == "":
        raise UsageError(
            Message("--out: the path is empty"), Message("name a new folder, or a new file that ends in .tar.gz")
        )
    if saved:
        if job is not None or job_option is not None:
            raise UsageError(Message("a job and saved evidence (--from) are both named"), Message("name one"))
        with status_line():
            return _saved(saved, out, smoke, not no_files, output)
    if no_files:
        raise UsageError(Message("--no-files applies to saved evidence only"), "atlctl report --from PATH --no-files")
    context().container = container
    return run_async(lambda: _report(job, job_option, out, smoke, output))


def _saved(paths: list[str], out: str | None, smoke: str | None, error_files: bool, output: str) -> int:
    from atlctl.cli.report.making import making, tell

    folders = [path for path in paths if os.path.isdir(path)]
    if folders and len(paths) > 1:
        raise UsageError(
            Message("a report is made of one folder, or of several logs"),
            Message("--from FOLDER, or --from A --from B"),
        )
    name = os.path.basename(os.path.abspath(paths[0])) if paths[0] != "-" else "logs"
    with making(out, name.removesuffix(".log"), smoke) as made:
        made.copy(paths, error_files=error_files)
        report = made.finish(*made.diagnose())
    _tell_missing(report.missing)
    tell(report, output)
    return int(ExitCode.OK)


async def _report(argument: str | None, option: str | None, out: str | None, smoke: str | None, output: str) -> int:
    from atlctl.cli.evidence import gone, held, recorded
    from atlctl.cli.evidence.looking import with_ranks
    from atlctl.cli.report.making import making, tell
    from atlctl.cli.target import backend
    from atlctl.recording.save import DEADLINE

    source = backend(argument, option)
    found = await gone.job_or_recording(source, argument, option, living=False)
    if isinstance(found, recorded.Recording):
        known = found.data["job"]
        say.note(recorded.source_of(found))
        with making(out, str(known.get("name") or "job"), smoke) as made:
            made.about = {"job": known.get("name"), "uid": known.get("uid"), "state": known.get("state")}
            made.copy([found.folder], error_files=True)
            report = made.finish(*made.diagnose())
    else:
        job = await held.look(source, found)
        with making(out, job.name, smoke) as made:
            text = Message("collecting the evidence of {count} workers ({seconds:g} s at most for their logs)")
            say.line(text.filled(count=len(job.workers), seconds=DEADLINE))
            await made.collect(source, job)
            gone.tell(job, await gone.events(source, job))
            saved, diagnosis = made.diagnose()
            report = made.finish(saved, diagnosis, *await with_ranks(source, job, diagnosis, saved.job))
    _tell_missing(report.missing)
    tell(report, output)
    return int(ExitCode.OK)


def _tell_missing(missing: Sequence[tuple[str, str]]) -> None:
    for what, why in say.by_reason(missing):
        say.warning(Message("missing: {what}: {why}", what=what, why=why) if what else why)
