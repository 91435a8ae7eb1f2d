from __future__ import annotations

import pytest

from atlctl.cli.catalogue.report_en import TEXTS
from atlctl.render.html.model import Lane, Mark, Timeline
from atlctl.render.html.timeline import draw, ticks_of
from tests.support.markup import read


def timeline(lanes, *, begin=0.0, end=100.0, focus=(90.0, 100.0)):
    return Timeline(95.0, "2026-11-20T17:45:05Z", begin, end, focus, lanes, ["a note"])


LANE = Lane(
    "worker-1", 0.0, 99.0, (Mark("restart", 5.0, "restarted"), Mark("root", 95.0, "failed", 96.0)), "2 workers", True
)


@pytest.mark.parametrize(
    ("begin", "end", "told"),
    [
        (-1, 5, ["-1 s", "0", "+1 s", "+2 s", "+3 s", "+4 s", "+5 s"]),
        (-0.1, 0.25, ["-0.1 s", "0", "+0.1 s", "+0.2 s"]),
        (0, 7200, ["0", "+20 min", "+40 min", "+60 min", "+80 min", "+100 min", "+120 min"]),
        (-86400 * 3, 0, ["-3 d", "-2 d", "-1 d", "0"]),
    ],
)
def test_ticks(begin, end, told):
    assert [shown for _, shown in ticks_of(begin, end)] == told


def test_ticks_of_any_span_are_few():
    for power in range(-6, 14):
        for factor in (1, 3, 7):
            assert len(ticks_of(-factor * 10**power / 3, factor * 10**power)) <= 13


def test_a_long_run_is_drawn_beside_its_end():
    found = read(draw(timeline([LANE]), TEXTS))
    assert found.problems == []
    assert found.headings == ["Around the failure"]
    assert found.text.count("worker-1") == 2
    assert "The whole run" in found.text
    # What lies before the failure stands in the whole run alone.
    assert (found.text.count("restarted"), found.text.count("failed")) == (1, 2)


def test_a_short_run_is_drawn_once():
    found = read(draw(timeline([LANE], begin=85.0), TEXTS))
    assert found.headings == []
    assert found.text.count("worker-1") == 1


def test_marks_are_told_by_shape_and_title_and_the_legend_names_those_in_use():
    found = read(draw(timeline([LANE]), TEXTS))
    shapes = {value for tag, name, value in found.attributes if (tag, name) == ("path", "d")}
    assert len(shapes) == 2
    assert TEXTS["mark root"] in found.text
    assert TEXTS["mark victim"] not in found.text
    assert ("svg", "aria-label", "worker-1: restarted; failed") in found.attributes
    assert "a note" in found.text


def test_one_moment_and_lanes_without_times():
    lanes = [Lane("a", None, None, ()), Lane("b", 95.0, 95.0, (Mark("root", 95.0, "x"),), culprit=True)]
    found = read(draw(timeline(lanes, begin=95.0, end=95.0, focus=(95.0, 95.0)), TEXTS))
    assert found.problems == []
    places = [
        float(value.rstrip("%")) for _, name, value in found.attributes if name in ("x", "x1", "x2") and "%" in value
    ]
    assert all(0 <= place <= 100 for place in places)
