"""The folder of a recording: owner, write permissions, and links that are not followed."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atlctl.jobs.errors import NotAllowed, UsageError
from atlctl.jobs.model import State, Worker
from atlctl.recording.recorder import store as storing
from atlctl.recording.recorder.store import Events, States, Store, create_in


def test_folders_and_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(str(tmp_path / "out"))
        store.replace("atlctl.json", b"{}")
        os.close(store.append("worker-0.ts.log"))
        os.close(create_in(store.below(["worker-0", "run-0"]), "error.json"))
    finally:
        os.umask(before)
    for path in (tmp_path / "out").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_one_recorder_at_a_time(tmp_path: Path) -> None:
    first = Store(str(tmp_path / "out"))
    with pytest.raises(UsageError, match="another recorder writes"):
        Store(first.path)
    first.close()
    Store(first.path).close()


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    tmp_path.joinpath("thesis.tex").touch()
    with pytest.raises(UsageError, match="not empty, and not a recording"):
        Store(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(NotAllowed, match="writable by other users"):
        Store(str(tmp_path))


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    tmp_path.joinpath("link").symlink_to(target)
    with pytest.raises(UsageError):
        Store(str(tmp_path / "link"))
    store = Store(str(tmp_path / "out"))
    Path(store.path, "worker-0.ts.log").symlink_to(target / "file")
    Path(store.path, "worker-0").symlink_to(target)
    with pytest.raises(OSError):
        store.append("worker-0.ts.log")
    with pytest.raises(OSError):
        store.below(["worker-0", "run-0"])
    assert not list(target.iterdir())
    os.mkfifo(Path(store.path, "pipe"))
    with pytest.raises(OSError):
        store.append("pipe")


@pytest.mark.parametrize("name", ["../out-of-it", "a/b", "..", ".", ""])
def test_names_never_lead_out_of_it(tmp_path: Path, name: str) -> None:
    store = Store(str(tmp_path / "out"))
    os.close(store.below(["worker-0", name]))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


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
    monkeypatch.setattr(storing, "LINES_LIMIT", 10_000)
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
