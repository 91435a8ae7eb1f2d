"""Failure signatures, recognised by a line of the log: definition, TOML files, matching.

A file holds `[[signature]]` entries; the first that matches a line wins.

    [[signature]]
    id = "license_server"              # small letters, digits, _
    category = "license"               # one of the package's, or a new one
    role = "root"                      # root, cascade, ambiguous, context, noise
    pattern = 'license server \\S{1,200} (?:is down|refused us)'
    meaning_en = "The license server did not answer"

Optional: `meaning_zh`, `advice_en`, `advice_zh`, `scope` (rank, worker), `hardware`, `where` (anywhere, exception,
unhandled), `literals`. Without advice the category's is used, which requires a category of the package. A missing
Chinese text defaults to the English one.

`literals` are texts of which every matching line contains at least one: lines without any are never looked at, which is
what makes gigabytes quick to scan. By default they are derived from the pattern. A pattern that can match a line
without a plain text of 4 bytes, and literals that the pattern does not imply, are refused: no signature is ever tried
on every line. See below for the allowed syntax.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from atlctl.diagnosis.logline import LINE_LIMIT
from atlctl.jobs.config import read_toml
from atlctl.jobs.errors import UsageError

# Analysis of a pattern: the literals of every match, and the cost on a hostile line.
#
# Logs are hostile, and a pattern may come from a user's file. Python's `re` backtracks: `(a+)+b` takes longer than the
# universe on thirty letters. So patterns keep to a part of the syntax whose cost can be bounded:
#
# - `*`, `+` and `{n,m}` follow one character, class or escape, never a group. A group may be optional (`?`).
# - No back references, conditions, comments or inline flags.
# - A repetition is *clear* if the next element can begin with none of its characters, as in `\d+ ms`: it can end in
#   one place only. For each way through the pattern, the product of the widths of all other repetitions stays below
#   `WORK_LIMIT`, and the sum of all widths below `SCAN_LIMIT`. An unbounded repetition counts as a whole line. So
#   `.{0,200}x` is cheap, and two `.*` are too much. Accepted patterns take at most a second on a hostile 16 KiB line.

WORK_LIMIT = 20_000
SCAN_LIMIT = 2 * LINE_LIMIT + 1_000
PATTERN_LIMIT = 2_000
#: Length in bytes of the shortest derived literal: shorter ones occur too often in gigabytes of log.
MIN_LITERAL = 4

_DEPTH = 20
_MAX_WAYS = 256
#: Placeholder in a way for any text; patterns with NUL are refused.
_GAP = "\0"
_QUANTIFIER = re.compile(r"(?:[*+?]|\{(\d*)(?:(,)(\d*))?\})[?+]?")
_GROUP = re.compile(r"\((?:\?(?:(?P<look>[=!]|<[=!])|[:>]|P<\w+>))?")
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
#: Characters that distinguish classes: all of ASCII, and some that `\w`, `\d` and `\s` match beyond it.
_ASCII = frozenset(map(chr, range(1, 128)))
_BEYOND = frozenset("éßΩж中かª²٣\u00a0\u2003\u2028\u0301€")


class PatternRefused(ValueError):
    """A pattern that is not a valid expression, or breaks the rules above. The text is the reason."""


@dataclass(frozen=True, slots=True)
class PatternShape:
    """The properties of a pattern or a part of it.

    `ways`: every way through it, as literal text with gaps. `work`: the number of possible ends for one start.
    `scan`: the most characters that its repetitions can read. `first`: characters that it can begin with. `empty`:
    whether it can match an empty text. `open`: repetitions at its end, as characters and width; the next element
    decides whether they are clear.
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
#: `^`, `\\b` or a lookaround: consumes nothing, and can fail after any character.
_ASSERTION = replace(_NOTHING, first=_ASCII | _BEYOND)


def shape(pattern: str) -> PatternShape:
    """The literals in every match of `pattern`, and its cost. Raises PatternRefused."""
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
        """The characters of a small class of plain characters; a gap for any other class."""
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
    """The distinguishing characters that one atom matches. Characters beyond ASCII are treated alike."""
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
    # Too many ways end in a gap: less is known, but it remains true.
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


class LineRole(StrEnum):
    """The meaning of a line for the cause."""

    #: Names a cause.
    ROOT = "root"
    #: Printed by a victim of another rank's failure.
    CASCADE = "cascade"
    #: Either of the two; other evidence decides.
    AMBIGUOUS = "ambiguous"
    #: Facts (ranks, counters, addresses), not a cause.
    CONTEXT = "context"
    #: Looks like a failure, but is harmless.
    NOISE = "noise"


