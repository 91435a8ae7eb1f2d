"""`atlctl cp`: files to or from workers; progress on the way, a summary or a JSON document at the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context
from atlctl.i18n import COMMA, LIST, Message, joined, plural
from atlctl.jobs.errors import AtlctlError, ExitCode, UsageError
from atlctl.jobs.naming import and_more, by_frequency, fold_names
from atlctl.jobs.selection import Selection
from atlctl.render.palette import Tone, Toned
from atlctl.render.table import human_bytes

if TYPE_CHECKING:
    from atlctl.fanout.engine import FanOut, RunInterrupted
    from atlctl.fanout.outcome import Outcome
    from atlctl.jobs.model import Job
    from atlctl.render.jsonout import Status
    from atlctl.transfer.copy import Copy, Copying, CopySpec
    from atlctl.transfer.tar import CountedNames

#: Descriptors of ours that one copy takes: its pipes, files and folders, and what is open at its start.
_DESCRIPTORS_EACH = 16


TEXT = Message(
    "One side is WORKER:PATH, or :PATH for the selected workers; from several workers, each gets a folder in DST. "
    "As with cp, the source goes into DST if that folder exists. Links are not copied."
)
EXAMPLES = Message(
    """\
atlctl cp worker-0:/tmp/core.1 .
atlctl cp ./fix.py worker-3:/tmp/
atlctl cp -j train-7 --all ./conf :/etc/conf   # to every worker
atlctl cp --all :/logs ./logs                  # from each into ./logs/NAME/"""
)


@options.selecting
async def command(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help=Message("the source: a local path, WORKER:PATH or :PATH"))
    ],
    destination: Annotated[
        str, typer.Argument(metavar="DST", help=Message("the destination: a local path, WORKER:PATH or :PATH"))
    ],
    named: options.JobOption = None,
    selection: options.Selected = options.NO_SELECTION,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, metavar="N", help=Message("how many copies run at once"))
    ] = 64,
    timeout: Annotated[
        float | None, options.duration("--timeout", help=Message("time limit for each copy (10, 1.5s, 2m, 1h)"))
    ] = None,
    connect_timeout: options.ConnectTimeout = None,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json")] = "table",  # noqa: ARG001 - read off the context
) -> int:
    import asyncio

    from atlctl.cli import target
    from atlctl.cli.patience import within
    from atlctl.fanout.engine import Limits
    from atlctl.fanout.limits import raise_descriptor_limit
    from atlctl.transfer.copy import download, parse, upload
    from atlctl.transfer.tar import survey

    context().container = container
    spec = parse(source, destination)
    # A thousand streams at once gain nothing: at most `parallel` workers are connected to and copied from.
    limits = Limits(parallel, parallel, timeout, connect_timeout)
    if spec.remote.worker and not (selection.empty and not selection.exclude):
        raise UsageError(
            Message("'{worker}:' names one worker, and a selection means others", worker=spec.remote.worker),
            Message("write :PATH for the selected workers"),
        )
    platform = target.backend(None, named)
    async with within(limits.reaching):
        job = await target.find_job(platform, None, named, reads_only=False)
        workers = await target.choose(platform, job, _chosen(job, selection, spec), irreversible=True)
    target.say_guessed(workers)
    if spec.remote.worker and len(workers) != 1:
        name, shown = spec.remote.worker, fold_names(worker.name for worker in workers)
        raise UsageError(
            Message("'{worker}:' means {count} workers: {workers}", worker=name, count=len(workers), workers=shown),
            Message("for several: atlctl cp -w '{worker}' with :PATH", worker=name),
        )
    try:
        raise_descriptor_limit(min(len(workers), limits.parallel) * _DESCRIPTORS_EACH, _DESCRIPTORS_EACH)
    except AtlctlError as error:
        raise AtlctlError(error.message, Message("raise it (ulimit -n), or fewer at once: --parallel 8")) from error
    executor = platform.executor(job)
    try:
        size = None
        if spec.upload:
            with say.doing(Message("looking through {path}", path=spec.local)):
                found = await asyncio.to_thread(survey, spec.local)
            size = found.bytes * len(workers)
            copying = upload(executor, workers, found, spec.remote, limits)
        else:
            _check_target(spec)
            copying = download(executor, workers, spec.remote, spec.local, not spec.remote.worker, limits)
        return await _run(copying, job, spec, size)
    finally:
        await executor.aclose()


