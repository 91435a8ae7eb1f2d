"""What a panel shows, before anything is drawn: a headline, labelled rows and lists, of raw text.

`diagnosis` fills it and `render` draws it; it is here since neither knows the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from atlctl.i18n import Language, translated

#: How a text stands out: the culprit, its consequences, a heading or the user's own code, less important text.
PanelTone = Literal["culprit", "victim", "strong", "plain", "faint"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of one line."""

    text: str
    tone: PanelTone = "plain"


@dataclass(frozen=True, slots=True)
class Row:
    """A label and its lines. `fold`: how many lines of a screen each of them may take, None for all it needs.

    `proofs`: the lines are pieces of evidence.
    """

    label: str
    lines: Sequence[str]
    fold: int | None = None
    tone: PanelTone = "plain"
    proofs: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a list. The last cell is the text, those before are short, the first of these is aligned right."""

    cells: Sequence[str]
    tone: PanelTone = "plain"


@dataclass(frozen=True, slots=True)
class Section:
    """A list under a label; its lines have the same number of cells. `fold` as for rows, for the last cell."""

    label: str
    lines: Sequence[Line]
    fold: int | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A headline, rows, lists. `cut` is the note for a drawing that had to leave text out."""

    title: Sequence[Piece]
    rows: Sequence[Row] = ()
    listings: Sequence[Section] = ()
    cut: str = ""

    def into(self, language: Language) -> Panel:
        """The same with its messages in `language`; a log's own texts stay as they are."""

        def word(text: str) -> str:
            return translated(text, language)

        def line(item: Line) -> Line:
            return replace(item, cells=tuple(map(word, item.cells)))

        return Panel(
            tuple(replace(piece, text=word(piece.text)) for piece in self.title),
            tuple(replace(row, label=word(row.label), lines=tuple(map(word, row.lines))) for row in self.rows),
            tuple(replace(item, label=word(item.label), lines=tuple(map(line, item.lines))) for item in self.listings),
            word(self.cut),
        )
