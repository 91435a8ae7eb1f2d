"""Tracebacks inside of JSON log lines: a logger's `exc_info`, an exception hook of the user's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from atlctl.diagnosis.text import without_surrogates
from atlctl.diagnosis.tracebacks import HEADER

#: Levels of objects below the line's own in which a text is looked for.
_DEPTH = 2
_RANK_KEYS = ("global_rank", "rank")
_MAX_RANK = 10_000_000


@dataclass(frozen=True, slots=True)
class Embedded:
    """What a JSON line tells beside its message. `rank` is the global one, None where no field has it."""

    rank: int | None
    tracebacks: tuple[tuple[str, ...], ...]


def read_embedded(text: str) -> Embedded | None:
    """The tracebacks in a line that begins with a JSON object; None where there are none. Never raises."""
    if text[:1] != "{" or HEADER not in text:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return embedded_in(found) if isinstance(found, dict) else None


def embedded_in(found: Mapping[str, object]) -> Embedded | None:
    """The same of a decoded object."""
    texts = [without_surrogates(text) for text in _texts(found, _DEPTH) if HEADER in text]
    if not texts:
        return None
    return Embedded(rank_in(found), tuple(tuple(text[text.find(HEADER) :].splitlines()) for text in texts))


def rank_in(found: Mapping[str, object]) -> int | None:
    """The global rank that a field names."""
    for key in _RANK_KEYS:
        value = found.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_RANK:
            return value
    return None


def _texts(found: Mapping[str, object], depth: int) -> Iterator[str]:
    for value in found.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict) and depth > 0:
            yield from _texts(value, depth - 1)