def _chosen(job: Job, selection: Selection, spec: CopySpec) -> Selection:
    if spec.remote.worker:
        return Selection(workers=(spec.remote.worker,))
    if selection.empty and job.expected > 1:
        from atlctl.cli.execute import which_workers

        which, select = which_workers(job)
        first = job.workers[0].name if job.workers else "worker-0"
        alone = Message("one alone: {place}", place=f"{first}:{spec.remote.path}")
        raise UsageError(which, joined((select, alone)))
    return selection


def _check_target(spec: CopySpec) -> None:
    """Check the local target, whose errors would be the same for every worker, before any worker is connected to."""
    path = spec.local
    parent = os.path.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
    if not os.path.isdir(path) and not os.path.isdir(parent):
        raise UsageError(
            Message("there is no folder {folder}", folder=parent),
            Message("make it first: mkdir -p {folder}", folder=parent),
        )
    if not spec.remote.worker and os.path.lexists(path) and not os.path.isdir(path):
        raise UsageError(Message("{path} is not a folder", path=path), Message("each worker gets its own folder in it"))


async def _run(copying: Copying, job: Job, spec: CopySpec, size: int | None) -> int:
    """`size`: bytes to be copied, if that is known."""
    from atlctl.fanout.engine import RunInterrupted
    from atlctl.fanout.outcome import fold_codes

    fan_out = copying.fan_out
    context().on_first = lambda: _say_ending(fan_out)
    stopped: RunInterrupted | None = None
    try:
        with say.doing(lambda: _copied(copying), done=lambda: copying.progress.bytes, total=size, size=True):
            outcomes = await fan_out.run()
    except RunInterrupted as interruption:
        outcomes, stopped = interruption.outcomes, interruption
    finally:
        context().on_first = None
    results = copying.results(outcomes)
    judged = [outcome for outcome, _ in results]
    code = fold_codes(judged) if stopped is None else context().leaving or int(ExitCode.INTERRUPTED)
    if not context().reader_gone:
        if context().output == "json":
            say.out(document(job, spec, results, code))
        warnings, notes, lines = summary(results, spec.upload)
        for text in warnings:
            say.warning(text)
        for text in notes:
            say.note(text)
        for line in lines:
            say.line(line)
    if stopped is not None:
        raise stopped
    return code


def _say_ending(fan_out: FanOut) -> None:
    if not context().reader_gone:
        left = fold_names(worker.name for worker in fan_out.running()) or Message("no worker")
        say.line(Message("interrupted; ending the copy on {workers} (Ctrl-C leaves at once)", workers=left))


def _copied(copying: Copying) -> Message:
    """How far it is, and who is waited for."""
    progress, left = copying.progress, copying.fan_out.unfinished()
    counts: list[str] = [Message("{done}/{total} workers", done=progress.done, total=progress.total)]
    if progress.files:
        counts.append(plural("{n} file", "{n} files", progress.files))
    if progress.done and left:
        counts.append(Message("waiting for {workers}", workers=fold_names(worker.name for worker in left)))
    return Message("copying: {what}", what=joined(counts, COMMA))


def word(outcome: Outcome) -> str:
    """How a copy ended, in one word: `copied`, `failed`, `timeout`, `lost`, `cancelled`."""
    from atlctl.fanout.outcome import EndKind

    if outcome.ok:
        return "copied"
    if outcome.kind is EndKind.FAILED_TO_START and outcome.code == ExitCode.UNREACHABLE:
        return "lost"
    return "failed" if outcome.kind in (EndKind.EXITED, EndKind.FAILED_TO_START) else outcome.kind.value


