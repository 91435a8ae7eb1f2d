from __future__ import annotations

import pytest
from hypothesis import given

from atlctl.smoke.findings import Culprit, Severity
from atlctl.smoke.network.reach import Call, judge, parse
from tests.unit.smoke.network.test_blame import NAMES, matrix
from tests.unit.smoke.network.test_places import anything

KINDS = {0: "", 1: "large", 2: "data", 3: "connect"}


def calls(count: int, nodes: dict[int, int], links: dict[tuple[int, int], int]) -> dict[tuple[str, str], Call]:
    return {pair: Call(KINDS[kind], "timed out" * bool(kind)) for pair, kind in matrix(count, nodes, links).items()}


def test_all_well_is_nothing_found():
    assert judge(NAMES[:4], calls(4, {}, {})) == []


def test_a_worker_is_one_finding_that_tells_of_both_directions():
    (found,) = judge(NAMES[:4], calls(4, {2: 3}, {}))
    assert (found.culprit, found.severity, found.confirmed) == (Culprit("worker", "w2"), Severity.FAIL, True)
    assert found.evidence == (
        "3 of 3 connections to it fail, 3 of 3 connections from it fail: no connection (timed out)"
    )


def test_a_link_names_both_ends_and_an_mtu_is_told_from_silence():
    (found,) = judge(NAMES[:4], calls(4, {}, {(1, 3): 1}))
    assert found.culprit == Culprit("link", "w1", "w3")
    assert "small packets pass, large ones do not" in found.evidence
    assert "MTU" in found.advice


def test_one_direction_is_told():
    seen = calls(3, {}, {})
    seen["w2", "w0"] = Call("refused", "Connection refused")
    (found,) = judge(NAMES[:3], seen)
    assert found.culprit == Culprit("link", "w0", "w2")
    assert found.evidence.startswith("only connections from w2 to w0 fail")


def test_where_nobody_reaches_anybody_nobody_is_accused():
    (found,) = judge(NAMES[:4], calls(4, dict.fromkeys(range(4), 3), {}))
    assert found.culprit is None
    assert found.severity is Severity.FAIL


@pytest.mark.parametrize(
    "peers",
    [
        None,
        [],
        {},
        {"1": {"ok": 1}},
        {"1": {"ok": False, "kind": "of its own"}},
        {"1": {"ok": False}},
        {"2": {"ok": True}},
    ],
)
def test_answers_that_make_no_sense_are_not_understood(peers):
    assert parse({"peers": peers}, "w0", {0: "w0", 1: "w1"}, [1]) is None


@given(anything)
def test_any_answer_is_read_or_refused(peers):
    told = parse({"peers": {"1": peers}}, "w0", {0: "w0", 1: "w1"}, [1])
    judge(["w0", "w1"], told or {})
