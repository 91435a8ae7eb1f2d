"""Drawing over what was drawn before."""

from __future__ import annotations

import pytest

from atlctl.render.screen import Screen, fitted
from atlctl.render.table import Column
from atlctl.render.width import cut, display_width


def test_the_first_time_all_is_cleared_then_drawn_over() -> None:
    screen = Screen(plain=False, color=False)
    assert screen.draw(["one", "two"], 80, 24) == "\x1b[H\x1b[2J\x1b[Kone\n\x1b[Ktwo\n\x1b[J"
    assert screen.draw(["one"], 80, 24) == "\x1b[H\x1b[Kone\n\x1b[J"
    assert screen.draw(["one"], 70, 24).startswith("\x1b[H\x1b[2J")
    screen.forget()
    assert screen.draw(["one"], 70, 24).startswith("\x1b[H\x1b[2J")


def test_a_dumb_terminal_gets_no_escapes() -> None:
    screen = Screen(plain=True, color=True)
    assert screen.draw(["one", "\x1b[2J"], 80, 24, bold=0) == "one\n^[[2J\n\n"


def test_the_heading_is_bold_with_colours_alone() -> None:
    assert "\x1b[1mone\x1b[0m" in Screen(plain=False, color=True).draw(["one"], 80, 24, bold=0)
    assert "\x1b[1m" not in Screen(plain=False, color=False).draw(["one"], 80, 24, bold=0)


def test_nothing_scrolls_and_nothing_wraps() -> None:
    text = Screen(plain=False, color=False).draw(["x" * 50] * 9, 10, 4)
    assert text.count("\n") == 3
    assert "x" * 10 not in text


def test_lines_are_cleaned() -> None:
    assert "\x9b" not in Screen(plain=False, color=False).draw(["a\x9b31mb"], 80, 24)


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
    columns = [Column("A"), Column("BBBB", "right"), Column("CCCC"), Column("D")]
    rows = [["1", "2", "3", "words at the end"]]
    assert fitted(columns, rows, None, ["CCCC", "BBBB"]) == (
        ["A  BBBB  CCCC  D", "1     2  3     words at the end"],
        [],
    )
    assert fitted(columns, rows, 15, ["CCCC", "BBBB"], 5) == (["A  BBBB  D", "1     2  words at the end"], ["CCCC"])
    assert fitted(columns, rows, 3, ["CCCC", "BBBB"], 5)[1] == ["CCCC", "BBBB"]


def test_cells_are_cleaned() -> None:
    lines, _ = fitted([Column("A")], [["x\ny"]], 80, [])
    assert lines == ["A", "x^Jy"]
