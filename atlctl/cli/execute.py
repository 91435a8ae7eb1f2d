"""From an understood `exec` to its outcomes: who, how, where the output goes, what is said at the end."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atlctl.backends.base import Argv, ExecRequest
from atlctl.cli import say, target
from atlctl.cli.patience import within
from atlctl.cli.runtime import context, undisturbed
from atlctl.cli.sinks import FolderSink, GatherSink, JsonSink, LiveSink, summary_lines
from atlctl.fanout.engine import FanOut, Limits, RunInterrupted, StdinFeed
from atlctl.fanout.limits import make_room
from atlctl.fanout.outcome import EndKind, Outcome, fold_codes
from atlctl.fanout.retry import job_key, load, save
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, ExitCode, NothingMatched, UsageError
from atlctl.jobs.naming import fold_names
from atlctl.jobs.selection import Selection
from atlctl.jobs.statedir import state_dir

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.jobs.model import Job, Worker

_LOOK_SECONDS = 0.002
_SELECTION_OPTIONS = ("--all", "-w", "--workers", "--rank", "--role", "--failed", "-x", "--exclude")


@dataclass(frozen=True, slots=True)
class Form:
    """Where the output goes and what it looks like."""

    json: bool = False
    gather: bool = False
    folder: str | None = None
    prefix: bool = True
    raw: bool = False


async def execute(
    named: str | None, selection: Selection, words: tuple[str, ...], stdin: bool, limits: Limits, form: Form
) -> int:
    """Run `words` on the selected workers; returns the folded exit code. Raises UsageError without a selection."""
    source = target.backend(None, named)
    async with within(limits.reaching):
        job, workers = await _found(source, named, selection, words)
    return await _run(source, job, workers, words, stdin, limits, form)


async def _found(
    source: Backend, named: str | None, selection: Selection, words: tuple[str, ...]
) -> tuple[Job, Sequence[Worker]]:
    """The job and its workers that are meant. Raises UsageError without a selection."""
    if selection.empty and named is None:
        await _refuse_job_as_command(source, words)
    try:
        job = await target.find_job(source, None, named, reads_only=False)
    except UsageError:
        if selection.empty:
            _refuse_misplaced(named, words)
        raise
    if selection.empty and job.expected > 1:
        _refuse_misplaced(named, words)
        raise UsageError(*which_workers(job))
    workers = await target.choose(source, job, selection)
    target.say_guessed(workers)
    return job, workers


def which_workers(job: Job) -> tuple[Message, Message]:
    """The error for a command without a selection of workers, and its hint."""
    exist = fold_names(worker.name for worker in job.workers)
    return (
        Message("which of the {count} workers of {job}?", count=job.expected, job=job.name),
        Message("select them: --all, or -w with some of {workers}", workers=exist),
    )


async def retry(named: str | None, stdin: bool, limits: Limits, form: Form) -> int:
    """Run the job's last command again on the workers on which it failed."""
    source = target.backend(None, named)
    async with within(limits.reaching):
        job = await target.find_job(source, None, named, reads_only=False)
    last = load(state_dir(), job_key(job))
    if last is None:
        raise NothingMatched(
            Message("nothing was run with exec on job {job} yet", job=job.name), "atlctl exec --all CMD"
        )
    if not last.failed_workers:
        say.note(Message("the last command had no failure: {command}", command=_shown(last.argv)))
        return int(ExitCode.OK)
    workers = [worker for worker in job.workers if worker.name in set(last.failed_workers)]
    if not workers:
        raise NothingMatched(
            Message("{workers} of the last run is not there any more", workers=fold_names(last.failed_workers)),
            f"atlctl ps {job.name}",
        )
    names = fold_names(worker.name for worker in workers)
    say.note(Message("again on {workers}: {command}", workers=names, command=_shown(last.argv)))
    return await _run(source, job, workers, tuple(last.argv), stdin, limits, form)


def _shown(argv: Sequence[str]) -> str:
    """A command line to read and to copy; secrets are hidden, since stderr ends up in logs."""
    from atlctl.cli.diagnostics import redact

    return redact(shlex.join(argv))


async def _refuse_job_as_command(source: Backend, words: tuple[str, ...]) -> None:
    """`exec job-123 --all nvidia-smi`: it is plain what was meant."""
    listing = await source.list_jobs()
    if words[0] not in [job.name for job in listing.jobs]:
        return
    selected = any(word.partition("=")[0] in _SELECTION_OPTIONS for word in words)
    fixed = ["-j", words[0], *([] if selected else ["--all"]), *words[1:]]
    raise UsageError(
        Message("'{job}' is a job, and exec takes the job with -j", job=words[0]), f"atlctl exec {_shown(fixed)}"
    )


def _refuse_misplaced(named: str | None, words: tuple[str, ...]) -> None:
    """`exec nvidia-smi --all`: a selection behind the command, and none before it."""
    options, rest = _pull_selection(words)
    if not options:
        return
    fixed = [*(["-j", named] if named is not None else []), *options, *rest]
    raise UsageError(
        Message("no workers are selected: '{option}' behind the command belongs to the command", option=options[0]),
        f"atlctl exec {_shown(fixed)}",
    )


