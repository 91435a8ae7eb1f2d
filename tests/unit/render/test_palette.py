"""The palette: legible on dark and light, the same in rich, and distinguishable from neighbours."""

from __future__ import annotations

import re

import pytest
from rich.color import Color
from rich.console import Console
from rich.text import Text

from atlctl.cli.say import STATE_TONES
from atlctl.jobs.model import State
from atlctl.render.palette import WORKERS, Tone, painted, painted_head

NUMBERED = re.compile(r"38;5;(\d+)$")


def linear(number: int) -> list[float]:
    red, green, blue = Color.from_ansi(number).get_truecolor()
    return [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (red / 255, green / 255, blue / 255)
    ]


def luminance(number: int) -> float:
    red, green, blue = linear(number)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("number", sorted({*WORKERS, *(int(m[1]) for t in Tone if (m := NUMBERED.search(t.value)))}))
def test_a_colour_is_legible_on_black_and_on_white(number: int) -> None:
    assert number >= 16  # themes redefine the others
    assert (luminance(number) + 0.05) / 0.05 >= 3.6
    assert 1.05 / (luminance(number) + 0.05) >= 3.6


@pytest.mark.parametrize("tone", Tone)
def test_rich_draws_the_same(tone: Tone) -> None:
    console = Console(color_system="256", force_terminal=True, width=20)
    with console.capture() as capture:
        console.print(Text("x", tone.rich), end="")
    assert capture.get() == painted("x", tone, True)


def test_states_that_need_different_actions_have_different_tones() -> None:
    apart = [State.HELD, State.FAILED, State.RUNNING, State.PENDING, State.SUCCEEDED, State.UNKNOWN, State.LOST]
    assert len({STATE_TONES[state] for state in apart}) == len(apart)
    assert all(isinstance(STATE_TONES[state], Tone) for state in State)


def test_neighbours_differ_for_colour_blind_readers_too() -> None:
    for one, other in zip(WORKERS, WORKERS[1:] + WORKERS[:1], strict=True):
        for seen in (lambda rgb: rgb, _deuteranope, _protanope):
            pairs = zip(seen(linear(one)), seen(linear(other)), strict=True)
            assert sum((a - b) ** 2 for a, b in pairs) ** 0.5 > 0.15, (one, other)


def _deuteranope(rgb: list[float]) -> list[float]:
    """The simulation of Viénot, Brettel and Mollon (1999), on linear RGB."""
    red, green, blue = rgb
    both = 0.29275 * red + 0.70725 * green
    return [both, both, -0.02234 * red + 0.02234 * green + blue]


def _protanope(rgb: list[float]) -> list[float]:
    red, green, blue = rgb
    both = 0.11238 * red + 0.88762 * green
    return [both, both, 0.00401 * red - 0.00401 * green + blue]


def test_painting_adds_escapes_alone_and_none_without_colour() -> None:
    assert painted("x", Tone.FAIL, False) == painted("x", Tone.PLAIN, True) == "x"
    assert painted("", Tone.FAIL, True) == ""
    assert painted_head("ok: x", "ok", Tone.OK, True) == painted("ok", Tone.OK, True) + ": x"
    assert painted_head("no: x", "ok", Tone.OK, True) == "no: x"
