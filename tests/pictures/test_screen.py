"""The screen and the pictures that are made of it."""

from __future__ import annotations

import pytest

from tests.pictures.scenes import normal
from tests.pictures.screen import Look, Screen
from tests.pictures.svg import color, svg, text_of


def screen(data: str, columns: int = 20) -> Screen:
    made = Screen(columns)
    made.feed(data.encode())
    return made


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("one\r\ntwo\r\n", "one\ntwo"),
        ("waiting 1\r\x1b[Kdone", "done"),
        ("waiting\x1b[2K\rnow", "now"),
        ("a\r\nb\r\nc\x1b[1A\r\x1b[JX", "a\nX"),
        ("a\r\nb\x1b[2Jc", "\n c"),
        ("\x1b]0;title\x07\x1b[?25lx\x1b[?25h", "x"),
        ("12345678901234567890abc", "12345678901234567890\nabc"),
        ("训练训练训练训练训练训", "训练训练训练训练训练\n训"),
        ("e\u0301x\by", "e\u0301y"),
        ("\x1b[3;2Hx", "\n\n x"),
    ],
)
def test_the_screen_shows(data: str, text: str) -> None:
    assert screen(data).text() == text


def test_looks() -> None:
    row = screen("\x1b[1;38;5;196mE\x1b[0m \x1b[2;4mx\x1b[22;24m-\x1b[31my\x1b[39m.").rows[0]
    assert [look for _, look in row] == [
        Look(196, bold=True), Look(), Look(dim=True, underline=True), Look(), Look(1), Look(),
    ]  # fmt: skip


@pytest.mark.parametrize("data", ["\x1b[5q", "\x1b[48;5;1mx", "\x1b[38;2;1;2;3mx"])
def test_the_unknown_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match="unknown"):
        screen(data)


def test_words_are_replaced_between_lines() -> None:
    made = screen("| node vm    |\r\n| 训 vm vmx     |\r\nvm", 30)
    made.replace("vm", "gpu-1")
    assert made.text() == "| node gpu-1 |\n| 训 gpu-1 vmx  |\ngpu-1"
    made.replace("gpu-1", "h")
    assert made.text() == "| node h |\n| 训 h vmx      |\nh"


def test_a_picture_keeps_the_text() -> None:
    made = screen("\x1b[1m<a & b>\x1b[m  训练 x\r\n  two", 30)
    picture = svg("x", made.lines(), 30)
    assert text_of(picture) == "<a & b> 训练 x\ntwo"
    assert 'class="b"' in picture
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_colors_are_those_of_the_256() -> None:
    assert [color(number) for number in (1, 16, 196, 231, 232, 255)] == [
        "c0392b", "000000", "ff0000", "ffffff", "080808", "eeeeee",
    ]  # fmt: skip


def test_what_differs_from_run_to_run_is_left_out() -> None:
    def words(text: str) -> list[str]:
        return normal(svg("x", screen(text, 120).lines(), 120))

    one = "╭─ 12:01:09 ─╮ 3 of 4, uid a74f83e1-d8a9-49ca-94cc-2ff507dbc76f ▁▃ 2 h 1 min, 120m, 0.09 ms"
    two = "╭── 2:1:9 ──╮ 10 of 40,  uid b74f83e1-d8a9-49ca-94cc-2ff507dbc76e ▇█▂ 59 s, 3h 20m, 1.5 ms"
    assert words(one) == words(two) == ["0", "0", "of", "0,", "uid", "UUID", "AGE,", "AGE,", "0", "ms"]
    assert words("3 of 4 fail") != words("3 of 4 failed")
