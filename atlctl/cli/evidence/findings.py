"""Findings: the signatures in force, how a diagnosis is shown, and `errors --from`, the diagnosis of saved logs."""

from __future__ import annotations

import gc
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.cli.runtime import context, undisturbed
from atlctl.i18n import COMMA, LIST, Message, joined, language, plural, translated
from atlctl.jobs.errors import ExitCode, Unreachable
from atlctl.jobs.naming import and_more, fold_names

if TYPE_CHECKING:
    from atlctl.diagnosis.result import Cause, Diagnosis, Proof
    from atlctl.diagnosis.signatures import Matcher, Signature
    from atlctl.jobs.model import Job
    from atlctl.recording.read import Ends, Saved

#: Kinds of failures that a stop of the job causes.
_BY_SIGNAL = frozenset({"preemption", "interrupted"})
#: The most bytes of all logs that are read to find the start of the failure, if only the ends of logs are read.
FIRST = 16 << 20


def own_signatures() -> tuple[Signature, ...]:
    """The user's own. Raises UsageError where a configuration or signature file is bad."""
    from atlctl.cli.hosts import settings
    from atlctl.diagnosis.signatures import load

    return tuple(item for path in settings().signatures for item in load(path))


def matcher(own: Sequence[Signature]) -> Matcher:
    """All signatures, `own` first."""
    from atlctl.diagnosis.signatures import Matcher, builtin

    return Matcher((*own, *builtin().signatures))


@dataclass(frozen=True, slots=True)
class Display:
    """How a diagnosis is shown. `ranks`: how each rank ended, too. `exit_code`: 1 for every verdict but `none`."""

    output: str = "table"
    verbose: bool = False
    ranks: bool = False
    exit_code: bool = False


def tell(
    diagnosis: Diagnosis,
    source: dict[str, Any],
    head: Sequence[str],
    problems: Sequence[object],
    display: Display,
    *,
    next_command: Callable[[Cause], str | None],
    place: Callable[[Proof], str],
    signatures: Iterable[Signature] = (),
) -> int:
    """Prints `source` and the diagnosis as a document, else `head` and the panel; returns the command's exit code.

    `problems` are what could not be read, JSON-ready. `next_command` is what to type to look further into a cause,
    `place` names where a proof is, both for people. `signatures` are the user's own.
    """
    from atlctl.diagnosis.result import Verdict
    from atlctl.diagnosis.telling.data import to_data
    from atlctl.diagnosis.telling.guide import Guide, Manner

    guide = Guide.builtin(signatures)
    if display.output in ("json", "yaml"):
        say.document({**source, **to_data(diagnosis, guide, ranks=display.ranks)}, problems)
    else:
        from atlctl.diagnosis.telling.people import tell_people
        from atlctl.render.panel import render_panel
        from atlctl.render.sanitize import clean

        manner = Manner(
            language(), display.verbose, guide, lambda proof: translated(place(proof)), next_command, display.ranks
        )
        panel = render_panel(tell_people(diagnosis, manner), context().streams)
        say.out("".join(f"{clean(translated(line))}\n" for line in head) + panel)
    return int(ExitCode.FAILED) if display.exit_code and diagnosis.verdict is not Verdict.NONE else int(ExitCode.OK)


def tell_saved(
    paths: Sequence[str],
    display: Display,
    *,
    error_files: bool,
    about: Mapping[str, Any] | None = None,
    budget: int | None = None,
    stopped: bool = False,
) -> int:
    """Reads `paths`, prints what was found, returns the exit code. Needs no event loop: nothing is waited for.

    `about`: the `job`, `uid` and `state` of a job that is known. `budget`: bytes of logs that are read at first; more
    only where a failure begins before. `stopped`: a user has stopped the job; people see only what failed before that.
    """
    from atlctl.diagnosis.cause.decide import diagnose
    from atlctl.recording.lines import STDIN
    from atlctl.render.jsonout import error_data

    if STDIN in paths:
        say.reads_stdin()
    # Hardly any fact is garbage: to look for cycles among them again and again takes a seventh of the time.
    gc.set_threshold(200_000, 20, 100)
    own = own_signatures()
    known = matcher(own)
    saved = _read_saved(paths, known, error_files, budget)
    for problem in saved.problems:
        say.warning(problem.message)
    for remark in saved.remarks:
        say.note(remark)
    found = placed(diagnose(saved.job, known), saved)
    if stopped and display.output == "table" and _only_ended(found):
        where = " ".join(map(shlex.quote, paths))
        say.line(Message("no failure before that; the workers' ends: atlctl errors --from {where}", where=where))
        return int(ExitCode.OK)
    source = {**dict.fromkeys(("job", "uid", "state", "attempt")), **(about or {}), "source": _source(paths, saved)}
    problems = [error_data(problem) for problem in saved.problems]
    return tell(
        found,
        source,
        [_head(paths, saved)],
        problems,
        display,
        next_command=_next_command,
        place=_place,
        signatures=own,
    )


