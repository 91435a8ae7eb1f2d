"""A screen as SVG: one file for dark and light, with fonts of the reader's system."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from rich.cells import cell_len

from tests.pictures.screen import Look

#: Size of a cell, height of the letters, margin.
WIDTH, HEIGHT, SIZE, MARGIN = 8.4, 17, 14, 14
_STYLE = """
text{font:14px ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono","Noto Sans Mono CJK SC",monospace;\
fill:#1f2328;white-space:pre}
rect{fill:#fff;stroke:#d1d9e0}.b{font-weight:700}.d{opacity:.65}.i{font-style:italic}.u{text-decoration:underline}\
.w{font-size:15.5px}
rect.r{fill:#1f2328;stroke:none}text.v{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}rect{fill:#0d1117;stroke:#3d444d}rect.r{fill:#c9d1d9}text.v{fill:#0d1117}}
"""
#: The first 16 colours are the terminal's own choice.
_BASIC = (
    "000000", "c0392b", "1a7f37", "9a6700", "0969da", "8250df", "1b7c83", "6e7781",
    "57606a", "cf222e", "2da44e", "bf8700", "218bff", "a475f9", "3192aa", "8c959f",
)  # fmt: skip


def color(number: int) -> str:
    """The colour of a number of the 256."""
    if number < 16:
        return _BASIC[number]
    if number >= 232:
        return f"{8 + 10 * (number - 232):02x}" * 3
    levels = (0, 95, 135, 175, 215, 255)
    cube = number - 16
    return "".join(f"{levels[part]:02x}" for part in (cube // 36, cube // 6 % 6, cube % 6))


def svg(title: str, lines: list[list[tuple[str, Look]]], columns: int) -> str:
    """The picture. `title` is what a screen reader says of it."""
    width, height = columns * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    fores = sorted({look.fore for line in lines for _, look in line if look.fore is not None})
    colors = "".join(f"text.c{number}{{fill:#{color(number)}}}" for number in fores)
    rows = "\n".join(
        _bar(start, row, cells, look) + f'<text x="{MARGIN + start * WIDTH:.1f}" y="{MARGIN + row * HEIGHT + SIZE}" '
        f'textLength="{cells * WIDTH:.1f}"{more}>{escape(text)}</text>'
        for row, line in enumerate(lines)
        for start, cells, text, look, more in _runs(line)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label={quoteattr(title)}>\n'
        f"<style>{_STYLE}{colors}</style>\n"
        f'<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8"/>\n{rows}\n</svg>\n'
    )


def _bar(start: int, row: int, cells: int, look: Look) -> str:
    """The background of a stretch in reverse video."""
    if not look.reverse:
        return ""
    x, y = MARGIN + start * WIDTH, MARGIN + row * HEIGHT + 1
    return f'<rect class="r" x="{x:.1f}" y="{y}" width="{cells * WIDTH:.1f}" height="{HEIGHT}"/>'


def _runs(line: list[tuple[str, Look]]) -> Iterator[tuple[int, int, str, Look, str]]:
    """Stretches that look alike, of wide or of narrow characters: start, cells, text, look, attributes."""
    column = 0
    cells = [(text, look) for text, look in line if text]
    for (look, wide), run in groupby(cells, key=lambda cell: (cell[1], cell_len(cell[0]) > 1)):
        text = "".join(part for part, _ in run)
        start, width = column, cell_len(text)
        column += width
        if not (look.underline or look.reverse):
            start += len(text) - len(text.lstrip(" "))
            text = text.strip(" ")
        if not text:
            continue
        names = [
            letter
            for letter, on in zip(
                "bdiuv", (look.bold, look.dim, look.italic, look.underline, look.reverse), strict=True
            )
            if on
        ]
        names += [f"c{look.fore}"] if look.fore is not None and not look.reverse else []
        names += ["w"] if wide else []
        # A font's letters may have another width than a cell; wide characters would look stretched.
        more = "" if wide else ' lengthAdjust="spacingAndGlyphs"'
        yield start, cell_len(text), text, look, more + (f' class="{" ".join(names)}"' if names else "")


def text_of(picture: str) -> str:
    """The text of a picture, a line for each of its rows."""
    rows: dict[int, list[str]] = {}
    for y, text in re.findall(r'<text [^>]*?y="(\d+)"[^>]*>(.*?)</text>', picture):
        rows.setdefault(int(y), []).append(
            re.sub("&(amp|lt|gt);", lambda m: {"amp": "&", "lt": "<", "gt": ">"}[m[1]], text)
        )
    return "\n".join(" ".join(rows[y]) for y in sorted(rows))
