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
from atlctl.render.palette import WORKERS, Tone
from atlctl.render.streams import Streams, error_text, note_text, warning_text
from atlctl.render.table import Column, Table, human_age, render_table, rfc3339
from atlctl.render.width import display_width

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
    """JSON knows no surrogate pair that is two characters."""
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
