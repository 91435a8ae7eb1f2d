"""The demo's job alone, with a platform's environment variables."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import atlctl.cli
from tests.support import proc

LAUNCH = Path(atlctl.cli.__file__).parent / "demo_job" / "launch.sh"

pytestmark = pytest.mark.torch


def start(*args: str, hold: int, count: int) -> list[subprocess.Popen[bytes]]:
    """Start `count` workers of two processes each, in the folders 0, 1, ..."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    workers = []
    for index in range(count):
        Path(str(index)).mkdir()
        platform = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "RANK": str(index)}
        ours = {"PYTHON": sys.executable, "ATLCTL_DEMO_HOLD": str(hold)}
        workers.append(
            subprocess.Popen(
                ["bash", str(LAUNCH), "--print-every", "1", *args],
                cwd=str(index),
                env={**os.environ, **platform, **ours},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
    return workers


def log(index: int) -> str:
    path = Path(f"{index}/train.log")
    return path.read_text() if path.exists() else ""


@pytest.fixture
def endless() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Training workers, after a step on every rank."""
    workers = start(hold=10_000, count=2)
    yield workers
    for worker in workers:
        try:
            os.killpg(worker.pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
    for worker in workers:
        worker.wait()


def joined(rank: int, world: int) -> str:
    return f"joined: rank={rank} world={world} local_rank={rank % 2}\n"


def test_trains_to_its_end() -> None:
    (worker,) = start("--steps", "3", hold=0, count=1)
    assert worker.wait() == 0
    for rank in range(2):
        assert joined(rank, world=2) in log(0)
        assert re.search(rf"^step 2 loss \d\.\d+ rank {rank}$", log(0), re.MULTILINE)
        assert f"done: rank={rank}\n" in log(0)
    assert proc.wait_until(lambda: not proc.marked())


def test_trainers_end_by_themselves_when_their_launchers_are_killed(endless: list[subprocess.Popen[bytes]]) -> None:
    assert proc.wait_until(lambda: "step 2 " in log(0) and "step 2 " in log(1), interval=0.1)
    assert all(joined(rank, world=4) in log(rank // 2) for rank in range(4))
    launchers = proc.named("torch.distributed.run")
    trainers = {process.pid for process in proc.named("train.py")} - {process.pid for process in launchers}
    assert (len(launchers), len(trainers)) == (2, 4)
    for process in launchers:
        os.kill(process.pid, signal.SIGKILL)
    assert proc.wait_until(lambda: not any(map(proc.alive, trainers)))
    # The workers are still running: their scripts sleep.
    assert [worker.poll() for worker in endless] == [None, None]
