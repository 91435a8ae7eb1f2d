"""`atlctl stacks` on real processes: results, reported limitations, and no traces."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.apiserver.handle import Server
from tests.integration import piperanks, rasranks
from tests.integration.hanging import Hanging, wrong
from tests.integration.local import Registry, problem, registry
from tests.integration.plain_ranks import SLEEP, script
from tests.integration.stopping import Cluster
from tests.support import cli, proc
from tests.support.pace import within

#: An interpreter without py-spy next to it.
PYTHON = os.path.realpath(sys.executable)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def own() -> Iterator[Registry]:
    with registry() as made:
        yield made


@pytest.fixture(scope="module")
def jobs(own: Registry) -> Registry:
    """sleeps: rank 2 sleeps, the others wait for a lock. bare: the same without a Python in PATH."""
    text = script({2: SLEEP}, 2, python=PYTHON)
    own.start("sleeps", 2, "sh", "-c", text)
    tools = own.home / "tools"
    tools.mkdir()
    for name in ("sh", "sleep", "readlink", "ls"):
        (tools / name).symlink_to(str(shutil.which(name)))
    own.start("bare", 2, "/bin/sh", "-c", text, options=("--env", f"PATH={tools}"))
    lone = own.home / "lone"
    lone.mkdir()
    (lone / "sleep").symlink_to(str(shutil.which("sleep")))
    own.start("lone", 1, "/bin/sh", "-c", "exec sleep 4000", options=("--env", f"PATH={lone}"))
    assert proc.wait_until(lambda: len(own.running("time.sleep")) + len(own.running("Event")) >= 12)
    return own


def test_the_odd_rank_is_named(jobs: Registry) -> None:
    run = jobs.cli("stacks", "sleeps", "--no-pyspy")
    lines = run.stdout.decode().splitlines()
    assert lines[0] == "rank 2 on worker-1: hung in user code, likely"
    assert "ranks 0-1,3 on worker-[0-1] (3 ranks): undecided" in lines
    assert run.code == 0
    assert b"py-spy" not in run.stderr


def test_with_stacks_as_data(jobs: Registry) -> None:
    data = jobs.data("stacks", "sleeps", "--repeat")
    assert [(one["rank"], one["worker"]) for one in data["culprits"]] == [(2, "worker-1")]
    assert data["groups"][0]["stack"] == [{"function": "<module>", "file": "<string>", "line": 1}]
    assert {one["process"]["stack_source"] for one in data["ranks"]} == {"py-spy"}
    assert {one["moved"] for one in data["changes"]} == {"still"}
    assert data["world_size"] == 4


def test_selected_workers_alone_are_looked_at(jobs: Registry) -> None:
    data = jobs.data("stacks", "sleeps", "-w", "1")
    assert [one["rank"] for one in data["ranks"]] == [2, 3]
    assert data["unseen_ranks"] == [0, 1]


def test_without_python_in_path_a_trainers_own_is_taken(jobs: Registry) -> None:
    assert [one["rank"] for one in jobs.data("stacks", "bare")["culprits"]] == [2]


def test_without_any_python_there_is_one_clear_line(jobs: Registry) -> None:
    run = jobs.cli("stacks", "lone")
    assert b"warning: worker-0: no Python 3.8 or newer found\n" in run.stderr
    assert run.stdout.startswith(b"undecided\n")
    assert run.code == 1


def test_a_stopped_rank_and_one_that_is_gone(own: Registry) -> None:
    own.start("worse", 2, "sh", "-c", script({1: SLEEP}, 2, python=PYTHON))
    found: list[proc.Process] = []

    def started() -> bool:
        running = [one for one in own.running("Event") if one.command.startswith(PYTHON)]
        found[:] = [one for one in running if b"ATLCTL_JOB=worse" in _environ(one.pid)]
        return len(found) == 3

    assert proc.wait_until(started)
    last = max(found, key=lambda one: _rank(one.pid))
    first = min(found, key=lambda one: _rank(one.pid))
    os.kill(last.pid, signal.SIGSTOP)
    os.kill(first.pid, signal.SIGKILL)
    assert proc.wait_until(lambda: not proc.alive(first.pid))
    data = own.data("stacks", "worse")
    verdicts = {one["rank"]: one["verdict"] for one in data["ranks"]}
    assert (verdicts[0], verdicts[3]) == ("gone", "stopped")
    assert _state(last.pid) == "T"


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _rank(pid: int) -> int:
    return max(int(word[5:]) for word in _environ(pid) if word.startswith(b"RANK="))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()


def stacks(jobs: Registry) -> subprocess.Popen[bytes]:
    return jobs.popen("stacks", "sleeps", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_killed_client_leaves_nothing_stopped_and_nothing_behind(jobs: Registry) -> None:
    """The client is killed when py-spy appears, and slightly before and after; a slow py-spy ends with the client."""
    running = [one.pid for one in jobs.running() if one.command.startswith(PYTHON)]
    ranks = [pid for pid in running if b"ATLCTL_JOB=sleeps" in _environ(pid)]
    assert len(ranks) == 6
    for delay in (None, 0.3, 2.6):
        client = stacks(jobs)
        # A dump takes only a moment, and may be missed.
        while delay is None and not jobs.running("py-spy dump"):
            client = client if client.poll() is None else stacks(jobs)
        time.sleep(delay or 0)
        client.kill()
        client.wait()
        assert proc.wait_until(lambda: not jobs.running("atlctl-stacks") and not jobs.running("py-spy"))
        assert {_state(pid) for pid in ranks} <= {"S", "R"}
    assert not list(jobs.home.rglob(".atlctl-stacks-*"))
    # Those of other tests, which run at the same time, go as well.
    assert proc.wait_until(lambda: not list(Path("/tmp").glob(".atlctl-stacks-*")))


def test_a_py_spy_that_hangs_is_given_up_and_dies_with_the_client(
    own: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = own.home / "slow"
    tools.mkdir()
    (tools / "py-spy").write_text("#!/bin/sh\nexec sleep 4001\n")
    (tools / "py-spy").chmod(0o755)
    path = ("--env", f"PATH={tools}:{os.environ['PATH']}")
    own.start("slow", 1, "sh", "-c", script({1: SLEEP}, 1, python=PYTHON), options=path)
    assert proc.wait_until(lambda: own.running("time.sleep"))
    # Without one of its own, the client leaves it to the worker.
    monkeypatch.setattr(cli, "ATLCTL", (PYTHON, "-m", "atlctl"))
    packages = Path(typer.__file__).parents[1]
    monkeypatch.setitem(own.env, "PYTHONPATH", f"{Path(__file__).parents[2]}:{packages}")
    monkeypatch.setitem(own.env, "PATH", "/usr/bin:/bin")
    client = own.popen("stacks", "slow", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert proc.wait_until(lambda: own.running("sleep 4001"))
    client.kill()
    client.wait()
    assert proc.wait_until(lambda: not own.running("sleep 4001") and not own.running("atlctl-stacks"))
    data = own.data("stacks", "slow", "--timeout", "6")
    assert not own.running("sleep 4001")
    assert all("py-spy: " in one["process"]["problems"][0] for one in data["ranks"])


def test_bad_use(jobs: Registry) -> None:
    run = jobs.cli("stacks", "sleeps", "--rank", "99")
    assert run.code == 3
    assert problem(run.stderr.partition(b"error")[1] + run.stderr.partition(b"error")[2])[0]
    run = jobs.cli("stacks", "sleeps", "--timeout", "0")
    assert run.code == 2


def test_on_a_cluster() -> None:
    """The pods' processes share this machine: each pod must find only its own."""
    with Server() as server:
        cluster = Cluster(server)
        container = {
            "command": ["sh", "-c", "RANK=${HOSTNAME##*-}; " + script({2: SLEEP}, 2, python=PYTHON)],
        }
        cluster.pytorchjob("train", run=True, container=container)
        for index in range(2):
            server.wait_phase(f"train-worker-{index}", "Running")

        def started(index: int) -> bool:
            return sum("python" in str(one["command"]) for one in server.processes(f"train-worker-{index}")) == 4

        assert proc.wait_until(lambda: started(0) and started(1))
        data = cluster.data("stacks", "train")
        assert [(one["rank"], one["worker"]) for one in data["ranks"]] == [
            (0, "worker-0"),
            (1, "worker-0"),
            (2, "worker-1"),
            (3, "worker-1"),
        ], data["workers"]
        assert [one["rank"] for one in data["culprits"]] == [2]
        assert all(one["process"]["stack_source"] == "py-spy" for one in data["ranks"])
        server.kill("train-worker-1")
        run = cluster.cli("stacks", "train", "-o", "json")
        document: Any = json.loads(run.stdout)
        assert (document["status"], run.code) == ("partial", 1)
        assert [one["worker"] for one in document["errors"]] == ["worker-1"]