class FaultScope(StrEnum):
    """The part at fault: one process, or a whole worker (its machine, container, image or script)."""

    RANK = "rank"
    WORKER = "worker"


class Where(StrEnum):
    """Where in a line the pattern may begin."""

    ANYWHERE = "anywhere"
    #: Where the name of an exception begins its line: at the start or after prefixes (`[rank3]: `, a time, `host: `),
    #: with or without its module. Not on a line that a logger wrote at DEBUG, INFO or WARNING.
    EXCEPTION = "exception"
    #: Anywhere, but not on a logger's line below ERROR, nor on a line that says that the program continues.
    UNHANDLED = "unhandled"


@dataclass(frozen=True, slots=True)
class Text:
    """One text in both languages."""

    en: str
    zh: str


@dataclass(frozen=True, slots=True)
class Category:
    """One kind of failure. With `hardware`, the next step is to take the named node or GPU out of service."""

    id: str
    title: Text
    meaning: Text
    advice: Text
    hardware: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """A failure recognised by a line of a log. `pattern` is searched in one decoded, cleaned line.

    Every matching line contains at least one of `literals`. Named groups that callers may use: `peer` and `port` (the
    other end), `ranks` (a list of the global ranks at fault), `rank`, `local_rank`, `pid`, `code` and `signal` (how a
    process ended), `pci`, `uuid`, `xid`. A pattern can use a name only once: `rank2` is read as `rank`. `death`: a
    launcher, shell or kernel reports that a process failed.
    """

    id: str
    category: str
    role: LineRole
    pattern: str
    literals: tuple[str, ...]
    meaning: Text
    advice: Text
    scope: FaultScope = FaultScope.RANK
    hardware: bool = False
    where: Where = Where.ANYWHERE
    death: bool = False


@dataclass(frozen=True, slots=True)
class Signatures:
    """The package's signatures by descending priority, and its categories by id."""

    signatures: tuple[Signature, ...]
    categories: Mapping[str, Category]


MAX_SIGNATURES = 500

_FOLDER = os.path.dirname(__file__)
_WHAT = "signatures file"
_ID = re.compile(r"[a-z][a-z0-9_]{0,63}")
_NEEDED = ("id", "category", "role", "pattern", "meaning_en")
_OPTIONAL = ("meaning_zh", "advice_en", "advice_zh", "scope", "hardware", "where", "literals")
_TEXT_LIMIT = 2_000
_FORM = f"an entry needs {', '.join(_NEEDED)}"

_Word = TypeVar("_Word", bound=StrEnum)


@functools.cache
def builtin() -> Signatures:
    """The package's own signatures and categories. Read once; the tests check what `load` checks."""
    entries = read_toml(os.path.join(_FOLDER, "signatures.toml"), _WHAT)["signature"]
    categories = {
        entry["id"]: Category(
            entry["id"],
            Text(entry["title_en"], entry["title_zh"]),
            Text(entry["meaning_en"], entry["meaning_zh"]),
            Text(entry["advice_en"], entry["advice_zh"]),
            entry.get("hardware", False),
        )
        for entry in read_toml(os.path.join(_FOLDER, "categories.toml"), _WHAT)["category"]
    }
    return Signatures(tuple(_signature(entry, categories, entry["literals"]) for entry in entries), categories)


def load(path: str) -> tuple[Signature, ...]:
    """The signatures of a user's file, in its order. Raises UsageError that names file, entry and mistake."""
    try:
        tables = read_toml(path, _WHAT)
    except FileNotFoundError as error:
        hint = "check errors.signatures in the configuration, or ATLCTL_SIGNATURES"
        raise UsageError(f"{_WHAT} {path} does not exist", hint) from error
    entries = tables.pop("signature", [])
    if tables or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{_WHAT} {path} must hold [[signature]] entries and nothing else", _FORM)
    if len(entries) > MAX_SIGNATURES:
        raise UsageError(f"{_WHAT} {path} has more than {MAX_SIGNATURES} entries", "split it")
    categories = builtin().categories
    found: dict[str, Signature] = {}
    for number, entry in enumerate(entries, 1):
        problem = _Problem(path, entry.get("id"), number)
        literals = _checked(entry, categories, problem)
        if entry["id"] in found:
            problem.refuse("id: used twice", "give each entry its own id")
        found[entry["id"]] = _signature(entry, categories, literals)
    return tuple(found.values())