def summary(results: Sequence[tuple[Outcome, Copy]], upload: bool) -> tuple[list[Message], list[Message], list[Toned]]:
    """Warnings, notes and closing lines, each with its workers. Names in them are not sanitised yet; that is done when
    a line is written to stderr."""
    from atlctl.cli.sinks import folded

    def told(text: Message, pairs: Sequence[tuple[str, str]]) -> list[Message]:
        return [text.filled(workers=folded(names), what=what) for what, names in by_frequency(pairs) if what]

    warnings = []
    if upload:
        if results and results[0][1].tally.skipped.count:
            warnings.append(Message("not sent: {names}", names=_named(results[0][1].tally.skipped)))
    else:
        skipped = [(outcome.worker.name, _named(copy.tally.skipped)) for outcome, copy in results]
        warnings = told(Message("not copied from {workers}: {what}"), skipped)
    changed = [(outcome.worker.name, copy.said if copy.changed else "") for outcome, copy in results]
    warnings += told(Message("on {workers}: {what}"), changed)
    said = [(o.worker.name, copy.said if o.ok and not copy.changed else "") for o, copy in results]
    return warnings, told(Message("{workers} said: {what}"), said), _closing(results)


_SHOWN = {
    "failed": (Message("failed"), Tone.FAIL),
    "timeout": (Message("timed out"), Tone.WARN),
    "lost": (Message("lost"), Tone.LOST),
    "cancelled": (Message("cancelled"), Tone.WARN),
}


def _closing(results: Sequence[tuple[Outcome, Copy]]) -> list[Toned]:
    from atlctl.cli.sinks import by_reason, ended

    lines = []
    copied = [(outcome, copy) for outcome, copy in results if outcome.ok]
    if copied:
        files = sum(copy.tally.files for _, copy in copied)
        size = human_bytes(sum(copy.tally.bytes for _, copy in copied))
        counts = joined((plural("{n} file", "{n} files", files), size), COMMA)
        lines.append(ended(Message("copied"), Tone.OK, [o.worker.name for o, _ in copied], counts))
    for label, (shown, tone) in _SHOWN.items():
        lines += by_reason(
            shown, tone, ((o.worker.name, o.reason) for o, _ in results if not o.ok and word(o) == label)
        )
    running = [outcome.worker.name for outcome, _ in results if outcome.may_still_run]
    return [*lines, ended(Message("may still run"), Tone.WARN, running)] if running else lines


def _named(names: CountedNames) -> str:
    return and_more(joined(names.first, LIST), names.count - len(names.first))


def document(job: Job, spec: CopySpec, results: Sequence[tuple[Outcome, Copy]], code: int) -> str:
    """The one document of `-o json`, with its newline."""
    from atlctl.render.jsonout import dumps, envelope

    ok = sum(outcome.ok for outcome, _ in results)
    status: Status = "success" if ok == len(results) and not code else "partial" if ok else "error"
    data = {
        "job": job.name,
        "direction": "to" if spec.upload else "from",
        "path": spec.remote.path,
        "local": spec.local,
        "exit_code": code,
        "workers": [_worker_data(outcome, copy) for outcome, copy in results],
    }
    failed = [(outcome.worker.name, f"{word(outcome)}: {outcome.reason}") for outcome, _ in results if not outcome.ok]
    codes = {outcome.worker.name: outcome.code for outcome, _ in results}
    told = [(text.partition(":")[0], f"{fold_names(names)}: {text}", names) for text, names in by_frequency(failed)]
    errors = [
        {"kind": kind, "message": message, "hint": None, "exit_code": codes[names[0]]} for kind, message, names in told
    ]
    return dumps(envelope(context().command, status, data, errors)) + "\n"


def _worker_data(outcome: Outcome, copy: Copy) -> dict[str, object]:
    return {
        "worker": outcome.worker.name,
        "outcome": word(outcome),
        "exit_code": outcome.code,
        "reason": outcome.reason,
        "path": copy.path,
        "files": copy.tally.files,
        "bytes": copy.tally.bytes,
        "changed": copy.changed,
        "skipped": copy.tally.skipped.first,
        "skipped_count": copy.tally.skipped.count,
        "may_still_run": outcome.may_still_run,
    }
