from __future__ import annotations

import os
import stat
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.jobs.errors import UsageError
from atlctl.recording.report import folder as module
from atlctl.recording.report.folder import ReportFolder, hidden, kept_name

SECRET = b"HF_TOKEN=CANARY-CANARY"


@pytest.fixture
def made(tmp_path):
    before = os.umask(0)
    folder = ReportFolder(str(tmp_path / "report"))
    yield folder
    folder.close()
    os.umask(before)


def put_log(made, tmp_path, data: bytes, skip: int = 0) -> bytes:
    source = tmp_path / "source.log"
    source.write_bytes(data)
    fd = os.open(source, os.O_RDONLY)
    try:
        made.put_log(["out.log"], fd, skip)
    finally:
        os.close(fd)
    written: bytes = (tmp_path / "report" / "out.log").read_bytes()
    return written


def test_modes_are_private_under_any_umask(made, tmp_path):
    made.put(["worker-0", "tmp", "error.json"], b"{}")
    made.put(["index.html"], b"")
    modes = {
        path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in [tmp_path / "report", *(tmp_path / "report").rglob("*")]
    }
    assert modes == {
        "report": 0o700,
        "report/worker-0": 0o700,
        "report/worker-0/tmp": 0o700,
        "report/worker-0/tmp/error.json": 0o600,
        "report/index.html": 0o600,
    }
    assert made.files() == [("index.html", 0), ("worker-0/tmp/error.json", 2)]


def test_nothing_is_overwritten_and_no_link_is_followed(made, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "report" / "link").symlink_to(outside)
    (tmp_path / "report" / "file").write_text("mine")
    for parts in (["link", "x"], ["file"], ["file", "x"]):
        with pytest.raises(OSError, match=r"link|file"):
            made.put(parts, b"other")
    assert ((tmp_path / "report" / "file").read_text(), list(outside.iterdir())) == ("mine", [])


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "-x", "~x", "a\nb", "a\x1bb", "\u202ex", "x" * 300, "a\\b", "", " x", "\udcff"]
)
def test_names_that_do_harm_are_written_in_another_way(made, name):
    assert kept_name(name) != name
    made.put([name], b"x")
    ((found, _),) = made.files()
    assert "/" not in found
    assert found.isprintable()


@pytest.mark.parametrize("name", ["worker-0", "train 7.ts.log", "训练-0", "a.b_c@d", "attempt_0"])
def test_other_names_stay(name):
    assert kept_name(name) == name


def test_a_log_keeps_its_lines(made, tmp_path):
    data = b"one\r\ntwo\rthree\n" + SECRET + b"\n\n\x00\xff last"
    assert put_log(made, tmp_path, data) == data.replace(b"CANARY-CANARY", b"[redacted]")
    assert made.places() == 1


def test_only_the_end_of_a_log(made, tmp_path):
    assert put_log(made, tmp_path, b"1234\n5678\n90\n", skip=5) == b"5678\n90\n"
    assert put_log_again(made, tmp_path) == b"90\n"


def put_log_again(made, tmp_path) -> bytes:
    os.unlink(tmp_path / "report" / "out.log")
    return put_log(made, tmp_path, b"1234\n5678\n90\n", skip=6)


@given(
    st.lists(st.sampled_from([b"step 1\n", SECRET + b"\n", SECRET, b" ", b"x" * 40, b"\n"]), max_size=30),
    st.integers(1, 60),
)
def test_where_chunks_are_cut_does_not_matter(pieces, size):
    data = b"".join(pieces)
    chunks = (data[at : at + size] for at in range(0, len(data), size))
    assert b"".join(hidden(chunks, Counter())) == b"".join(hidden(iter([data]), Counter()))


def test_a_line_without_an_end_takes_little_memory(monkeypatch):
    monkeypatch.setattr(module, "_LINE", 1_000)
    data = (b"y" * 90 + b" " + SECRET + b" ") * 50
    held = [len(piece) for piece in hidden((data[at : at + 100] for at in range(0, len(data), 100)), Counter())]
    assert max(held) < 2_000
    assert b"CANARY" not in b"".join(hidden((data[at : at + 100] for at in range(0, len(data), 100)), Counter()))


def test_places_are_counted_over_the_edges_of_reads(made, monkeypatch):
    made.put(["a"], b"x[redacted][redacted]y" * 20)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert made.places() == 40


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(UsageError, match="not empty") as refused:
        ReportFolder(str(tmp_path))
    assert "--no-save" not in str(refused.value.hint)
