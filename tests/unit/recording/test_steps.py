"""Training steps in evidence: `steps.jsonl`, written and read, and the tracks of saved logs."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from atlctl.diagnosis import stepfile
from atlctl.diagnosis.stepfile import STEPS, StepsFile, read_recorded, thinned
from atlctl.diagnosis.stepwatch import StepWatch
from atlctl.jobs.errors import AtlctlError
from atlctl.recording.recorder.store import Store
from atlctl.recording.steps import tracks_of
from tests.support.paces import START, Made, lines_of, slowed


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = Store(str(tmp_path / "out"))
    yield made
    made.close()


def written(store: Store, made: Made, worker: str = "w-0") -> None:
    watch, file = StepWatch(), StepsFile(store)
    for line, at in lines_of(made, "stamps"):
        watch.feed(worker, line, at)
        file.add(watch.fresh())
    file.add(watch.rest())


def test_what_is_written_is_read(store: Store) -> None:
    written(store, slowed(random.Random(1), 3), "w-1")
    written(store, Made([1.0] * 50), "w-0")
    found = read_recorded(store.path)
    assert list(found) == ["w-0", "w-1"]
    (track,) = found["w-1"]
    (slow,) = track.slowdowns
    assert (slow.first, round(slow.factor)) == (201, 3)
    assert (track.number, track.loop) == (400, "plain step")
    assert oct((Path(store.path) / STEPS).stat().st_mode & 0o777) == "0o600"


def test_the_last_steps_are_read_from_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepfile, "_LAST", 2_000)
    written(store, Made([1.0] * 400))
    (track,) = read_recorded(store.path, last=True)["w-0"]
    assert track.number == 400
    assert len(track.points) < 30


def test_the_file_is_thinned_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepfile, "LIMIT", 80_000)
    written(store, slowed(random.Random(1), 3, at=1000))
    assert (Path(store.path) / STEPS).stat().st_size <= 80_000
    (track,) = read_recorded(store.path)["w-0"]
    assert (track.points[0].number < 100, track.number) == (True, 2000)
    assert 2.5 < track.slowdowns[0].factor < 3.5


def test_thinned_is_even_for_each_loop() -> None:
    lines = [
        b'{"worker":"%s","loop":"a","step":%d,"time":%d,"x":1}\n' % (name, step, START + step)
        for step in range(400)
        for name in (b"x", b"y")
    ]
    data = b"".join(lines)
    kept = thinned(data, len(data) // 2).splitlines(keepends=True)
    assert kept[:4] == [*lines[:2], *lines[8:10]]
    assert kept[-200:] == lines[-200:]
    assert len(kept) == 350
    assert thinned(b"".join(kept), len(data) // 2) == b"".join(kept)


def test_hostile_entries_are_skipped(tmp_path: Path) -> None:
    good = {"worker": "w", "loop": "a", "step": 2, "first": 1, "seconds": 1.5}
    bad: list[Any] = [
        *({**good, key: []} for key in ("worker", "step", "first", "seconds")),
        *({**good, key: None} for key in ("worker", "step", "first", "seconds")),
        {**good, "step": -1},
        {**good, "seconds": -1},
        {**good, "seconds": float("inf")},
        {**good, "first": 9},
        [],
        None,
    ]
    lines = [*map(json.dumps, bad), "{", "\0", json.dumps({**good, "time": "x", "rank": "y", "loss": []})]
    (tmp_path / STEPS).write_text("\n".join(lines) + "\n" + json.dumps(good)[:-4])
    found = read_recorded(str(tmp_path))
    assert [(track.number, track.last, track.origin.rank) for track in found["w"]] == [(2, None, None)]


def test_no_file_is_an_empty_one(tmp_path: Path) -> None:
    assert read_recorded(str(tmp_path)) == {}
    (tmp_path / STEPS).symlink_to("/etc/passwd")
    assert read_recorded(str(tmp_path)) == {}


# --- saved logs -----------------------------------------------------------------------------------------------------


def log(count: int = 50, prefix: bytes = b"") -> bytes:
    return b"".join(
        b"2026-11-20T17:%02d:%02d.000000000Z %sstep %d loss 2.3\n" % (step // 60, step % 60, prefix, step)
        for step in range(count)
    )


def test_tracks_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "w-10.ts.log").write_bytes(log())
    (tmp_path / "w-2.ts.log").write_bytes(log(30))
    (tmp_path / "w-3.log").write_bytes(b"nothing\n")
    found = tracks_of([str(tmp_path)], "slow").workers
    assert [(name, [track.number for track in tracks]) for name, tracks in found.items()] == [
        ("w-2", [29]),
        ("w-10", [49]),
    ]


def test_tracks_of_a_file_and_of_ranks_in_it(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(log(prefix=b"[rank1]: ") + log(prefix=b"[rank0]: "))
    found = tracks_of([str(path)], "slow").workers
    assert [[track.origin.rank for track in tracks] for tracks in found.values()] == [[0, 1]]


def test_tracks_of_a_merged_log(tmp_path: Path) -> None:
    path = tmp_path / "all.log"
    path.write_bytes(b"".join(b"[pod/w-%d/main] step %d loss 2.3\n" % (n % 2, n // 2) for n in range(100)))
    timed = b"".join(
        b"[pod/w-%d/main] 2026-11-20T17:00:%02d.000000000Z step %d loss 2.3\n" % (n % 2, n // 2, n // 2)
        for n in range(100)
    )
    assert tracks_of([str(path)], "slow").workers == {}  # no times
    path.write_bytes(timed)
    assert list(tracks_of([str(path)], "slow").workers) == ["w-0", "w-1"]


def test_tracks_of_ranks_whose_output_was_redirected(tmp_path: Path) -> None:
    (tmp_path / "w-0.log").write_bytes(b"nothing\n")
    for rank in (0, 1):
        folder = tmp_path / "w-0" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_bytes(
            b"".join(b"iter %d: loss 2.3, time 300.00ms\n" % step for step in range(40))
        )
    (tracks,) = tracks_of([str(tmp_path)], "slow").workers.values()
    assert [(track.origin.local_rank, track.number, track.usual) for track in tracks] == [(0, 39, 0.3), (1, 39, 0.3)]


def test_tracks_of_a_log_with_more_steps_than_failures_are_read(tmp_path: Path) -> None:
    (tmp_path / "w-0.log").write_bytes(b"".join(b"iter %d: loss 2.3, time 300.00ms\n" % n for n in range(40_000)))
    (tracks,) = tracks_of([str(tmp_path)], "slow").workers.values()
    assert [(track.points[0].first, track.number) for track in tracks] == [(0, 39_999)]


def test_tracks_of_a_recording_are_those_that_it_kept(store: Store) -> None:
    written(store, Made([1.0] * 50))
    (Path(store.path) / "w-0.ts.log").write_bytes(log(500))
    (tracks,) = tracks_of([store.path], "slow").workers.values()
    assert tracks[0].last == pytest.approx(START + 50)


def test_tracks_of_what_is_not_a_log(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(os.urandom(10_000))
    with pytest.raises(AtlctlError, match="binary data"):
        tracks_of([str(tmp_path / "x")], "slow")
    with pytest.raises(AtlctlError, match="No such file"):
        tracks_of([str(tmp_path / "y")], "slow")
