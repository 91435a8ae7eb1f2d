"""Tables: through rich on a terminal, aligned plain text on a pipe; and how times and sizes look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from atlctl.i18n import translated
from atlctl.render.sanitize import clean
from atlctl.render.streams import Streams
from atlctl.render.width import display_width, padded

_GAP = 2
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Column:
    """`title` may be a message. `wide_only`: left out unless the wide form is asked for."""

    title: str
    align: Literal["left", "right"] = "left"
    wide_only: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Every row has one cell for each column, which may be a message."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]


def render_table(table: Table, streams: Streams, wide: bool = False) -> str:
    """The table as text that ends in a newline, for stdout.

    On a terminal cells fold at its width; on a pipe nothing is folded or truncated. Every cell is cleaned.
    """
    kept = [i for i, column in enumerate(table.columns) if wide or not column.wide_only]
    columns = [replace(table.columns[i], title=translated(table.columns[i].title)) for i in kept]
    rows = [[clean(translated(row[i])) for i in kept] for row in table.rows]
    if streams.stdout_tty:
        return _for_terminal(columns, rows, streams)
    return _plain(columns, rows)


def _plain(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    lines = [[column.title for column in columns], *rows]
    widths = [max(display_width(line[i]) for line in lines) for i in range(len(columns))]
    text = []
    for line in lines:
        cells = []
        for column, cell, width in zip(columns, line, widths, strict=True):
            cells.append(padded(cell, width, right=column.align == "right"))
        text.append((" " * _GAP).join(cells).rstrip(" ") + "\n")
    return "".join(text)


def _for_terminal(columns: Sequence[Column], rows: Sequence[Sequence[str]], streams: Streams) -> str:
    import io

    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0), show_edge=False)
    for column in columns:
        grid.add_column(Text(column.title), justify=column.align, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    console = Console(
        file=io.StringIO(),
        width=streams.width,
        color_system="256" if streams.stdout_color else None,
        force_terminal=streams.stdout_color,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(grid)
    return "".join(line.rstrip(" ") + "\n" for line in capture.get().removesuffix("\n").split("\n"))


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
