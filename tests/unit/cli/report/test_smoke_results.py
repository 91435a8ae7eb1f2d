from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.cli.report.page import smoke_results, smoke_workers, words
from atlctl.cli.smoke.telling import Words, to_data
from atlctl.i18n import Message, as_data
from atlctl.render.page import Chip, Heading, HeatTable, PageTable, Part
from tests.support.saved import smoke_document
from tests.unit.smoke.reports import report

TEXTS = words("en")
CHINESE = words("zh")


def without_headings(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if not isinstance(part, Heading)]


def test_what_atlctl_writes():
    chip, _, findings, checks, *heats = without_headings(smoke_results(to_data(report(), []), TEXTS, str))
    assert chip == Chip("FAIL", "bad")
    assert isinstance(findings, PageTable)
    assert isinstance(checks, PageTable)
    assert [row[:2] for row in checks.rows] == [
        ("FAIL", "roll-call"),
        ("PASS", "facts"),
        ("WARN", "mesh"),
        ("NOT JUDGED", "ddp"),
    ]
    assert findings.rows[0][:3] == ("FAIL", "mesh", "worker-1")
    assert findings.rows[1][2] == "worker-1 <-> worker-2"
    assert findings.marked == {0, 1}
    throughput, trips = heats
    assert isinstance(throughput, HeatTable)
    assert isinstance(trips, HeatTable)
    assert (throughput.unit, trips.unit) == ("MB/s", "ms")
    assert throughput.figures[1] == ["800", "", "800", "800"]
    assert trips.shares[0][1] is not None
    assert trips.shares[0][1] < 1


def test_notes_and_evidence_are_told_as_on_the_terminal():
    note = Message("{some} of {all} workers answer", some=3, all=4)
    evidence = Message("no answer within {seconds:g} s", seconds=4.0)
    data = {
        "checks": [{"note": note, "message": as_data(note)}],
        "findings": [{"evidence": evidence, "message": as_data(evidence)}],
    }
    _, _, findings, checks = without_headings(smoke_results(data, CHINESE, Words("zh").sentence))
    assert isinstance(findings, PageTable)
    assert isinstance(checks, PageTable)
    assert checks.rows[0][3] == "3/4 个 worker 有应答"
    assert findings.rows[0][3] == "4 s 内没有应答"


def test_worst_workers_of_many_are_shown_and_cells_are_shares_then():
    heat = smoke_results(smoke_document(100)["data"], TEXTS, str)[-1]
    assert isinstance(heat, HeatTable)
    assert len(heat.names) == len(heat.figures) == len(heat.figures[0]) == 64
    assert "worker-3" in heat.names
    at = heat.names.index("worker-3")
    assert {figure for figure in heat.figures[at] if figure} <= {"48", "49", "50", "51"}
    assert heat.exact[at][0].endswith(" MB/s")
    assert "64 of 100" in heat.note


@pytest.mark.parametrize("change", [{"workers": 1}, {"matrix_mb_per_s": [[1]]}, {"matrix_mb_per_s": [[None] * 4] * 4}])
def test_a_map_of_another_form_is_left_out(change):
    data = smoke_document(4)["data"]
    data["figures"]["throughput"].update(change)
    assert not any(isinstance(part, HeatTable) for part in smoke_results(data, TEXTS, str))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
KEYS = ("tier", "verdict", "findings", "checks", "workers", "timings", "figures", "job")


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.sampled_from(KEYS), JSON)
def test_no_document_breaks_it(data: dict[str, Any], key: str, value: object):
    data = {**smoke_document(3)["data"], **data, key: value}
    smoke_results(data, TEXTS, str)
    smoke_workers(data)
