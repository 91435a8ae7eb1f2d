"""Events and states: each once, also over a restart of the recorder, and bounded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atlctl.jobs.model import State, Worker
from atlctl.recording.recorder import happenings
from atlctl.recording.recorder.happenings import Events, States
from atlctl.recording.recorder.store import Store

WORKER = Worker("worker-0", 0, State.RUNNING)


def event(uid: str, version: int = 1, message: str = "pulled") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}, "reason": "Pulled", "message": message}


def written(store: Store, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(store.path, name).read_text().splitlines() if line]


def test_each_form_of_an_event_once(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "out"))
    events = Events(store)
    events.take([event("a"), event("b")])
    events.take([event("a"), event("b", 2)])
    Events(store).take([event("a"), event("b", 2), event("c")])
    assert [(e["metadata"]["uid"], e["metadata"]["resourceVersion"]) for e in written(store, "events.jsonl")] == [
        ("a", "1"),
        ("b", "1"),
        ("b", "2"),
        ("c", "1"),
    ]


def test_a_cut_line_spoils_no_other(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "out"))
    Events(store).take([event("a"), event("b")])
    path = Path(store.path, "events.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    Events(store).take([event("a"), event("b")])
    good = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["metadata"]["uid"] for line in good] == ["a", "b"]


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(happenings, "LIMIT", 10_000)
    store = Store(str(tmp_path / "out"))
    events = Events(store)
    for number in range(500):
        events.take([event(f"uid-{number}", message="x" * 100)])
        assert Path(store.path, "events.jsonl").stat().st_size < 10_500
    assert written(store, "events.jsonl")[-1]["metadata"]["uid"] == "uid-499"


def test_changes_of_states(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "out"))
    states = States(store)
    states.take([WORKER])
    states.take([WORKER])
    failed = replace(WORKER, state=State.FAILED, exit_code=1)
    states.take([failed])
    States(store).take([failed])
    assert [item["state"] for item in written(store, "states.jsonl")] == ["Running", "Failed"]
