"""Sentences of the program's own in another language, found by their pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

_GROUP = r"\\(?:g<(\w+)>|([1-9]))"
#: Sentences within sentences that are told: a hostile text may nest them by the hundred.
_DEEPEST = 6
#: Characters of a sentence at most: the patterns look at each in several ways.
LONGEST = 4_000


class Phrasebook:
    """Pairs of a pattern and what stands for it, with groups as `\\1`. A pattern is of a whole sentence, or of a part
    between `; `; the first that matches counts. Compiled with the first sentence that is asked for.

    `joints`: what else parts are joined by, and what stands for it; the first that is there divides. A group named
    `said`, with or without a number behind it, is told by this book too, and one named as in `parts` by that book;
    what they do not know stays as it is, and so do all other groups.
    """

    def __init__(
        self,
        *tables: Iterable[tuple[str, str]],
        joints: Sequence[tuple[str, str]] = (("; ", "；"),),
        parts: Mapping[str, Phrasebook] | None = None,
    ) -> None:
        self._tables = tables
        self._joints = joints
        self._parts = {"said": self, **(parts or {})}
        self._compiled: list[tuple[re.Pattern[str], str]] = []

    def said(self, text: str) -> str:
        """The sentence in the other language; as it is where a part of it is not known, as a log's own text."""
        return self._said(text, 0)

    def _said(self, text: str, depth: int) -> str:
        if not self._compiled:
            self._compiled = [(re.compile(pattern), told) for table in self._tables for pattern, told in table]
        told = self._told(text, self._joints, depth) if depth < _DEEPEST and len(text) <= LONGEST else None
        return text if told is None else told

    def _told(self, text: str, joints: Sequence[tuple[str, str]], depth: int) -> str | None:
        whole = self._phrase(text, depth)
        if whole is not None:
            return whole
        for at, (joint, other) in enumerate(joints, 1):
            if joint in text:
                return self._joined(text.split(joint), other, joints[at:], depth)
        return None

    def _joined(self, parts: Iterable[str], joint: str, joints: Sequence[tuple[str, str]], depth: int) -> str | None:
        found = []
        for part in parts:
            told = self._told(part, joints, depth)
            if told is None:
                return None
            found.append(told)
        return joint.join(found)

    def _phrase(self, text: str, depth: int) -> str | None:
        for pattern, told in self._compiled:
            if match := pattern.fullmatch(text):
                return self._expanded(match, told, depth)
        return None

    def _expanded(self, match: re.Match[str], told: str, depth: int) -> str:
        """`told` with the groups of the match, some of them in the other language."""

        def group(reference: re.Match[str]) -> str:
            name = reference[1]
            if name is None:
                return match[int(reference[2])] or ""
            book = self._parts.get(name.rstrip("0123456789"))
            found = match[name] or ""
            return found if book is None else book._said(found, depth + 1)

        return re.sub(_GROUP, group, told)
