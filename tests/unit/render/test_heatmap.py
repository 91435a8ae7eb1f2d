"""The heat map of a network: every width, with and without colour, and counts of omitted parts."""

from __future__ import annotations

import random
import re

import pytest

from atlctl.render.heatmap import Drawn, Heat, draw, figure
from atlctl.render.palette import Tone
from atlctl.render.streams import Streams
from atlctl.render.width import display_width


def heat(count: int, bad: tuple[int, ...] = (), links: tuple[tuple[int, int], ...] = (), name: str = "worker-") -> Heat:
    """Links of 900, but 100 from and to `bad` workers, and on `links`."""
    values = [
        [
            None if one == other else 100.0 if {one, other} & set(bad) or (one, other) in links else 900.0 + one + other
            for other in range(count)
        ]
        for one in range(count)
    ]
    return Heat([f"{name}{at}" for at in range(count)], values)


def screen(width: int, color: bool = False) -> Streams:
    return Streams(stdout_tty=True, stdout_color=color, width=width)


def shown(drawn: Drawn) -> list[str]:
    assert drawn.text.endswith("\n")
    return drawn.text.splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("count", [2, 3, 4, 8, 16, 17, 64])
@pytest.mark.parametrize("name", ["worker-", "训练节点的一个很长的名字-", "\x1b[2J\u202e"])
def test_no_line_is_wider_than_the_terminal(width: int, count: int, name: str) -> None:
    for made in (heat(count, (1,), name=name), heat(count, (), ((0, 1),), name=name), heat(count, tuple(range(count)))):
        text = draw(made, screen(width)).text
        assert max(map(display_width, text.splitlines()), default=0) < width
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_four_workers_in_figures() -> None:
    drawn = draw(heat(4, (2,)), screen(80))
    assert shown(drawn) == [
        "           #0   #1   #2   #3",
        "worker-0    . 901  100! 903",
        "worker-1 901     . 100! 904",
        "worker-2 100! 100!    . 100!",
        "worker-3 903  904  100!    .",
    ]


def test_a_narrow_terminal_gets_digits() -> None:
    drawn = draw(heat(12, (2,)), screen(40))
    assert drawn.shares
    lines = shown(drawn)
    assert lines[1] == "          012345678901"
    assert lines[2] == "worker-0  .91999999999"
    assert lines[4] == "worker-2  11.111111111"


def test_of_many_workers_those_are_shown_that_explain_it() -> None:
    one = draw(heat(64, (40,)), screen(80))
    assert one.shown < 10
    assert any(line.startswith("worker-40 ") for line in shown(one))
    link = draw(heat(64, (), ((3, 50),)), screen(80))
    assert link.shown < 10
    assert {"worker-3", "worker-50"} <= {line.split()[0] for line in shown(link)}
    assert draw(heat(64), screen(80)).text == ""
    assert draw(heat(64), screen(80)).shown == 0


def test_a_pipe_gets_all_of_it_in_figures() -> None:
    lines = shown(draw(heat(64, (40,)), Streams()))
    assert len(lines) == 65
    assert lines[41].split()[:3] == ["worker-40", "100!", "100!"]


def test_colour_adds_nothing_that_is_not_there_without() -> None:
    made = heat(4, (2,))
    colored = draw(made, screen(80, color=True)).text
    assert f"\x1b[{Tone.FAIL.value}m" in colored
    bare = [line.rstrip() for line in re.sub("\x1b\\[[0-9;]*m", "", colored).splitlines()]
    assert bare == shown(draw(made, screen(80)))


def test_round_trips_are_worse_where_they_are_longer() -> None:
    values = [[None, 1.0, 9.0], [1.0, None, 9.0], [1.0, 1.0, None]]
    drawn = draw(Heat(["a", "b", "c"], values, high=False, low=0.4, bad=0.2), screen(80))
    assert drawn.middle == 1.0
    assert shown(drawn)[1].split() == ["a", ".", "1.00", "9.00!"]


@pytest.mark.parametrize("values", [[], [[None]], [[None, None], [None, None]], [[1.0, 0.0], [-3.0, 1.0]]])
def test_nothing_was_measured(values: list[list[float | None]]) -> None:
    drawn = draw(Heat(["a", "b"][: len(values)], values), screen(80))
    assert (drawn.text, drawn.middle) == ("", None)


def test_figures_take_five_places_at_most() -> None:
    random.seed(7)
    for _ in range(2000):
        value = 10 ** random.uniform(-9, 12)
        assert len(figure(value)) <= 5, value
        assert float(figure(value)) == pytest.approx(value, rel=0.5 if value > 99_999 or value < 0.01 else 0.06)
