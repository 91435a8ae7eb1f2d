"""`atlctl errors --from`: the first observed failure of a job of which only saved logs are left."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.cli.findings import tell

if TYPE_CHECKING:
    from atlctl.diagnosis.finding import Candidate, Evidence, Finding
    from atlctl.recording.read import Saved


def show(paths: Sequence[str], *, error_files: bool, exit_code: bool, output: str) -> int:
    """Reads `paths`, prints what was found, returns the exit code. Needs no event loop: nothing is waited for."""
    from atlctl.cli.views import error_data
    from atlctl.diagnosis.first_observed import first_observed
    from atlctl.diagnosis.report import to_text
    from atlctl.recording.read import STDIN, read_saved

    if STDIN in paths and os.isatty(0):
        say.note("reading standard input; Ctrl-D ends it")
    saved = read_saved(paths, error_files=error_files)
    for problem in saved.problems:
        say.warning(problem.message)
    for remark in saved.remarks:
        say.note(remark)
    finding = _placed(first_observed(saved.workers), saved)
    source = {"job": None, "uid": None, "state": None, "source": _source(paths, saved, finding)}
    lines = _text(paths, saved, finding, to_text(_as_paths(finding)))
    problems = [error_data(problem) for problem in saved.problems]
    return tell(finding, source, lines, problems, exit_code=exit_code, output=output)


def _source(paths: Sequence[str], saved: Saved, finding: Finding) -> dict[str, Any]:
    named = [item.worker for item in (*finding.candidates, *finding.followed)]
    return {
        "paths": list(paths),
        "told_apart_by": list(saved.told),
        "workers": [{"name": item.worker, "failures": named.count(item.worker)} for item in saved.workers],
        "logs": [{"path": log.path, "lines": log.lines, "bytes": log.bytes} for log in saved.logs],
        "error_files": saved.error_files,
    }


def _placed(finding: Finding, saved: Saved) -> Finding:
    """Evidence with the file and the line in it, instead of the line's number over all logs."""

    def placed(proof: Evidence) -> Evidence:
        if proof.line_no is None:
            return proof
        path, line_no = saved.place(proof.line_no)
        return replace(proof, line_no=line_no, file=path)

    return _with_evidence(finding, placed)


def _as_paths(finding: Finding) -> Finding:
    """Evidence as `PATH:LINE`, for people."""

    def joined(proof: Evidence) -> Evidence:
        if proof.line_no is None:
            return proof
        where = f"line {proof.line_no} of standard input" if proof.file == "-" else f"{proof.file}:{proof.line_no}"
        return replace(proof, line_no=None, file=where)

    return _with_evidence(finding, joined)


def _with_evidence(finding: Finding, change: Callable[[Evidence], Evidence]) -> Finding:
    def changed(items: Sequence[Candidate]) -> tuple[Candidate, ...]:
        return tuple(replace(item, evidence=tuple(map(change, item.evidence))) for item in items)

    return replace(finding, candidates=changed(finding.candidates), followed=changed(finding.followed))


def _text(paths: Sequence[str], saved: Saved, finding: Finding, lines: Sequence[str]) -> list[str]:
    if finding.nothing_found and finding.followed:
        # Logs do not tell how the workers ended in the end.
        lines = ["No log ends in a failure of torchrun's. Attempts that failed and were restarted:", *lines[1:]]
    shown = [_head(paths, saved), *lines]
    quiet = {item.worker for item in saved.workers} - {item.worker for item in (*finding.candidates, *finding.followed)}
    if finding.only_consequences and quiet:
        names = ", ".join(item.worker for item in saved.workers if item.worker in quiet)
        shown.append(f"No failure stands in the logs of: {names}")
    if finding.candidates and (proof := finding.candidates[0].evidence[0]).file not in (None, "-"):
        shown.append(f"next: less {f'+{proof.line_no} ' if proof.line_no else ''}{shlex.quote(str(proof.file))}")
    return shown


def _head(paths: Sequence[str], saved: Saved) -> str:
    shown = ["standard input" if path == "-" else path for path in paths]
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    counts = _count(len(saved.logs), "log")
    if saved.error_files:
        counts += f", {_count(saved.error_files, 'error file')}"
    return f"{_count(len(saved.workers), 'worker')} from {', '.join(shown[:3])}{more} ({counts})"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
