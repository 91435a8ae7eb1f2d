"""Limits on durations grow with how slow the machine is, and no further."""

from __future__ import annotations

import pytest

from tests.support import pace


def test_a_limit_grows_on_a_slow_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_measured", lambda: pace.NOMINAL / 2)
    assert pace.slowness() == 1
    assert pace.within(1.9, 2)
    assert not pace.within(2.1, 2)
    monkeypatch.setattr(pace, "_measured", lambda: pace.NOMINAL * 3)
    assert pace.within(5.9, 2)
    assert not pace.within(6.1, 2)


def test_a_program_that_takes_longer_is_a_slower_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_WORK", f"import time; time.sleep({pace.NOMINAL * 2})")
    assert pace.slowness() > 2
