"""Time for hostile lines: every pattern is much faster than needed to avoid a stall."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from atlctl.diagnosis.logline import LINE_LIMIT, decode
from atlctl.diagnosis.signatures import Matcher, Signature, builtin
from tests.support.pace import within

from .examples import EXAMPLES

#: CPU seconds for one pattern on one line of 16 KiB. The slowest took 3 ms when this was written.
BUDGET = 0.05
WHOLE_BUDGET = 0.3


def fill(text: str) -> str:
    return (text * (LINE_LIMIT // len(text) + 1))[:LINE_LIMIT]


COMMON = [
    *map(fill, ("a", " ", "\t", "[rank", "[rank0]: ", "0123456789.", "1.", 'File "', "] ", ": ", ", ", "1, ", "a.b.")),
    *map(fill, ("Error", "aError: ", "a.bError", "INFO: ", "(((", "[[", "中", "10.0.0.1:1, ")),
    decode(random.Random(7).randbytes(LINE_LIMIT)),
]


def hostile(signature: Signature) -> Iterator[str]:
    """Lines for one signature; each contains one of its literals, so that its pattern runs."""
    for line in COMMON:
        yield signature.literals[0] + line[: -len(signature.literals[0])]
    for literal in signature.literals:
        yield from (fill(literal), fill(f"{literal} "), fill(f"{literal}1"))
        yield from ((literal + fill(char))[:LINE_LIMIT] for char in ("a", "1", " ", "1, ", "0."))
    for line in EXAMPLES[signature.id]["match"]:
        yield fill(line)
        yield signature.literals[0] + fill(line[: len(line) // 2 + 1])[: -len(signature.literals[0])]


def too_slow(matcher: Matcher, line: str, budget: float) -> bool:
    """Measure slow results again: garbage collection counts, too."""
    for _ in range(3):
        start = time.process_time()
        matcher.match(line)
        if within(time.process_time() - start, budget):
            return False
    return True


@pytest.mark.parametrize("signature", builtin().signatures, ids=lambda signature: signature.id)
def test_each_pattern_is_quick(signature: Signature, monkeypatch: pytest.MonkeyPatch):
    # Each line has a literal, so that the search for those would cost nine tenths of the time; below it is timed, too.
    monkeypatch.setattr(Matcher, "_possible", lambda self, _: self._places)
    matcher = Matcher([signature])
    assert [line[:80] for line in hostile(signature) if too_slow(matcher, line, BUDGET)] == []


def test_all_together_are_quick():
    matcher = Matcher(builtin().signatures)
    assert [line[:80] for line in COMMON if too_slow(matcher, line, WHOLE_BUDGET)] == []


def test_a_line_without_end_is_cut():
    matcher = Matcher(builtin().signatures)
    line = "x" * 20_000_000 + " ValueError: late"
    assert matcher.match(line) is None
    assert not too_slow(matcher, line, WHOLE_BUDGET)
