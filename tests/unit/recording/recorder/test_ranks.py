"""Ranks, GPUs and folders from what a worker prints."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atlctl.recording.recorder.ranks import Seat, look, read
from tests.support.needs import find_program, needs
from tests.unit.transfer.shells import WORKER, Shells

GPUS = "".join(f"G\t{index}, GPU-{index:04x}, 00000000:0{index}:00.0\n" for index in range(4))


def process(rank: object, local: object, visible: str = "-", file: str = "", prefix: str = "", worker: str = "") -> str:
    return f"P\t{worker}\t{rank}\t{local}\t{visible}\t{file}\t{prefix}\n"


@pytest.mark.parametrize(
    ("visible", "local", "gpu"),
    [
        ("-", 2, "GPU-0002"),
        ("2,3", 1, "GPU-0003"),
        ("3", 1, "GPU-0003"),  # a launcher that shows each process its own device
        ("GPU-0001,GPU-0000", 1, "GPU-0000"),
        ("", 0, None),  # hidden on purpose
        ("7,8", 0, None),
        ("0,1", 5, None),
    ],
)
def test_the_device_that_a_process_sees(visible: str, local: int, gpu: str | None) -> None:
    found = read((process(8 + local, local, visible) + GPUS).encode(), "worker-0")["worker-0"]
    assert found.seats == [Seat(8 + local, local, gpu)]


def test_folders_and_dumps() -> None:
    file = "/tmp/torchelastic_a/job_b/attempt_2/0/error.json"
    found = read(process(0, 0, file=file, prefix="/dumps/trace_").encode(), "worker-0")["worker-0"]
    assert (found.roots, found.dumps) == ({"/tmp/torchelastic_a/job_b"}, {"/dumps/trace_"})


def test_local_workers_share_a_machine() -> None:
    found = read((process(0, 0, worker="worker-0") + process(1, 0, worker="worker-1") + GPUS).encode(), "worker-0")
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
    found = read(data, "worker-0")["worker-0"]
    assert not found.seats
    assert not found.gpus


def test_relative_and_short_paths_are_no_folders() -> None:
    for file in ("error.json", "a/b/c/error.json", "/a/b/error.json"):
        assert not read(process(0, 0, file=file).encode(), "worker-0")["worker-0"].roots


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
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env) as trainer:
        try:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                found = asyncio.run(look(shells, WORKER))
                if found and any(seat.rank == 11 for seat in found["worker-0"].seats):
                    break
            assert found is not None
            assert f"{tmp_path}/run" in found["worker-0"].roots
        finally:
            trainer.kill()
