"""`atlctl errors`: which worker and rank failed first, in a first honest form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import run_async
from atlctl.jobs.errors import AtlctlError, Unreachable, UsageError

if TYPE_CHECKING:
    import asyncio

    from atlctl.backends.base import Backend
    from atlctl.diagnosis.errorfile import ErrorRecord
    from atlctl.diagnosis.finding import Finding, WorkerEvidence
    from atlctl.diagnosis.torchelastic import SummaryParser
    from atlctl.jobs.model import Job, Worker

#: Workers whose logs are read at once.
READERS = 16
#: Error files read of one worker.
MAX_ERROR_FILES = 256


def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    saved: Annotated[list[str] | None, typer.Option("--from", metavar="PATH")] = None,
    no_files: Annotated[bool, typer.Option("--no-files")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code")] = False,
    output: Annotated[str, options.output("table", "json", "yaml")] = "table",
) -> int:
    if saved:
        if job is not None or job_option is not None:
            raise UsageError(
                "a job and saved logs (--from) are both named", "name one; several logs: --from A --from B, or a folder"
            )
        from atlctl.cli.saved import show

        return show(saved, error_files=not no_files, exit_code=exit_code, output=output)
    if no_files:
        raise UsageError("--no-files applies to saved logs only", "atlctl errors --from PATH --no-files")
    return run_async(lambda: _errors(job, job_option, exit_code, output))


async def _errors(argument: str | None, option: str | None, exit_code: bool, output: str) -> int:
    import asyncio

    from atlctl.cli.findings import tell
    from atlctl.cli.target import backend, find_job
    from atlctl.diagnosis.first_observed import first_observed
    from atlctl.diagnosis.report import to_text

    source = backend()
    job = await find_job(source, argument, option, reads_only=True)
    gate = asyncio.Semaphore(READERS)
    collected = await asyncio.gather(*(_collect(source, job, worker, gate) for worker in job.workers))
    unread = {
        worker.name: result
        for worker, result in zip(job.workers, collected, strict=True)
        if isinstance(result, AtlctlError)
    }
    evidence = [result for result in collected if not isinstance(result, AtlctlError)]
    for name, problem in unread.items():
        say.warning(f"{name}: its log could not be read: {problem.message}")
    if not evidence:
        raise Unreachable(f"no log of job {job.name} could be read", f"atlctl ps {job.name}")
    finding = first_observed(evidence)
    about = {"job": job.name, "uid": job.uid, "state": str(job.state), "source": None}
    problems = [{"kind": e.kind, "worker": name, "message": e.message, "hint": e.hint} for name, e in unread.items()]
    lines = _text(job, finding, to_text(finding))
    return tell(finding, about, lines, problems, exit_code=exit_code, output=output)


def _text(job: Job, finding: Finding, lines: Sequence[str]) -> list[str]:
    shown = [f"job {job.name}: {job.state}{f' ({job.reason})' if job.reason else ''}", *lines]
    if finding.candidates:
        shown.append(f"next: atlctl logs {job.name} -w {finding.candidates[0].worker} --tail 100")
    return shown


async def _collect(source: Backend, job: Job, worker: Worker, gate: asyncio.Semaphore) -> WorkerEvidence | AtlctlError:
    """Everything of one worker, or why its log could not be read."""
    from atlctl.backends.base import LogRequest
    from atlctl.diagnosis.finding import WorkerEvidence
    from atlctl.diagnosis.torchelastic import SummaryParser

    parser = SummaryParser()
    async with gate:
        number = 0
        try:
            async for batch in source.lines(job, worker, LogRequest()):
                for line in batch:
                    number += 1
                    parser.feed_line(line.data, number)
        except AtlctlError as error:
            return error
        summaries = parser.summaries()
        return WorkerEvidence(
            worker=worker.name,
            index=worker.index,
            summaries=summaries,
            error_files=await _error_files(source, job, worker, parser),
            notes=parser.notes(),
            tracebacks=parser.tracebacks(),
            state=worker.state,
            exit_code=worker.exit_code,
        )


async def _error_files(source: Backend, job: Job, worker: Worker, parser: SummaryParser) -> dict[str, ErrorRecord]:
    """The error files that the worker's own summaries name."""
    from atlctl.diagnosis.errorfile import SIZE_LIMIT, parse_error_file

    found: dict[str, ErrorRecord] = {}
    paths = [entry.error_file for summary in parser.summaries() for entry in summary.entries if entry.error_file]
    for path in list(dict.fromkeys(paths))[:MAX_ERROR_FILES]:
        data = await source.read_file(job, worker, path, SIZE_LIMIT + 1)
        if data is None:
            continue
        record, reason = parse_error_file(data)
        if record is None:
            say.note(f"{worker.name}: {path}: {reason}")
        else:
            found[path] = record
    return found
