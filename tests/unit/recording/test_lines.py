from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.diagnosis.logline import LINE_LIMIT, clean_line
from atlctl.recording.lines import LineReader, Uncri, no_log, not_text, unstamped


def read_all(chunks):
    reader = LineReader()
    lines = [line for chunk in chunks for line in reader.feed(chunk)]
    return lines + reader.finish(), reader


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300).filter(lambda data: b"\0" not in data), st.lists(st.integers(0, 300), max_size=5))
def test_lines_do_not_depend_on_where_chunks_are_cut(data, cuts):
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[a:b] for a, b in pairwise(places)]
    expected = data.split(b"\n")
    assert read_all(chunks)[0] == (expected if expected[-1] else expected[:-1])


def test_a_line_without_end_takes_no_memory_and_keeps_what_a_terminal_shows():
    bar = b"".join(b"\r%3d%% of a progress bar" % n for n in range(100)) * 2_000
    reader = LineReader()
    for _ in range(5):
        assert reader.feed(bar) == []
        assert len(reader._tail) <= 4 * LINE_LIMIT
    line, following = reader.feed(b"\rFAILED here\nnext\n")
    assert (clean_line(line), following) == ("FAILED here", b"next")


def test_an_endless_line_without_returns_is_cut():
    lines, _ = read_all([b"x" * 1_000_000] * 20 + [b"\nend\n"])
    assert lines == [b"x" * LINE_LIMIT, b"end"]


def test_holes_are_skipped_and_counted():
    lines, reader = read_all([b"one\n" + b"\0" * 3_000_000, b"\0" * 10 + b"two\nthree\n"])
    assert (lines, reader.holes) == ([b"one", b"two", b"three"], 1)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"2026-11-20T17:45:05.757882235Z W1120 x", b"W1120 x"),
        (b"2026-11-20T17:45:05+08:00 x", b"x"),
        (b"2026-11-20T17:45:05.757882235Z stderr F text: 1", b"stderr F text: 1"),
        (b"2026-11-20 17:45:05,757 - INFO - x", b"2026-11-20 17:45:05,757 - INFO - x"),
        (b"20", b"20"),
        (b"", b""),
    ],
)
def test_stamps_are_taken_off(line, text):
    assert unstamped(line) == text


@pytest.mark.parametrize(
    ("line", "text", "made"),
    [
        (b"2026-11-20T17:45:05.757882235Z stderr F text: 1", b"2026-11-20T17:45:05.757882235Z text: 1", True),
        (b"2026-11-20T17:45:05Z stdout F ", b"2026-11-20T17:45:05Z ", True),
        (b"2026-11-20T17:45:05Z W1120 x", b"2026-11-20T17:45:05Z W1120 x", False),
        (b"stderr F x", b"stderr F x", False),
        (b"", b"", False),
    ],
)
def test_the_kubelets_tags_are_taken_off_and_the_stamp_stays(line, text, made):
    assert (Uncri()(line), Uncri.made(line)) == (text, made)


def test_pieces_of_a_line_are_joined():
    uncri = Uncri()
    head = b"2026-11-20T17:45:05Z stderr "
    assert [uncri(head + rest) for rest in (b"P Runtime", b"P Err", b"F or: x", b"F y")] == [
        None,
        None,
        b"2026-11-20T17:45:05Z RuntimeError: x",
        b"2026-11-20T17:45:05Z y",
    ]
    assert uncri(head + b"P cut") is None
    assert (uncri.finish(), uncri.finish()) == (b"2026-11-20T17:45:05Z cut", None)


def test_pieces_without_end_take_no_memory():
    uncri = Uncri()
    head = b"2026-11-20T17:45:05Z stderr P "
    for _ in range(1_000):
        assert uncri(head + b"x" * 16_384) is None
    assert len(uncri.finish() or b"") <= 5 * LINE_LIMIT


def test_what_is_no_text_is_named():
    array = b'[\n  {\n    "textPayload": "x"'
    found = [not_text(data) for data in (gzip.compress(b"log"), b"\xff\xfel\0o\0g\0", os.urandom(5_000), array)]
    assert [what and what[0] for what in found] == ["gzip data", "UTF-16 text", "binary data", "a JSON array"]
    assert not_text(b'[{"log": "x"}, {"log": "y"}]\n') is not None
    assert not_text(b"x" * 257 + b"ustar  ") is not None


@pytest.mark.parametrize(
    "header", [b'"@timestamp","kubernetes.pod.name",message', b"_time_,content,_pod_name_\r", b"Date,Host,Service,log"]
)
def test_a_table_is_named_with_a_program_that_converts_it(header: bytes) -> None:
    found = not_text(header + b'\n"2026-11-20T17:45:05Z","w-1","a, ""b"""\n')
    assert found is not None
    assert found[0] == "CSV"
    program = found[1].partition("'")[2].rpartition("'")[0]
    table = b'time,pod,message\n1,w-1,"a ""b"""\n'
    made = subprocess.run([sys.executable, "-c", program], input=table, capture_output=True, check=True).stdout
    assert json.loads(made) == {"time": "1", "pod": "w-1", "message": 'a "b"'}


@pytest.mark.parametrize("start", [b"message\n", b"loss, acc\n1, 2\n", b"log in, please: a, b\n", b"epoch,loss\n1,2\n"])
def test_a_log_with_commas_is_a_log(start: bytes) -> None:
    assert not_text(start) is None


def test_the_hint_reads_a_path_or_what_comes() -> None:
    what = not_text(b"time,message\n")
    assert what is not None
    assert str(no_log(what, "x", "a b.csv", "errors").hint).endswith(" < 'a b.csv' | atlctl errors --from -")
    assert str(no_log(what, "x", "-", "errors").hint).endswith("]' | atlctl errors --from -")


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\0" * 5_000 + b"text\n",
        "训练失败\n".encode("gbk") * 50,
        b"\x1b[31mred\x1b[0m\r10%\r20%\n\x08\x08",
        b"caf\xe9\n",
        b'[{"loss": 0.5}]\nstep 2\n',
        b"[rank0]: x\n",
    ],
)
def test_logs_are_text_whatever_is_in_them(start):
    assert not_text(start) is None
