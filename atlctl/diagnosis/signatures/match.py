"""Which signature a line has: the first one, by priority, whose pattern is found in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from atlctl.diagnosis.signatures.load import builtin
from atlctl.diagnosis.signatures.model import Signature, Where
from atlctl.diagnosis.text import LINE_LIMIT

#: Where the line of an exception can begin: at the start, after what ends a prefix, or after a time or a number.
#: The exception's module may stand in front of its name.
_BEGINNING = r"(?:^|[\]:|>)\t：】]|[0-9Z-] )[ \t]{0,64}+(?:[A-Za-z_][\w.]{0,150}\.)??"

#: A logger's level below ERROR, in the head of its line. NCCL writes its failures as `NCCL WARN`.
_LEVEL = re.compile(
    r"""(?:^|[\s\[(|:<"'-])(?:DEBUG|INFO|(?<!NCCL )WARN|WARNING|Warning|debug|info|warn|warning)(?=[\s\])|:>"'-])"""
)
_HEAD = 200
#: The program says that it goes on, or the line is source code in a traceback.
_GOES_ON = re.compile(
    r"\b(?:[Rr]etrying|[Ww]ill (?:retry|try again)|[Ii]gnor(?:ed|ing)|[Ss]kipp(?:ed|ing)|[Ff]alling back)\b"
    r"|\braise [\w.]{1,100}\(|\bexcept [\w.]{1,100}(?: as \w{1,100})?:"
)


#: Characters by which literals are looked up.
_START = 4
#: Xids have smaller numbers.
_XIDS = 10_000


@dataclass(frozen=True, slots=True)
class Match:
    """A signature found in a line, with the named groups that took part."""

    signature: Signature
    groups: Mapping[str, str]

    @property
    def death(self) -> bool:
        """Whether the line reports that a process ended in failure."""
        return self.signature.death and self.groups.get("code") != "0"


@lru_cache(maxsize=256)
def signature_of_xid(number: int, text: str = "") -> Signature:
    """What an Xid of NVIDIA's driver means. `text`: what its line says behind the number."""
    known = number if 0 <= number < _XIDS else 0
    found = builtin_matcher().match(f"NVRM: Xid (PCI:0000:00:00): {known}, {text}")
    assert found is not None  # the last entry takes every number
    return found.signature


@lru_cache(maxsize=1)
def builtin_matcher() -> Matcher:
    """A matcher of the package's own signatures."""
    return Matcher(builtin().signatures)


class Matcher:
    """Looks for signatures in lines. Patterns are compiled when a line first has one of their literals."""

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

    def literals(self) -> frozenset[bytes]:
        """What a line must contain, one of them, to be worth a call of `match`: in UTF-8 and in GB 18030.

        A literal that contains a shorter one of them is left out; that one finds its lines.
        """
        needed: list[str] = []
        for literal in sorted((literal for literal, _ in self._places), key=len):
            if not any(shorter in literal for shorter in needed):
                needed.append(literal)
        return frozenset(literal.encode(encoding) for literal in needed for encoding in ("utf-8", "gb18030"))

    def match(self, text: str) -> Match | None:
        """The first signature, by priority, of one decoded, cleaned line. Only its first 16 KiB are looked at."""
        text = text[:LINE_LIMIT]
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
        """Literals whose first characters are in the text: a fifth of the time that asking for each of them takes."""
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
    """Whether the line tells of a failure that the program has dealt with."""
    if where is Where.ANYWHERE:
        return False
    if _LEVEL.search(text, 0, min(start + 1, _HEAD)):
        return True
    before = text[:start] if where is Where.EXCEPTION else text
    return _GOES_ON.search(before) is not None
