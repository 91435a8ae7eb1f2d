"""The log writer: the kubelet's format, rotation, and a full disk."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.remote.supervisor.logs import PIECE, CriLog

LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) ([FP]) (.*)", re.DOTALL)


def parsed(folder: Path) -> list[tuple[bytes, bytes, bytes]]:
    """Stream, tag and text of all lines of all files, oldest first."""
    found = []
    for path in [*sorted(folder.glob("0.log.*")), folder / "0.log"]:
        for line in path.read_bytes().split(b"\n")[:-1]:
            match = LINE.fullmatch(line)
            assert match, line
            found.append((match[1], match[2], match[3]))
    return found


def test_lines(tmp_path: Path) -> None:
    log = CriLog(str(tmp_path), 1000, 5)
    log.feed("stdout", b"one\ntw")
    log.feed("stderr", b"other\n")
    log.feed("stdout", b"o\n\nrest")
    log.close()
    assert parsed(tmp_path) == [
        (b"stdout", b"F", b"one"),
        (b"stderr", b"F", b"other"),
        (b"stdout", b"F", b"two"),
        (b"stdout", b"F", b""),
        (b"stdout", b"P", b"rest"),
    ]
    assert os.stat(tmp_path / "0.log").st_mode & 0o777 == 0o600


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7])
@pytest.mark.parametrize("at_once", [True, False])
def test_long_lines_are_cut_into_pieces(tmp_path: Path, size: int, at_once: bool) -> None:
    log = CriLog(str(tmp_path), 1 << 30, 5)
    data = b"x" * size + b"\nnext\n"
    for start in range(0, len(data), len(data) if at_once else 1000):
        log.feed("stdout", data[start : start + (len(data) if at_once else 1000)])
    log.close()
    lines = parsed(tmp_path)
    assert [tag for _, tag, _ in lines[:-1]] == [b"P"] * (len(lines) - 2) + [b"F"]
    assert max(len(text) for _, _, text in lines) <= PIECE
    assert b"".join(text for _, _, text in lines[:-1]) == b"x" * size
    assert lines[-1] == (b"stdout", b"F", b"next")


@given(chunks=st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=50)), max_size=20))
def test_any_bytes_come_back(tmp_path_factory: pytest.TempPathFactory, chunks: list[tuple[str, bytes]]) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = CriLog(str(folder), 300, 1000)
    for stream, data in chunks:
        log.feed(stream, data)
    log.close()
    for stream in ("stdout", "stderr"):
        own = [(tag, text) for name, tag, text in parsed(folder) if name.decode() == stream]
        whole = b"".join(text + (b"\n" if tag == b"F" else b"") for tag, text in own)
        assert whole == b"".join(data for name, data in chunks if name == stream)


def test_rotation_keeps_so_many_files_of_such_a_size(tmp_path: Path) -> None:
    log = CriLog(str(tmp_path), 1000, 3)
    for number in range(200):
        log.feed("stdout", b"line %d\n" % number)
    log.close()
    files = list(tmp_path.iterdir())
    assert len(files) == 3
    assert all(path.stat().st_size <= 1000 for path in files)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    numbers = [int(text.split()[1]) for _, _, text in parsed(tmp_path)]
    assert numbers == list(range(numbers[0], 200)), "the newest lines, none of them lost"


class FullDisk:
    """os.write on a disk with `room` bytes left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self._write = os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, descriptor: int, data: bytes | memoryview) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(descriptor, bytes(data[: self.room]))
        self.room -= written
        return written


def test_a_full_disk_costs_lines_but_never_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = CriLog(str(tmp_path), 10_000, 5)
    log.feed("stdout", b"before\n")
    disk = FullDisk(monkeypatch, room=45)
    log.feed("stdout", b"torn in the middle of it\n")
    log.feed("stdout", b"lost\n")
    assert log.lost == (65 - 45) + (1 + 45), "the rest of the torn line, and the lost one with a newline before it"
    disk.room = 10_000
    log.feed("stdout", b"after\n")
    log.close()
    lines = (tmp_path / "0.log").read_bytes().split(b"\n")
    assert [line[40:] for line in lines] == [b"before", b"torn ", b"after", b""]


def test_a_full_disk_on_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch, room=0)
    log = CriLog(str(tmp_path), 10_000, 5)
    log.feed("stdout", b"lost\n")
    disk.room = 10_000
    log.feed("stdout", b"after\n")
    log.close()
    assert [text for _, _, text in parsed(tmp_path)] == [b"after"]


def test_a_rotation_that_fails_goes_on_in_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = CriLog(str(tmp_path), 100, 5)
    log.feed("stdout", b"first\n")
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", refuse)
    for number in range(5):
        log.feed("stdout", b"%d more than fits into a file\n" % number)
    assert [path.name for path in tmp_path.iterdir()] == ["0.log"]
    monkeypatch.setattr(os, "open", real)
    log.feed("stdout", b"after\n")
    log.close()
    # Finally rotated, without loss.
    assert len(list(tmp_path.iterdir())) == 2
    assert len(parsed(tmp_path)) == 7
    assert log.lost == 0


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "0.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        CriLog(str(tmp_path), 100, 5)
