"""One worker's log across disconnections, restarts and full disks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from atlctl.backends.base import LogLine
from atlctl.jobs import statedir
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import State, Worker
from atlctl.recording.recorder import follow
from atlctl.recording.recorder.follow import SLACK, Follower, WorkerLog, when_of
from atlctl.recording.recorder.store import Store
from atlctl.recording.save import stamped
from tests.unit.recording.recorder.parts import SECOND, Source, close, job, lines, recorded

WORKER = Worker("worker-0", 0, State.RUNNING, uid="pod-1", started=SECOND / 1e9)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PAUSES", (0.0,))


class Run:
    """A recorder with one worker."""

    def __init__(self, folder: Path, source: Source, worker: Worker = WORKER) -> None:
        self.store = Store(str(folder))
        self.came: list[bytes] = []
        self.failed: list[bytes] = []
        self.begun = 0
        self.stuck: list[str] = []
        self.follower = Follower(
            source,
            job(worker),
            worker,
            WorkerLog(self.store, "worker-0", 1 << 20, close),
            came=lambda _, data: self.came.append(data),
            failed=lambda _, data: self.failed.append(data),
            begun=lambda _: setattr(self, "begun", self.begun + 1),
            stuck=lambda _, why, __: self.stuck.append(why),
        )

    def go(self, before: tuple[str | None, int] | None = None) -> Run:
        async def main() -> None:
            self.follower.start(before)
            async with asyncio.timeout(100):
                while not self.follower.ended:  # noqa: ASYNC110 - it sets no event
                    await asyncio.sleep(0)
            await self.follower.stop()

        asyncio.run(main())
        self.store.close()
        return self


def test_breaks_cost_nothing(tmp_path: Path) -> None:
    source = Source(lines(0, 1000), [AtlctlError("no"), 100, 333, AtlctlError("again"), 5, None])
    run = Run(tmp_path / "out", source).go()
    assert recorded(tmp_path / "out") == list(range(1000))
    assert run.follower.problem == ""
    assert len(source.requests) == 6


def test_the_next_recorder_goes_on(tmp_path: Path) -> None:
    log = lines(0, 900)
    Run(tmp_path / "out", Source(log[:400], [None])).go()
    source = Source(log, [None])
    Run(tmp_path / "out", source).go(("pod-1", 0))
    assert recorded(tmp_path / "out") == list(range(900))
    assert source.requests[0].since is not None  # not everything


def test_a_new_pod_whose_log_begins_at_an_earlier_time(tmp_path: Path) -> None:
    """Its node's clock is behind, so the last line's time must not be used for the request."""
    Run(tmp_path / "out", Source(lines(5000, 10), [None])).go()
    other = replace(WORKER, uid="pod-2", started=SECOND / 1e9)
    Run(tmp_path / "out", Source(lines(0, 20), [None]), other).go(("pod-1", 0))
    assert recorded(tmp_path / "out") == [*range(5000, 5010), *range(20)]


def test_a_restart_that_the_recorder_did_not_see(tmp_path: Path) -> None:
    """The end of the previous run is fetched, and the new run from its beginning."""
    Run(tmp_path / "out", Source(lines(0, 100), [None])).go()
    source = Source(lines(1000, 50), [None])
    source.previous = lines(0, 150)
    started = replace(WORKER, restarts=1, started=SECOND / 1e9 + 9)
    Run(tmp_path / "out", source, started).go(("pod-1", 0))
    assert recorded(tmp_path / "out") == [*range(150), *range(1000, 1050)]


def test_a_run_that_is_gone_is_a_gap(tmp_path: Path) -> None:
    Run(tmp_path / "out", Source(lines(0, 100), [None])).go()
    source = Source(lines(1000, 5), [None])
    source.previous = AtlctlError("its node has no log of it")
    run = Run(tmp_path / "out", source, replace(WORKER, restarts=2)).go(("pod-1", 0))
    assert run.follower.gaps == ["the end of its log before the restart is lost (its node has no log of it)"]


def test_a_full_disk_is_said_once_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    real, tries = statedir.write_all, iter(range(100))

    def sometimes(fd: int, data: bytes) -> None:
        if next(tries) in (1, 2, 5):
            raise OSError(28, "No space left on device")
        real(fd, data)

    monkeypatch.setattr("atlctl.recording.recorder.follow.write_all", sometimes)
    run = Run(tmp_path / "out", Source(lines(0, 300), [])).go()
    assert recorded(tmp_path / "out") == list(range(300))
    assert run.stuck[0] == "cannot be written: No space left on device"
    assert len(run.stuck) == 2  # and again, for the second time


def test_signs_of_a_trainer_are_told(tmp_path: Path) -> None:
    said = [
        b"Setting OMP_NUM_THREADS environment variable for each process to be 1",
        *[b"000001 step"] * 10,
        b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        *[b"-----"] * 10,
        b"  error_file: /tmp/torchelastic_x/run_y/attempt_0/0/error.json",
    ]
    log = [LogLine(SECOND + at, "stdout", text) for at, text in enumerate(said)]
    run = Run(tmp_path / "out", Source(log, [None])).go()
    assert run.begun == 1
    assert [b"ChildFailedError" in data or b"error_file" in data for data in run.failed] == [True, True]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "out"))


def log_of(store: Store, keep: int = 1 << 20) -> WorkerLog:
    return WorkerLog(store, "worker-0", keep, close)


def again(store: Store, keep: int = 1 << 20) -> WorkerLog:
    """The log as found by the next recorder, which requests lines from the last timestamp on."""
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
        assert log.size <= 8000 + 2000 + 600  # one more segment and one batch
    kept = recorded(Path(store.path))
    assert kept == list(range(kept[0], 1000))
    assert 130 < len(kept) < 200  # lines of 58 bytes
    assert log.cut
    assert "worker-0.ts.log" not in store.names()


def test_what_comes_again_is_left_out(store: Store) -> None:
    log_of(store).take(lines(0, 500))
    log = again(store)
    assert log.last == SECOND + 499 * 10**7
    log.take(lines(350, 200))  # more than 1 s before the last line, as requested
    log.take(lines(550, 200))
    assert recorded(Path(store.path)) == list(range(750))


def test_equal_lines_are_counted(store: Store) -> None:
    same = LogLine(SECOND, "stdout", b"000001 same")
    log_of(store).take([same] * 3)
    log = again(store)
    log.take([same] * 5)
    assert recorded(Path(store.path)) == [1] * 5


def test_an_older_line_that_is_new_is_taken(store: Store) -> None:
    """Standard output and standard error have independent timestamps."""
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
        patched.setattr("atlctl.recording.recorder.follow.write_all", full)
        with pytest.raises(OSError, match="No space"):
            log.take(lines(5, 5))
    assert recorded(Path(store.path)) == list(range(5))
    log.take(lines(5, 5))
    assert recorded(Path(store.path)) == list(range(10))
