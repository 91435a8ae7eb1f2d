"""`atlctl logs`: the logs of many workers, merged by time."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async
from atlctl.jobs.errors import AtlctlError, ExitCode, UsageError
from atlctl.render.table import rfc3339

if TYPE_CHECKING:
    from atlctl.backends.base import LogLine, LogRequest
    from atlctl.jobs.model import Worker
    from atlctl.jobs.selection import Selection


def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    all_workers: options.AllWorkers = False,
    workers: options.Workers = None,
    rank: options.Rank = None,
    role: options.Role = None,
    failed: options.Failed = False,
    exclude: options.Exclude = None,
    follow: Annotated[bool, typer.Option("-f", "--follow")] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=0, metavar="LINES")] = None,
    since: Annotated[float | None, options.duration("--since")] = None,
    previous: Annotated[bool, typer.Option("--previous")] = False,
    grep: Annotated[str | None, typer.Option("--grep", metavar="REGEX")] = None,
    no_prefix: Annotated[bool, typer.Option("--no-prefix")] = False,
    raw: Annotated[bool, typer.Option("--raw")] = False,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    from atlctl.backends.base import LogRequest

    selection = options.selection(
        all_workers=all_workers, workers=workers, rank=rank, role=role, failed=failed, exclude=exclude
    )
    request = LogRequest(follow, tail, None if since is None else time.time() - since, previous)
    view = _View(_pattern(grep), not no_prefix, raw, output == "json")
    return run_async(lambda: _show(job, job_option, selection, request, view))


def _pattern(text: str | None) -> re.Pattern[bytes] | None:
    if text is None:
        return None
    try:
        return re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise UsageError(
            f"--grep '{text}' is not a regular expression: {error}", "quote special characters with \\"
        ) from error


class _View:
    """How lines are shown."""

    def __init__(self, pattern: re.Pattern[bytes] | None, prefix: bool, raw: bool, json: bool) -> None:
        from atlctl.cli.output.jsonl import line_object
        from atlctl.render.jsonout import dumps
        from atlctl.render.prefix import prefix_for
        from atlctl.render.sanitize import OutputSanitizer

        self._pattern = pattern
        self._with_prefix = prefix
        self._prefixes: dict[str, bytes] = {}
        self._json = json
        self._dumps, self._object, self._prefix_for = dumps, line_object, prefix_for
        streams = context().streams
        self._color = streams.stdout_color
        clean = streams.stdout_tty and not raw
        self._sanitizer = OutputSanitizer(self._color) if clean else None

    def several(self, count: int) -> None:
        """Lines of exactly one worker need no prefix."""
        self._with_prefix = self._with_prefix and count > 1

    def show(self, worker: Worker, line: LogLine) -> bytes:
        if self._pattern is not None and not self._pattern.search(line.data):
            return b""
        end = b"\n" if line.complete else b""
        if self._json:
            when = None if line.time is None else rfc3339(line.time / 1e9, "microseconds")
            fields = {"type": "output", "worker": worker.name, "stream": line.stream, "time": when}
            return self._object(self._dumps(fields)[:-1], line.data + end).encode()
        data = line.data
        if self._sanitizer is not None:
            data = self._sanitizer.feed(data) + self._sanitizer.finish()
        return self._prefix(worker.name) + data + end

    def _prefix(self, name: str) -> bytes:
        if not self._with_prefix:
            return b""
        if name not in self._prefixes:
            self._prefixes[name] = self._prefix_for(name, self._color)
        return self._prefixes[name]

    def outcome(self, worker: Worker, problem: AtlctlError | None) -> bytes:
        if not self._json:
            return b""
        how = {"outcome": "exited", "exit_code": 0} if problem is None else {"outcome": "lost", "exit_code": None}
        reason = "" if problem is None else problem.message
        return (
            self._dumps({"type": "outcome", "worker": worker.name, **how, "signal": None, "reason": reason}).encode()
            + b"\n"
        )

    def summary(self, read: int, lost: int, code: int) -> bytes:
        if not self._json:
            return b""
        status = "success" if not lost else ("partial" if read else "error")
        counts = {"exited": read, "lost": lost}
        return self._dumps({"type": "summary", "status": status, "exit_code": code, "counts": counts}).encode() + b"\n"


async def _show(
    argument: str | None, option: str | None, selection: Selection, request: LogRequest, view: _View
) -> int:
    from atlctl.cli.target import backend, choose, find_job
    from atlctl.fanout.merge import merge

    source = backend()
    job = await find_job(source, argument, option, reads_only=True)
    workers = await choose(source, job, selection)
    view.several(len(workers))
    problems: list[AtlctlError] = []

    def report(worker: Worker, problem: AtlctlError | None) -> None:
        if problem is not None:
            problems.append(problem)
            say.warning(f"{worker.name}: {problem.message}")
        context().writer.put("stdout", view.outcome(worker, problem))

    async for chunk in merge(workers, lambda worker: source.lines(job, worker, request), report):
        for worker, line in chunk:
            context().writer.put("stdout", view.show(worker, line), owner=worker.name)
        await context().writer.drain()
    code = int(ExitCode.OK)
    if problems:
        code = problems[0].exit_code if len(problems) == len(workers) else ExitCode.FAILED
    context().writer.put("stdout", view.summary(len(workers) - len(problems), len(problems), code))
    return code
