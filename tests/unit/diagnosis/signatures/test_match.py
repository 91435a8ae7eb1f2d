"""Priority, where a pattern may begin, and the prefilter."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.signatures.load import builtin
from atlctl.diagnosis.signatures.match import Matcher
from atlctl.diagnosis.signatures.model import Role, Signature, Text, Where


def signature(ident: str, pattern: str, *literals: str, where: Where = Where.ANYWHERE) -> Signature:
    text = Text("text", "文本")
    return Signature(ident, "unknown", Role.ROOT, pattern, literals or (pattern,), text, text, where=where)


def test_the_first_wins_whatever_stands_first_in_the_line():
    matcher = Matcher([signature("one", "second word"), signature("two", "first word")])
    found = matcher.match("first word, second word")
    assert found is not None
    assert found.signature.id == "one"
    assert matcher.match("a third word") is None


def test_a_literal_alone_is_no_match():
    assert Matcher([signature("one", r"exit code \d", "exit code ")]).match("exit code unknown") is None


def test_the_next_one_is_tried_where_a_pattern_does_not_fit():
    matcher = Matcher([signature("one", r"lost rank \d", "lost rank"), signature("two", "lost rank")])
    found = matcher.match("lost rank of unknown number")
    assert found is not None
    assert found.signature.id == "two"


def test_groups_that_took_no_part_are_left_out():
    matcher = Matcher([signature("one", r"peer (?P<peer>\w{1,9})(?: port (?P<port>\d{1,5}))?", "peer ")])
    with_port, without = matcher.match("peer abc port 22"), matcher.match("peer abc")
    assert with_port is not None
    assert without is not None
    assert dict(with_port.groups) == {"peer": "abc", "port": "22"}
    assert dict(without.groups) == {"peer": "abc"}


def test_a_second_place_of_a_group_has_its_name():
    found = Matcher([signature("one", r"lost (?:rank (?P<rank>\d)|(?P<rank2>\d) of 8)", "lost ")]).match("lost 3 of 8")
    assert found is not None
    assert dict(found.groups) == {"rank": "3"}


@pytest.mark.parametrize(
    ("line", "hit"),
    [
        ("OwnError: x", True),
        ("   OwnError: x", True),
        ("my.module.OwnError: x", True),
        ("[rank3]: OwnError: x", True),
        ("[rank3]:   my.OwnError: x", True),
        ("[rank3]: [rank3]: OwnError: x", True),
        ("[1,7]<stderr>: OwnError: x", True),
        ("704.7s\t1461\tOwnError: x", True),
        ("main/0 OwnError: x", True),
        ("错误：OwnError: x", True),
        ("(Actor pid=1, ip=10.0.0.1) OwnError: x", True),
        ("2025-01-01 00:00:00,000 - ERROR - main - OwnError: x", True),
        ("[2025-01-01 00:00:00,000] [ERROR] OwnError: x", True),
        ("stopped after OwnError: x", False),
        ("    raise OwnError: x", False),
        ("    except OwnError: x", False),
        ("NotOwnError: x", False),
        ("2025-01-01 00:00:00,000 - WARNING - main - OwnError: x", False),
        ("[2025-01-01 00:00:00,000] [INFO] OwnError: x", False),
        ("WARNING:root:OwnError: x", False),
        ("INFO OwnError: x", False),
        ("retrying: OwnError: x", False),
        ("OwnError: x, this time not retrying", True),
        ('{"level":"debug"} OwnError: x', False),
        ("x" * 300 + " INFO: OwnError: x", True),
    ],
)
def test_where_an_exception_begins(line, hit):
    matcher = Matcher([signature("one", "OwnError: ", where=Where.EXCEPTION)])
    assert (matcher.match(line) is not None) is hit


@pytest.mark.parametrize(
    ("line", "hit"),
    [
        ("cp: No space left", True),
        ("ERROR No space left", True),
        ("[rank0]: OSError: No space left", True),
        ("n1:2:3 [0] NCCL WARN No space left", True),
        ("n1:2:3 [0] NCCL INFO No space left", False),
        ("INFO No space left", False),
        ("<warning> No space left", False),
        ("No space left. INFO: see above", True),
        ("No space left, will retry", False),
        ("No space left (ignored)", False),
        ("    raise OSError('No space left')", False),
        ("INFORMATION: No space left", True),
    ],
)
def test_lines_of_failures_that_were_dealt_with(line, hit):
    matcher = Matcher([signature("one", "No space left", where=Where.UNHANDLED)])
    assert (matcher.match(line) is not None) is hit
    assert Matcher([signature("one", "No space left")]).match(line) is not None


def test_the_prefilter_knows_both_encodings_of_chinese_logs():
    matcher = Matcher([signature("one", "训练失败"), signature("two", "license server")])
    assert matcher.literals() == {"训练失败".encode(), "训练失败".encode("gb18030"), b"license server"}


@pytest.mark.parametrize("pattern", ["失败", "训练失败", "abcd", "abcde"])
def test_a_literal_is_found_wherever_it_stands(pattern: str):
    matcher = Matcher([signature("one", pattern), signature("two", "absent words")])
    for line in (pattern, f"x {pattern}", f"{pattern} x", "y" * 3000 + pattern):
        assert matcher.match(line) is not None
    assert matcher.match(pattern[:-1]) is None


def test_the_prefilter_leaves_out_what_a_shorter_literal_finds():
    matcher = Matcher([signature("one", "disk full"), signature("two", "disk"), signature("three", "no disk at all")])
    assert matcher.literals() == {b"disk"}


def test_only_the_head_of_a_line_is_looked_at():
    matcher = Matcher([signature("one", "needle")])
    assert matcher.match("x" * 16_378 + "needle") is not None
    assert matcher.match("x" * 16_379 + "needle") is None


@pytest.mark.parametrize("line", ["", "\0\0", "\ud800 ValueError: x", "�" * 50, "\x1b[31mValueError: x", "\r"])
def test_odd_text_raises_nothing(line):
    Matcher(builtin().signatures).match(line)
