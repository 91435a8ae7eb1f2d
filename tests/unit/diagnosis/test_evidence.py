"""When it is enough to read the ends of a job's logs."""

from __future__ import annotations

from atlctl.diagnosis.evidence import LINES_BEFORE, SECONDS_BEFORE, ReadPart, first_sign, uncovered
from atlctl.diagnosis.logfacts import LogFacts, LogReader
from atlctl.diagnosis.signatures import Matcher, builtin

BEGIN = 1795199742.0


def facts(failure: int | None, lines: int = 10) -> LogFacts:
    """A log with a traceback at line number `failure`; one line per second."""
    reader = LogReader(Matcher(builtin().signatures))
    for number in range(1, lines + 1):
        stamp = b"2026-11-20T%02d:%02d:%02dZ " % (18 + number // 3600, number // 60 % 60, number % 60)
        text = b"step %d" % number
        if failure is not None and number >= failure:
            text = [b"Traceback (most recent call last):", b'  File "t.py", line 1, in f', b"ValueError: bad"][
                min(number - failure, 2)
            ]
        reader.feed(number, stamp + text)
    return reader.facts()


def test_first_sign() -> None:
    assert first_sign(facts(None)) is None
    found = first_sign(facts(5))
    assert found is not None
    assert found[0] == 5


def test_no_sign_at_all_asks_for_everything_that_was_not_read() -> None:
    parts = {"a": ReadPart(facts(None), False, BEGIN), "b": ReadPart(facts(None), True, BEGIN)}
    assert uncovered(parts) == {"a"}


def test_a_failure_soon_after_the_beginning_of_a_part() -> None:
    near, far = facts(LINES_BEFORE, LINES_BEFORE + 3), facts(LINES_BEFORE + 1, LINES_BEFORE + 4)
    assert uncovered({"a": ReadPart(near, False, None)}) == {"a"}
    assert uncovered({"a": ReadPart(near, True, None)}) == frozenset()
    assert uncovered({"a": ReadPart(far, False, None)}) == frozenset()


def test_a_part_that_begins_after_the_first_failure_of_another_worker() -> None:
    failed = facts(LINES_BEFORE + 1, LINES_BEFORE + 4)
    sign = first_sign(failed)
    assert sign is not None
    assert sign[1] is not None
    early, late = sign[1] - SECONDS_BEFORE - 1, sign[1] - SECONDS_BEFORE + 1
    one = ReadPart(failed, False, early)
    assert uncovered({"a": one, "b": ReadPart(facts(None), False, late)}) == {"b"}
    assert uncovered({"a": one, "b": ReadPart(facts(None), False, early)}) == frozenset()
    assert uncovered({"a": one, "b": ReadPart(facts(None), True, late)}) == frozenset()
