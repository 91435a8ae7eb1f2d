"""The recorded workers: attempts, deleted ones, and the note for the next recorder."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from atlctl.jobs.errors import UsageError
from atlctl.jobs.model import State, Worker
from atlctl.recording.manifest import read_manifest
from atlctl.recording.recorder.roll import Roll, Seat, Seats, begun, look_for_seats, read_seats
from atlctl.recording.recorder.store import Store
from atlctl.recording.save import Folder, describe
from tests.support.needs import find_program, needs
from tests.unit.recording.recorder.parts import job
from tests.unit.transfer.shells import WORKER, Shells

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
    with pytest.raises(UsageError, match="saved logs, not a recording"):
        begun(Store(str(tmp_path / "saved")), job(FIRST))


GPUS = "".join(f"G\t{index}, GPU-{index:04x}, 00000000:0{index}:00.0\n" for index in range(4))


def process(rank: object, local: object, visible: str = "-", file: str = "", prefix: str = "", worker: str = "") -> str:
    return f"P\t{worker}\t{rank}\t{local}\t{visible}\t{file}\t{prefix}\n"


@pytest.mark.parametrize(
    ("visible", "local", "gpu"),
    [
        ("-", 2, "GPU-0002"),
        ("2,3", 1, "GPU-0003"),
        ("3", 1, "GPU-0003"),  # a launcher that gives each process one device
        ("GPU-0001,GPU-0000", 1, "GPU-0000"),
        ("", 0, None),  # hidden on purpose
        ("7,8", 0, None),
        ("0,1", 5, None),
    ],
)
def test_the_device_that_a_process_sees(visible: str, local: int, gpu: str | None) -> None:
    found = read_seats((process(8 + local, local, visible) + GPUS).encode(), "worker-0")["worker-0"]
    assert found.seats == [Seat(8 + local, local, gpu)]


def test_folders_and_dumps() -> None:
    file = "/tmp/torchelastic_a/job_b/attempt_2/0/error.json"
    found = read_seats(process(0, 0, file=file, prefix="/dumps/trace_").encode(), "worker-0")["worker-0"]
    assert (found.roots, found.dumps) == ({"/tmp/torchelastic_a/job_b"}, {"/dumps/trace_"})


def test_read_seats_takes_the_variables_of_the_first_process() -> None:
    line = process(0, 0).rstrip("\n")
    found = read_seats(f"{line}\tNCCL_DEBUG=INFO\tOMP_NUM_THREADS=4\todd\tA=b=c\n".encode(), "worker-0")["worker-0"]
    assert found.data()["environment"] == {"A": "b=c", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}


def test_local_workers_share_a_machine() -> None:
    found = read_seats(
        (process(0, 0, worker="worker-0") + process(1, 0, worker="worker-1") + GPUS).encode(), "worker-0"
    )
    assert [found[name].seats[0].rank for name in ("worker-0", "worker-1")] == [0, 1]
    data = found["worker-1"].data()
    assert data["ranks"] == [{"rank": 1, "local_rank": 0, "gpu_uuid": "GPU-0000"}]
    assert [gpu["local_rank"] for gpu in data["gpus"]] == [0, None, None, None]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"P\n",
        b"P\t\tx\t0\t-\t\t\n",
        b"P\t\t-1\t0\t-\t\t\n",
        b"P\t\t99999999999999\t0\t-\t\t\n",
        b"G\tx, y\nG\t\xff\xfe",
        b"P\t\t\xd9\xa1\t0\t-\t\t\n",
        b"\0" * 100,
        b"P\t" * 5000,
    ],
)
def test_hostile_answers(data: bytes) -> None:
    found = read_seats(data, "worker-0")["worker-0"]
    assert not found.seats
    assert not found.gpus


def test_relative_and_short_paths_are_no_folders() -> None:
    for file in ("error.json", "a/b/c/error.json", "/a/b/error.json"):
        assert not read_seats(process(0, 0, file=file).encode(), "worker-0")["worker-0"].roots


@pytest.mark.parametrize("programs", ["own", pytest.param("busybox", marks=needs("busybox"))])
def test_a_real_process_is_found(tmp_path: Path, programs: str) -> None:
    shells = Shells()
    if programs == "busybox":
        folder = tmp_path / "bin"
        folder.mkdir()
        for name in ("sh", "grep", "tr", "sort"):
            folder.joinpath(name).symlink_to(find_program("busybox") or "")
        shells = Shells(path=str(folder))
    file = f"{tmp_path}/run/attempt_0/3/error.json"
    env = {**os.environ, "RANK": "11", "LOCAL_RANK": "3", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_ERROR_FILE": file}
    env |= {"NCCL_DEBUG": "WARN", "TORCH_FR_DUMP_TEMP_FILE": "/d/x_", "OTHER": "1"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env) as trainer:
        try:
            deadline = time.monotonic() + 100
            while time.monotonic() < deadline:
                found = asyncio.run(look_for_seats(shells, WORKER))
                if found and any(seat.rank == 11 for seat in found["worker-0"].seats):
                    break
            assert found is not None
            assert f"{tmp_path}/run" in found["worker-0"].roots
            environment = found["worker-0"].environment
            assert environment["NCCL_DEBUG"] == "WARN"
            assert not {"OTHER", "RANK", "TORCH_FR_DUMP_TEMP_FILE"} & environment.keys()
        finally:
            trainer.kill()
