"""The content of a panel before it is drawn: a headline, labelled rows and lists, of raw text.

`diagnosis` fills it and `render` draws it; it is in `jobs` because these two do not import each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from atlctl.i18n import Language, translated

#: Style of a text: the culprit, its consequences, a heading or the user's own code, less important text.
PanelTone = Literal["culprit", "victim", "strong", "plain", "faint"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of one line."""

    text: str
    tone: PanelTone = "plain"


@dataclass(frozen=True, slots=True)
class Row:
    """A label and its lines. `fold`: most screen lines for each of them, None for no limit.

    `proofs`: the lines are pieces of evidence.
    """

    label: str
    lines: Sequence[str]
    fold: int | None = None
    tone: PanelTone = "plain"
    proofs: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a list. The last cell is the text; the cells before it are short, and the first is aligned right."""

    cells: Sequence[str]
    tone: PanelTone = "plain"


@dataclass(frozen=True, slots=True)
class Section:
    """A list under a label; its lines have the same number of cells. `fold` limits the last cell, as in `Row`."""

    label: str
    lines: Sequence[Line]
    fold: int | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A headline, rows, lists. `cut` is the note that is shown if text had to be omitted."""

    title: Sequence[Piece]
    rows: Sequence[Row] = ()
    listings: Sequence[Section] = ()
    cut: str = ""

    def into(self, language: Language) -> Panel:
        """This panel with its messages translated to `language`; log text is unchanged."""

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
