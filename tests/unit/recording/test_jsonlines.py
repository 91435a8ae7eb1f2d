from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.recording.jsonlines import newest_first, unwrap


@pytest.mark.parametrize(
    ("value", "pod", "text"),
    [
        ({"labels": {"pod": "w-1", "app": "x"}, "line": "a", "timestamp": "t"}, "w-1", (b"a",)),
        ({"kubernetes": {"pod_name": "w-1"}, "log": "a\n"}, "w-1", (b"a",)),
        ({"kubernetes": {"pod": {"name": "w-1"}}, "message": "a\nb"}, "w-1", (b"a", b"b")),
        ({"pod": "w-1", "message": "a"}, "w-1", (b"a",)),
        ({"log": "a\n", "stream": "stderr", "time": "t"}, None, (b"a",)),
        ({"pod": ["w-1"], "msg": "a"}, None, (b"a",)),
        ({"resource": {"labels": {"pod_name": "w-1"}}, "textPayload": ""}, "w-1", (b"",)),
    ],
)
def test_text_and_pod(value, pod, text):
    found = unwrap(json.dumps(value).encode())
    assert found is not None
    assert (found.pod, found.text) == (pod, text)


@pytest.mark.parametrize(
    "line", [b'{"loss": 0.5}', b'{"message": {"message": "x"}}', b'{"log": "cut', b"{'a': 1}", b"[1]"]
)
def test_other_lines_are_left_as_they_are(line):
    assert unwrap(line) is None


def test_hostile_depth_and_surrogates_are_no_crash():
    assert unwrap(b'{"a":' * 100_000) is None
    found = unwrap(b'{"pod": "\\ud800", "log": "\\udfff x"}')
    assert found is not None
    assert (found.pod, found.text) == ("?", (b"? x",))


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200))
def test_never_raises(data):
    found = unwrap(b'{"' + data)
    assert found is None or found.text


def test_newest_first():
    first, later = "2026-11-20T17:45:05.9Z", "2026-11-20T17:45:07Z"
    assert newest_first([later, later, first])
    assert not newest_first([first, later, later])
    assert not newest_first([later, first, later])
    assert not newest_first([first, first, first])
    assert not newest_first([])


ROWS = ("Traceback (most recent call last):", '  File "/job/train.py", line 20, in main', "ValueError: bad")
TRACE = "\n".join(ROWS)


@pytest.mark.parametrize(
    ("fields", "mark"),
    [
        ({"exc_info": TRACE}, ""),
        ({"exc_info": TRACE, "rank": 3}, "[rank3]: "),
        ({"error": {"stack": TRACE}, "global_rank": 5, "rank": 1}, "[rank5]: "),
        ({"exc_info": TRACE, "rank": -1}, ""),
    ],
)
def test_a_traceback_beside_the_text_follows_it_in_the_stream_of_its_rank(fields, mark):
    found = unwrap(json.dumps({"message": "failed", **fields}).encode())
    assert found is not None
    assert found.text == (b"failed", *((mark + row).encode() for row in ROWS))


def test_a_traceback_that_is_the_text_is_not_told_twice():
    for fields in ({"log": TRACE}, {"log": TRACE, "message": TRACE}):
        found = unwrap(json.dumps(fields).encode())
        assert found is not None
        assert [row.decode() for row in found.text] == list(ROWS)


def test_a_traceback_with_surrogates_is_bytes():
    found = unwrap(json.dumps({"log": "x", "exc_info": f"{TRACE} \ud800"}).encode())
    assert found is not None
    assert found.text[-1] == b"ValueError: bad ?"


def test_the_pod_of_a_line_with_a_traceback():
    found = unwrap(json.dumps({"kubernetes": {"pod_name": "w-1"}, "log": "x", "exc_info": TRACE}).encode())
    assert found is not None
    assert (found.pod, len(found.text)) == ("w-1", 1 + len(ROWS))


def test_the_rank_of_a_traceback_that_is_the_text() -> None:
    found = unwrap(json.dumps({"message": TRACE, "rank": 3}).encode())
    assert found is not None
    assert found.text[0] == b"[rank3]: Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"level": "WARNING", "message": "ValueError: x, retrying"}, b"WARNING ValueError: x, retrying"),
        ({"severity": "info", "msg": "step 3"}, b"INFO step 3"),
        ({"log": {"level": "warn"}, "message": "x"}, b"WARN x"),
        ({"log.level": "debug", "message": "x"}, b"DEBUG x"),
        ({"level": "ERROR", "message": "x"}, b"x"),
        ({"level": "error", "message": "ValueError: x, retrying", "exc_info": TRACE}, b"ERROR ValueError: x, retrying"),
        ({"level": 30, "message": "x"}, b"x"),
        ({"level": "own words", "message": "x"}, b"x"),
        ({"severity": "INFO", "textPayload": TRACE}, ROWS[0].encode()),
        ({"level": "info", "log": TRACE}, ROWS[0].encode()),
    ],
)
def test_a_level_below_error_stays_in_front_of_a_programs_own_message(fields, text):
    """A shipper's level is that of the stream: the line is the program's as it stands."""
    found = unwrap(json.dumps(fields).encode())
    assert found is not None
    assert found.text[0] == text
