"""How wide text is on a terminal, in character cells: width, padding, line breaking."""

from __future__ import annotations

import unicodedata

#: Punctuation that does not begin a line, and that does not end one.
_NEVER_FIRST = frozenset("，。、；：？！）】》”’…%,.;:?!)]}")
_NEVER_LAST = frozenset("（【《“‘([{")


def display_width(text: str) -> int:
    """Character cells that `text` takes (UAX #11: wide and full-width characters take two)."""
    if text.isascii():
        return len(text)
    width = 0
    for char in text:
        if unicodedata.category(char) not in ("Mn", "Me", "Cf"):
            width += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return width


def padded(text: str, room: int, right: bool = False) -> str:
    space = " " * (room - display_width(text))
    return space + text if right else text + space


def fold_points(text: str, width: int) -> list[int]:
    """Where further lines of `text` begin, so that none takes more than `width` cells; blanks may hang over.

    Broken behind blanks and beside wide characters, which have no blanks between words; elsewhere only where a
    word is longer than a line.
    """
    points: list[int] = []
    start, used, chance = 0, 0, 0
    last, last_size = "", 0
    for at, char in enumerate(text):
        size = display_width(char)
        if char != " " and (last == " " or _between(last, last_size, char, size)):
            chance = at
        while used + size > width and char != " " and at > start:
            start = chance if chance > start else at
            points.append(start)
            used = display_width(text[start:at])
        used += size
        last, last_size = char, size
    return points


def _between(before: str, before_size: int, after: str, after_size: int) -> bool:
    wide = before_size == 2 or after_size == 2
    return wide and after_size > 0 and after not in _NEVER_FIRST and before not in _NEVER_LAST


def cut(text: str, columns: int) -> str:
    """At most so many character cells of a clean text; a last `…` says that there is more."""
    if display_width(text) <= columns:
        return text
    kept, width = [], 0
    for char in text:
        cells = display_width(char)
        if width + cells > columns - 1:
            break
        kept.append(char)
        width += cells
    return "".join(kept) + "…"
