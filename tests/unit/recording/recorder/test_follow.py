"""One worker's log through breaks, restarts and full disks."""

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
from atlctl.recording.recorder.follow import Follower
from atlctl.recording.recorder.segments import WorkerLog
from atlctl.recording.recorder.store import Store
from tests.unit.recording.recorder.parts import SECOND, Source, close, job, lines, recorded

WORKER = Worker("worker-0", 0, State.RUNNING, uid="pod-1", started=SECOND / 1e9)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PAUSES", (0.0,))


class Run:
    """A recorder's life with one worker."""

    def __init__(self, folder: Path, source: Source, worker: Worker = WORKER) -> None:
        self.store = Store(str(folder))
        self.failed: list[bytes] = []
        self.begun = 0
        self.stuck: list[str] = []
        self.follower = Follower(
            source,
            job(worker),
            worker,
            WorkerLog(self.store, "worker-0", 1 << 20, close),
            failed=lambda _, data: self.failed.append(data),
            begun=lambda _: setattr(self, "begun", self.begun + 1),
            stuck=lambda _, why: self.stuck.append(why),
        )

    def go(self, before: tuple[str | None, int] | None = None) -> Run:
        async def main() -> None:
            self.follower.start(before)
            async with asyncio.timeout(5):
                while not self.follower.ended:  # noqa: ASYNC110 - it tells nobody
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
    assert source.requests[0].since is not None  # not all of it


def test_a_new_pod_whose_log_begins_at_an_earlier_time(tmp_path: Path) -> None:
    """Its node's clock is behind: nothing may be asked for by the time of the last line."""
    Run(tmp_path / "out", Source(lines(5000, 10), [None])).go()
    other = replace(WORKER, uid="pod-2", started=SECOND / 1e9)
    Run(tmp_path / "out", Source(lines(0, 20), [None]), other).go(("pod-1", 0))
    assert recorded(tmp_path / "out") == [*range(5000, 5010), *range(20)]


def test_a_restart_that_the_recorder_did_not_see(tmp_path: Path) -> None:
    """The end of the run before is fetched, and the new run from its begin."""
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
    assert run.follower.gaps == ["the end of the run before its restart is gone (its node has no log of it)"]


def test_a_full_disk_is_said_once_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    real, tries = statedir.write_all, iter(range(100))

    def sometimes(fd: int, data: bytes) -> None:
        if next(tries) in (1, 2, 5):
            raise OSError(28, "No space left on device")
        real(fd, data)

    monkeypatch.setattr("atlctl.recording.recorder.segments.write_all", sometimes)
    run = Run(tmp_path / "out", Source(lines(0, 300), [])).go()
    assert recorded(tmp_path / "out") == list(range(300))
    assert run.stuck[0] == "cannot be written: No space left on device"
    assert len(run.stuck) == 2  # and once more, for the second time


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