def test_ranks_that_use_a_cpu_are_told_apart_by_nccls_counts(own: Registry, tmp_path: Path) -> None:
    """On two workers: one answers for both, and the slow rank is on the other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rank = f"{PYTHON} {Path(rasranks.__file__)} {tmp_path} 4 1"
    text = (
        f"export NCCL_RAS_ADDR=localhost:{port} WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x; "
        f"first=$((2 * RANK)); for l in 0 1; do RANK=$((first + l)) LOCAL_RANK=$l {rank} & done; wait"
    )
    own.start("counted", 2, "sh", "-c", text)
    assert proc.wait_until(lambda: all((tmp_path / str(number)).exists() for number in range(4)))
    try:
        run = own.cli("stacks", "counted", "--no-pyspy")
        lines = run.stdout.decode().splitlines()
        assert lines[0] == "rank 1 on worker-0: hung in user code, likely"
        assert "  NCCL: 40 of 42 all_reduce launched, in a communicator of 4 ranks" in lines
        assert "ranks 0,2-3 on worker-[0-1] (3 ranks): waiting in a collective, likely" in lines
        data = own.data("stacks", "counted")
        assert [one["launched"] for one in data["ranks"]] == [
            {"operation": "all_reduce", "number": 40, "of": 42, "communicator_size": 4} if number == 1 else None
            for number in range(4)
        ]
    finally:
        own.cli("stop", "counted", "--yes")


def test_torch_writes_its_flight_recorders_if_the_user_says_so(own: Registry, tmp_path: Path) -> None:
    rank = f"{PYTHON} {Path(piperanks.__file__)} 1"
    text = (
        f"export PYTHONPATH={ROOT} TORCH_NCCL_DEBUG_INFO_PIPE_FILE={tmp_path}/pipe_ "
        f"TORCH_FR_DUMP_TEMP_FILE={tmp_path}/trace_ WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x; "
        f"first=$((2 * RANK)); for l in 0 1; do RANK=$((first + l)) LOCAL_RANK=$l {rank} & done; wait"
    )
    own.start("dumps", 2, "sh", "-c", text)
    assert proc.wait_until(lambda: len(list(tmp_path.glob("pipe_*.pipe"))) == 4)
    try:
        refused = own.cli("stacks", "dumps", "--dump")
        assert refused.code == 2
        assert b"this needs a yes" in refused.stderr
        assert not list(tmp_path.glob("trace_*"))
        run = own.cli("stacks", "dumps", "--no-pyspy", "--dump", "--yes")
        assert run.code == 0, run
        lines = run.stdout.decode().splitlines()
        assert lines[0].startswith("rank 1 on worker-0: "), lines
        assert "  flight recorder: not in collective 8 (all_reduce, default_pg), in which others wait" in lines
        assert b"flight recorder" not in run.stderr
    finally:
        own.cli("stop", "dumps", "--yes")


@pytest.mark.torch
def test_a_real_job_is_looked_at_and_goes_on(own: Registry) -> None:
    job = Hanging(own, "real", 1, 3)
    assert job.trains(150)
    for kind, rank, words in (("lock", 1, ("--no-pyspy",)), ("read", 2, ())):
        pid = job.hang(kind, rank)
        begun = time.monotonic()
        assert wrong(job.look(*words), kind, rank, not words) == ""
        assert within(time.monotonic() - begun, 10)
        assert {_state(one) for one in job.pids()} <= {"S", "R"}
        job.release(kind, pid)
        assert job.trains()


@pytest.mark.torch
@pytest.mark.parametrize(("launcher", "workers", "each"), [("none", 3, 1), ("mpirun", 1, 3)])
def test_ranks_without_a_launcher_of_torch(own: Registry, launcher: str, workers: int, each: int) -> None:
    job = Hanging(own, launcher, workers, each, launcher=launcher)
    assert job.trains(150)
    job.hang("lock", 1)
    data = job.look()
    assert wrong(data, "lock", 1, stacks=True) == ""
    assert (data["world_size"], len(data["ranks"])) == (3, 3)
    assert [one["worker"] for one in data["culprits"]] == [f"worker-{1 // each}"]


@pytest.mark.torch
def test_processes_of_spawn_are_named_by_pid(own: Registry) -> None:
    """Their ranks are not in their environment."""
    job = Hanging(own, "spawn", 1, 3, launcher="spawn")
    assert job.trains(150)
    pid = job.hang("lock", 1)
    data = job.look()
    (culprit,) = data["culprits"]
    assert (data["verdict"], culprit["rank"], culprit["pid"]) == ("hung in user code", None, pid)
    assert len(data["ranks"]) == 3


@pytest.mark.torch
def test_torchrun_that_waits_for_a_worker_without_one(own: Registry) -> None:
    script = (
        '[ "$RANK" = 1 ] && exec sleep 4000\n'
        f'exec {Path(sys.executable).parent}/torchrun --nnodes 2 --node_rank "$RANK" --nproc_per_node 1 '
        '--master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" --no-python true'
    )
    own.start("waits", 2, "sh", "-c", script)
    why = "no rank runs yet: torchrun waits on worker-0, and there is none on worker-1"

    def told() -> bool:
        return bool(own.data("stacks", "waits")["why"] == why)

    assert proc.wait_until(told)
    assert own.data("errors", "waits")["remarks"] == [why]
    chinese = own.cli("errors", "waits", env={"LANG": "zh_CN.UTF-8", "LC_ALL": None}).stdout.decode()
    assert "还没有 rank 在运行：worker-0 上的 torchrun 在等待，而 worker-1 上没有 torchrun" in chinese
