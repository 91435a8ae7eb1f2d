"""Scores a method against the cases' truths. `python -m tests.corpus.score [DIR]` prints the table of all methods.

A method is a function that gets a folder with the evidence alone (logs, perhaps error files, never
`case.json`) and gives an `Answer`. An answer is

- *right* if verdict, worker and local rank are the truth's, as far as the truth has them; the global rank replaces a
  local rank that the answer does not have; the name of the common log of several nodes is as good as the node with the
  global rank; a node that never joined may also stay unnamed, since it left no log,
- *accepted* if a careful reader would accept it too: the truth's `also` lists such answers (`undecided`, `ranks`,
  `rank_on:NODE`, `node:NODE`, `one_of` the ranks that failed, ...),
- *abstained* if the verdict is `undecided` and the truth is another,
- *wrong* else.

Then follows the table of the other launchers' cases (`tests.corpus.launchers`).

`python -m tests.corpus.score --cuts [DIR]` scores the root cause alone on damaged evidence (`tests.corpus.cuts`).
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

DATA = Path(__file__).with_name("data")
#: Cases of other launchers than torchrun. They have logs with timestamps only.
LAUNCHERS = Path(__file__).parent / "launchers" / "data"

#: The stamp at the start of a line.
_STAMP = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z ", re.MULTILINE)

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

#: Categories in which a process did not end by an exception of its own.
_NO_EXCEPTION = frozenset(
    (
        "killed",
        "terminated",
        "interrupted",
        "preemption",
        "node_lost",
        "network_lost",
        "early_exit_zero",
        "hang",
        "native_crash",
        "summary",
        "rendezvous_timeout",
        "rendezvous_unreachable",
        "peer_lost",
        "unknown_python_exit",
        "bad_arguments",
    )
)
#: The truths' words that are wider than the categories, or other names of them.
_FAMILIES = {
    "agent_failed": {"file_missing", "python_exception"},
    "configuration": {
        "bad_arguments",
        "ddp_model_mismatch",
        "ddp_unused_parameters",
        "python_exception",
        "syntax_error",
    },
    "cuda_assert": {"cuda_device_assert"},
    "dataloader_exception": {"file_missing", "dataset_corrupt"},
    "disk": {"disk_full"},
    "explicit_exit": {"unknown_python_exit", "python_exception"},
    "gpu_xid": {"gpu_hardware", "gpu_ecc_uncorrectable", "gpu_xid_app"},
    "host_oom": {"host_memory"},
    "killed": {"dataloader_worker_killed", "node_lost"},
    "memory": {"host_memory"},
    "missing_file": {"file_missing"},
    "missing_library": {"binary_mismatch"},
    "native_crash": {"shm_bus_error"},
    "network_setup": {"network_interface"},
    "numeric": {"nan_loss"},
    "permission": {"permission_denied"},
    "rendezvous_timeout": {"rendezvous_unreachable"},
    "rendezvous_unreachable": {"dns_failure"},
    "setup": {"rendezvous_timeout", "rendezvous_unreachable"},
    "shm_bus_error": {"shm_too_small"},
    "signal": {"preemption", "terminal_hangup"},
    "silent_exit": {"unknown_python_exit"},
}

Mark = Literal["right", "accepted", "wrong", "abstained"]


class Answer(NamedTuple):
    """What a method says. `confidence` is None where there is nothing to be sure of."""

    verdict: str
    worker: str | None = None
    local_rank: int | None = None
    confidence: str | None = None
    rank: int | None = None
    category: str | None = None


Method = Callable[[Path], Answer]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a method may see: plain or timestamped logs, with torchelastic's files or without."""

    timestamps: bool = False
    files: bool = False

    def __str__(self) -> str:
        return f"{'timestamped' if self.timestamps else 'plain'} logs{' and files' if self.files else ''}"


#: All kinds of evidence, the fullest last.
VIEWS = (Evidence(), Evidence(files=True), Evidence(timestamps=True), Evidence(timestamps=True, files=True))


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

    def of_category(self) -> tuple[int, int]:
        """How many right and accepted answers that name a cause have the right category, and how many there are."""
        named = [r for r in self.results if r.mark in ("right", "accepted") and r.answer.category]
        return sum(fits(str(r.truth["category"]), str(r.answer.category)) for r in named), len(named)

    @property
    def wrong_and_certain(self) -> int:
        return self.count("wrong", "certain")

    def words(self) -> list[str]:
        """The confidence words that were used, the known ones first."""
        used = {r.answer.confidence for r in self.results if r.answer.confidence and r.mark != "abstained"}
        return [word for word in CONFIDENCES if word in used] + sorted(used - set(CONFIDENCES))


def fits(truth: str, category: str) -> bool:
    """Whether a category is the truth's or a narrower one."""
    narrower = truth == "python_exception" and category not in _NO_EXCEPTION
    return narrower or category == truth or category in _FAMILIES.get(truth, ())


def judge(truth: Mapping[str, Any], answer: Answer) -> Mark:
    """The rules of the module's text."""
    for other in truth.get("also_right", ()):
        if (answer.verdict, answer.worker) == (other["verdict"], other.get("node")):
            return "right"
    mark = _strictly(truth, answer)
    also = mark != "right" and any(_is_also(other, truth, answer) for other in truth.get("also", ()))
    return "accepted" if also else mark


