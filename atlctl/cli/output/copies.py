"""What is told of a copy: the line of progress, the closing summary, the JSON document."""

from __future__ import annotations

from collections.abc import Sequence

from atlctl.cli.output.summary import folded
from atlctl.cli.runtime import context
from atlctl.fanout.outcome import Kind, Outcome
from atlctl.jobs.errors import ExitCode
from atlctl.jobs.model import Job
from atlctl.jobs.naming import counted, fold_names
from atlctl.render.jsonout import Status, dumps, envelope
from atlctl.transfer.copying import Progress
from atlctl.transfer.execution import Copy
from atlctl.transfer.place import Names
from atlctl.transfer.spec import CopySpec

#: Different reasons that are told one by one.
_REASONS = 8
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")

Results = Sequence[tuple[Outcome, Copy]]


def human_bytes(count: float) -> str:
    """`999 B`, `1.5 MiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    power = min((int(count).bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def progress_line(progress: Progress, seconds: float) -> str:
    """How far it is, in ASCII without a newline."""
    files = f"{progress.files} files, " if progress.files else ""
    rate = human_bytes(progress.bytes / seconds) if seconds > 0 else "0 B"
    return f"copying: {progress.done}/{progress.total} workers, {files}{human_bytes(progress.bytes)}, {rate}/s"


def word(outcome: Outcome) -> str:
    """How a copy ended, in one word: `copied`, `failed`, `timeout`, `lost`, `cancelled`."""
    if outcome.ok:
        return "copied"
    if outcome.kind is Kind.FAILED_TO_START and outcome.code == ExitCode.UNREACHABLE:
        return "lost"
    return "failed" if outcome.kind in (Kind.EXITED, Kind.FAILED_TO_START) else outcome.kind.value


def summary(results: Results, upload: bool) -> tuple[list[str], list[str], list[str]]:
    """Warnings, notes and closing lines, each for the workers it holds for. Names in them are not cleaned yet,
    as whoever writes a line to stderr does that."""
    warnings = []
    if upload:
        if results and results[0][1].tally.skipped.count:
            warnings.append(f"not sent: {_named(results[0][1].tally.skipped)}")
    else:
        skipped = [(outcome.worker.name, _named(copy.tally.skipped)) for outcome, copy in results]
        warnings = [f"not copied from {folded(names)}: {text}" for text, names in _grouped(skipped) if text]
    changed = [(outcome.worker.name, copy.said if copy.changed else "") for outcome, copy in results]
    warnings += [f"on {folded(names)}: {text}" for text, names in _grouped(changed) if text]
    said = [(o.worker.name, copy.said if o.ok and not copy.changed else "") for o, copy in results]
    notes = [f"{folded(names)} said: {text}" for text, names in _grouped(said) if text]
    return warnings, notes, _closing(results)


def _closing(results: Results) -> list[str]:
    lines = []
    copied = [(outcome, copy) for outcome, copy in results if outcome.ok]
    if copied:
        files = sum(copy.tally.files for _, copy in copied)
        size = human_bytes(sum(copy.tally.bytes for _, copy in copied))
        names = folded(outcome.worker.name for outcome, _ in copied)
        lines.append(f"copied: {names}: {counted(files, 'file')}, {size}")
    for label in ("failed", "timeout", "lost", "cancelled"):
        shown = "timed out" if label == "timeout" else label
        reasons = [(o.worker.name, o.reason) for o, _ in results if not o.ok and word(o) == label]
        groups = _grouped(reasons)
        for reason, ended in groups[:_REASONS]:
            lines.append(f"{shown}: {folded(ended)}" + (f": {reason}" if reason else ""))
        rest = [name for _, ended in groups[_REASONS:] for name in ended]
        if rest:
            lines.append(f"{shown}: {folded(rest)}: other reasons")
    running = [outcome.worker.name for outcome, _ in results if outcome.may_still_run]
    return [*lines, f"may still run: {folded(running)}"] if running else lines


def _grouped(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """(worker, text) as (text, workers), the largest group first."""
    groups: dict[str, list[str]] = {}
    for name, text in pairs:
        groups.setdefault(text, []).append(name)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def _named(names: Names) -> str:
    more = names.count - len(names.first)
    return ", ".join(names.first) + (f" and {more} more" if more else "")


def document(job: Job, spec: CopySpec, results: Results, code: int) -> str:
    """The one document of `-o json`, with its newline."""
    ok = sum(outcome.ok for outcome, _ in results)
    status: Status = "success" if ok == len(results) and not code else "partial" if ok else "error"
    data = {
        "job": job.name,
        "direction": "to" if spec.upload else "from",
        "path": spec.remote.path,
        "local": spec.local,
        "exit_code": code,
        "workers": [_worker(outcome, copy) for outcome, copy in results],
    }
    failed = [(outcome.worker.name, f"{word(outcome)}: {outcome.reason}") for outcome, _ in results if not outcome.ok]
    codes = {outcome.worker.name: outcome.code for outcome, _ in results}
    errors = [
        {
            "kind": text.partition(":")[0],
            "message": f"{fold_names(names)}: {text}",
            "hint": None,
            "exit_code": codes[names[0]],
        }
        for text, names in _grouped(failed)
    ]
    return dumps(envelope(context().command, status, data, errors)) + "\n"


def _worker(outcome: Outcome, copy: Copy) -> dict[str, object]:
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