def _signature(entry: Mapping[str, Any], categories: Mapping[str, Category], literals: tuple[str, ...]) -> Signature:
    category = categories.get(entry["category"])
    meaning = Text(entry["meaning_en"], entry.get("meaning_zh", entry["meaning_en"]))
    if "advice_en" in entry:
        advice = Text(entry["advice_en"], entry.get("advice_zh", entry["advice_en"]))
    else:
        assert category is not None
        advice = category.advice
    return Signature(
        entry["id"],
        entry["category"],
        LineRole(entry["role"]),
        entry["pattern"],
        tuple(literals),
        meaning,
        advice,
        FaultScope(entry.get("scope", FaultScope.RANK)),
        entry.get("hardware", category.hardware if category else False),
        Where(entry.get("where", Where.ANYWHERE)),
        entry.get("death", False),
    )


class _Problem:
    """The place of a mistake. Entries without a usable id are named by their number."""

    def __init__(self, path: str, ident: object, number: int) -> None:
        name = ident if isinstance(ident, str) and _ID.fullmatch(ident) else f"number {number}"
        self._place = f"{_WHAT} {path}, entry {name}"

    def refuse(self, what: str, hint: str) -> NoReturn:
        raise UsageError(f"{self._place}: {what}", hint)


def _checked(entry: Mapping[str, Any], categories: Mapping[str, Category], problem: _Problem) -> tuple[str, ...]:
    """Validates one entry; returns its literals, given or derived from its pattern."""
    for key in entry:
        if key not in _NEEDED and key not in _OPTIONAL:
            problem.refuse(f"unknown key {key}", f"known are {', '.join((*_NEEDED, *_OPTIONAL))}")
    for key in (*_NEEDED, "meaning_zh", "advice_en", "advice_zh", "scope", "where"):
        value = entry.get(key, None if key in _NEEDED else "-")
        if value is None:
            problem.refuse(f"{key} is missing", _FORM)
        if not isinstance(value, str) or not value.strip() or len(value) > _TEXT_LIMIT:
            problem.refuse(f"{key} must be a text of 1 to {_TEXT_LIMIT} characters", f'write it as {key} = "..."')
    for key in ("id", "category"):
        if not _ID.fullmatch(entry[key]):
            problem.refuse(f"{key}: {entry[key]!r} is no name", "use small letters, digits and _, at most 64")
    _word(entry, "role", LineRole, problem)
    _word(entry, "scope", FaultScope, problem)
    _word(entry, "where", Where, problem)
    if not isinstance(entry.get("hardware", False), bool):
        problem.refuse("hardware must be true or false", "write it without quotes")
    if "advice_en" not in entry and ("advice_zh" in entry or entry["category"] not in categories):
        problem.refuse("advice_en is missing", "only entries of the package's own categories can do without it")
    return _literals(entry, problem)


def _word(entry: Mapping[str, Any], key: str, words: type[_Word], problem: _Problem) -> None:
    if key in entry and entry[key] not in list(words):
        problem.refuse(f"{key}: {entry[key]!r} is not known", f"known are {', '.join(words)}")


def _literals(entry: Mapping[str, Any], problem: _Problem) -> tuple[str, ...]:
    try:
        found = shape(entry["pattern"])
    except PatternRefused as refused:
        problem.refuse(f"pattern: {refused}", "example: 'license server \\S{1,200} (?:is down|refused us)'")
    given = entry.get("literals")
    if given is None:
        derived = found.literals()
        if not derived:
            problem.refuse(
                f"pattern: some of its matches contain no plain text of {MIN_LITERAL} bytes, which scanning needs",
                "add a word that all matching lines have",
            )
        return derived
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        problem.refuse("literals must be a list of texts", 'write it as literals = ["..."]')
    if any(len(item.encode(errors="replace")) < MIN_LITERAL for item in given):
        problem.refuse(f"literals: each needs at least {MIN_LITERAL} bytes", "leave literals out to have them read")
    if not found.covered(given):
        problem.refuse("literals: the pattern matches lines that contain none of them", "leave literals out")
    return tuple(given)


#: The possible starts of an exception in a line: the line's start, the end of a prefix, or after a time or a number.
#: The exception's module may precede its name.
_BEGINNING = r"(?:^|[\]:|>)\t：】]|[0-9Z-] )[ \t]{0,64}+(?:[A-Za-z_][\w.]{0,150}\.)??"

#: A logger's level below ERROR, in the head of its line. NCCL writes its failures as `NCCL WARN`.
_LEVEL = re.compile(
    r"""(?:^|[\s\[(|:<"'-])(?:DEBUG|INFO|(?<!NCCL )WARN|WARNING|Warning|debug|info|warn|warning)(?=[\s\])|:>"'-])"""
)
_HEAD = 200
#: The line says that the program continues, or is source code in a traceback.
_GOES_ON = re.compile(
    r"\b(?:[Rr]etrying|[Ww]ill (?:retry|try again)|[Ii]gnor(?:ed|ing)|[Ss]kipp(?:ed|ing)|[Ff]alling back)\b"
    r"|\braise [\w.]{1,100}\(|\bexcept [\w.]{1,100}(?: as \w{1,100})?:"
)


