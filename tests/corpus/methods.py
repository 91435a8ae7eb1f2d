"""Methods to score: what torchrun itself says, taken three ways, and the first form of `atlctl errors`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from atlctl.diagnosis.errorfile import ErrorRecord, parse_error_file
from atlctl.diagnosis.finding import WorkerEvidence
from atlctl.diagnosis.first_observed import first_observed
from atlctl.diagnosis.report import verdict
from atlctl.diagnosis.summary import Entry
from atlctl.diagnosis.torchelastic import SummaryParser
from tests.corpus.score import VIEWS, Answer, Evidence, Method

#: The first form has no confidence words.
HEURISTIC = "heuristic"

_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z ")
_ERROR_FILE = re.compile(r"/attempt_\d+/(\d+)/error\.json$")


def first_form(folder: Path) -> Answer:
    """Summaries, the agents' notes and error files in the order that `first_observed` gives them."""
    evidence = [
        WorkerEvidence(
            worker=name,
            index=index,
            summaries=parser.summaries(),
            error_files=dict(_error_files(folder, name)),
            notes=parser.notes(),
            tracebacks=parser.tracebacks(),
        )
        for index, (name, parser) in enumerate(_parsers(folder))
    ]
    finding = first_observed(evidence)
    match verdict(finding):
        case "first_observed":
            first = finding.candidates[0]
            return Answer("rank", first.worker, first.local_rank, HEURISTIC)
        case "none":
            return Answer("none", confidence=HEURISTIC)
    return Answer("undecided")


def first_workers_block(folder: Path) -> Answer:
    """What `torchrun` prints as root cause on node 0, where most people look."""
    for name, parser in _parsers(folder):
        roots = _roots(parser)
        return _blamed(name, roots[-1] if roots else None)
    return Answer("undecided")


def earliest_block(folder: Path) -> Answer:
    """The root cause with the earliest time of all nodes' blocks."""
    roots = [
        (root.time, name, root) for name, parser in _parsers(folder) for root in _roots(parser) if root.time is not None
    ]
    if not roots:
        return Answer("undecided")
    _, name, root = min(roots, key=lambda item: item[0])
    return _blamed(name, root)


def earliest_error_file(folder: Path) -> Answer:
    """The process whose error file has the earliest time."""
    found = [
        (record.time, name, int(match[1]))
        for name, _ in _parsers(folder)
        for path, record in _error_files(folder, name)
        if record.time is not None and (match := _ERROR_FILE.search(path))
    ]
    if not found:
        return Answer("undecided")
    _, name, local_rank = min(found)
    return Answer("rank", name, local_rank, HEURISTIC)


#: Each method with the evidence that it is shown.
METHODS: dict[str, tuple[Method, tuple[Evidence, ...]]] = {
    "first form": (first_form, VIEWS),
    "node 0's block": (first_workers_block, VIEWS[:1]),
    "earliest block": (earliest_block, VIEWS[:1]),
    "earliest error file": (earliest_error_file, VIEWS[-1:]),
}


def _roots(parser: SummaryParser) -> list[Entry]:
    """What each block of a log names as the root cause."""
    return [part.entries[part.root_index] for part in parser.summaries() if part.root_index is not None]


def _blamed(worker: str, root: Entry | None) -> Answer:
    return Answer("rank", worker, root.local_rank, HEURISTIC) if root else Answer("undecided")


def _parsers(folder: Path) -> Iterator[tuple[str, SummaryParser]]:
    """The workers in the order of their names, with what their logs say."""
    for path in sorted(folder.glob("*.log")):
        parser = SummaryParser()
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            parser.feed_line(_STAMP.sub(b"", line, count=1) if path.name.endswith(".ts.log") else line, number)
        yield path.name.partition(".")[0], parser


def _error_files(folder: Path, worker: str) -> Iterator[tuple[str, ErrorRecord]]:
    for path in sorted(folder.glob(f"files/{worker}_*/**/*error.json")):
        record, _ = parse_error_file(path.read_bytes())
        if record is not None:
            yield str(path), record
