"""What a pattern needs and costs, read from its text: the literals of every match, the work of a hostile line.

Logs are hostile, and a pattern may come from a user's file. Python's `re` backtracks: `(a+)+b` takes
longer than the universe on thirty letters. So patterns keep to a part of the syntax whose cost can be bounded:

- `*`, `+` and `{n,m}` follow one character, class or escape, never a group. A group may be optional (`?`).
- No back references, conditions, comments or inline flags.
- A repetition is *clear* where what follows it can begin with none of its characters, as in `\\d+ ms`: it can end in
  one place only. The widths of the others on one way through the pattern, multiplied, stay below `WORK_LIMIT`, and
  all widths together below `SCAN_LIMIT`. A repetition without an end counts as a whole line. So `.{0,200}x` is cheap,
  and two `.*` are too much. What is accepted takes a second at worst, on a line of 16 KiB made for it.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace

from atlctl.diagnosis.logline import LINE_LIMIT

WORK_LIMIT = 20_000
SCAN_LIMIT = 2 * LINE_LIMIT + 1_000
PATTERN_LIMIT = 2_000
#: Shortest literal that is derived, in bytes: it is looked for in gigabytes.
MIN_LITERAL = 4

_DEPTH = 20
_MAX_WAYS = 256
#: Stands in a way for anything at all; patterns with NUL are refused.
_GAP = "\0"
_QUANTIFIER = re.compile(r"(?:[*+?]|\{(\d*)(?:(,)(\d*))?\})[?+]?")
_GROUP = re.compile(r"\((?:\?(?:(?P<look>[=!]|<[=!])|[:>]|P<\w+>))?")
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
#: Characters that tell classes apart: all of ASCII, and some of the kinds that `\w`, `\d` and `\s` know beyond it.
_ASCII = frozenset(map(chr, range(1, 128)))
_BEYOND = frozenset("éßΩж中かª²٣\u00a0\u2003\u2028\u0301€")


class PatternRefused(ValueError):
    """A pattern that is no valid expression, or breaks the rules above. The text says why."""


@dataclass(frozen=True, slots=True)
class PatternShape:
    """What is known of a pattern or a part of it.

    `ways`: every way through it, as literal text with gaps. `work`: to how many places one start can lead. `scan`:
    how far its repetitions can read. `first`: characters that it can begin with. `empty`: whether it can match
    nothing. `open`: repetitions at its end, as characters and width; what follows decides whether they are clear.
    """

    ways: tuple[str, ...]
    work: int = 1
    scan: int = 0
    first: frozenset[str] = frozenset()
    empty: bool = False
    open: tuple[tuple[frozenset[str], int], ...] = ()

    def covered(self, literals: Iterable[str]) -> bool:
        """True if every way contains one of `literals`, so that no line without one can match."""
        wanted = tuple(literals)
        return all(any(literal in way for literal in wanted) for way in self.ways)

    def literals(self) -> tuple[str, ...]:
        """The longest literal of each way. Empty if one of the ways has none of `MIN_LITERAL` bytes."""
        longest = {max(way.split(_GAP), key=len) for way in self.ways}
        if any(len(text.encode()) < MIN_LITERAL for text in longest):
            return ()
        return tuple(sorted(text for text in longest if not any(other != text and other in text for other in longest)))


_NOTHING = PatternShape(("",), empty=True)
#: `^`, `\\b` or a look around: takes nothing, and can fail after any character.
_ASSERTION = replace(_NOTHING, first=_ASCII | _BEYOND)


def shape(pattern: str) -> PatternShape:
    """What every match of `pattern` contains, and what it costs. Raises PatternRefused."""
    if len(pattern) > PATTERN_LIMIT:
        raise PatternRefused(f"longer than {PATTERN_LIMIT} characters")
    if _GAP in pattern:
        raise PatternRefused("contains a NUL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise PatternRefused(str(error)) from error
    found = _PatternParser(pattern).branches(0)
    if found.work > WORK_LIMIT or found.scan > SCAN_LIMIT:
        raise PatternRefused("its repetitions can take too long on a hostile line; give them ends, as in `.{0,200}`")
    return found


class _PatternParser:
    """Recursive descent over a pattern that `re` has found valid."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0

    def branches(self, depth: int) -> PatternShape:
        if depth > _DEPTH:
            raise PatternRefused(f"groups are nested more than {_DEPTH} deep")
        found = self._sequence(depth)
        while self._peek() == "|":
            self._at += 1
            found = _either(found, self._sequence(depth))
        return found

    def _sequence(self, depth: int) -> PatternShape:
        found = _NOTHING
        while self._peek() not in ("", "|", ")"):
            item, single = self._atom(depth)
            found = _then(found, self._repeated(item, single))
        return found

    def _atom(self, depth: int) -> tuple[PatternShape, bool]:
        """One item, and whether it takes exactly one character."""
        start, char = self._at, self._peek()
        if char == "(":
            return self._group(depth), False
        self._at += 1
        if char in ("^", "$"):
            return _ASSERTION, False
        if char == "[":
            ways = self._class()
        elif char == "\\":
            escaped = self._peek()
            self._at += 1
            if escaped in ("b", "B", "A", "Z"):
                return _ASSERTION, False
            if escaped.isdigit():
                raise PatternRefused("back references are not supported")
            if escaped in ("x", "u", "U", "N"):
                raise PatternRefused("write the character itself instead of its number")
            ways = (_CONTROL.get(escaped, _GAP if escaped.isalpha() else escaped),)
        else:
            ways = (_GAP,) if char == "." else (char,)
        return PatternShape(ways, first=_characters(self._text[start : self._at])), True

    def _group(self, depth: int) -> PatternShape:
        match = _GROUP.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        if self._peek() == "?":
            raise PatternRefused("conditions, comments, back references and inline flags are not supported")
        inner = self.branches(depth + 1)
        self._at += 1
        return replace(_ASSERTION, work=inner.work, scan=inner.scan) if match["look"] else inner

    def _repeated(self, item: PatternShape, single: bool) -> PatternShape:
        match = _QUANTIFIER.match(self._text, self._at)
        if match is None or match[0].startswith("{}"):
            return item
        self._at = match.end()
        low, high = _bounds(match)
        if high == 1:
            optional = _either(item, _NOTHING)
            if single:
                optional = replace(optional, work=1, open=((item.first, 2),))
            return item if low else optional
        if not single:
            raise PatternRefused("only a single character or class may be repeated, a group may only be optional (`?`)")
        if low == high:
            whole = (item.ways[0] * low,) if len(item.ways) == 1 and low <= 64 else (_GAP,)
            return replace(item, ways=whole, scan=low, empty=low == 0)
        width = high - low + 1
        return PatternShape((_GAP,), 1, width, item.first, low == 0, ((item.first, width),))

    def _class(self) -> tuple[str, ...]:
        """A class of a few plain characters as these, any other as a gap."""
        start = self._at
        if self._peek() == "^":
            self._at += 1
        if self._peek() == "]":
            self._at += 1
        while self._peek() != "]":
            self._at += 2 if self._peek() == "\\" else 1
        inside = self._text[start : self._at]
        self._at += 1
        plain = re.sub(r"\\(\W)", r"\1", inside)
        if inside.startswith("^") or "-" in inside or re.search(r"\\\w", inside) or len(plain) > 4:
            return (_GAP,)
        return tuple(dict.fromkeys(plain))

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]


