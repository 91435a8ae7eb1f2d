"""Required literals and cost of a pattern, read from its text."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atlctl.diagnosis.logline import LINE_LIMIT
from atlctl.diagnosis.signatures import PatternRefused, builtin, shape
from tests.support.pace import within


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        (r"license server down", ["license server down"]),
        (r"rank \d{1,7} left early", [" left early"]),
        (r"alpha|beta|gamma", ["alpha", "beta", "gamma"]),
        (r"(?:CUDA|HIP) error", ["CUDA error", "HIP error"]),
        (r"[Tt]imed out", ["Timed out", "timed out"]),
        (r"store(?: is)? gone", ["store gone", "store is gone"]),
        (r"colou?r map", ["color map", "colour map"]),
        (r"a{3}bcd", ["aaabcd"]),
        (r"\[x\]\.\d{1,3} failed\b", [" failed"]),
        (r"(?P<host>[\w.]{1,9})<refused>", ["<refused>"]),
        (r"^ready(?!, or so)$", ["ready"]),
        (r"node {2}lost", ["node  lost"]),
        (r"训练失败", ["训练失败"]),
        (r"abcd\twxyz", ["abcd\twxyz"]),
        (r"abcdef|xabcdefx", ["abcdef"]),
        (r"[]x]{1,3}end of it", ["end of it"]),
    ],
)
def test_literals_of_a_pattern(pattern, literals):
    found = shape(pattern)
    assert list(found.literals()) == literals
    assert found.covered(literals)


@pytest.mark.parametrize(
    "pattern", [r"\d{1,9} ms", r"abcd|\w{1,9}", r"", r"x?y?z?", r"[^a]{4}", r"a.b.c.d", r"(?:abcd)?"]
)
def test_patterns_without_a_literal(pattern):
    assert shape(pattern).literals() == ()


def test_a_literal_that_is_not_in_every_match_does_not_cover():
    found = shape(r"disk (?:full|gone)")
    assert found.covered(["disk f", "disk g"])
    assert found.covered(["disk "])
    assert not found.covered(["full"])
    assert not found.covered([])
    assert not shape(r"dis.k").covered(["disk"])
    assert not shape(r"disk?").covered(["disk"])
    assert not shape(r"di(?=s)k").covered(["disk"])


def test_more_ways_than_can_be_followed_end_in_a_gap():
    many = shape("|".join(f"k{number}" for number in range(300)))
    assert "\0" in many.ways
    assert len(many.ways) <= 256
    assert many.literals() == ()
    start = time.process_time()
    long = shape("start" + "(?:ab|cd)" * 150 + "end")
    assert within(time.process_time() - start, 2)
    assert long.covered(["startab", "startcd"])
    assert long.covered(["end"])
    assert not long.covered(["abab"])


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a+)+b", "group"),
        (r"(?:ab|cd)*x", "group"),
        (r"(?:a{1,3}){2}x", "group"),
        (r"(?:\w|-){1,9}", "group"),
        (r".*failed.*here", "too long"),
        (r"\w+\w+\w+x", "too long"),
        (r".{0,200}x.{0,200}y", "too long"),
        (r"[ab]{1,200}c?[ab]{1,200}c?ax", "too long"),
        (r"(?:ab){2}x", "group"),
        (r"(?:.|a)(?:.{0,11000}x)", "too long"),
        (r"(?:.{0,900})?(?:.{0,900})?x", "too long"),
        (r"(?=.*a).*b", "too long"),
        (r"\w{0,999}\b\w{0,999}\b", "too long"),
        (r"\d{1,16000} \d{1,16000} \d{1,16000}x", "too long"),
        (r"(a)\1", "back reference"),
        (r"(?P<a>x)(?P=a)", "back reference"),
        (r"(a)(?(1)b|c)", "condition"),
        (r"(?i)error", "flag"),
        (r"(?i:error)", "flag"),
        (r"x(?#remark)", "comment"),
        (r"\x41bcd", "number"),
        (r"\u4e00bcd", "number"),
        (r"(abcd", "subpattern"),
        (r"abcd)", "parenthesis"),
        (r"[abcd", "set"),
        (r"*abcd", "repeat"),
        (r"abcd**", "repeat"),
        (r"[[abcd]", "set"),
        ("ab\0cd", "NUL"),
        ("x" * 2_001, "characters"),
        ("(" * 40 + "x" + ")" * 40, "deep"),
        (r"x{99999999999}", "number"),
    ],
)
def test_refused(pattern, why):
    with pytest.raises(PatternRefused, match=why):
        shape(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"took \d+ ms, (?:more|less) than \S+ allows",
        r"peer (?P<peer>[\w.:-]{1,200})<\d{1,5}> left",
        r"failed: .*",
        r".{0,120}x.{0,120}y",
        r"\s*\[\d+\]",
        r"a{,5}b",
        r"[\d,]+ ranks",
        r"(?>abc)d++x",
    ],
)
def test_accepted_and_quick(pattern):
    shape(pattern)
    compiled = re.compile(pattern)
    for text in ("a", "1", " ", "x", "took 1 ms, ", "peer a.b:c", "[1", "1,", "failed: ", "xy", "dx"):
        line = (text * LINE_LIMIT)[:LINE_LIMIT]
        start = time.process_time()
        compiled.search(line)
        assert within(time.process_time() - start, 10)  # at most a second; without the rules it would take years


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_lines_made_from_patterns_contain_a_literal(data):
    signature = data.draw(st.sampled_from(builtin().signatures))
    line = data.draw(st.from_regex(signature.pattern))
    if "\0" not in line:
        assert any(literal in line for literal in signature.literals), signature.id


@given(st.text(alphabet="ab[](){}|?*+.\\^$,-01:<>=!P", max_size=30))
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_pattern_or_refused(text):
    try:
        found = shape(text)
    except PatternRefused:
        return
    re.compile(text)
    assert found.ways
    assert found.covered(found.literals()) or not found.literals()


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_derived_literals_are_in_every_match(data):
    atoms = st.sampled_from(
        ["abcd", "x", ".", r"\d", "[ab]", "[^a]", "c?", r"\w{1,3}", "b{2}", r"\.", "(?:ab|cd)", "(?:xy)?"]
    )
    parts = data.draw(st.lists(atoms, min_size=1, max_size=6))
    pattern = "|".join(["".join(parts), *data.draw(st.lists(atoms, max_size=2))])
    literals = shape(pattern).literals()
    if literals:
        line = data.draw(st.from_regex(pattern))
        assert any(literal in line for literal in literals)
