"""A matrix of figures from row to column, with low values marked, also without colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from atlctl.render.palette import Tone, painted
from atlctl.render.sanitize import clean
from atlctl.render.streams import Streams
from atlctl.render.width import display_width

#: Up to so many rows are shown whole on a terminal; of more those that explain the low cells, and some beside them.
WHOLE = 16
#: More are not drawn on a terminal.
MOST = 256
_BESIDE, _ENDS = 6, 3
_GAP = 1
_LABEL = 14


@dataclass(frozen=True, slots=True)
class Heat:
    """`values[row][column]`, None if not measured; the diagonal does not count. `high`: more is better.

    `low`, `bad`: shares of the median below which a cell is marked.
    """

    names: Sequence[str]
    values: Sequence[Sequence[float | None]]
    high: bool = True
    low: float = 0.8
    bad: float = 0.6


@dataclass(frozen=True, slots=True)
class Drawn:
    """`text` ends in a newline, or is empty if no cell is worth a line. `middle`: the median of all cells, `least`: the
    worst share of it, both None without measurements. `shown`: rows that were drawn. `shares`: cells show tenths of the
    median, not figures."""

    text: str
    middle: float | None
    least: float | None
    shown: int
    shares: bool


def draw(heat: Heat, streams: Streams) -> Drawn:
    """For stdout. On a pipe all of it, as plain figures; a terminal gets what fits into its width."""
    shares, middle = shares_of(heat)
    measured = [share for row in shares for share in row if share is not None]
    least = min(measured, default=None)
    count = len(heat.names)
    if middle is None:
        return Drawn("", None, None, 0, False)
    kept = list(range(count))
    digits = False
    if streams.stdout_tty:
        if count > WHOLE:
            kept = _telling(shares, heat.low) if count <= MOST else []
        labels = [_label(heat.names[at], streams.width) for at in kept]
        room = streams.width - max(map(display_width, labels), default=0) - 1
        digits = len(kept) * (_figures(heat, kept) + _GAP) > room
        # One column stays free, where some terminals would begin a new line.
        most = max(1, room - _GAP - 1)
        if digits and len(kept) > most:
            kept = sorted(sorted(kept, key=lambda at: worst_of(shares, at))[:most])
    if not kept:
        return Drawn("", middle, least, 0, False)
    rows = _digits(heat, shares, kept, streams) if digits else _numbers(heat, shares, kept, streams)
    return Drawn("".join(f"{row.rstrip(' ')}\n" for row in rows), middle, least, len(kept), digits)


def figure(value: float) -> str:
    """Three digits that matter, without an exponent as long as five places do."""
    if value >= 99_999.5 or 0 < value < 0.00995:
        return f"{value:.0e}"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.0995 else f"{value:.3f}"


def shares_of(heat: Heat) -> tuple[list[list[float | None]], float | None]:
    """Each cell as a share of the median: less is worse, whichever way is better."""
    count = len(heat.names)
    cells = [
        [value if value is not None and value > 0 and one != other else None for other, value in enumerate(row[:count])]
        for one, row in enumerate(heat.values[:count])
    ]
    known = [value for row in cells for value in row if value is not None]
    if not known:
        return [], None
    middle = median(known)
    return [
        [None if value is None else value / middle if heat.high else middle / value for value in row] for row in cells
    ], middle


def worst_of(shares: Sequence[Sequence[float | None]], at: int) -> float:
    """Of a worker's row and column; a cell without a figure is the worst."""
    cells = [share for other, share in enumerate(shares[at]) if other != at]
    cells += [row[at] for one, row in enumerate(shares) if one != at and at < len(row)]
    return min((0.0 if share is None else share for share in cells), default=1.0)


def _telling(shares: Sequence[Sequence[float | None]], limit: float) -> list[int]:
    """A few rows that contain, with their columns, every low cell; the opposite ends of short rows; and some good
    ones."""
    count = len(shares)
    low = {
        (one, other)
        for one in range(count)
        for other in range(count)
        if one != other and ((share := shares[one][other]) is None or share < limit)
    }
    kept: list[int] = []
    left = set(low)
    while left:
        met = [sum(at in pair for pair in left) for at in range(count)]
        at = max(range(count), key=lambda at: met[at])
        kept.append(at)
        if met[at] <= _ENDS:
            kept += [end for pair in left if at in pair for end in pair if end != at]
        left = {pair for pair in left if at not in pair}
    if kept:
        kept += [at for at in range(count) if at not in kept][:_BESIDE]
    return sorted(set(kept))


def _label(name: str, width: int) -> str:
    """The name, shortened in the middle if it is too long."""
    text, most = clean(name), max(6, min(_LABEL, width // 3))
    if display_width(text) <= most:
        return text
    head, tail = text[: most // 2], text[-(most // 2) :]
    while display_width(head) + display_width(tail) + 1 > most:
        head, tail = (head[:-1], tail) if display_width(head) >= display_width(tail) else (head, tail[1:])
    return f"{head}~{tail}"


def _figures(heat: Heat, kept: Sequence[int]) -> int:
    """Cells of the widest figure with its mark, or of a column's number."""
    told = [figure(value) for at in kept for value in heat.values[at] if value is not None]
    return max(3, len(str(len(heat.names))), *(len(text) + 1 for text in told)) if told else 3


def _numbers(heat: Heat, shares: Sequence[Sequence[float | None]], kept: Sequence[int], streams: Streams) -> list[str]:
    labels = [_label(heat.names[at], streams.width) if streams.stdout_tty else clean(heat.names[at]) for at in kept]
    first, width = max(map(display_width, labels)), _figures(heat, kept)
    lines = [" " * first + "".join(f"{'':{_GAP}}{f'#{at}':>{width}}" for at in kept)]
    for label, one in zip(labels, kept, strict=True):
        cells = []
        for other in kept:
            share = shares[one][other]
            value = heat.values[one][other]
            text = "x" if share is None or value is None else f"{figure(value)}{_mark(share, heat)}"
            text = "." if one == other else text
            cells.append(" " * _GAP + _colored(f"{text:>{width}}", one == other, share, heat, streams))
        lines.append(label + " " * (first - display_width(label)) + "".join(cells))
    return lines


def _digits(heat: Heat, shares: Sequence[Sequence[float | None]], kept: Sequence[int], streams: Streams) -> list[str]:
    labels = [f"{_label(heat.names[at], streams.width)}" for at in kept]
    first = max(map(display_width, labels))
    places = [str(at) for at in kept]
    height = max(map(len, places))
    lines = [" " * (first + _GAP) + "".join(place.rjust(height)[level] for place in places) for level in range(height)]
    for label, one in zip(labels, kept, strict=True):
        cells = []
        for other in kept:
            share = shares[one][other]
            text = "." if one == other else "x" if share is None else str(min(9, int(share * 10)))
            cells.append(_colored(text, one == other, share, heat, streams))
        lines.append(label + " " * (first - display_width(label) + _GAP) + "".join(cells))
    return lines


def _mark(share: float, heat: Heat) -> str:
    return "!" if share < heat.bad else "-" if share < heat.low else " "


def _colored(text: str, own: bool, share: float | None, heat: Heat, streams: Streams) -> str:
    if own:
        tone = Tone.DIM
    elif share is None or share < heat.bad:
        tone = Tone.FAIL
    else:
        tone = Tone.WARN if share < heat.low else Tone.OK
    return painted(text, tone, streams.stdout_color)
