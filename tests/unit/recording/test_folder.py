from __future__ import annotations

import os

import pytest

from atlctl.recording import folder
from atlctl.recording.folder import RankLogFile, group, look


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


def test_logs_of_processes_and_dumps(tmp_path):
    make(
        tmp_path,
        "w-0.log",
        "w-0/run_x/attempt_10/0/stdout.log",
        "w-0/run_x/attempt_2/1/stderr.log",
        "w-0/run_x/attempt_2/0/stdout.log",
        "w-0/run_x/attempt_2/0/stderr.log",
        "w-0/run_x/attempt_2/filtered_stdout.log",
        "w-0/run_x/attempt_x/0/stdout.log",
        "w-0/run_x/attempt_2/first/stdout.log",
        "w-0/run_x/attempt_2/0/other.log",
        "w-0/cache/torch/comm_lib_trace_rank_8",
        "w-0/nccl_trace_rank_10",
        "w-0/nccl_trace_rank_9",
        "files/w-1_tmp/dump_rank_3",
        "files/w-1_tmp/dump_rank_3.pkl",
        "files/w-1_tmp/nccl_trace_3.json",
        "files/w-1_tmp/nccl_trace.log",
        "files/w-1_tmp/train_rank_3.log",
        "files/w-1_tmp/rank_3",
        "files/w-1_tmp/dump_rank_x",
        "nccl_trace_rank_0",
    )
    found = look(str(tmp_path), error_files=True)
    run = str(tmp_path / "w-0/run_x")
    assert found.rank_logs == {
        "w-0": [
            RankLogFile(f"{run}/attempt_2/0/stderr.log", 2, 0),
            RankLogFile(f"{run}/attempt_2/0/stdout.log", 2, 0),
            RankLogFile(f"{run}/attempt_2/1/stderr.log", 2, 1),
            RankLogFile(f"{run}/attempt_10/0/stdout.log", 10, 0),
        ]
    }
    names = {worker: [os.path.basename(path) for path in paths] for worker, paths in found.dumps.items()}
    assert names == {
        "w-0": ["nccl_trace_rank_9", "nccl_trace_rank_10", "comm_lib_trace_rank_8"],
        "w-1": ["dump_rank_3", "dump_rank_3.pkl", "nccl_trace_3.json"],
    }
    without = look(str(tmp_path), error_files=False)
    assert not without.rank_logs
    assert not without.dumps


def test_the_platforms_files(tmp_path):
    make(tmp_path, "w-0.log", "atlctl.json", "events.jsonl", "w-0/atlctl.json")
    found = look(str(tmp_path), error_files=True)
    assert (found.manifest, found.events) == (str(tmp_path / "atlctl.json"), str(tmp_path / "events.jsonl"))
    without = look(str(tmp_path), error_files=False)
    assert (without.manifest, without.events) == (None, None)


def test_links_are_not_followed(tmp_path):
    make(tmp_path, "w-0.log", "w-0/attempt_0/0/error.json", "outside/error.json")
    inside = tmp_path / "w-0"
    (inside / "loop").symlink_to(inside, target_is_directory=True)
    (inside / "out").symlink_to(tmp_path / "outside", target_is_directory=True)
    (inside / "error.json").symlink_to(tmp_path / "outside" / "error.json")
    (tmp_path / "w-1.log").symlink_to("w-0.log")
    (tmp_path / "atlctl.json").symlink_to("outside/error.json")
    (tmp_path / "events.jsonl").mkdir()
    make(tmp_path, "outside/nccl_trace_rank_0")
    (inside / "nccl_trace_rank_0").symlink_to(tmp_path / "outside" / "nccl_trace_rank_0")
    (inside / "attempt_0" / "0" / "stdout.log").symlink_to(tmp_path / "w-0.log")
    os.mkfifo(inside / "attempt_0" / "0" / "stderr.log")
    found = look(str(tmp_path), error_files=True)
    assert len(found.error_files["w-0"]) == 1
    assert (found.rank_logs, found.dumps, found.manifest, found.events) == ({}, {}, None, None)
    assert sorted(found.links) == [str(tmp_path / "atlctl.json"), str(tmp_path / "w-1.log")]
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
    make(tmp_path, "w-2.log", *(f"w-2/attempt_{n}/0/{stream}.log" for n in range(9) for stream in ("stdout", "stderr")))
    make(tmp_path, "w-3.log", *(f"w-3/nccl_trace_rank_{n}" for n in range(9)))
    found = look(str(tmp_path), error_files=True)
    assert (len(found.rank_logs["w-2"]), len(found.dumps["w-3"])) == (5, 5)
    assert found.omitted == ["w-0", "w-1", "w-2", "w-3"]


def test_logs_of_slurm_and_azure_count_in_a_folder_without_any_log(tmp_path):
    names = ("job-7_0.out", "job-7_0.err", "job-7_1.out", "std_log_process_1.txt", "requirements.txt", "a.jsonl")
    for name in names:
        (tmp_path / name).write_text("x\n")
    found = {
        worker: [os.path.basename(path) for path in paths]
        for worker, paths in look(str(tmp_path), error_files=True).logs.items()
    }
    assert found == {
        "job-7_0": ["job-7_0.err", "job-7_0.out"],
        "job-7_1": ["job-7_1.out"],
        "std_log_process_1": ["std_log_process_1.txt"],
    }
    (tmp_path / "w-0.log").write_text("x\n")
    assert list(look(str(tmp_path), error_files=True).logs) == ["w-0"]
