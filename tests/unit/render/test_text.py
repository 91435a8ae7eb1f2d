"""Prefixes, messages, tables, times, JSON and YAML."""

import enum
import json
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.jobs.model import State, Worker
from atlctl.render.jsonout import dumps, envelope, yaml_dump
from atlctl.render.lines import prefix_for
from atlctl.render.palette import WORKERS, Tone, Toned, painted
from atlctl.render.streams import Streams, error_text, note_text, warning_text
from atlctl.render.table import Column, Table, human_age, render_table, rfc3339
from atlctl.render.width import display_width, wrapped

HOSTILE = re.compile("[\x7f-\x9f\u061c\u200b-\u200c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def test_a_prefix_is_clean_and_has_the_colour_of_the_index() -> None:
    assert prefix_for(_worker(3), False) == b"worker-3: "
    assert prefix_for(_worker(0, "w\x1b[2J"), False) == b"w^[[2J: "
    assert prefix_for(_worker(0, "\ud800"), False) == rb"\ud800: "
    assert prefix_for(_worker(3), True) == b"\x1b[38;5;%dmworker-3:\x1b[0m " % WORKERS[3]
    assert prefix_for(_worker(len(WORKERS), "worker-3"), True) == prefix_for(_worker(0, "worker-3"), True)


def _worker(index: int, name: str = "") -> Worker:
    return Worker(name or f"worker-{index}", index, State.RUNNING)


def test_messages() -> None:
    assert error_text("no job\nhint: run me", "atlctl jobs", False) == "error: no job^Jhint: run me\nhint: atlctl jobs"
    assert error_text("x", None, True) == f"\x1b[{Tone.FAIL.value}merror:\x1b[0m x"
    assert warning_text("a\x1b", False) == "warning: a^["
    assert note_text("b", False) == "note: b"
    assert warning_text("one two three", False, 12) == "warning: one\n  two three"
    # A hint's command can be copied.
    assert error_text("one two", "atlctl jobs -A", False, 12) == "error: one\n  two\nhint: atlctl jobs -A"


TABLE = Table(
    [Column("NAME"), Column("GPUS", "right"), Column("NODE", wide_only=True), Column("REASON")],
    [["worker-0", "8", "n1", ""], ["训练-1", "16", "n2", "[bold]x\x1b[31m" + "y" * 90]],
)


def test_a_table_on_a_pipe_is_aligned_and_never_cut() -> None:
    lines = render_table(TABLE, Streams()).split("\n")
    assert lines[0] == "NAME      GPUS  REASON"
    assert lines[1] == "worker-0     8"
    assert lines[2] == "训练-1      16  [bold]x^[[31m" + "y" * 90
    assert lines[3:] == [""]
    assert "NODE" in render_table(TABLE, Streams(), wide=True)


@pytest.mark.parametrize("color", [False, True])
def test_a_table_on_a_terminal_folds_and_keeps_every_character(color: bool) -> None:
    streams = Streams(stdout_tty=True, stdout_color=color, width=50)
    text = render_table(TABLE, streams)
    plain = re.sub("\x1b\\[[0-9;]*m", "", text)
    assert (text != plain) is color
    assert all(display_width(line) <= 50 for line in plain.split("\n"))
    assert plain.count("y") == 90
    assert "[bold]x^[[31m" in plain
    assert plain.startswith("NAME")
    assert plain.endswith("\n")
    assert not plain.endswith("\n\n")


FITTED = Table(
    [
        Column("INDEX", "right"),
        Column("ROLE", spare=3),
        Column("名称", spare=1),
        Column("GPUS", "right", spare=2),
        Column("MESSAGE", least=12),
    ],
    [
        ["0", "launcher", "训练-0", "8", "not enough memory on 3 nodes"],
        ["1", "worker", "worker-1", "8", Toned("Held (trainer failed)", Tone.HELD, "Held")],
    ],
    [Toned("Held: the launch script is still running", Tone.HELD, "Held")],
)


def test_columns_are_dropped_by_rank_and_named_before_a_cell_wraps() -> None:
    def lines(width: int) -> list[str]:
        return render_table(FITTED, Streams(stdout_tty=True, width=width)).splitlines()

    assert lines(70)[0] == "INDEX  ROLE      名称      GPUS  MESSAGE"
    assert lines(70)[-1] == "Held: the launch script is still running"
    # The text is shortened first, at word boundaries and down to its minimum.
    assert lines(50)[:3] == [
        "INDEX  ROLE      名称      GPUS  MESSAGE",
        "    0  launcher  训练-0       8  not enough memory",
        "                                 on 3 nodes",
    ]
    assert lines(40)[0].split() == ["INDEX", "名称", "GPUS", "MESSAGE"]
    assert lines(40)[-2:] == ["note: no room for: ROLE; to see all: a", "  wider terminal, or '| less -S'"]
    # A more important column is left out only if it does not fit, even if others return.
    assert lines(26)[0].split() == ["INDEX", "GPUS", "MESSAGE"]
    assert lines(26)[-4:-2] == ["note: no room for: ROLE,", "  名称; to see all: a"]


@pytest.mark.parametrize("width", range(20, 71))
def test_no_word_of_a_cell_is_broken_and_no_line_too_long(width: int) -> None:
    text = render_table(FITTED, Streams(stdout_tty=True, width=width))
    table = text.partition("note: ")[0]
    assert all(display_width(line) <= width for line in table.splitlines())
    words = set(table.split())
    assert {"enough", "memory", "(trainer", "failed)", "MESSAGE", "launch"} <= words
    assert "训练-0" in words or "名称" not in words


def test_only_the_head_of_a_cell_is_painted_and_only_with_colour() -> None:
    text = render_table(FITTED, Streams(stdout_tty=True, stdout_color=True, width=80))
    held = painted("Held", Tone.HELD, True)
    assert f"  {held} (trainer failed)\n" in text
    assert text.endswith(f"{held}: the launch script is still running\n")
    assert re.sub("\x1b\\[[0-9;]*m", "", text) == render_table(FITTED, Streams(stdout_tty=True, width=80))


def test_a_pipe_gets_all_columns_and_no_notes() -> None:
    lines = render_table(FITTED, Streams(width=20)).splitlines()
    assert painted("Held", Tone.HELD, True) in render_table(FITTED, Streams(stdout_color=True))  # --color always
    assert lines[0] == "INDEX  ROLE      名称      GPUS  MESSAGE"
    assert len(lines) == 3


def test_wrapped_lines_hang_and_keep_short_commands_whole() -> None:
    text = "  how: SIGTERM to each worker's process group; see 'atlctl ps live' for it"
    assert wrapped(text, 40, 7) == [
        "  how: SIGTERM to each worker's process",
        "       group; see 'atlctl ps live' for",
        "       it",
    ]
    assert wrapped("看一看它们 'atlctl ps live'，训练已经失败", 24) == [
        "看一看它们",
        "'atlctl ps live'，训练已",
        "经失败",
    ]
    assert wrapped("/data/checkpoints/llama-3/step-1000.pt", 16) == [
        "/data/",
        "checkpoints/",
        "llama-3/step-",
        "1000.pt",
    ]
    assert wrapped("", 10) == [""]


def test_a_table_without_rows_is_its_header() -> None:
    table = Table([Column("A"), Column("B")], [])
    assert render_table(table, Streams()) == "A  B\n"
    assert render_table(table, Streams(stdout_tty=True)) == "A  B\n"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0s"), (0.9, "0s"), (119, "119s"), (120, "2m"), (192, "3m12s"), (600, "10m"), (10799, "179m"),
     (10800, "3h"), (11520, "3h12m"), (28800, "8h"), (172799, "47h"), (172800, "2d"), (183600, "2d3h"),
     (691200, "8d"), (34560000, "400d")],
)  # fmt: skip
def test_human_age(seconds: float, shown: str) -> None:
    assert human_age(seconds) == shown