#: Length of the prefix by which literals are indexed.
_START = 4
#: Xids have smaller numbers.
_XIDS = 10_000


@dataclass(frozen=True, slots=True)
class Match:
    """A signature found in a line, with its matched named groups."""

    signature: Signature
    groups: Mapping[str, str]

    @property
    def death(self) -> bool:
        """Whether the line reports that a process ended in failure."""
        return self.signature.death and self.groups.get("code") != "0"


@functools.lru_cache(maxsize=256)
def signature_of_xid(number: int, text: str = "") -> Signature:
    """The signature of an Xid of NVIDIA's driver. `text`: the rest of its line after the number."""
    known = number if 0 <= number < _XIDS else 0
    found = builtin_matcher().match(f"NVRM: Xid (PCI:0000:00:00): {known}, {text}")
    assert found is not None  # the last entry takes every number
    return found.signature


@functools.lru_cache(maxsize=1)
def builtin_matcher() -> Matcher:
    """A matcher of the package's own signatures."""
    return Matcher(builtin().signatures)


#: Characters of a line at most, of which the signature is remembered.
_KNOWN_TEXT = 512


class Matcher:
    """Finds signatures in lines. A pattern is compiled when a line first contains one of its literals."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self._signatures = tuple(signatures)
        places: dict[str, list[int]] = {}
        for place, signature in enumerate(self._signatures):
            for literal in signature.literals:
                places.setdefault(literal, []).append(place)
        self._places = tuple(places.items())
        #: Four bytes may be one or two characters of Chinese.
        self._short = [item for item in self._places if len(item[0]) < _START]
        self._by_start: dict[str, list[tuple[str, list[int]]]] = {}
        for item in self._places:
            self._by_start.setdefault(item[0][:_START], []).append(item)
        self._compiled: dict[int, re.Pattern[str]] = {}
        #: Ranks print the same lines, and each is looked at again as its process is judged.
        self._known = functools.lru_cache(maxsize=4096)(self._match)

    def literals(self) -> frozenset[bytes]:
        """Literals of which a line must contain one before `match` is called: in UTF-8 and in GB 18030.

        A literal that contains a shorter one is omitted; the shorter one finds its lines.
        """
        needed: list[str] = []
        for literal in sorted((literal for literal, _ in self._places), key=len):
            if not any(shorter in literal for shorter in needed):
                needed.append(literal)
        return frozenset(literal.encode(encoding) for literal in needed for encoding in ("utf-8", "gb18030"))

    def match(self, text: str) -> Match | None:
        """The first signature, by priority, of one decoded, cleaned line. Only its first 16 KiB are looked at."""
        return self._known(text) if len(text) <= _KNOWN_TEXT else self._match(text[:LINE_LIMIT])

    def _match(self, text: str) -> Match | None:
        found: set[int] = set()
        for literal, places in self._possible(text):
            if literal in text:
                found.update(places)
        for place in sorted(found):
            signature = self._signatures[place]
            match = self._pattern(place, signature).search(text)
            if match and not _handled(signature.where, text, match.start()):
                groups = match.groupdict().items()
                return Match(signature, {key.rstrip("23"): value for key, value in groups if value is not None})
        return None

    def _possible(self, text: str) -> Iterable[tuple[str, list[int]]]:
        """Literals whose first characters are in the text: five times faster than searching for each of them."""
        starts = {text[at : at + _START] for at in range(len(text))}
        known = [item for start in starts & self._by_start.keys() for item in self._by_start[start]]
        return [*known, *self._short]

    def _pattern(self, place: int, signature: Signature) -> re.Pattern[str]:
        compiled = self._compiled.get(place)
        if compiled is None:
            start = _BEGINNING if signature.where is Where.EXCEPTION else ""
            compiled = self._compiled[place] = re.compile(f"{start}(?:{signature.pattern})")
        return compiled


def _handled(where: Where, text: str, start: int) -> bool:
    """Whether the line reports a failure that the program has handled."""
    if where is Where.ANYWHERE:
        return False
    if _LEVEL.search(text, 0, min(start + 1, _HEAD)):
        return True
    before = text[:start] if where is Where.EXCEPTION else text
    return _GOES_ON.search(before) is not None
