"""Who the workers were: attempts, what is gone, and the note that the next recorder reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from atlctl.jobs.errors import UsageError
from atlctl.jobs.model import State, Worker
from atlctl.recording.manifest import read_manifest
from atlctl.recording.recorder.ranks import Seat, Seats
from atlctl.recording.recorder.roll import Roll, begun
from atlctl.recording.recorder.store import Store
from atlctl.recording.save import Folder, describe
from tests.unit.recording.recorder.parts import job

FIRST = Worker("worker-0", 0, State.RUNNING, uid="pod-1", pod="train-0-abc", node="gpu-1", started=1e9)
SECOND = Worker("worker-1", 1, State.RUNNING, uid="pod-2", pod="train-1-def", node="gpu-2")
ABOUT = {"backend": "kubernetes", "started": 1.0, "ended": None}


def test_a_restart_keeps_what_was() -> None:
    roll = Roll(job(FIRST), {})
    assert [entry.worker for entry in roll.take(job(FIRST))[0]] == [FIRST]
    roll.entries["worker-0"].seats = Seats([Seat(3, 1, "GPU-1")], [(0, "GPU-1", "0000:3b:00.0")])
    failed = replace(FIRST, state=State.FAILED, exit_code=1, reason="Error")
    roll.take(job(failed))
    again = replace(FIRST, uid="pod-9", pod="train-0-xyz", node="gpu-7")
    assert [entry.run for entry in roll.take(job(again))[1]] == [1]
    data = json.loads(roll.data(ABOUT))["workers"][0]
    (before,) = data["attempts"]
    assert (before["pod"], before["node"], before["exit_code"]) == ("train-0-abc", "gpu-1", 1)
    assert before["ranks"] == [{"rank": 3, "local_rank": 1, "gpu_uuid": "GPU-1"}]
    assert (data["pod"], data["ranks"]) == ("train-0-xyz", [])


def test_a_worker_whose_pod_is_gone_stays() -> None:
    roll = Roll(job(FIRST, SECOND), {})
    roll.take(job(FIRST, SECOND))
    roll.take(job(SECOND))
    found = read_manifest(roll.data(ABOUT))
    assert [(item.name, item.state) for item in found.workers] == [
        ("worker-0", State.UNKNOWN),
        ("worker-1", State.RUNNING),
    ]
    assert found.workers[0].platform.reason == "its pod is gone"
    ended = replace(SECOND, state=State.FAILED)
    roll.take(job(FIRST, ended))
    roll.take(job(FIRST))
    assert roll.entries["worker-1"].shown.state is State.FAILED


def test_the_next_recorder_knows_the_one_before() -> None:
    roll = Roll(job(FIRST, SECOND), {})
    roll.take(job(FIRST, SECOND))
    roll.entries["worker-0"].held = True
    roll.entries["worker-0"].seats.roots.add("/tmp/torchelastic_x/run")
    before = json.loads(roll.data(ABOUT))
    after = Roll(job(FIRST), before)
    assert after.earlier(FIRST) == ("pod-1", 0)
    new, _ = after.take(job(FIRST))
    assert new[0].shown.state is State.HELD
    assert new[0].seats.roots == {"/tmp/torchelastic_x/run"}
    assert [item["name"] for item in json.loads(after.data(ABOUT))["workers"]] == ["worker-0", "worker-1"]
    other = Roll(job(FIRST), before)
    new, _ = other.take(job(replace(FIRST, restarts=1)))
    assert (new[0].run, new[0].held, len(new[0].attempts)) == (1, False, 1)


def test_only_the_recording_of_this_job_is_gone_on_with(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "out"))
    assert begun(store, job(FIRST)) == {}
    store.replace("atlctl.json", Roll(job(FIRST), {}).data(ABOUT))
    assert begun(store, job(FIRST))["recorder"]["backend"] == "kubernetes"
    with pytest.raises(UsageError, match="recording of another job"):
        begun(store, job(FIRST, uid="uid-2"))
    saved = Folder(str(tmp_path / "saved"))
    saved.write("atlctl.json", describe(job(FIRST)))
    with pytest.raises(UsageError, match="saved logs, and no recording"):
        begun(Store(str(tmp_path / "saved")), job(FIRST))