def test_rfc3339() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00Z"
    assert rfc3339(1767323045.25, "microseconds") == "2026-01-02T03:04:05.250000Z"


class Colour(enum.StrEnum):
    RED = "red"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(values)
def test_json_is_lossless_and_harmless(value: object) -> None:
    text = dumps(value)
    assert not HOSTILE.search(text)
    assert "\n" not in text
    assert json.loads(text) == joined(value)


def joined(value: object) -> object:
    """JSON cannot represent a surrogate pair as two characters."""
    return json.loads(json.dumps(value))


@settings(deadline=None, max_examples=200)
@given(values)
def test_yaml_is_lossless_and_harmless(value: object) -> None:
    text = yaml_dump(value)
    assert not HOSTILE.search(text)
    assert yaml.safe_load(text) == joined(value)


def test_json_details() -> None:
    assert dumps({"a": "训\x1b\x9b\U000e0041", "c": Colour.RED}) == r'{"a": "训\u001b\u009b\udb40\udc41", "c": "red"}'
    with pytest.raises(ValueError):
        dumps(float("nan"))
    assert envelope("jobs", "success", [1]) == {
        "apiVersion": "atlctl/v1", "command": "jobs", "status": "success", "data": [1], "errors": [],
    }  # fmt: skip
    assert yaml_dump({"state": Colour.RED, "n": (1, 2)}) == "state: red\nn:\n- 1\n- 2\n"
