"""Tables: fitted to a terminal, aligned plain text on a pipe; and how times and sizes look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Literal

from atlctl.i18n import LIST, Message, joined, translated
from atlctl.render.palette import Tone, Toned, cleaned
from atlctl.render.sanitize import clean
from atlctl.render.streams import Streams, note_text
from atlctl.render.width import display_width, longest_word, padded, wrapped

_GAP = 2
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Column:
    """`title` may be a message.

    `wide_only`: not in the usual form. `spare`: how dispensable it is; if a terminal is too narrow the highest is
    dropped first, and 0 never. `least`: a text that wraps at words, but not below so many cells as long as others can
    be dropped; 0: its cells are not wrapped before that.
    """

    title: str
    align: Literal["left", "right"] = "left"
    wide_only: bool = False
    spare: int = 0
    least: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Every row has one cell for each column, which may be a message. `notes` are lines below it on a terminal."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Toned]]
    notes: Sequence[Toned] = ()


def render_table(table: Table, streams: Streams, wide: bool = False) -> str:
    """The table as text that ends in a newline, for stdout. Every cell is cleaned.

    On a terminal columns are dropped until it fits, and named below it; only then cells wrap, at words. On a pipe
    nothing is dropped or wrapped.
    """
    columns = [column for column in table.columns if wide or not column.wide_only]
    rows = [
        [cleaned(cell) for cell, column in zip(row, table.columns, strict=True) if wide or not column.wide_only]
        for row in table.rows
    ]
    titles = [Toned(clean(translated(column.title)), Tone.STRONG) for column in columns]
    if not streams.stdout_tty:
        return _drawn(columns, [titles, *rows], natural([titles, *rows]), streams.stdout_color)
    shown = kept(columns, natural([titles, *rows]), streams.width)
    left = [title.text for at, title in enumerate(titles) if at not in shown]
    columns = [columns[at] for at in shown]
    lines = [[row[at] for at in shown] for row in (titles, *rows)]
    text = _drawn(columns, lines, _squeezed(columns, lines, streams.width), streams.stdout_color)
    for note in map(cleaned, table.notes):
        first, *rest = wrapped(note.text, streams.width, _GAP)
        text += "".join(f"{line}\n" for line in (note.painted(first, streams.stdout_color), *rest))
    if left:
        names = joined(left, LIST)
        told = Message("no room for: {columns}; to see all: a wider terminal, or '| less -S'", columns=names)
        text += note_text(told, streams.stdout_color, streams.width) + "\n"
    return text


def natural(lines: Sequence[Sequence[Toned]]) -> list[int]:
    """The widths of the columns of these lines."""
    return [max(display_width(cell.text) for cell in column) for column in zip(*lines, strict=True)]


def _total(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + _GAP * (len(found) - 1)


def kept(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    """Numbers of the columns that are shown: the most dispensable ones go first, and come back if they fit still."""
    needed = [min(one, column.least or one) for one, column in zip(natural, columns, strict=True)]
    found = list(range(len(columns)))
    dropped = []
    for at in sorted(found, key=lambda at: (-columns[at].spare, -at)):
        if not columns[at].spare or _total(needed[one] for one in found) <= width:
            break
        found.remove(at)
        dropped.append(at)
    for at in reversed(dropped):
        if _total(needed[one] for one in (*found, at)) <= width:
            found.append(at)
    return sorted(found)


def _squeezed(columns: Sequence[Column], lines: Sequence[Sequence[Toned]], width: int) -> list[int]:
    """Widths that fit: the widest column gives way first. Texts down to their longest word, to parts of it, to their
    `least`; then all columns in the same way."""
    widths = natural(lines)
    if _total(widths) <= width:
        return widths
    cells = list(zip(*lines, strict=True))
    texts = [at for at, column in enumerate(columns) if column.least]
    for some in (texts, range(len(columns))):
        for parts in (False, True, None):
            floors = {
                at: (columns[at].least if some is texts else 1)
                if parts is None
                else max(longest_word(cell.text, parts=parts) for cell in cells[at])
                for at in some
            }
            _shrink(widths, floors, width)
    return widths


def _shrink(widths: list[int], floors: Mapping[int, int], width: int) -> None:
    """Makes the widest of these columns narrower, again and again, until all fit or none can be."""
    while (over := _total(widths) - width) > 0:
        able = [at for at, floor in floors.items() if widths[at] > floor]
        if not able:
            return
        at = max(able, key=lambda at: widths[at])
        second = max((widths[other] for other in able if widths[other] < widths[at]), default=0)
        widths[at] = max(floors[at], widths[at] - over, min(second, widths[at] - 1))


def _drawn(columns: Sequence[Column], lines: Sequence[Sequence[Toned]], widths: Sequence[int], color: bool) -> str:
    text = []
    for line in lines:
        parts = [wrapped(cell.text, width) for cell, width in zip(line, widths, strict=True)]
        for number, row in enumerate(zip_longest(*parts, fillvalue="")):
            cells = []
            for column, cell, part, width in zip(columns, line, row, widths, strict=True):
                shown = padded(part, width, right=column.align == "right")
                cells.append(shown.replace(part, cell.painted(part, color, first=not number), 1))
            text.append((" " * _GAP).join(cells).rstrip(" ") + "\n")
    return "".join(text)


def human_age(seconds: float) -> str:
    """A duration as kubectl shows it: `45s`, `3m12s`, `5h`, `2d3h`, `400d`. Negative ones (clock skew) show as `0s`."""
    left = max(0, int(seconds))
    minutes, hours, days = left // 60, left // 3600, left // 86400
    if left < 120:
        return f"{left}s"
    if minutes < 10:
        return f"{minutes}m{left % 60}s" if left % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d"


def human_bytes(count: float) -> str:
    """`999 B`, `1.5 MiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    power = min((int(count).bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def rfc3339(epoch: float, timespec: Literal["seconds", "microseconds"] = "seconds") -> str:
    """Seconds since the epoch as an RFC 3339 time in UTC: `2026-01-02T03:04:05Z`."""
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