@functools.lru_cache(1_000)
def _characters(atom: str) -> frozenset[str]:
    """Which of the telling characters one atom matches. Characters beyond ASCII are not told from each other."""
    if not atom.isascii():
        return frozenset(char for char in _ASCII if re.fullmatch(atom, char)) | _BEYOND
    return frozenset(char for char in _ASCII | _BEYOND if re.fullmatch(atom, char))


def _bounds(match: re.Match[str]) -> tuple[int, int]:
    kind = match[0][0]
    if kind != "{":
        return {"*": (0, LINE_LIMIT), "+": (1, LINE_LIMIT), "?": (0, 1)}[kind]
    low = int(match[1] or 0)
    if match[2] is None:
        return low, low
    return low, int(match[3]) if match[3] else max(LINE_LIMIT, low)


def _then(head: PatternShape, tail: PatternShape) -> PatternShape:
    """`head` followed by `tail`, which decides which repetitions at the end of `head` are clear."""
    work = head.work * tail.work
    kept = []
    for characters, width in head.open:
        if characters & tail.first:
            work *= width
        elif tail.empty:
            kept.append((characters, width))
    # What would be too many ways ends in a gap: less is known, and it stays true.
    ends = tail.ways if len(head.ways) * len(tail.ways) <= _MAX_WAYS else (_GAP,)
    return PatternShape(
        tuple(dict.fromkeys(one + other for one in head.ways for other in ends)),
        work,
        head.scan + tail.scan,
        head.first | tail.first if head.empty else head.first,
        head.empty and tail.empty,
        (*kept, *tail.open),
    )


def _either(one: PatternShape, other: PatternShape) -> PatternShape:
    apart = not (one.empty or other.empty or one.first & other.first)
    ways = tuple(dict.fromkeys((*one.ways, *other.ways)))
    return PatternShape(
        ways if len(ways) <= _MAX_WAYS else (_GAP,),
        max(one.work, other.work) if apart else one.work + other.work,
        max(one.scan, other.scan),
        one.first | other.first,
        one.empty or other.empty,
        (*one.open, *other.open),
    )
