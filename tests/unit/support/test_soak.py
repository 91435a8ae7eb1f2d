"""`make soak` counts errors and leftover processes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.soak import __main__ as soak
from tests.support import proc


def test_a_series_counts_right_wrong_and_left(capsys: pytest.CaptureFixture[str]) -> None:
    series = soak.Series("things")
    series.add(["true"], timeout=10)
    series.add(["sh", "-c", "echo told; exit 3"], timeout=10)
    series.add(["sleep", "100"], timeout=0.2)
    assert (series.failed, series.left, len(series.seconds)) == (2, 0, 3)
    assert "told" in capsys.readouterr().err
    assert series.row.startswith("| things | 3 | 1 | 0 | ")


def test_a_left_over_process_is_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(proc.leftovers, "__defaults__", (0.1,))
    series = soak.Series("things")
    series.add(["sh", "-c", "setsid sleep 100 >/dev/null 2>&1 &"], timeout=10)
    assert (series.failed, series.left) == (0, 1)
    assert "sleep 100" in capsys.readouterr().err


def test_a_test_run_repeats_its_examples_and_a_soak_run_searches() -> None:
    assert settings.get_profile("house").derandomize
    assert not settings.get_profile("search").derandomize


def test_examples_do_not_depend_on_what_is_loaded() -> None:
    if settings.get_current_profile_name() != "house":
        pytest.skip("a search takes what it finds")
    assert len(providers._get_local_constants()) == 0


def test_report_is_dated_and_leaves_out_what_did_not_run() -> None:
    ran, idle = soak.Series("ran", [1.0, 3.0]), soak.Series("idle")
    text = soak.report([ran, idle], datetime(2030, 1, 2, 3, 4, tzinfo=UTC))
    assert text.startswith("\n## 2030-01-02 03:04 UTC\n\natlctl ")
    assert text.endswith("|\n| ran | 2 | 2 | 0 | 2.0 | 3.0 |\n")
