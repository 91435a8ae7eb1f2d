"""Redrawing over earlier output."""

from __future__ import annotations

import pytest

from atlctl.render.palette import Tone, Toned
from atlctl.render.screen import Line, Screen, ascii_only, bar, fitted, sparkline
from atlctl.render.table import Column
from atlctl.render.width import cut, display_width


def lines(*texts: str, tone: Tone = Tone.PLAIN) -> list[Line]:
    return [[Toned(text, tone)] for text in texts]


def texts(found: list[Line]) -> list[str]:
    return ["".join(cell.text for cell in line).rstrip() for line in found]


def test_the_first_time_all_is_cleared_then_drawn_over() -> None:
    screen = Screen(plain=False, color=False)
    assert screen.draw(lines("one", "two"), 80, 24) == "\x1b[H\x1b[2J\x1b[Kone\n\x1b[Ktwo\x1b[J"
    assert screen.draw(lines("one"), 80, 24) == "\x1b[H\x1b[Kone\x1b[J"
    assert screen.draw(lines("one"), 70, 24).startswith("\x1b[H\x1b[2J")
    screen.forget()
    assert screen.draw(lines("one"), 70, 24).startswith("\x1b[H\x1b[2J")


def test_without_moves_of_the_cursor() -> None:
    screen = Screen(plain=True, color=False)
    assert screen.draw(lines("one", "\x1b[2J", tone=Tone.FAIL), 80, 24, chosen=0) == "one\n^[[2J\n"


def test_tones_with_colours_alone_and_the_chosen_line_in_reverse() -> None:
    toned = lines("one", "two", tone=Tone.FAIL)
    assert f"\x1b[{Tone.FAIL.value}mone\x1b[0m" in Screen(plain=False, color=True).draw(toned, 80, 24)
    plain = Screen(plain=False, color=False).draw(toned, 9, 24, chosen=1)
    assert "\x1b[Kone\n\x1b[K\x1b[7mtwo     \x1b[0m" in plain


def test_nothing_scrolls_and_nothing_wraps() -> None:
    text = Screen(plain=False, color=False).draw(lines(*["x" * 50] * 9), 10, 4)
    assert text.count("\n") == 3
    assert "x" * 9 not in text


def test_lines_are_cut_between_words() -> None:
    screen = Screen(plain=False, color=False)
    assert "\x1b[Kone two…\x1b[J" in screen.draw(lines("one two three"), 11, 4)
    assert "\x1b[Kone-two-t…\x1b[J" in screen.draw(lines("one-two-three"), 11, 4)


def test_lines_are_cleaned() -> None:
    assert "\x9b" not in Screen(plain=False, color=False).draw(lines("a\x9b31mb"), 80, 24)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"LC_ALL": "C", "LANG": "C.UTF-8"}, True),
        ({"LANG": "POSIX"}, True),
        ({"LC_ALL": "", "LC_CTYPE": "C.UTF-8", "LANG": "C"}, False),
        ({}, False),
    ],
)
def test_ascii_only(env: dict[str, str], expected: bool) -> None:
    assert ascii_only(env) is expected


def test_in_ascii() -> None:
    text = f"{bar(0.5, 1, 3)} {sparkline([None, 0, 50, 100], 100, 6)} …"
    assert text == "━╸─    ▁▄▇ …"
    drawn = Screen(plain=True, color=False, ascii_only=True).draw(lines(text), 80, 24)
    assert drawn == "##.    _-# ~\n"


def test_sparklines() -> None:
    assert sparkline([], 100, 4) == "    "
    assert sparkline([0.0, 100.0, 100.0, 0.0, 100.0], 100, 3) == "▁▇▄"
    assert sparkline([None, None, -5.0, 500.0], 100, 4) == "  ▁▇"


def test_bars() -> None:
    shown = [bar(value, 100, 4) for value in (None, -1, 0, 33, 40, 100, 900)]
    assert shown == ["────", "────", "────", "━╸──", "━╸──", "━━━━", "━━━━"]
    assert bar(1, 0, 2) == bar(1, None, 2) == "──"


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("作业作业", 5, "作业…"),
        ("作业作业", 4, "作…"),
        ("ab", 1, "…"),
        ("", 0, ""),
    ],
)
def test_cut(text: str, columns: int, expected: str) -> None:
    assert cut(text, columns) == expected
    assert display_width(cut(text, columns)) <= columns


def test_columns_go_in_order_until_it_fits() -> None:
    columns = [Column("A"), Column("BBBB", "right", spare=1), Column("CCCC", spare=2), Column("D", least=5)]
    rows = [["1", "2", "3", "words at the end"]]

    def shown(width: int | None) -> tuple[list[str], list[str]]:
        found, left = fitted(columns, rows, width)
        return texts(found), left

    assert shown(None) == (["A  BBBB  CCCC  D", "1     2  3     words at the end"], [])
    assert shown(15) == (["A  BBBB  D", "1     2  words at the end"], ["CCCC"])
    assert shown(3)[1] == ["BBBB", "CCCC"]


def test_cells_are_cleaned() -> None:
    found, _ = fitted([Column("A")], [[Toned("x\ny", Tone.FAIL)]], 80)
    assert texts(found) == ["A", "x^Jy"]
    assert found[1][0].tone is Tone.FAIL


def test_a_head_alone_is_painted() -> None:
    drawn = Screen(plain=False, color=True).draw([[Toned("GPU 3  H100", Tone.STRONG, "GPU 3")]], 80, 24)
    assert "\x1b[1mGPU 3\x1b[0m  H100" in drawn
