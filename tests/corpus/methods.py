"""Methods to score: what torchrun itself says, taken three ways, and the root cause that `atlctl errors` names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.result import Cause
from atlctl.diagnosis.signatures import Matcher, builtin
from atlctl.diagnosis.torchelastic import ErrorRecord, Summaries, Summary, SummaryEntry, parse_error_file
from atlctl.recording.read import read_saved
from tests.corpus.score import VIEWS, Answer, Evidence, Method

#: The baselines have no words for how sure they are.
HEURISTIC = "heuristic"

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z ")
_ERROR_FILE = re.compile(r"/attempt_\d+/(\d+)/error\.json$")


@cache
def matcher() -> Matcher:
    """The signatures that come with atlctl."""
    return Matcher(builtin().signatures)


def root_cause(path: Path) -> Answer:
    """What `atlctl errors --from PATH` answers. Of several culprits the first is taken."""
    found = diagnose(read_saved([str(path)], matcher()).job, matcher())
    first: Cause | None = found.root_causes[0] if found.root_causes else None
    if first is None:
        return Answer(str(found.verdict))
    return Answer(str(found.verdict), first.worker, first.local_rank, str(first.confidence), first.rank, first.category)


def first_workers_block(folder: Path) -> Answer:
    """What `torchrun` prints as root cause on node 0, where most people look."""
    for name, summaries in _summaries(folder):
        roots = _roots(summaries)
        return _blamed(name, roots[-1] if roots else None)
    return Answer("undecided")


def earliest_block(folder: Path) -> Answer:
    """The root cause with the earliest time of all nodes' blocks."""
    roots = [
        (root.time, name, root)
        for name, summaries in _summaries(folder)
        for root in _roots(summaries)
        if root.time is not None
    ]
    if not roots:
        return Answer("undecided")
    _, name, root = min(roots, key=lambda item: item[0])
    return _blamed(name, root)


def earliest_error_file(folder: Path) -> Answer:
    """The process whose error file has the earliest time."""
    found = [
        (record.time, name, int(match[1]))
        for name, _ in _summaries(folder)
        for path, record in _error_files(folder, name)
        if record.time is not None and (match := _ERROR_FILE.search(path))
    ]
    if not found:
        return Answer("undecided")
    _, name, local_rank = min(found)
    return Answer("rank", name, local_rank, HEURISTIC)


#: Each method with the evidence that it is shown.
METHODS: dict[str, tuple[Method, tuple[Evidence, ...]]] = {
    "root cause": (root_cause, VIEWS),
    "node 0's block": (first_workers_block, VIEWS[:1]),
    "earliest block": (earliest_block, VIEWS[:1]),
    "earliest error file": (earliest_error_file, VIEWS[-1:]),
}


def _roots(summaries: list[Summary]) -> list[SummaryEntry]:
    """What each block of a log names as the root cause."""
    return [part.entries[part.root_index] for part in summaries if part.root_index is not None]


def _blamed(worker: str, root: SummaryEntry | None) -> Answer:
    return Answer("rank", worker, root.local_rank, HEURISTIC) if root else Answer("undecided")


def _summaries(folder: Path) -> Iterator[tuple[str, list[Summary]]]:
    """The workers in the order of their names, with the blocks in their logs."""
    for path in sorted(folder.glob("*.log")):
        reader = Summaries()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            reader.feed(_STAMP.sub("", line, count=1) if path.name.endswith(".ts.log") else line, number)
        yield path.name.partition(".")[0], reader.found()


def _error_files(folder: Path, worker: str) -> Iterator[tuple[str, ErrorRecord]]:
    for path in sorted(folder.glob(f"files/{worker}_*/**/*error.json")):
        record, _ = parse_error_file(path.read_bytes())
        if record is not None:
            yield str(path), record
