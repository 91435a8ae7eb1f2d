from __future__ import annotations

import os

import pytest

from atlctl.recording import folder
from atlctl.recording.folder import group, look, natural


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["w-0.log", "w-1.log"], {"w-0": ["w-0.log"], "w-1": ["w-1.log"]}),
        (["w-0.log", "w-0.ts.log"], {"w-0": ["w-0.ts.log"]}),
        (["w-0.ts.log"], {"w-0": ["w-0.ts.log"]}),
        (["w-0.log", "w-0.previous.log"], {"w-0": ["w-0.previous.log", "w-0.log"]}),
        (
            ["w-0.log", "w-0.ts.log", "w-0.previous.log", "w-0.previous.ts.log"],
            {"w-0": ["w-0.previous.ts.log", "w-0.ts.log"]},
        ),
        (["w-0.ts.previous.log"], {"w-0": ["w-0.ts.previous.log"]}),
        (["w-0.stderr.log", "w-0.stdout.log"], {"w-0": ["w-0.stderr.log", "w-0.stdout.log"]}),
        (["w-0.log", "w-0.sidecar.log"], {"w-0": ["w-0.log", "w-0.sidecar.log"]}),
        (
            ["n1.a.example.log", "n2.a.example.log"],
            {"n1.a.example": ["n1.a.example.log"], "n2.a.example": ["n2.a.example.log"]},
        ),
        (["ts.log", "previous.log"], {"previous": ["previous.log"], "ts": ["ts.log"]}),
    ],
)
def test_logs_by_worker(names, expected):
    assert group(names) == expected
    assert group(names[::-1]) == expected


def test_natural_order():
    assert sorted(["w-10", "w-2", "master-0", "w-1"], key=natural) == ["master-0", "w-1", "w-2", "w-10"]
    assert max(["1", "a", "10", "2", "", "a1"], key=natural) == "a1"


def make(root, *paths):
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("{}")


def test_error_files_of_all_layouts(tmp_path):
    make(
        tmp_path,
        "w-0.log",
        "case.json",
        "events.jsonl",
        "notes.txt",
        "w-0/run_x/attempt_0/1/error.json",
        "files/w-0_tmp/torchelastic_a/run_x/attempt_0/0/error.json",
        "files/w-0_tmp/torchelastic_a/run_x/attempt_0/0/stdout.log",
        "files/w-0_tmp/agent_error.json",
        "files/w-1_elastic/run_x/attempt_0/0/error.json",
        "files/other/error.json",
        "stray/attempt_0/0/error.json",
    )
    found = look(str(tmp_path), error_files=True)
    assert list(found.logs) == ["w-0"]
    assert {name: len(paths) for name, paths in found.error_files.items()} == {"w-0": 3, "w-1": 1}
    assert not look(str(tmp_path), error_files=False).error_files


def test_links_are_not_followed(tmp_path):
    make(tmp_path, "w-0.log", "w-0/attempt_0/0/error.json", "outside/error.json")
    inside = tmp_path / "w-0"
    (inside / "loop").symlink_to(inside, target_is_directory=True)
    (inside / "out").symlink_to(tmp_path / "outside", target_is_directory=True)
    (inside / "error.json").symlink_to(tmp_path / "outside" / "error.json")
    (tmp_path / "w-1.log").symlink_to("w-0.log")
    found = look(str(tmp_path), error_files=True)
    assert len(found.error_files["w-0"]) == 1
    assert found.links == [str(tmp_path / "w-1.log")]
    assert list(found.logs) == ["w-0"]


def test_folders_and_pipes_are_no_logs(tmp_path):
    (tmp_path / "w-0.log").mkdir()
    os.mkfifo(tmp_path / "w-1.log")
    assert not look(str(tmp_path), error_files=True).logs


def test_bounds_are_kept_and_said(tmp_path, monkeypatch):
    make(tmp_path, "w-0.log", *(f"w-0/attempt_{n}/0/error.json" for n in range(9)))
    make(tmp_path, "w-1.log", "w-1/" + "d/" * 14 + "error.json")
    monkeypatch.setattr(folder, "MAX_ERROR_FILES", 5)
    found = look(str(tmp_path), error_files=True)
    assert len(found.error_files["w-0"]) == 5
    assert "w-1" not in found.error_files
    assert found.omitted == ["w-0", "w-1"]
