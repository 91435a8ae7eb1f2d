"""What people are told, before anything is drawn: labelled rows and lists of raw text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from atlctl.diagnosis.result import Cause, Proof
from atlctl.diagnosis.telling.guide import Guide
from atlctl.i18n import Language, translated

#: How a piece of text stands out: the culprit, a heading, or what matters less.
Tone = Literal["culprit", "strong", "plain", "faint"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of one line."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Row:
    """A label and its lines. `fold`: how many lines of a screen each of them may take, None for all it needs.

    `proofs`: the lines are pieces of evidence.
    """

    label: str
    lines: tuple[str, ...]
    fold: int | None = None
    tone: Tone = "plain"
    proofs: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a list. The last cell is the text, those before are short, the first of them a time."""

    cells: tuple[str, ...]
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Section:
    """A list under a label; its lines have the same number of cells. `fold` as for rows, for the last cell."""

    label: str
    lines: tuple[Line, ...]
    fold: int | None = None


@dataclass(frozen=True, slots=True)
class Telling:
    """A headline, rows, lists. `cut` is the note for a drawing that had to leave text out."""

    title: tuple[Piece, ...]
    rows: tuple[Row, ...]
    listings: tuple[Section, ...]
    cut: str

    def into(self, language: Language) -> Telling:
        """The same with its messages in `language`; a log's own texts stay as they are."""

        def word(text: str) -> str:
            return translated(text, language)

        def line(item: Line) -> Line:
            return replace(item, cells=tuple(map(word, item.cells)))

        return Telling(
            tuple(replace(piece, text=word(piece.text)) for piece in self.title),
            tuple(replace(row, label=word(row.label), lines=tuple(map(word, row.lines))) for row in self.rows),
            tuple(replace(item, label=word(item.label), lines=tuple(map(line, item.lines))) for item in self.listings),
            word(self.cut),
        )


@dataclass(frozen=True, slots=True)
class Manner:
    """For whom it is told. `place` names where a proof stands, `next_command` what to type next for a cause."""

    language: Language
    verbose: bool
    guide: Guide
    place: Callable[[Proof], str]
    next_command: Callable[[Cause], str | None]

    def word(self, text: str) -> str:
        """A message in the reader's language; a log's own text as it is."""
        return translated(text, self.language)

    def fold(self, lines: int) -> int | None:
        """At most so many lines of a screen, all of them with -v."""
        return None if self.verbose else lines
