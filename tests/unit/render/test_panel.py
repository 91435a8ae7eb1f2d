"""Headline, rows and lists: on a pipe and on terminals of any width."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.jobs.panel import Line, Panel, Piece, Row, Section
from atlctl.render.palette import Tone
from atlctl.render.panel import render_panel
from atlctl.render.streams import Streams
from atlctl.render.width import display_width, fold_points

SGR = re.compile("\x1b\\[[0-9;]*m")


TITLE = (Piece("root cause: ", "strong"), Piece("rank 3 on worker-1", "culprit"), Piece(", certain"))
TELLING = Panel(
    TITLE,
    (Row("what", ["ValueError: bad magic"]), Row("evidence", ["worker-1, line 25", "worker-1, line 41: failed"])),
    (
        Section("followed", [Line(("+1.0 s", "3x gloo: connection closed by a peer")), Line(("", "and 2 more"))]),
        Section(
            "workers",
            [Line(("-10.0 s", "w-10", "last line: step 4")), Line(("+0.0 s", "w-1", "训练 failed"), "culprit")],
        ),
        Section("remarks", [Line(("one",))]),
    ),
)  # fmt: skip
HOSTILE = "a\x1b[2Jb\x9b31m\u202e\rc\nd\ud800"


def drawn(telling: Panel, width: int = 80, color: bool = False) -> str:
    return render_panel(telling, Streams(stdout_tty=True, stdout_color=color, width=width))


def test_on_a_pipe_every_line_has_its_label_and_nothing_is_folded() -> None:
    long = "x" * 300
    telling = Panel(TITLE, (*TELLING.rows, Row("why", [long], fold=1)), TELLING.listings)
    assert (
        render_panel(telling, Streams(width=20))
        == f"""\
root cause: rank 3 on worker-1, certain
  what      ValueError: bad magic
  evidence  worker-1, line 25
  evidence  worker-1, line 41: failed
  why       {long}
followed:
  +1.0 s  3x gloo: connection closed by a peer
          and 2 more
workers:
  -10.0 s  w-10  last line: step 4
   +0.0 s  w-1   训练 failed
remarks:
  one
"""
    )


def test_on_a_pipe_there_is_no_colour_even_where_it_is_forced() -> None:
    assert "\x1b" not in render_panel(TELLING, Streams(stdout_color=True))


def test_chinese_labels_are_aligned_by_what_they_take() -> None:
    telling = Panel(
        (Piece("根因"),), (Row("下一步", ["a"]), Row("证据", ["b"])), (Section("工人", [Line(("训", "x"))]),)
    )
    assert render_panel(telling, Streams()) == "根因\n  下一步  a\n  证据    b\n工人:\n  训  x\n"


def test_on_a_terminal_it_has_a_box() -> None:
    assert (
        drawn(TELLING, 60)
        == """\
╭─ root cause: rank 3 on worker-1, certain ────────────────╮
│ what      ValueError: bad magic                          │
│ evidence  worker-1, line 25                              │
│           worker-1, line 41: failed                      │
╰──────────────────────────────────────────────────────────╯
followed
  +1.0 s  3x gloo: connection closed by a peer
          and 2 more
workers
  -10.0 s  w-10  last line: step 4
   +0.0 s  w-1   训练 failed
remarks
  one
"""
    )


def test_a_narrow_terminal_gets_no_sides_and_two_lines_for_each_worker() -> None:
    assert (
        drawn(TELLING, 40)
        == """\
────────────────────────────────────────
root cause: rank 3 on worker-1, certain
what      ValueError: bad magic
evidence  worker-1, line 25
          worker-1, line 41: failed
────────────────────────────────────────
followed
  +1.0 s
    3x gloo: connection closed by a peer
    and 2 more
workers
  -10.0 s  w-10
    last line: step 4
   +0.0 s  w-1
    训练 failed
remarks
  one
