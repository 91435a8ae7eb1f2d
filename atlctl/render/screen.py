"""A terminal that is drawn anew again and again: lines cut to its width, and drawn over the ones before.

Neither the alternate screen nor the cursor is touched, so that nothing has to be put back, however the process ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from atlctl.i18n import translated
from atlctl.render.sanitize import clean
from atlctl.render.table import Column
from atlctl.render.width import cut, display_width, padded

_HOME, _CLEAR, _REST_OF_LINE, _BELOW = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_GAP = 2
#: Where nothing tells the size.
_SIZE = (80, 24)


def size(fd: int = 1) -> tuple[int, int]:
    """Columns and rows of the terminal, now."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return _SIZE
    return (columns or _SIZE[0], rows or _SIZE[1])


class Screen:
    """`plain`: a terminal without escapes (TERM=dumb), which gets what is drawn below what was drawn before."""

    def __init__(self, plain: bool, color: bool) -> None:
        self._plain = plain
        self._color = color and not plain
        self._drawn: tuple[int, int] | None = None

    def forget(self) -> None:
        """Somebody else has written on it: the next time all of it is drawn."""
        self._drawn = None

    def draw(self, lines: Sequence[str], columns: int, rows: int, bold: int = -1) -> str:
        """The text that shows these lines, each cleaned and cut to the width; `bold`: the number of the heading.

        Lines that do not fit below each other are left out.
        """
        if self._plain:
            return "".join(f"{clean(line)}\n" for line in lines) + "\n"
        start = _HOME if self._drawn == (columns, rows) else _HOME + _CLEAR
        self._drawn = columns, rows
        shown = []
        for number, line in enumerate(lines[: max(1, rows - 1)]):
            text = cut(clean(line), columns)
            text = f"{_BOLD}{text}{_PLAIN}" if number == bold and self._color else text
            # Erased first: behind a text that fills the line the cursor still stands on its last character.
            shown.append(f"{_REST_OF_LINE}{text}\n")
        return f"{start}{''.join(shown)}{_BELOW}"


def fitted(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None, spare: Sequence[str], least: int = 0
) -> tuple[list[str], list[str]]:
    """The lines of a table, heading first, and the titles of the columns that were left out for want of width.

    `spare`: titles of the columns that may be, in that order, until the table fits into `width` cells (None: any). The
    last column may be cut, but not below `least` cells.
    """
    cells = [[clean(translated(cell)) for cell in row] for row in rows]
    titles = [column.title for column in columns]
    shown = [translated(title) for title in titles]
    kept = list(range(len(columns)))
    widths = [
        max([display_width(shown[number]), *(display_width(row[number]) for row in cells)])
        for number in range(len(columns))
    ]
    left = []
    for title in spare:
        needed = sum(widths[number] + _GAP for number in kept[:-1]) + min(widths[kept[-1]], least)
        if width is None or needed <= width:
            break
        if title in titles and (number := titles.index(title)) in kept:
            kept.remove(number)
            left.append(titles[number])
    lines = []
    for row in [shown, *cells]:
        text = [padded(row[number], widths[number], right=columns[number].align == "right") for number in kept]
        lines.append((" " * _GAP).join(text).rstrip(" "))
    return lines, left
