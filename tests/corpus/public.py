"""Scores the root cause on logs that careful readers have labelled. `python -m tests.corpus.public DIR`.

DIR holds `ID.log` and `ID.json` with a `root`: `decidable` (yes, partial, no), `kind`, and `rank`, `local_rank` or
`acceptable_ranks` where the text has them. Right is

- for `no` only `undecided`, since the text does not decide it,
- for `yes` the labelled answer,
- for `partial` either.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.result import Cause, Diagnosis, Verdict
from atlctl.recording.read import read_saved
from tests.corpus.methods import matcher
from tests.corpus.score import VERDICTS


@dataclass(frozen=True, slots=True)
class Labelled:
    """One log's label and the answer to it."""

    name: str
    root: Mapping[str, Any]
    found: Diagnosis

    @property
    def right(self) -> bool:
        undecided = not self.found.root_causes and str(self.found.verdict) == "undecided"
        match self.root["decidable"]:
            case "no":
                return undecided
            case "partial":
                return undecided or agrees(self.root, self.found)
        return agrees(self.root, self.found)

    @property
    def word(self) -> str | None:
        """How sure the answer is, None where there is nothing to be sure of."""
        return str(self.found.root_causes[0].confidence) if self.found.root_causes else None


def agrees(root: Mapping[str, Any], found: Diagnosis) -> bool:
    """Whether the answer is the label's, as far as the label goes."""
    if not found.root_causes:
        return root["kind"] == "none" and found.verdict is Verdict.NONE
    if root["kind"] == "ranks":
        return all(cause.rank in root["acceptable_ranks"] for cause in found.root_causes)
    if str(found.verdict) != VERDICTS.get(root["kind"]):
        return False
    return root["kind"] != "rank" or _is_rank(root, found.root_causes[0])


def _is_rank(root: Mapping[str, Any], cause: Cause) -> bool:
    if root["rank"] is not None:
        return bool(cause.rank == root["rank"])
    return root["local_rank"] in (None, cause.local_rank)


def answers(folder: Path) -> list[Labelled]:
    """All labelled logs of the folder, read as `atlctl errors --from FILE` reads them."""
    found = []
    for path in sorted(folder.glob("*.json")):
        root = json.loads(path.read_text(encoding="utf-8"))["root"]
        job = read_saved([str(path.with_suffix(".log"))], matcher()).job
        found.append(Labelled(path.stem, root, diagnose(job, matcher())))
    return found


def table(found: Sequence[Labelled]) -> str:
    """How many were right, by whether the text decides them; then by the word of those that were answered."""
    lines = ["text decides it  logs  right  certain and wrong"]
    for decidable in ("yes", "partial", "no"):
        part = [item for item in found if item.root["decidable"] == decidable]
        wrong = sum(item.word == "certain" and not item.right for item in part)
        lines.append(f"{decidable:<15}  {len(part):<4}  {sum(item.right for item in part):<5}  {wrong}".rstrip())
    words = Counter((item.word, item.right) for item in found if item.word)
    lines.append("")
    lines += [
        f"{word}: {words[word, True]} of {words[word, True] + words[word, False]} right"
        for word in ("certain", "likely", "guess")
        if words[word, True] + words[word, False]
    ]
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """The program."""
    found = answers(Path(words[0]))
    print(table(found))
    for item in found:
        if not item.right:
            cause = next(iter((*item.found.root_causes, *item.found.candidates)), None)
            print(f"{item.name}: {item.root['decidable']} {item.root['kind']}, said {item.found.verdict} {cause}"[:300])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
