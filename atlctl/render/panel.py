"""A headline with labelled rows and lists below it: boxed on a terminal, plain aligned lines on a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atlctl.i18n import Message, translated
from atlctl.jobs.panel import Panel, PanelTone, Row, Section
from atlctl.render.palette import Tone
from atlctl.render.sanitize import clean
from atlctl.render.streams import Streams
from atlctl.render.width import display_width, fold_points, padded

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

#: Narrower terminals get no box at the sides, and their lists two lines for each entry.
_NARROW = 60
#: Cells that the text of a list must keep beside the cells in front of it.
_MIN_TEXT = 32
_GAP = 2

#: Columns of a box at most: longer lines are hard to read.
_WIDEST = 120

_STYLES: dict[PanelTone, str] = {
    "culprit": Tone.FAIL.rich,
    "victim": Tone.WARN.rich,
    "strong": Tone.STRONG.rich,
    "faint": Tone.DIM.rich,
    "plain": "",
}


def render_panel(panel: Panel, streams: Streams) -> str:
    """All of it as text that ends in a newline, for stdout. Every text is cleaned.

    On a pipe nothing is folded or cut, and each line begins with its label.
    """
    return _Terminal(streams).draw(panel) if streams.stdout_tty else _plain(panel)


def _plain(panel: Panel) -> str:
    lines = ["".join(clean(piece.text) for piece in panel.title)]
    room = max((display_width(clean(row.label)) for row in panel.rows), default=0)
    for row in panel.rows:
        label = padded(clean(row.label), room)
        lines += [f"  {label}  {clean(line)}" for line in row.lines]
    for listing in panel.listings:
        lines.append(translated(Message("{label}:", label=clean(listing.label))))
        cells = [[clean(cell) for cell in line.cells] for line in listing.lines]
        rooms = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
        for line in cells:
            fitted = [
                padded(cell, room, right=at == 0) for at, (cell, room) in enumerate(zip(line[:-1], rooms, strict=False))
            ]
            lines.append(f"  {(' ' * _GAP).join([*fitted, line[-1]])}")
    return "".join(f"{line.rstrip(' ')}\n" for line in lines)


class _Terminal:
    """Draws for one terminal."""

    def __init__(self, streams: Streams) -> None:
        import io

        from rich.console import Console

        self._width = max(streams.width, 1)
        self._box = min(self._width, _WIDEST)
        self._console: Console = Console(
            file=io.StringIO(),
            width=self._width,
            color_system="256" if streams.stdout_color else None,
            force_terminal=streams.stdout_color,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
        )
        self._cut = False

    def draw(self, panel: Panel) -> str:
        with self._console.capture() as capture:
            self._draw_panel(panel)
            for listing in panel.listings:
                self._draw_listing(listing)
        return "".join(line.rstrip(" ") + "\n" for line in capture.get().removesuffix("\n").split("\n"))

    def _draw_panel(self, panel: Panel) -> None:
        from rich.text import Text

        title = Text()
        for piece in panel.title:
            title.append(clean(piece.text), _STYLES[piece.tone])
        if not panel.rows:
            self._console.print(title)
            return
        narrow = self._width < _NARROW
        width = self._box if narrow else self._box - 4
        # A headline that does not fit into the border is below it.
        fits = title.cell_len + 6 <= self._box
        body = [] if fits else self._folded(title, width, None)
        room = max(display_width(clean(row.label)) for row in panel.rows) + _GAP
        for row in panel.rows:
            body += self._row(row, room, width)
        note = self._text(panel.cut if self._cut else "", "faint")
        self._draw_box(title if fits else Text(), Text("\n").join(body), note, narrow)

    def _draw_box(self, title: Text, body: Text, note: Text, narrow: bool) -> None:
        from rich.panel import Panel as Box

        if narrow:
            self._console.rule(title, align="left", style="")
            self._console.print(body)
            self._console.rule(note, align="right", style="")
        else:
            box = Box(body, title=title or None, title_align="left", subtitle=note or None, subtitle_align="right")
            box.width = self._box
            self._console.print(box)

    def _row(self, row: Row, room: int, width: int) -> list[Text]:
        lines: list[Text] = []
        for line in row.lines:
            lines += self._folded(self._text(line, row.tone), width - room, row.fold)
        label = self._text(clean(row.label), "faint")
        label.append(" " * (room - label.cell_len))
        return [(label if at == 0 else self._text(" " * room)) + line for at, line in enumerate(lines)]

    def _draw_listing(self, listing: Section) -> None:
        self._console.print(self._text(listing.label, "strong"))
        heads = zip(*(line.cells[:-1] for line in listing.lines), strict=True)
        rooms = [max(self._text(cell).cell_len for cell in column) for column in heads]
        first = sum(rooms) + _GAP * (len(rooms) + 1)
        stacked = bool(rooms) and self._width - first < _MIN_TEXT
        indent = 2 * _GAP if stacked else first
        for line in listing.lines:
            head = self._text(" " * _GAP)
            for at, (cell, room) in enumerate(zip(line.cells[:-1], rooms, strict=True)):
                shown = self._text(cell, line.tone)
                space = self._text(" " * (room - shown.cell_len))
                head += space + shown if at == 0 else shown + space
                head.append(" " * _GAP)
            # Beside a marked name the text itself stays quiet.
            quiet = len(line.cells) > 1 and line.tone in ("culprit", "victim")
            tone = "plain" if quiet else line.tone
            texts = self._folded(self._text(line.cells[-1], tone), self._width - indent, listing.fold)
            if stacked:
                if any(cell for cell in line.cells[:-1]):
                    head.rstrip()
                    self._console.print(head, overflow="fold")
                lead = self._text(" " * indent)
            else:
                lead = head
            for at, text in enumerate(texts):
                self._console.print((lead if at == 0 else self._text(" " * indent)) + text, overflow="fold")

    def _folded(self, text: Text, width: int, fold: int | None) -> list[Text]:
        """The lines that `text` takes, at most `fold` of them; of the last one the end is cut off then."""
        width = max(width, 1)
        starts = fold_points(text.plain, width)
        if fold is not None and len(starts) >= fold:
            self._cut = True
            # A single line is cut where its room ends, not at a word.
            lines = [*text.divide(starts[: fold - 1])]
            lines[-1].truncate(width, overflow="ellipsis")
        else:
            lines = [*text.divide(starts)]
        for line in lines:
            line.rstrip()
        return lines

    def _text(self, text: str, tone: PanelTone = "plain") -> Text:
        from rich.text import Text

        # As a span: a text's own style would spread to what is put behind it.
        return Text().append(clean(text), _STYLES[tone])
