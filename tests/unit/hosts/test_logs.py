"""The log reader: across rotations without losses or duplicates, whatever the files contain."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.backends.base import PREVIOUS, LogLine, LogRequest
from atlctl.backends.hosts import logs
from atlctl.jobs.errors import AtlctlError
from atlctl.remote.supervisor.logs import CriLog, Reader


def read(folder: Path, request: LogRequest | None = None) -> list[LogLine]:
    async def main() -> list[LogLine]:
        return [line async for batch in logs.read(str(folder), request or LogRequest(), None) for line in batch]

    return asyncio.run(asyncio.wait_for(main(), 100))


def write(folder: Path, count: int, size: int, keep: int = 1000, first: int = 0) -> None:
    log = CriLog(str(folder), size, keep)
    for number in range(first, first + count):
        log.feed("stdout", b"%d\n" % number)
    log.close()


def numbers(lines: list[LogLine]) -> list[int]:
    return [int(line.data) for line in lines]


def test_all_files_oldest_first(tmp_path: Path) -> None:
    write(tmp_path, 1000, size=1000)
    assert len(list(tmp_path.iterdir())) > 20
    assert numbers(read(tmp_path)) == list(range(1000))


@pytest.mark.parametrize("tail", [0, 1, 10, 99, 500, 1000, 2000])
def test_tail_over_many_files(tmp_path: Path, tail: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PIECES", 0)
    write(tmp_path, 1000, size=1000)
    assert numbers(read(tmp_path, LogRequest(tail=tail))) == list(range(1000))[max(0, 1000 - tail) :]


def test_no_log_at_all(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    assert read(tmp_path / "missing") == []
    assert read(tmp_path, LogRequest(tail=5)) == []


def test_the_log_of_the_attempt_before(tmp_path: Path) -> None:
    wanted = LogRequest(attempt=PREVIOUS)
    for name in ("log", "log.new", "exit.json.1"):
        (tmp_path / name).mkdir()
    with pytest.raises(AtlctlError, match="its first attempt"):
        logs.folder_of(str(tmp_path), wanted)
    for number in (9, 10):
        (tmp_path / f"log.{number}").mkdir()
    assert logs.folder_of(str(tmp_path), wanted) == f"{tmp_path}/log.10"
    assert logs.folder_of(str(tmp_path), LogRequest()) == f"{tmp_path}/log"


def test_lines_that_are_no_lines_are_shown(tmp_path: Path) -> None:
    """A full disk or manual editing: no content is skipped."""
    (tmp_path / "0.log").write_bytes(
        b"garbage\n\n2026-11-20T17:45:05.757882235Z stdout X what\n2026-13-99T17:45:05.7Z stdout F when\n"
        b"2026-11-20T17:45:05.757882235Z stderr F fine\n\xff\xfe\x00\n2026-11-20T17:45:05.75"
    )
    lines = read(tmp_path)
    assert [(line.time is None, line.data) for line in lines] == [
        (True, b"garbage"),
        (True, b""),
        (True, b"2026-11-20T17:45:05.757882235Z stdout X what"),
        (True, b"2026-13-99T17:45:05.7Z stdout F when"),
        (False, b"fine"),
        (True, b"\xff\xfe\x00"),
    ]
    assert lines[4].stream == "stderr"
    assert lines[4].time == 1795196705757882235


@given(st.binary(max_size=300))
def test_any_file_can_be_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("log")
    (folder / "0.log").write_bytes(data)
    read(folder)
    read(folder, LogRequest(tail=2, since=1.0))


def test_a_line_without_end_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LINE", 100_000)
    log = CriLog(str(tmp_path), 1 << 30, 5)
    log.feed("stdout", b"x" * 1_000_000)
    log.feed("stdout", b"y\n")
    log.close()
    lines = read(tmp_path)
    assert len(lines) > 5
    assert b"".join(line.data for line in lines) == b"x" * 1_000_000 + b"y"
    assert [line.complete for line in lines] == [False] * (len(lines) - 1) + [True]


def test_streams_are_joined_each_for_itself(tmp_path: Path) -> None:
    log = CriLog(str(tmp_path), 1 << 30, 5)
    log.feed("stdout", b"o" * 40_000)
    log.feed("stderr", b"short\n")
    log.feed("stdout", b"\n")
    log.close()
    assert [(line.stream, len(line.data)) for line in read(tmp_path)] == [("stderr", 5), ("stdout", 40_000)]


@pytest.mark.parametrize("tail", [None, 0, 3])
def test_follow_through_rotation_without_loss_or_doubles(tmp_path: Path, tail: int | None) -> None:
    """The writer rotates every few lines during the read."""
    total = 4000
    write(tmp_path, 10, size=1 << 20)

    def work() -> None:
        log = CriLog(str(tmp_path), 600, 100_000)
        log._size = 600  # like the same writer
        for number in range(10, total):
            log.feed("stdout", b"%d\n" % number)
        log.close()

    async def main() -> list[int]:
        ended = asyncio.Event()
        writing = asyncio.create_task(asyncio.to_thread(work))
        writing.add_done_callback(lambda _: ended.set())
        found: list[int] = []
        async for batch in logs.read(str(tmp_path), LogRequest(follow=True, tail=tail), ended.is_set):
            found += numbers(list(batch))
        await writing
        return found

    found = asyncio.run(asyncio.wait_for(main(), 100))
    assert found == list(range(found[0], total))
    if tail is None:
        assert found[0] == 0


def texts(reader: Reader) -> list[int]:
    """The numbers in all available lines."""
    return [int(line.split(b" ", 3)[3]) for block in reader.blocks() for line in block.splitlines()]


@pytest.mark.parametrize("moment", range(1, 27))
def test_rotation_at_any_moment_of_a_look(tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotation between any two file system calls of the reader."""
    log = CriLog(str(tmp_path), 1 << 20, 100)
    state = {"calls": 0, "number": 3}

    def rotate() -> None:
        for _ in range(2):
            log._rotate()
            log.feed("stdout", b"%d\n" % state["number"])
            state["number"] += 1

    def watched(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object, **options: object) -> object:
            result = real(*args, **options)
            state["calls"] += 1
            if state["calls"] == moment:
                monkeypatch.undo()
                rotate()
            return result

        monkeypatch.setattr(os, name, call)

    log.feed("stdout", b"0\n")
    log._rotate()
    log.feed("stdout", b"1\n")
    log._rotate()
    log.feed("stdout", b"2\n")
    reader = Reader(str(tmp_path))
    for name in ("listdir", "stat", "fstat"):
        watched(name)
    found = texts(reader)
    assert state["number"] > 3, "there was no such moment"
    monkeypatch.undo()
    found += texts(reader)
    reader.close()
    log.close()
    assert found == list(range(state["number"]))


def test_a_reader_slower_than_the_rotation_goes_on_with_what_is_left(tmp_path: Path) -> None:
    write(tmp_path, 5, size=1 << 20)
    reader = Reader(str(tmp_path))
    assert texts(reader) == list(range(5))
    for path in tmp_path.iterdir():
        path.unlink()
    write(tmp_path, 1000, size=500, keep=3, first=100)
    rest = texts(reader)
    reader.close()
    assert rest == list(range(rest[0], 1100)), "the newest lines, each once"


def test_many_followers_share_a_thread(tmp_path: Path) -> None:
    """Following needs no separate thread."""
    write(tmp_path, 5, size=1 << 20)
    before = threading.active_count()

    async def main() -> int:
        ended = asyncio.Event()

        async def one() -> int:
            return sum([len(batch) async for batch in logs.read(str(tmp_path), LogRequest(follow=True), ended.is_set)])

        tasks = [asyncio.create_task(one()) for _ in range(50)]
        await asyncio.sleep(0.2)
        assert threading.active_count() == before
        ended.set()
        return sum(await asyncio.gather(*tasks))

    assert asyncio.run(asyncio.wait_for(main(), 100)) == 250