"""
    )


def test_a_headline_without_rows_stands_alone() -> None:
    telling = Panel((Piece("no failure in these logs", "strong"),))
    assert drawn(telling) == render_panel(telling, Streams()) == "no failure in these logs\n"


def test_long_rows_are_cut_at_their_fold_and_the_border_says_so() -> None:
    row = Row("what", ["word " * 100, "short"], fold=2)
    lines = drawn(Panel(TITLE, (row,), cut="cut; -v shows all"), 60).splitlines()
    assert len(lines) == 5
    assert lines[2].endswith("… │")
    assert "short" in lines[3]
    assert "cut; -v shows all" in lines[-1]
    whole = drawn(Panel(TITLE, (Row("what", ["word " * 100]),)), 60)
    assert (whole.count("word"), "cut;" in whole) == (100, False)


def test_a_list_is_cut_at_the_width() -> None:
    listing = Section("workers", [Line(("+0.0 s", "w-1", "word " * 100))], fold=1)
    assert drawn(Panel(TITLE, (), (listing,)), 60).splitlines()[2] == (
        "  +0.0 s  w-1  word word word word word word word word word…"
    )


def test_colour_marks_the_culprit_and_only_where_it_is_wanted() -> None:
    text = drawn(TELLING, color=True)
    assert f"\x1b[{Tone.FAIL.value}mrank 3 on worker-1\x1b[0m" in text
    assert f"│ \x1b[{Tone.DIM.value}mwhat\x1b[0m      ValueError: bad magic   " in text
    assert f"\x1b[{Tone.FAIL.value}mw-1\x1b[0m   训练 failed\n" in text
    assert SGR.sub("", text) == drawn(TELLING)
    assert "\x1b" not in drawn(TELLING)


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("width", [5, 20, 40, 59, 60, 80, 200])
def test_no_width_is_exceeded_and_nothing_is_lost(width: int, color: bool) -> None:
    text = SGR.sub("", drawn(TELLING, width, color))
    if width >= 20:
        assert max(map(display_width, text.splitlines())) <= width
    bare = re.sub(r"[\s│╭╮╰╯─]", "", text)
    for word in ("rank3onworker-1", "line41:failed", "and2more", "训练failed", "one"):
        assert word in bare


@pytest.mark.parametrize("tty", [False, True])
def test_hostile_texts_act_nowhere(tty: bool) -> None:
    telling = Panel(
        (Piece(HOSTILE),),
        (Row(HOSTILE, [HOSTILE]),),
        (Section(HOSTILE, [Line((HOSTILE, HOSTILE))]),),
        cut=HOSTILE,
    )
    text = render_panel(telling, Streams(stdout_tty=tty, width=200))
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text) is None
    assert text.count("a^[[2Jb") == 6
    # Newlines are escaped, not printed.
    assert text.count("^J") == 6


@given(st.text(st.sampled_from("ab ,。训练（）é\u0301🙂"), max_size=60), st.integers(2, 12))
def test_folding_loses_nothing_and_keeps_the_width(text: str, width: int) -> None:
    points = [0, *fold_points(text, width), len(text)]
    parts = [text[start:end] for start, end in pairwise(points)]
    assert "".join(parts) == text
    assert points == sorted(set(points[:-1])) + points[-1:]
    assert all(display_width(part.rstrip(" ")) <= width for part in parts)


def test_folding_breaks_at_blanks_and_between_chinese_characters() -> None:
    def folded(text: str, width: int) -> list[str]:
        points = [0, *fold_points(text, width), len(text)]
        return [text[start:end] for start, end in pairwise(points)]

    assert folded("one two three", 8) == ["one two ", "three"]
    assert folded("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert folded("集合通信等待超时", 6) == ["集合通", "信等待", "超时"]
    assert folded("在该 worker 上", 10) == ["在该 ", "worker 上"]
    # No closing mark at the start of a line, and no opening one at its end.
    assert folded("超时了，再试", 6) == ["超时", "了，再", "试"]
    assert folded("超时（再试）", 6) == ["超时", "（再", "试）"]


def test_a_box_is_not_wider_than_people_read() -> None:
    lines = drawn(Panel(TITLE, (Row("what", ["word " * 60]),)), 200).splitlines()
    assert {display_width(line) for line in lines} == {120}


def test_the_text_of_a_line_without_cells_in_front_has_its_tone() -> None:
    shown = drawn(Panel(TITLE, (), (Section("t", [Line(("boom",), "culprit"), Line(("lib",), "faint")]),)), color=True)
    assert Tone.FAIL.value in shown.splitlines()[-2]
    assert Tone.DIM.value in shown.splitlines()[-1]
