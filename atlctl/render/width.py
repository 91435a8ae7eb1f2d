"""How wide text is on a terminal, in character cells: width, padding, line breaking."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

#: Punctuation that does not begin a line, and that does not end one.
_NEVER_FIRST = frozenset("，。、；：？！）】》”’…%,.;:?!)]}")
_NEVER_LAST = frozenset("（【《“‘([{")
#: Behind these a word that is longer than a line is broken.
_PARTS = frozenset("-/._:,=@")
#: A command or name in quotes, not the apostrophe of a word.
_QUOTED = re.compile(r"(?<!\w)'[^']+'(?!\w)")


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

    Broken behind blanks, but not those at the beginning, and beside wide characters, which have no blanks between
    words. Only a word that is longer than a line is broken, if possible behind a hyphen or the like. A short command in
    quotes stays on one line.
    """
    most = width * 2 // 3
    text = _QUOTED.sub(lambda found: found[0].replace(" ", "\u00a0") if len(found[0]) <= most else found[0], text)
    points: list[int] = []
    start, used, word, part = 0, 0, 0, 0
    last, last_size = "", 0
    begin = len(text) - len(text.lstrip(" "))
    for at, char in enumerate(text):
        size = display_width(char)
        if char != " " and at > begin and (last == " " or _between(last, last_size, char, size)):
            word = at
        elif last in _PARTS:
            part = at
        while used + size > width and char != " " and at > start:
            start = word if word > start else part if part > start else at
            points.append(start)
            used = display_width(text[start:at])
        used += size
        last, last_size = char, size
    return points


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """The lines of `text` for `width` cells, at least one; further lines begin with `indent` blanks."""
    if display_width(text) <= width:
        return [text]
    points = fold_points(text, max(width, 1))
    if indent and points:
        rest = wrapped(text[points[0] :], max(width - indent, 1))
        return [text[: points[0]].rstrip(" "), *(" " * indent + line for line in rest)]
    return [text[one:other].rstrip(" ") for one, other in pairwise([0, *points, len(text)])]


def longest_word(text: str, *, parts: bool) -> int:
    """Cells of the longest piece that is kept whole if lines are long enough; `parts`: words may be broken at hyphens
    and the like."""
    longest, used = 0, 0
    last, last_size = " ", 1
    for char in text:
        size = display_width(char)
        if last == " " or _between(last, last_size, char, size) or (parts and last in _PARTS):
            used = 0
        used += size
        longest = max(longest, used if char != " " else 0)
        last, last_size = char, size
    return longest


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
