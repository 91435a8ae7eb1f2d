"""`atlctl logs`: the logs of many workers, merged by time."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, ExitCode, UsageError
from atlctl.jobs.naming import fold_names

if TYPE_CHECKING:
    from atlctl.backends.base import Backend, LogRequest
    from atlctl.jobs.model import Job, Worker
    from atlctl.jobs.selection import Selection


EXAMPLES = Message(
    """\
atlctl logs train-7 -f
atlctl logs train-7 -w 0-3 --tail 100
atlctl logs train-7 --since 10m --grep 'loss|nan'
atlctl logs train-7 --attempt 1  # before 'atlctl rerun'"""
)


@options.selecting
def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    selection: options.Selected = options.NO_SELECTION,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help=Message("follow new lines until the job ends"))
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, metavar="LINES", help=Message("only the last lines of each worker"))
    ] = None,
    since: Annotated[
        float | None, options.duration("--since", help=Message("only lines newer than this (10m, 2h)"))
    ] = None,
    previous: Annotated[bool, typer.Option("--previous", help=Message("the log before the last restart"))] = False,
    attempt: options.Attempt = None,
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="REGEX", help=Message("only lines that match this regular expression")),
    ] = None,
    no_prefix: options.NoPrefix = False,
    raw: options.Raw = False,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    context().container = container
    from atlctl.backends.base import PREVIOUS, LogRequest

    if previous and attempt is not None:
        raise options.not_together("previous", "attempt")
    wanted = PREVIOUS if previous else attempt
    request = LogRequest(follow, tail, None if since is None else time.time() - since, wanted)
    view = _View(_pattern(grep), not no_prefix, raw, output == "json")
    return run_async(lambda: _show(job, job_option, selection, request, view))


def _pattern(text: str | None) -> re.Pattern[bytes] | None:
    if text is None:
        return None
    try:
        return re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise UsageError(
            Message("--grep '{pattern}' is not a regular expression: {why}", pattern=text, why=str(error)),
            Message("quote special characters with \\"),
        ) from error


@dataclass(frozen=True, slots=True)
class _View:
    """How lines are shown."""

    pattern: re.Pattern[bytes] | None
    prefix: bool
    raw: bool
    json: bool


async def _show(
    argument: str | None, option: str | None, selection: Selection, request: LogRequest, view: _View
) -> int:
    from atlctl.cli.loglines import JsonLines, TextLines, lines_of
    from atlctl.cli.target import backend, choose, find_logged, say_guessed, with_attempt, with_wrappers
    from atlctl.fanout.merge import merge

    source, writer = backend(argument, option), context().writer
    job = await find_logged(source, argument, option)
    if request.previous and source.name != "kubernetes":  # a platform's restart is none of 'run'
        source, job = await with_wrappers(source, job)
    elif request.attempt is not None and not request.previous:
        source, job, number = await with_attempt(source, job, request.attempt)
        request = replace(request, attempt=number)
    workers = await choose(source, job, selection)
    say_guessed(workers)
    shown: JsonLines | TextLines
    if view.json:
        shown = JsonLines(writer, view.pattern)
    else:
        prefix = view.prefix and len(workers) > 1
        shown = TextLines(writer, context().streams, prefix=prefix, raw=view.raw, pattern=view.pattern)
    problems: list[AtlctlError] = []
    ended: list[tuple[Worker, AtlctlError | None]] = []

    def report(worker: Worker, problem: AtlctlError | None) -> None:
        if problem is not None:
            problems.append(problem)
            say.warning(Message("{names}: {text}", names=worker.name, text=problem.message))
        if request.follow and view.json:
            ended.append((worker, problem))  # how the worker ended is known by the end of the job
        else:
            shown.ended(worker, problem)

    names = fold_names(worker.name for worker in workers)
    reading = Message("reading the logs of {workers}", workers=names)
    following = Message("following the logs of {workers}; Ctrl-C ends this", workers=names)
    with say.doing(following if request.follow else reading):
        async for chunk in merge(workers, lambda worker: lines_of(source, job, worker, request), report):
            shown.put(chunk)
            await writer.drain()
    known = await _as_they_ended(source, job) if ended else {}
    for worker, problem in ended:
        shown.ended(known.get(worker.name, worker), problem)
    code = int(ExitCode.OK)
    if problems:
        code = int(problems[0].exit_code if len(problems) == len(workers) else ExitCode.FAILED)
    shown.summary(len(workers) - len(problems), len(problems), code)
    return code


async def _as_they_ended(source: Backend, job: Job) -> dict[str, Worker]:
    """Workers by name as they are now; none if the job is gone, or another has its name."""
    with contextlib.suppress(AtlctlError):
        now = await source.get_job(context().selector or job.reference)
        return {worker.name: worker for worker in now.workers} if now.uid == job.uid else {}
    return {}