def _is_also(other: str, truth: Mapping[str, Any], answer: Answer) -> bool:
    """Whether the answer is one that the truth accepts: `undecided`, `ranks`, `rank_on:NODE`, `one_of`."""
    if other == "one_of":
        return answer.verdict == "rank" and any(_is_at(place, answer) for place in truth["any_of"])
    verdict, _, node = other.partition(":")
    verdict = verdict.removesuffix("_on")
    return answer.verdict == VERDICTS[verdict] and node in ("", answer.worker)


def _strictly(truth: Mapping[str, Any], answer: Answer) -> Mark:
    kind = truth["kind"]
    if answer.verdict == "undecided":
        return "right" if kind == "undecided" else "abstained"
    if answer.verdict != VERDICTS[kind]:
        return "wrong"
    if kind == "missing_node" and answer.worker is None:
        return "right"
    places = truth["any_of"] if kind == "ranks" else [truth]
    return "right" if any(_is_at(place, answer) for place in places) else "wrong"


def _is_at(place: Mapping[str, Any], answer: Answer) -> bool:
    node, local_rank = place.get("node"), place.get("local_rank")
    if answer.worker is None and answer.rank is not None:
        return bool(place.get("global_rank") == answer.rank)
    if answer.worker == place.get("log") and answer.rank is not None:
        return bool(place.get("global_rank") == answer.rank)
    if node not in (None, answer.worker):
        return False
    by_rank = answer.local_rank is None and answer.rank is not None and place.get("global_rank") == answer.rank
    return by_rank or local_rank in (None, answer.local_rank)


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
        plain = path.with_name(path.name.replace(".ts.log", ".log"))
        if stamped == evidence.timestamps:
            shutil.copy(path, target / path.name)
        elif stamped and not plain.exists():
            (target / plain.name).write_bytes(_STAMP.sub(b"", path.read_bytes()))
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
            answer = method(shown)
            yield Result(case, truth, answer, judge(truth, answer))


def table(scores: Sequence[Score]) -> str:
    """One line a method and kind of evidence, then how often each confidence word was right."""
    heads = (
        "method", "evidence", "cases", "right", "accepted", "wrong", "wrong and certain", "abstained",
        "right of one rank", "right category",
    )  # fmt: skip
    rows = [
        (
            item.method,
            str(item.evidence),
            len(item.results),
            item.count("right"),
            item.count("accepted"),
            item.count("wrong"),
            item.wrong_and_certain,
            item.count("abstained"),
            _of_one_rank(item),
            "{}/{}".format(*item.of_category()),
        )
        for item in scores
    ]
    words = [
        (item.method, str(item.evidence), word, right + wrong, right, f"{100 * right / (right + wrong):.0f} %")
        for item in scores
        for word in item.words()
        for right, wrong in [(item.count("right", word) + item.count("accepted", word), item.count("wrong", word))]
    ]
    calibration = _aligned(("method", "evidence", "word", "said", "right", "share"), words)
    return f"{_aligned(heads, rows)}\n\n{calibration}"


def by_launcher(method: Method, evidence: Evidence | None = None, folder: Path = LAUNCHERS) -> str:
    """One line a launcher: marks, how often `certain` and `likely` answers were right, and the right categories."""
    item = score("", method, folder, evidence)
    heads = ("launcher", "cases", "right", "accepted", "wrong", "undecided", "certain", "likely", "category")
    parts: dict[str, list[Result]] = {}
    for result in item.results:
        parts.setdefault(result.case.partition("_")[0], []).append(result)
    parts["all"] = list(item.results)
    rows = []
    for name, results in parts.items():
        part = Score(name, item.evidence, tuple(results))
        words = []
        for word in ("certain", "likely"):
            right = part.count("right", word) + part.count("accepted", word)
            words.append(f"{right}/{right + part.count('wrong', word)}")
        marks = (part.count(mark) for mark in ("right", "accepted", "wrong", "abstained"))
        rows.append((name, len(results), *marks, *words, "{}/{}".format(*part.of_category())))
    return _aligned(heads, rows)


def _of_one_rank(item: Score) -> str:
    """Right answers where the truth is one process, of all such cases."""
    marks = [r.mark for r in item.results if r.truth["kind"] == "rank"]
    return f"{marks.count('right')}/{len(marks)}"


def details(item: Score, only_wrong: bool = False) -> str:
    """The cases that were not right, or of another category: truth against answer."""
    return "\n".join(
        f"{r.mark:<10} {r.case}: is {_place(r.truth)} {r.truth.get('category')}, "
        f"said {' '.join(str(part) for part in r.answer)}"
        for r in item.results
        if (r.mark == "wrong" if only_wrong else r.mark != "right" or not _fits(r))
    )


def _fits(item: Result) -> bool:
    return not item.answer.category or fits(str(item.truth["category"]), item.answer.category)


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
    from tests.corpus.cuts import CUTS, cut_scores
    from tests.corpus.methods import METHODS, root_cause

    folder = Path(words[-1]) if words and words[-1] != "--cuts" else DATA
    if "--cuts" in words:
        cut = [cut_scores(name, folder) for name in CUTS]
        print(table(cut))
        print("\n".join(f"\n{item.method}\n{details(item, only_wrong=True)}" for item in cut))
        return 0
    scores = [score(name, method, folder, view) for name, (method, views) in METHODS.items() for view in views]
    print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds(folder).items())))
    print(table(scores))
    for item in scores:
        print(f"\n{item.method}, {item.evidence}\n{details(item)}")
    if folder == DATA and LAUNCHERS.is_dir():
        for view in (Evidence(), Evidence(timestamps=True)):
            print(f"\nother launchers, {view}\n{by_launcher(root_cause, view)}")
            print(f"\n{details(score('root cause', root_cause, LAUNCHERS, view))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
