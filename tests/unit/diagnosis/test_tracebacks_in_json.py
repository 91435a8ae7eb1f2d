"""Tracebacks in JSON log lines."""

from __future__ import annotations

import json

import pytest

from atlctl.diagnosis.logline import LINE_LIMIT, NOBODY, Origin
from atlctl.diagnosis.tracebacks import CUT_TOP, read_embedded
from tests.unit.diagnosis.samples import parse

HEAD = "Traceback (most recent call last):"
ROWS = (HEAD, '  File "/job/train.py", line 20, in main', "    step()", "ValueError: bad magic in shard 3")
TRACE = "\n".join(ROWS)
DURING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
#: More than the number of lines at a log's start in which a traceback may lack its header.
BEFORE = [f"loss {n}" for n in range(CUT_TOP + 5)]


def line(**fields: object) -> str:
    return json.dumps(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"exc_info": TRACE},
        {"exc_info": TRACE + "\n"},
        {"exc_info": f"uncaught in main: {TRACE}"},
        {"error": {"stack": TRACE}},
        {"log": {"error": {"stack": TRACE}}},
    ],
)
def test_a_traceback_in_a_field(fields: dict[str, object]) -> None:
    """In the line's object or up to two levels below; text before the header is left out."""
    found = read_embedded(line(level="ERROR", **fields))
    assert found is not None
    assert (found.rank, found.tracebacks) == (None, (ROWS,))


def test_tracebacks_in_several_fields_are_all_read() -> None:
    found = read_embedded(line(message="x", exc_info=TRACE, cause={"stack": f"{HEAD}\nKeyError: 1"}))
    assert found is not None
    assert found.tracebacks == (ROWS, (HEAD, "KeyError: 1"))


@pytest.mark.parametrize(
    "text",
    [
        line(message="step 3", rank=1),
        line(a={"b": {"c": {"stack": TRACE}}}),  # too deep
        line(rows=[TRACE]),
        json.dumps([TRACE]),
        json.dumps(TRACE),
        line(**{TRACE: 1}),
        TRACE,
        f"ERROR {line(exc_info=TRACE)}",
        line(exc_info=TRACE)[:-5],  # truncated
        line(exc_info=TRACE).replace('"', "'"),
        '{"a":' * 50_000 + HEAD,
        '{"exc_info": "' + HEAD + '", "rank": ' + "9" * 5_000 + "}",
        "",
    ],
)
def test_lines_without_one_that_can_be_read(text: str) -> None:
    assert read_embedded(text) is None


def test_what_stands_behind_the_object_is_left_out() -> None:
    assert read_embedded(line(exc_info=TRACE) + ' {"x": 1} and more') == read_embedded(line(exc_info=TRACE))


@pytest.mark.parametrize(
    ("fields", "rank"),
    [
        ({"rank": 3}, 3),
        ({"rank": 0}, 0),
        ({"global_rank": 3, "rank": 1, "local_rank": 1}, 3),
        ({"global_rank": "3", "rank": 1}, 1),
        ({"local_rank": 1}, None),
        ({"extra": {"rank": 3}}, None),
    ],
)
def test_the_global_rank_in_a_field(fields: dict[str, object], rank: int | None) -> None:
    found = read_embedded(line(exc_info=TRACE, **fields))
    assert found is not None
    assert found.rank == rank


@pytest.mark.parametrize(
    "value", [True, False, -1, 10_000_000, 10**30, 1.0, float("nan"), "3", "", None, [3], {"a": 3}]
)
def test_a_field_that_is_no_rank(value: object) -> None:
    found = read_embedded(line(exc_info=TRACE, rank=value, global_rank=value))
    assert found is not None
    assert found.rank is None


def test_lone_surrogates_can_be_printed_afterwards() -> None:
    found = read_embedded(line(exc_info=f"{TRACE} \ud800\udfff \ud83d"))
    assert found is not None
    assert "\n".join(found.tracebacks[0]).encode().decode().startswith(TRACE)


@pytest.mark.parametrize(
    ("prefix", "fields", "origin"),
    [
        ("", {"rank": 3}, Origin(3)),
        ("", {}, NOBODY),
        ("[rank1]: ", {"rank": 3}, Origin(1)),  # torch's own data has priority
        ("2026-11-20T17:45:05.7Z [default1]:", {"rank": 3}, Origin(None, 1)),
    ],
)
def test_a_log_with_a_traceback_in_one_line(prefix: str, fields: dict[str, object], origin: Origin) -> None:
    (found,) = parse([*BEFORE, prefix + line(message="failed", exc_info=TRACE + DURING + TRACE, **fields)]).traces
    assert (found.origin, found.line_no, found.logged) == (origin, len(BEFORE) + 1, False)
    assert [(item.message, item.frame.line if item.frame else None) for item in found.chain] == [(ROWS[-1], 20)] * 2
    assert {item.line_no for item in found.chain} == {len(BEFORE) + 1}


def test_a_json_line_does_not_part_a_traceback_around_it() -> None:
    own = [f"[rank1]: {row}" for row in ROWS]
    found = parse([*BEFORE, *own[:2], f"[rank1]: {line(exc_info=HEAD + chr(10) + 'KeyError: 1')}", *own[2:]]).traces
    assert [(item.last.message, item.last.line_no - len(BEFORE)) for item in found] == [
        (ROWS[-1], 5),
        ("KeyError: 1", 3),
    ]


@pytest.mark.parametrize("text", [line(exc_info=TRACE, tensor="0" * LINE_LIMIT), line(exc_info=TRACE)[:-5]])
def test_half_a_json_line_begins_no_traceback(text: str) -> None:
    assert parse([*BEFORE, text, "KeyError: not its own"]).traces == []
