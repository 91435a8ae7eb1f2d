"""Scores a method against the cases' truths. `python -m tests.corpus.score [DIR]` prints the table of all methods.

A method is a function that gets a folder with the evidence alone (logs, perhaps error files, never
`case.json`) and gives `(verdict, worker, local_rank, confidence)`. An answer is

- *right* where verdict, worker and local rank are the truth's, as far as the truth has them; a node that never
  joined may also stay unnamed, since it left no log,
- *abstained* where the verdict is `undecided` and the truth is another,
- *wrong* else.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

DATA = Path(__file__).with_name("data")

#: Words for how sure an answer is; a method may have a word of its own.
CONFIDENCES = ("certain", "likely", "guess")

#: The verdict that each kind of truth asks for.
VERDICTS = {
    "rank": "rank",
    "ranks": "ranks",
    "node": "worker",
    "missing_node": "worker",
    "job": "job",
    "external": "external",
    "none": "none",
    "undecided": "undecided",
}

Mark = Literal["right", "wrong", "abstained"]


class Answer(NamedTuple):
    """What a method says. `confidence` is None where there is nothing to be sure of."""

    verdict: str
    worker: str | None = None
    local_rank: int | None = None
    confidence: str | None = None


Method = Callable[[Path], tuple[str, str | None, int | None, str | None]]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a method may see: plain or timestamped logs, with torchelastic's files or without."""

    timestamps: bool = False
    files: bool = False

    def __str__(self) -> str:
        return f"{'timestamped' if self.timestamps else 'plain'} logs{' and files' if self.files else ''}"


#: All that is worth a score: plain logs, timestamped logs, timestamped logs with files.
VIEWS = (Evidence(), Evidence(timestamps=True), Evidence(timestamps=True, files=True))


@dataclass(frozen=True, slots=True)
class Result:
    """One case's answer and its mark."""

    case: str
    truth: Mapping[str, Any]
    answer: Answer
    mark: Mark


@dataclass(frozen=True, slots=True)
class Score:
    """All results of one method with one kind of evidence."""

    method: str
    evidence: Evidence
    results: tuple[Result, ...]

    def count(self, mark: Mark, confidence: str | None = None) -> int:
        """Results with this mark, and with this word where one is given."""
        return sum(r.mark == mark and confidence in (None, r.answer.confidence) for r in self.results)

    @property
    def wrong_and_certain(self) -> int:
        return self.count("wrong", "certain")

    def words(self) -> list[str]:
        """The confidence words that were used, the known ones first."""
        used = {r.answer.confidence for r in self.results if r.answer.confidence and r.mark != "abstained"}
        return [word for word in CONFIDENCES if word in used] + sorted(used - set(CONFIDENCES))


def judge(truth: Mapping[str, Any], answer: Answer) -> Mark:
    """The rules of the module's text."""
    kind = truth["kind"]
    if answer.verdict == "undecided":
        return "right" if kind == "undecided" else "abstained"
    for other in truth.get("also_right", ()):
        if (answer.verdict, answer.worker) == (other["verdict"], other.get("node")):
            return "right"
    if answer.verdict != VERDICTS[kind]:
        return "wrong"
    if kind == "missing_node" and answer.worker is None:
        return "right"
    places = truth["any_of"] if kind == "ranks" else [truth]
    return "right" if any(_is_at(place, answer) for place in places) else "wrong"


def _is_at(place: Mapping[str, Any], answer: Answer) -> bool:
    node, local_rank = place.get("node"), place.get("local_rank")
    return node in (None, answer.worker) and local_rank in (None, answer.local_rank)


def truths(folder: Path) -> dict[str, dict[str, Any]]:
    """Each case's truth, by its name."""
    found = {}
    for path in sorted(folder.glob("*/case.json")):
        found[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))["truth"]
    return found


def show_evidence(case: Path, target: Path, evidence: Evidence) -> None:
    """Copies into `target` what a method may see of the case: `WORKER.log` (stamped or not), `files/`."""
    target.mkdir()
    for path in case.glob("*.log"):
        stamped = path.name.endswith(".ts.log")
        if stamped == evidence.timestamps:
            shutil.copy(path, target / path.name)
    if evidence.files and (case / "files").is_dir():
        shutil.copytree(case / "files", target / "files")


def score(name: str, method: Method, folder: Path = DATA, evidence: Evidence | None = None) -> Score:
    """Asks the method about every case of the folder."""
    seen = evidence or Evidence()
    return Score(name, seen, tuple(_results(method, folder, seen)))


def _results(method: Method, folder: Path, evidence: Evidence) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as scratch:
        for case, truth in truths(folder).items():
            shown = Path(scratch, case)
            show_evidence(folder / case, shown, evidence)
            answer = Answer(*method(shown))
            yield Result(case, truth, answer, judge(truth, answer))


def table(scores: Sequence[Score]) -> str:
    """One line a method and kind of evidence, then how often each confidence word was right."""
    heads = ("method", "evidence", "cases", "right", "wrong", "wrong and certain", "abstained", "right of one rank")
    rows = [
        (
            item.method,
            str(item.evidence),
            len(item.results),
            item.count("right"),
            item.count("wrong"),
            item.wrong_and_certain,
            item.count("abstained"),
            _of_one_rank(item),
        )
        for item in scores
    ]
    words = [
        (item.method, str(item.evidence), word, right + wrong, right, f"{100 * right / (right + wrong):.0f} %")
        for item in scores
        for word in item.words()
        for right, wrong in [(item.count("right", word), item.count("wrong", word))]
    ]
    calibration = _aligned(("method", "evidence", "word", "said", "right", "share"), words)
    return f"{_aligned(heads, rows)}\n\n{calibration}"


def _of_one_rank(item: Score) -> str:
    """Right answers where the truth is one process, of all such cases."""
    marks = [r.mark for r in item.results if r.truth["kind"] == "rank"]
    return f"{marks.count('right')}/{len(marks)}"


def details(item: Score) -> str:
    """The cases that were not right: truth against answer."""
    return "\n".join(
        f"{r.mark:<10} {r.case}: is {_place(r.truth)}, said {' '.join(str(part) for part in r.answer)}"
        for r in item.results
        if r.mark != "right"
    )


def kinds(folder: Path = DATA) -> Counter[str]:
    """How many cases of each kind of truth there are."""
    return Counter(truth["kind"] for truth in truths(folder).values())


def _place(truth: Mapping[str, Any]) -> str:
    return " ".join(str(truth[key]) for key in ("kind", "node", "local_rank") if truth.get(key) is not None)


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    texts = [list(heads), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts
    )


def main(words: Sequence[str]) -> int:
    """The program."""
    from tests.corpus.methods import METHODS

    folder = Path(words[0]) if words else DATA
    scores = [score(name, method, folder, view) for name, (method, views) in METHODS.items() for view in views]
    print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds(folder).items())))
    print(table(scores))
    for item in scores:
        print(f"\n{item.method}, {item.evidence}\n{details(item)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
