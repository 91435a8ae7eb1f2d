"""Damages a case's evidence: what is lost in practice. The answer may then become less sure, it must not become wrong.

A damaged case has the same truth. Where its culprit's log is gone or cut, `undecided` is the honest answer; the table
counts it apart from wrong ones.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.recording.read import read_saved
from tests.corpus.methods import matcher, root_cause
from tests.corpus.score import DATA, Answer, Evidence, Result, Score, judge, show_evidence, truths

#: Lines among which those of different ranks mix.
_WINDOW = 60
_PREFIX = re.compile(rb"^(?:\S{20,40}Z )?\[(?:rank\d+|[a-z]+\d+)\]:")

Cut = Callable[[Path, random.Random], None]

_STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{6})(\d*Z )", re.MULTILINE)


def _logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def last_lines(count: int) -> Cut:
    """Only the last lines of each log are left."""

    def cut(folder: Path, chance: random.Random) -> None:
        for path in _logs(folder):
            path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[-count:]))

    return cut


def one_missing(folder: Path, chance: random.Random) -> None:
    """The log of one worker, any but the only one, was not collected."""
    logs = _logs(folder)
    if len(logs) > 1:
        chance.choice(logs).unlink()


def _moved(off: timedelta, match: re.Match[str]) -> str:
    return (datetime.fromisoformat(match[1] + match[2]) + off).isoformat(timespec="microseconds") + match[3]


def shifted(folder: Path, chance: random.Random) -> None:
    """Each node's clock is off by up to ten minutes; the processes' own times are as they were."""
    for path in _logs(folder):
        off = timedelta(seconds=chance.uniform(-600, 600))
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        moved = _STAMP.sub(partial(_moved, off), text)
        path.write_text(moved, encoding="utf-8", errors="surrogateescape")


def untimed(folder: Path, chance: random.Random) -> None:
    """Every time of day is replaced, as some collectors do with fields that they index."""
    for path in _logs(folder):
        path.write_bytes(re.sub(rb"\d\d:\d\d:\d\d", b"--:--:--", path.read_bytes()))


def interleaved(folder: Path, chance: random.Random) -> None:
    """Processes print at once: lines of different ranks mix, those of one keep their order."""
    for path in _logs(folder):
        mixed: list[bytes] = []
        lines = path.read_bytes().splitlines(keepends=True)
        for start in range(0, len(lines), _WINDOW):
            streams: dict[bytes, list[bytes]] = {}
            for line in lines[start : start + _WINDOW]:
                found = _PREFIX.search(line)
                streams.setdefault(found[0] if found else b"", []).append(line)
            turns = [key for key, own in streams.items() for _ in own]
            chance.shuffle(turns)
            mixed += [streams[key].pop(0) for key in turns]
        path.write_bytes(b"".join(mixed))


#: What a launch script prints before it starts torchrun, with a failure that it survives.
_SCRIPT = b"""+ python prefetch.py
Traceback (most recent call last):
  File "/opt/tools/prefetch.py", line 12, in <module>
    fetch()
urllib.error.URLError: <urlopen error timed out>
+ torchrun train.py
"""
_BAR = b"\rTraining:  40%|####      | 40/100 [00:03<00:09,  9.9it/s, loss=0.5]\n"
_WARNING = b"/opt/venv/lib/python3.11/site-packages/x.py:666: UserWarning: it is slow\n  warnings.warn(text)\n"


def after_script(folder: Path, chance: random.Random) -> None:
    """A launch script printed into each log first."""
    for path in _logs(folder):
        path.write_bytes(_SCRIPT + path.read_bytes())


def after_run(folder: Path, chance: random.Random) -> None:
    """The logs begin with those of another run, as `tee -a` leaves them."""
    logs = _logs(folder)
    fit = [case for case in sorted(DATA.iterdir()) if all((case / path.name).exists() for path in logs)]
    other = chance.choice([case for case in fit if case.name != folder.name])
    for path in logs:
        path.write_bytes((other / path.name).read_bytes() + path.read_bytes())


def among(line: bytes, chance_of: float) -> Cut:
    """The same line of another process is between other lines."""

    def cut(folder: Path, chance: random.Random) -> None:
        for path in _logs(folder):
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join((line if chance.random() < chance_of else b"") + text for text in lines))

    return cut


def without_evidence(folder: Path, chance: random.Random) -> None:
    """The lines that the answer rests on are gone."""
    saved = read_saved([str(folder)], matcher())
    gone: dict[str, set[int]] = {}
    for cause in diagnose(saved.job, matcher()).root_causes:
        for proof in cause.proofs:
            if proof.line_no is not None and proof.file is None:
                path, number = saved.place(proof.line_no)
                gone.setdefault(path, set()).add(number)
    for name, numbers in gone.items():
        lines = Path(name).read_bytes().splitlines(keepends=True)
        Path(name).write_bytes(b"".join(line for number, line in enumerate(lines, 1) if number not in numbers))


#: The damages and the evidence that they are done to.
CUTS: dict[str, tuple[Cut, Evidence]] = {
    "last 60 lines": (last_lines(60), Evidence()),
    "last 30 lines": (last_lines(30), Evidence()),
    "one worker missing": (one_missing, Evidence(timestamps=True)),
    "clocks shifted": (shifted, Evidence(timestamps=True)),
    "no times": (untimed, Evidence()),
    "interleaved": (interleaved, Evidence()),
    "without its evidence": (without_evidence, Evidence()),
    "after a script's failure": (after_script, Evidence()),
    "after another run": (after_run, Evidence()),
    "among progress bars": (among(_BAR, 0.05), Evidence()),
    "among warnings": (among(_WARNING, 0.05), Evidence()),
}
#: Damages after which some of several workers or ranks may be left, and kinds of truth about several ranks.
_PARTS = ("one worker missing", "last 60 lines", "last 30 lines", "without its evidence")
_OF_RANKS = ("ranks", "job")


def _is_part(truth: Mapping[str, Any], answer: Answer) -> bool:
    """Whether the answer names a part of the truth: of what concerned several workers only one was seen."""
    match truth["kind"]:
        case "ranks":
            return answer.verdict == "rank" and judge(truth, answer._replace(verdict="ranks")) == "right"
        case "node":
            if answer.verdict == "worker":
                return answer.worker is None  # one that left no log
            return answer.verdict in ("rank", "ranks") and answer.worker == truth["node"]
        case "job":
            return answer.verdict in ("rank", "ranks", "worker")
        case "external":
            return answer.verdict == "worker"
    return False


def cut_scores(name: str, folder: Path = DATA) -> Score:
    """The root cause's score on all cases of a folder after one damage; the same damage each time."""
    cut, evidence = CUTS[name]
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for case, truth in truths(folder).items():
            shown = Path(scratch, case)
            show_evidence(folder / case, shown, evidence)
            cut(shown, random.Random(case))
            answer: Answer = root_cause(shown)
            mark = judge(truth, answer)
            part = name in _PARTS[: 1 if truth["kind"] not in _OF_RANKS else None]
            partly = mark == "wrong" and part and _is_part(truth, answer)
            results.append(Result(case, truth, answer, "accepted" if partly else mark))
    return Score(name, evidence, tuple(results))