def _pull_selection(words: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The selection options among `words`, and the rest."""
    options: list[str] = []
    rest: list[str] = []
    pending = list(words)
    while pending:
        word = pending.pop(0)
        if word.partition("=")[0] not in _SELECTION_OPTIONS:
            rest.append(word)
            continue
        options.append(word)
        if word not in ("--all", "--failed") and "=" not in word and pending:
            options.append(pending.pop(0))
    return options, rest


async def _run(
    source: Backend,
    job: Job,
    workers: Sequence[Worker],
    words: tuple[str, ...],
    stdin: bool,
    limits: Limits,
    form: Form,
) -> int:
    if stdin and sys.stdin is None:
        raise UsageError(
            Message("-i needs a standard input, and it is closed"),
            Message("redirect it: {example}", example="-i < FILE"),
        )
    make_room(len(workers), limits.parallel, limits.batch)
    sink = _sink(form, workers)
    names = [worker.name for worker in workers]
    # Before the start, too: after a SIGKILL of this process the record says that no outcome is known.
    _remember(job, words, names)
    executor = source.executor(job)
    feed = StdinFeed() if stdin else None
    fan_out = FanOut(executor, workers, ExecRequest(Argv(words), stdin=stdin), limits, sink, feed)
    context().on_first = lambda: _say_ending(fan_out)
    context().on_second = lambda: say.now(_left(fan_out))
    stopped: RunInterrupted | None = None
    try:
        with undisturbed() if stdin and context().streams.stdin_tty else say.running(fan_out):
            outcomes = await fan_out.run()
    except RunInterrupted as interruption:
        outcomes, stopped = interruption.outcomes, interruption
    finally:
        context().on_first = None
        await executor.aclose()
    code = fold_codes(outcomes) if stopped is None else context().leaving or int(ExitCode.INTERRUPTED)
    _remember(job, words, names, outcomes)
    whole = await _finish(outcomes, sink, code)
    if stopped is not None:
        raise stopped
    return code or (0 if whole else int(ExitCode.FAILED))


def _remember(job: Job, words: tuple[str, ...], names: Sequence[str], outcomes: Sequence[Outcome] = ()) -> None:
    """For --retry-failed. A full disk must not keep anybody from looking at their workers."""
    try:
        save(state_dir(), job_key(job), words, names, outcomes)
    except AtlctlError as error:
        say.warning(Message("--retry-failed will not know of this run: {why}", why=error.message))


async def _finish(outcomes: Sequence[Outcome], sink: LiveSink | JsonSink | GatherSink | FolderSink, code: int) -> bool:
    """Print the summary of all outcomes. False if received output could not be kept."""
    match sink:
        case JsonSink():
            sink.summary(code)
        case GatherSink():
            await sink.report()
        case FolderSink():
            sink.close()
    cut = sink.truncated if isinstance(sink, GatherSink | FolderSink) else set[str]()
    # A reader that leaves before it has read all of it hears no summary either.
    while context().leaving is None and context().writer.pending_bytes:  # noqa: ASYNC110 - a thread's
        await asyncio.sleep(_LOOK_SECONDS)
    if context().reader_gone:
        outcomes = [outcome for outcome in outcomes if outcome.may_still_run]  # silent but for these
    if len(outcomes) == 1 and _says_it_all(outcomes[0]) and not cut:
        return True
    for text in summary_lines(outcomes, cut):
        say.line(text)
    return not cut


def _says_it_all(outcome: Outcome) -> bool:
    """Its exit code needs no summary beside it."""
    return outcome.kind is EndKind.EXITED and outcome.guarded is not False and not outcome.truncated


def _sink(form: Form, workers: Sequence[Worker]) -> LiveSink | JsonSink | GatherSink | FolderSink:
    streams, writer, count = context().streams, context().writer, len(workers)
    if form.json:
        return JsonSink(writer, count)
    if form.gather:
        return GatherSink(writer, streams)
    if form.folder is not None:
        return FolderSink(form.folder, workers)
    return LiveSink(writer, streams, count, prefix=form.prefix, raw=form.raw)


def _say_ending(fan_out: FanOut) -> None:
    if context().reader_gone:
        return  # as any program in a pipeline whose reader has closed it
    full = context().leaving == ExitCode.FAILED
    cause = Message("the output cannot be written") if full else Message("interrupted")
    workers = fold_names(worker.name for worker in fan_out.running()) or Message("no worker")
    text = Message("{cause}; ending the command on {workers} (Ctrl-C leaves at once)")
    say.line(text.filled(cause=cause, workers=workers))


def _left(fan_out: FanOut) -> str:
    left = fold_names(worker.name for worker in fan_out.running())
    return Message("may still run: {workers}", workers=left) if left else Message("nothing is left running")
