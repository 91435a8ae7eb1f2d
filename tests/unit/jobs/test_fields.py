import pytest

from atlctl.jobs import fields

AT = 1_795_199_340.0  # 2026-11-20T18:29:00Z
JUNK = (None, True, 7, 1.5, "word", [1], (1,), {"a": 1})


@pytest.mark.parametrize("value", JUNK)
def test_fields_of_a_wrong_type_are_neutral(value):
    kind = type(value)
    assert fields.mapping(value) == (value if kind is dict else {})
    assert fields.items(value) == (list(value) if kind in (list, tuple) else [])
    assert fields.text(value) == (value if kind is str else "")
    assert fields.whole(value) == (value if kind is int else None)
    assert fields.number(value) == (value if kind in (int, float) else None)


def test_items_most():
    assert fields.items([1, 2, 3], 2) == [1, 2]
    assert fields.entries([1, {"a": 1}, {}], 2) == [{"a": 1}]
    assert fields.texts(["a", 1, "\ud800"]) == ["a", "?"]


def test_text_most_comes_before_surrogates():
    assert fields.text("\ud800" + "x" * 10, 3) == "?xx"
    assert fields.text("\u4e2d\u6587") == "\u4e2d\u6587"


@pytest.mark.parametrize(
    ("value", "bits", "whole"),
    [(2**63 - 1, 64, 2**63 - 1), (2**63, 64, None), (-(2**31), 32, -(2**31)), (2**31, 32, None), (10**400, 64, None)],
)
def test_whole_bits(value, bits, whole):
    assert fields.whole(value, bits) == whole


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, 10**400])
def test_number_that_is_not_finite_or_too_large(value):
    assert fields.number(value) is None


def test_number_least():
    assert fields.number(-1) == -1.0
    assert fields.number(-1, least=0) is None
    assert fields.number(0, least=0) == 0.0


@pytest.mark.parametrize(
    ("value", "time"),
    [
        ("2026-11-20T18:29:00Z", AT),
        ("2026-11-21T02:29:00.718574123+08:00", AT + 0.718574),
        (AT, AT),
        (0, None),
        ("1970-01-01T00:00:00Z", None),
        ("2026-11-20T18:29:00", None),
        ("0001-01-01T00:00:00Z", None),
        ("9999-12-31T23:59:59-23:59", None),
        ("x" * 100, None),
        (-1, None),
        (True, None),
        (float("nan"), None),
        (1e300, None),
        (10**400, None),
        (None, None),
    ],
)
def test_moment(value, time):
    assert fields.moment(value) == (None if time is None else pytest.approx(time))
