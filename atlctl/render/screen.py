"""A full screen that is drawn again and again: lines of toned cells, cut to its width; bars and sparklines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from atlctl.render.palette import Tone, Toned, cleaned, painted_head
from atlctl.render.table import Column, kept, natural
from atlctl.render.width import cut, display_width, padded

#: The alternate screen without a cursor; and back to what was there before.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR, _REST_OF_LINE, _BELOW = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"
_CHOSEN, _PLAIN = "\x1b[7m", "\x1b[0m"
_GAP = "  "
#: Used if the terminal does not report its size.
_SIZE = (80, 24)
#: Cells of bars and of sparklines, and what stands for them and for the ellipsis in ASCII.
_FULL, _HALF, _TRACK, _HEIGHTS = "━", "╸", "─", "▁▂▃▄▅▆▇"
_ASCII = str.maketrans(f"{_FULL}{_HALF}{_TRACK}{_HEIGHTS}…", "##._.:-=+#~")

Line = Sequence[Toned]


def size(fd: int = 1) -> tuple[int, int]:
    """Columns and rows of the terminal, now."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return _SIZE
    return (columns or _SIZE[0], rows or _SIZE[1])


def ascii_only(env: Mapping[str, str]) -> bool:
    """The locale is set to one that has ASCII only. An unset one is not: images often set none."""
    return next((env[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if env.get(name)), "") in ("C", "POSIX")


class Screen:
    """`plain`: without moves of the cursor, so that each drawing goes below the one before."""

    def __init__(self, plain: bool, color: bool, ascii_only: bool = False) -> None:
        self.plain = plain
        self._color = color
        self._ascii = ascii_only
        self._drawn: tuple[int, int] | None = None

    def forget(self) -> None:
        """Something else was written to it: draw all of it next time."""
        self._drawn = None

    def draw(self, lines: Sequence[Line], columns: int, rows: int, chosen: int = -1) -> str:
        """The text that shows these lines, each cleaned and cut to the width; `chosen`: the number of one in reverse.

        Lines that do not fit below each other are left out.
        """
        if self.plain:
            return "".join(f"{self._line(line, columns)}\n" for line in lines)
        start = _HOME if self._drawn == (columns, rows) else _HOME + _CLEAR
        self._drawn = columns, rows
        shown = []
        for number, line in enumerate(lines[:rows]):
            # One column stays free: there an erasure would take the last character. Erased first, for the same reason.
            text = self._line(line, columns - 1, number == chosen)
            shown.append(f"{_REST_OF_LINE}{text}")
        return start + "\n".join(shown) + _BELOW

    def _line(self, line: Line, columns: int, chosen: bool = False) -> str:
        parts, left = [], columns
        for cell in map(cleaned, line):
            text, head = cell.text, cell.head
            if left <= 0:
                break
            text = _cut(text, left)
            left -= display_width(text)
            if self._ascii:
                text, head = text.translate(_ASCII), head.translate(_ASCII)
            parts.append(painted_head(text, head or text, cell.tone, self._color))
        shown = "".join(parts)
        return f"{_CHOSEN}{shown.replace(_PLAIN, _PLAIN + _CHOSEN)}{' ' * left}{_PLAIN}" if chosen else shown


def _cut(text: str, columns: int) -> str:
    """`cut`, between two words if there is a place for it."""
    short = cut(text, columns)
    at = short.rfind(" ") if short != text else -1
    return f"{short[:at].rstrip()}…" if at > len(short) // 2 else short


def bar(value: float | None, whole: float | None, cells: int) -> str:
    """`━━━╸──`: so many cells, filled by a share."""
    halves = round(min(1.0, max(0.0, value / whole)) * cells * 2) if value is not None and whole else 0
    return f"{_FULL * (halves // 2)}{_HALF * (halves % 2)}".ljust(cells, _TRACK)


def sparkline(values: Sequence[float | None], whole: float, cells: int) -> str:
    """`▁▃▆▇`: the newest at the end, blank for None. A cell is the mean of several if there are more than cells."""
    each = -(-len(values) // cells) or 1
    text = ""
    for end in range(len(values), 0, -each):
        known = [value for value in values[max(0, end - each) : end] if value is not None]
        share = sum(known) / len(known) / whole if known else 0.0
        text = (_HEIGHTS[min(6, max(0, int(share * 7)))] if known else " ") + text
    return text.rjust(cells)


def fitted(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Toned]], width: int | None
) -> tuple[list[Line], list[str]]:
    """The lines of a table, heading first, and the titles of the columns that were dropped to fit it into `width` cells
    (None: any). The last column may be wider."""
    lines = [[cleaned(cell) for cell in row] for row in rows]
    lines.insert(0, [cleaned(Toned(column.title, Tone.STRONG)) for column in columns])
    widths = natural(lines)
    shown = range(len(columns)) if width is None else kept(columns, widths, width)
    left = [column.title for at, column in enumerate(columns) if at not in shown]
    *inner, last = shown
    return [[*(_padded(line[at], columns[at], widths[at]) for at in inner), line[last]] for line in lines], left


def _padded(cell: Toned, column: Column, width: int) -> Toned:
    text = padded(cell.text, width, right=column.align == "right")
    lead = text[: len(text) - len(cell.text)] if column.align == "right" else ""
    return Toned(text + _GAP, cell.tone, cell.head and lead + cell.head)
