"""A recorded log: bounded, gone on with after any end, each line once."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlctl.backends.base import LogLine
from atlctl.recording.recorder.segments import SLACK, WorkerLog, when_of
from atlctl.recording.recorder.store import Store
from atlctl.recording.save import stamped
from tests.unit.recording.recorder.parts import SECOND, close, lines, recorded


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "out"))


def log_of(store: Store, keep: int = 1 << 20) -> WorkerLog:
    return WorkerLog(store, "worker-0", keep, close)


def again(store: Store, keep: int = 1 << 20) -> WorkerLog:
    """As the next recorder finds it, which asks for the lines from the last stamp on."""
    log = log_of(store, keep)
    log.expect(None if log.last is None else log.last - SLACK)
    return log


def test_a_stamp_is_read_as_it_was_written() -> None:
    assert when_of(stamped(LogLine(SECOND + 5, "stdout", b"2026 text"))) == SECOND + 5
    for odd in (b"", b"text without a stamp, which is long enough", b"2026-11-20T18:40:00Z text of a line of others"):
        assert when_of(odd) is None


def test_the_last_bytes_are_kept_and_no_file_is_renamed(store: Store) -> None:
    log = log_of(store, keep=8000)
    for start in range(0, 1000, 10):
        log.take(lines(start, 10))
        assert log.size <= 8000 + 2000 + 600  # one segment more, and one batch
    kept = recorded(Path(store.path))
    assert kept == list(range(kept[0], 1000))
    assert 130 < len(kept) < 200  # lines of 58 bytes
    assert log.cut
    assert "worker-0.ts.log" not in store.names()


def test_what_comes_again_is_left_out(store: Store) -> None:
    log_of(store).take(lines(0, 500))
    log = again(store)
    assert log.last == SECOND + 499 * 10**7
    log.take(lines(350, 200))  # more than 1 s before the last line, as it was asked for
    log.take(lines(550, 200))
    assert recorded(Path(store.path)) == list(range(750))


def test_equal_lines_are_counted(store: Store) -> None:
    same = LogLine(SECOND, "stdout", b"000001 same")
    log_of(store).take([same] * 3)
    log = again(store)
    log.take([same] * 5)
    assert recorded(Path(store.path)) == [1] * 5


def test_an_older_line_that_is_new_is_taken(store: Store) -> None:
    """Standard output and standard error are stamped one beside the other."""
    log_of(store).take([*lines(0, 10), *lines(20, 10)])
    again(store).take([*lines(0, 30), *lines(30, 5)])
    assert sorted(recorded(Path(store.path))) == list(range(35))


def test_lines_that_were_rotated_away_do_not_come_back(store: Store) -> None:
    log_of(store, keep=4000).take(lines(0, 10))
    log = log_of(store, keep=4000)
    for start in range(10, 500, 10):
        log.take(lines(start, 10, step=10**6))
    first = recorded(Path(store.path))[0]
    assert first > 10
    again(store, keep=4000).take([*lines(0, 10), *lines(10, 500, step=10**6)])
    kept = recorded(Path(store.path))
    assert kept == list(range(kept[0], 510))


def test_a_line_that_a_crash_has_cut_is_fetched_again(store: Store) -> None:
    log_of(store).take(lines(0, 50))
    path = Path(store.path, "worker-0.ts.log")
    path.write_bytes(path.read_bytes()[:-10])
    again(store).take(lines(0, 60))
    assert recorded(Path(store.path)) == list(range(60))


def test_one_that_is_only_a_torn_line(store: Store) -> None:
    Path(store.path, "worker-0.ts.log").write_bytes(b"2026-11-20T18:4")
    log = again(store)
    assert log.last is None
    log.take(lines(0, 3))
    assert recorded(Path(store.path)) == [0, 1, 2]


def test_lines_without_a_stamp(store: Store) -> None:
    odd = LogLine(None, "stdout", b"torn")
    log_of(store).take([*lines(0, 2), odd])
    again(store).take([*lines(0, 2), odd, odd])
    assert Path(store.path, "worker-0.ts.log").read_bytes().count(b"torn\n") == 2


def test_a_write_that_fails_leaves_whole_lines(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(store)
    log.take(lines(0, 5))

    def full(fd: int, data: bytes) -> None:
        import os

        os.write(fd, data[:30])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("atlctl.recording.recorder.segments.write_all", full)
        with pytest.raises(OSError, match="No space"):
            log.take(lines(5, 5))
    assert recorded(Path(store.path)) == list(range(5))
    log.take(lines(5, 5))
    assert recorded(Path(store.path)) == list(range(10))
