"""Sentences of the program's own in another language, found by their pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable


class Phrasebook:
    """Pairs of a pattern and what stands for it, with groups as `\\1`. A pattern is of a whole sentence, or of a part
    between `; `; the first that matches counts. Compiled with the first sentence that is asked for."""

    def __init__(self, *tables: Iterable[tuple[str, str]]) -> None:
        self._tables = tables
        self._compiled: list[tuple[re.Pattern[str], str]] = []

    def said(self, text: str) -> str:
        """The sentence in the other language; as it is where a part of it is not known, as a log's own text."""
        if not self._compiled:
            self._compiled = [(re.compile(pattern), told) for table in self._tables for pattern, told in table]
        whole = self._phrase(text)
        if whole is not None:
            return whole
        parts = text.split("; ")
        found = [self._phrase(part) for part in parts]
        if None in found:
            return text
        return "；".join(part or "" for part in found)

    def _phrase(self, text: str) -> str | None:
        for pattern, told in self._compiled:
            if match := pattern.fullmatch(text):
                return match.expand(told)
        return None
