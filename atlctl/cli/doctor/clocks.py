"""Clocks of other machines beside this one's: logs of many workers are merged by their times."""

from __future__ import annotations

from collections.abc import Mapping

from atlctl.cli.doctor.checks import Report, Words
from atlctl.jobs.naming import fold_names

#: Seconds that clocks may be apart.
APART = 2.0


def judge(report: Report, words: Words, name: str, bounds: Mapping[str, tuple[float, float]]) -> None:
    """`bounds`: by worker or host, between which two figures its clock's distance from this one's lies, in seconds."""
    if not bounds:
        return
    off = {one: _proven(*limits) for one, limits in bounds.items()}
    wrong = {one: distance for one, distance in off.items() if abs(distance) > APART}
    good = len(bounds) - len(wrong)
    if wrong:
        farthest = max(wrong, key=lambda one: abs(wrong[one]))
        key = "clock_ahead" if wrong[farthest] > 0 else "clock_late"
        seconds = f"{abs(wrong[farthest]):.0f}"
        text = words("clocks_apart", names=fold_names(wrong), count=len(wrong))
        report.warn(name, f"{text}; {words(key, name=farthest, seconds=seconds)}", words("clocks_fix"))
    if good:
        report.ok(name, words("clocks_ok", count=good, seconds=f"{APART:g}"))


def _proven(low: float, high: float) -> float:
    """How far off a clock is at least; 0 where it may be right."""
    return low if low > 0 else min(high, 0.0)
