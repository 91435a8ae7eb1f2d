"""From an understood `cp` to its results: which workers, from where to where, what is said meanwhile and at the end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

from atlctl.cli import say, target
from atlctl.cli.output.copies import document, progress_line, summary
from atlctl.cli.patience import within
from atlctl.cli.runtime import context
from atlctl.fanout.engine import FanOut, Limits, RunInterrupted
from atlctl.fanout.limits import raise_descriptor_limit
from atlctl.fanout.outcome import fold_codes
from atlctl.jobs.errors import AtlctlError, ExitCode, UsageError
from atlctl.jobs.model import Job, Worker
from atlctl.jobs.naming import fold_names
from atlctl.jobs.selection import Selection
from atlctl.transfer.copying import Copying, Progress, download, upload
from atlctl.transfer.spec import CopySpec
from atlctl.transfer.tarwrite import survey

#: Descriptors of ours that one copy takes: its pipes, files and folders, and what is open at its start.
_DESCRIPTORS_EACH = 16
_TICK_SECONDS = 0.25
_ERASE = b"\r\x1b[K"


async def copy(named: str | None, selection: Selection, spec: CopySpec, limits: Limits) -> int:
    """Copy as `spec` says; returns the folded exit code. Raises UsageError before anything is copied."""
    if spec.remote.worker and not (selection.empty and not selection.exclude):
        raise UsageError(
            f"'{spec.remote.worker}:' names one worker, and a selection means others",
            "write :PATH for the selected workers",
        )
    source = target.backend(None, named)
    async with within(limits.reaching):
        job = await target.find_job(source, None, named, reads_only=False)
        workers = await target.choose(source, job, _selection(job, selection, spec), irreversible=True)
    target.say_guessed(workers)
    if spec.remote.worker and len(workers) != 1:
        shown = fold_names(worker.name for worker in workers)
        raise UsageError(
            f"'{spec.remote.worker}:' means {len(workers)} workers: {shown}",
            f"for several: atlctl cp -w '{spec.remote.worker}' with :PATH",
        )
    try:
        raise_descriptor_limit(min(len(workers), limits.parallel) * _DESCRIPTORS_EACH, _DESCRIPTORS_EACH)
    except AtlctlError as error:
        raise AtlctlError(error.message, "raise it (ulimit -n), or fewer at once: --parallel 8") from error
    executor = source.executor(job)
    try:
        if spec.upload:
            found = await asyncio.to_thread(survey, spec.local)
            copying = upload(executor, workers, found, spec.remote, limits)
        else:
            _check_target(spec)
            copying = download(executor, workers, spec.remote, spec.local, not spec.remote.worker, limits)
        return await _run(copying, job, spec)
    finally:
        await executor.aclose()


def _selection(job: Job, selection: Selection, spec: CopySpec) -> Selection:
    if spec.remote.worker:
        return Selection(workers=(spec.remote.worker,))
    if selection.empty and job.expected > 1:
        exist = fold_names(worker.name for worker in job.workers)
        raise UsageError(
            f"which of the {job.expected} workers of {job.name}?",
            f"select them: --all, or -w with some of {exist}; one alone: {_first(job.workers)}:{spec.remote.path}",
        )
    return selection


def _first(workers: Sequence[Worker]) -> str:
    return workers[0].name if workers else "worker-0"


def _check_target(spec: CopySpec) -> None:
    """What would fail alike for every worker is said once, before they are asked."""
    path = spec.local
    parent = os.path.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
    if not os.path.isdir(path) and not os.path.isdir(parent):
        raise UsageError(f"there is no folder {parent}", f"make it first: mkdir -p {parent}")
    if not spec.remote.worker and os.path.lexists(path) and not os.path.isdir(path):
        raise UsageError(f"{path} is no folder", "each worker gets a folder of its own in it")


async def _run(copying: Copying, job: Job, spec: CopySpec) -> int:
    fan_out = copying.fan_out
    context().on_first = lambda: _say_ending(fan_out)
    shown = asyncio.create_task(_show(copying.progress)) if _shows_progress() else None
    stopped: RunInterrupted | None = None
    try:
        outcomes = await fan_out.run()
    except RunInterrupted as interruption:
        outcomes, stopped = interruption.outcomes, interruption
    finally:
        context().on_first = None
        if shown is not None:
            shown.cancel()
            with suppress(asyncio.CancelledError):
                await shown
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
        for text in lines:
            say.line(text)
    if stopped is not None:
        raise stopped
    return code


def _say_ending(fan_out: FanOut) -> None:
    if not context().reader_gone:
        left = fold_names(worker.name for worker in fan_out.running())
        say.line(f"interrupted; ending the copy on {left or 'no worker'} (Ctrl-C leaves at once)")


def _shows_progress() -> bool:
    return context().streams.stderr_tty and not context().quiet and os.environ.get("TERM") != "dumb"


async def _show(progress: Progress) -> None:
    """One line on the terminal, written again and again, and taken away at the end."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    writer = context().writer
    shown = False
    try:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            text = progress_line(progress, loop.time() - begun)
            # Behind a terminal that is not read, lines would only pile up.
            if not writer.pending_bytes:
                writer.put("stderr", _ERASE + text[: max(1, context().streams.width - 1)].encode())
                shown = True
    finally:
        if shown:
            writer.put("stderr", _ERASE)