def _read_saved(paths: Sequence[str], known: Matcher, error_files: bool, budget: int | None) -> Saved:
    """Read saved logs: their ends first, then the lines shortly before the first failure in them, then `budget` bytes
    and more until they contain the start of the failure."""
    from atlctl.diagnosis.evidence import ReadPart, beginning, uncovered
    from atlctl.recording.folder import look
    from atlctl.recording.read import Ends

    if budget is None:
        return read_counted(paths, known, error_files=error_files)
    logs = max(1, sum(len(look(path, error_files=False).logs) for path in paths))
    ends = Ends(min(budget, FIRST) // logs)
    while True:
        saved = read_counted(paths, known, error_files=error_files, ends=ends)
        parts = {
            item.worker: ReadPart(
                item.log,
                item.worker not in saved.cut,
                item.log.first.seconds if item.log.first is not None and item.log.first.absolute else None,
            )
            for item in saved.job.workers
            if item.log is not None
        }
        if not uncovered(parts):
            break
        begin = beginning(parts)
        if begin is not None and begin != ends.since:
            ends = Ends(ends.share, begin)
        else:
            ends = Ends(max(4 * ends.share, budget // logs), begin)
    if saved.cut:
        say_cut(saved.cut)
    return saved


def _only_ended(found: Diagnosis) -> bool:
    """Whether nothing went wrong but that signals ended the workers."""
    from atlctl.diagnosis.result import Verdict

    if found.verdict in (Verdict.NONE, Verdict.UNDECIDED):
        return True
    return found.verdict is Verdict.EXTERNAL and all(cause.category in _BY_SIGNAL for cause in found.root_causes)


def read_counted(paths: Sequence[str], known: Matcher, *, error_files: bool = True, ends: Ends | None = None) -> Saved:
    """`read_saved`, with how far it is on the status line."""
    from atlctl.recording.lines import STDIN
    from atlctl.recording.read import read_saved

    if STDIN in paths and os.isatty(0):
        with undisturbed():
            return read_saved(paths, known, error_files=error_files, ends=ends)
    read = 0

    def count(size: int) -> None:
        nonlocal read
        read += size

    total = _bytes_of(paths) if ends is None and context().status is not None else None
    with say.doing(Message("reading the logs"), done=lambda: read, total=total, size=True):
        return read_saved(paths, known, error_files=error_files, ends=ends, count=count)


def _bytes_of(paths: Sequence[str]) -> int | None:
    """Bytes of all logs; None if that is not known."""
    from atlctl.recording.folder import look

    try:
        folders = [look(path, error_files=True) for path in paths if os.path.isdir(path)]
        logs = [path for folder in folders for found in folder.logs.values() for path in found]
        logs += [item.path for folder in folders for found in folder.rank_logs.values() for item in found]
        return sum(os.stat(path).st_size for path in (*logs, *(path for path in paths if not os.path.isdir(path))))
    except OSError:
        return None


def no_log(job: Job) -> Unreachable:
    return Unreachable(Message("no log of job {job} could be read", job=job.name), f"atlctl ps {job.name}")


def say_cut(workers: Iterable[str], *since: str) -> None:
    """Report the workers whose logs were read only at the end; `since`: from when on."""
    only = Message("only the end of the log of {workers} was read", workers=fold_names(workers))
    say.note(Message("{what}; the failure begins there", what=joined((only, *since), COMMA)))


def _source(paths: Sequence[str], saved: Saved) -> dict[str, Any]:
    return {
        "paths": list(paths),
        "told_apart_by": list(saved.told),
        "logs": [{"path": log.path, "lines": log.lines, "bytes": log.bytes} for log in saved.logs],
        "error_files": saved.error_files,
        "flight_recorders": saved.dumps,
    }


def placed(found: Diagnosis, saved: Saved) -> Diagnosis:
    """Evidence with the file and the line in it, instead of the line's number over all logs."""

    def place(proof: Proof) -> Proof:
        if proof.line_no is None:
            return proof
        path, line_no = saved.place(proof.line_no)
        return replace(proof, line_no=line_no, file=path)

    return found.placed(place)


def _place(proof: Proof) -> str:
    if proof.file == "-":
        return Message("line {number} of standard input", number=proof.line_no)
    if proof.file is None:
        return proof.worker  # reports of the platform are not in a log
    return f"{proof.file}:{proof.line_no}" if proof.line_no is not None else proof.file


def _next_command(cause: Cause) -> str | None:
    proof = next((proof for proof in cause.proofs if proof.file not in (None, "-")), None)
    if proof is None:
        return None
    return f"less {f'+{proof.line_no} ' if proof.line_no else ''}{shlex.quote(str(proof.file))}"


def _head(paths: Sequence[str], saved: Saved) -> str:
    shown = [Message("standard input") if path == "-" else path for path in paths]
    sources = and_more(joined(shown[:3], LIST), len(shown) - 3)
    dumps = plural("{n} dump of a flight recorder", "{n} dumps of flight recorders", saved.dumps)
    if saved.dumps and not saved.job.workers:
        return Message("{dumps} from {sources}, without a log", dumps=dumps, sources=sources)
    counts = [plural("{n} log", "{n} logs", len(saved.logs))]
    if saved.error_files:
        counts.append(plural("{n} error file", "{n} error files", saved.error_files))
    if saved.dumps:
        counts.append(dumps)
    return Message(
        "{workers} from {sources} ({counts})",
        workers=say.workers(len(saved.job.workers)),
        sources=sources,
        counts=joined(counts, COMMA),
    )
