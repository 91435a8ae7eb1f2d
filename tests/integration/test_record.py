"""`atlctl record`: nothing lost, nothing duplicated, and a verdict when the job has ended or is deleted."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.handle import Server
from tests.integration.local import Registry, registry
from tests.integration.stopping import TRAINING, Cluster
from tests.soak.recording import Load, in_cluster, in_registry
from tests.support.cli import popen_cli
from tests.support.proc import wait_until

#: Two trainers as started by torchrun, one with an error file before it ends; then the launcher's output, and a script
#: that keeps running. All wait for the file `go`.
HELD = r"""
import json, os, pathlib, subprocess, sys, time
worker = int(os.environ["RANK"])
run = pathlib.Path("torchelastic_x/run_y").absolute()
def trainer(local):
    folder = run / "attempt_0" / str(local)
    folder.mkdir(parents=True)
    more = {"RANK": 2 * worker + local, "LOCAL_RANK": local, "TORCHELASTIC_RUN_ID": "y", "CUDA_VISIBLE_DEVICES": "0,1"}
    more["TORCHELASTIC_ERROR_FILE"] = folder / "error.json"
    wait = "while [ ! -e %s/go ]; do sleep 0.05; done" % run
    return subprocess.Popen(["sh", "-c", wait], env={**os.environ, **{key: str(value) for key, value in more.items()}})
trainers = [trainer(0), trainer(1)]
print("training", flush=True)
while not os.path.exists(sys.argv[1] + "/go"):
    time.sleep(0.05)
if worker == 1:
    said = {"message": "ValueError: shard 7", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n"
            "  File \"train.py\", line 9, in main\nValueError: shard 7", "timestamp": str(int(time.time()))}}
    (run / "attempt_0/1/error.json").write_text(json.dumps({"message": said}))
run.joinpath("go").touch()
for one in trainers:
    one.wait()
if worker == 1:
    print("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", flush=True)
    time.sleep(0.3)
    os.execvp("sh", ["sh", "-c", "sleep 4000; exit 0"])
os.execvp("sh", ["sh", "-c", "sleep 4000; exit 0"])
"""


@pytest.fixture
def jobs() -> Iterator[Registry]:
    with registry() as own:
        yield own


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as own:
        yield own


def record(jobs: Registry, *words: str) -> subprocess.Popen[bytes]:
    return jobs.popen("record", *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def folder_of(jobs: Registry, job: str) -> Path | None:
    return next(jobs.state.glob(f"recordings/local/_/{job}/*"), None)


def manifest_of(jobs: Registry, job: str) -> dict[str, Any]:
    folder = folder_of(jobs, job)
    path = None if folder is None else folder / "atlctl.json"
    return json.loads(path.read_text()) if path is not None and path.exists() else {"workers": []}


def test_dropped_connections_a_killed_recorder_and_a_clean_up_cost_no_line(server: Server, tmp_path: Path) -> None:
    figures = in_cluster(server, Load(workers=8, lines=10_000, seconds=8, clean_up=4), tmp_path)
    assert figures.wrong == []
    assert figures.peak < 150
    assert server.errors() == ""


def test_many_lines_of_local_workers_and_a_killed_recorder(jobs: Registry, tmp_path: Path) -> None:
    figures = in_registry(jobs, Load(workers=8, lines=10_000, seconds=3), tmp_path)
    assert figures.wrong == []


def test_a_held_worker_is_frozen_and_found_when_its_job_is_gone(jobs: Registry, tmp_path: Path) -> None:
    out = tmp_path / "hooked"
    command = f'echo "$ATLCTL_FAILED_WORKERS $ATLCTL_JOB $ATLCTL_BACKEND" > {out}; ls "$ATLCTL_RECORDING" >> {out}'
    jobs.start("train", 2, sys.executable, "-c", HELD, str(tmp_path))
    with record(jobs, "train", "--on-failure", command) as recorder:
        assert wait_until(lambda: ranks(jobs) == {"worker-0": [0, 1], "worker-1": [2, 3]}, interval=0.1)
        tmp_path.joinpath("go").touch()
        assert wait_until(lambda: out.exists() and "atlctl.json" in out.read_text())
        folder = folder_of(jobs, "train")
        assert folder is not None
        assert wait_until(lambda: "shard 7" in _texts(folder, "worker-1/run-0/**/error.json"))
        assert wait_until(lambda: jobs.states("train") == ["Running", "Held"])
        assert jobs.cli("stop", "train", "--yes").code == 0
        stdout, stderr = recorder.communicate(timeout=100)
    assert recorder.returncode == 0, stderr
    assert out.read_text().startswith("worker-1 train local\n")
    assert b"ValueError: shard 7" in stdout
    assert jobs.cli("errors", "--from", str(folder)).stdout == stdout
    # The job is deleted now, but its recording is not.
    assert jobs.cli("local", "rm", "train", "--yes").code == 0
    found = jobs.cli("errors", "train")
    assert (found.stdout, found.code) == (stdout, 0)
    assert b"from the recording in" in found.stderr
    document = json.loads(jobs.cli("errors", "train", "-o", "json").stdout)
    assert document["data"]["job"] == "train"


def ranks(jobs: Registry) -> dict[str, list[int]]:
    workers = manifest_of(jobs, "train")["workers"]
    return {item["name"]: [seat["rank"] for seat in item["ranks"]] for item in workers if item["ranks"]}


def test_ctrl_c_leaves_a_recording_that_is_gone_on_with(jobs: Registry, tmp_path: Path) -> None:
    jobs.start("train", 1, "sh", "-c", "i=0; while :; do echo line $i; i=$((i+1)); sleep 0.02; done")
    out = tmp_path / "out"
    log = out / "worker-0.ts.log"
    for _ in range(2):
        size = log.stat().st_size if log.exists() else 0
        with record(jobs, "train", "--out", str(out)) as recorder:
            assert recorder.stderr is not None
            assert b"job train (Local" in recorder.stderr.readline()
            assert wait_until(lambda before=size: log.exists() and log.stat().st_size > before + 1500)  # type: ignore[misc]
            refused = jobs.cli("record", "train", "--out", str(out))
            assert (refused.code, b"another recorder writes to" in refused.stderr) == (2, True)
            recorder.send_signal(signal.SIGINT)
            stdout, stderr = recorder.communicate(timeout=100)
        assert (recorder.returncode, stdout) == (130, b"")
        assert f"go on: atlctl record train --out {out}".encode() in stderr
    numbers = [int(line.split()[2]) for line in log.read_bytes().splitlines()]
    assert numbers == list(range(len(numbers)))
    assert jobs.cli("errors", "--from", str(out)).code == 0


#: A launcher with torchrun's output when it is stopped; the script around it keeps running.
STOPPED = """\
echo "[rank0] step 1"
trap 'echo "W1126 04:21:33.243000 7 torch/distributed/elastic/agent/server/api.py:739] Received 15 death signal, \
shutting down workers"
echo "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15"; sleep 2; exit 1' TERM
while :; do sleep 0.1; done"""


def test_an_ordinary_stop_is_no_failure(jobs: Registry, tmp_path: Path) -> None:
    out = tmp_path / "out"
    jobs.start("ends", 2, "sh", "-c", STOPPED)
    words = ("record", "ends", "--out", str(out), "--on-failure", f"touch {tmp_path}/failed")
    with jobs.popen(*words, stdin=subprocess.DEVNULL, **_PIPES) as recorder:
        assert wait_until(lambda: "step 1" in _text(out / "worker-1.ts.log"), interval=0.1)
        assert jobs.cli("stop", "ends", "--yes").code == 0
        stdout, stderr = recorder.communicate(timeout=100)
    assert b"death signal" in (out / "worker-0.ts.log").read_bytes()
    assert (stdout, recorder.returncode) == (b"", 0)
    assert b"failed" not in stderr, stderr
    _, ended, more = stderr.decode().splitlines()
    assert ended.startswith("job ends was stopped; ")
    assert more == f"no failure before that; the workers' ends: atlctl errors --from {out}"
    assert not (tmp_path / "failed").exists()


def test_a_job_that_does_not_exist_yet_is_waited_for(jobs: Registry) -> None:
    with record(jobs, "later") as recorder:
        assert recorder.stderr is not None
        assert b"waiting for it" in recorder.stderr.readline()
        jobs.start("later", 1, "sh", "-c", "echo first; sleep 3; exit 7")
        stdout, _ = recorder.communicate(timeout=100)
    assert b"exit code 7" in stdout


def test_a_full_disk_is_told_and_gone_on_with(jobs: Registry, tmp_path: Path) -> None:
    """Simulated by a limit on file sizes."""
    script = f"i=0; while [ ! -e {tmp_path}/end ]; do echo line $i; i=$((i+1)); sleep 0.01; done"
    jobs.start("train", 2, "sh", "-c", script)
    log = tmp_path / "out" / "worker-0.ts.log"
    with record(jobs, "train", "--out", str(log.parent)) as recorder:
        assert wait_until(lambda: log.exists() and log.stat().st_size > 1000)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.prlimit(recorder.pid, resource.RLIMIT_FSIZE, (8000, hard))
        assert recorder.stderr is not None
        said = b""
        while b"cannot be written" not in said:
            said = recorder.stderr.readline()
            assert said
        resource.prlimit(recorder.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert wait_until(lambda: log.stat().st_size > 12_000)
        tmp_path.joinpath("end").touch()
        recorder.communicate(timeout=100)
    assert recorder.returncode == 0
    numbers = [int(line.split()[2]) for line in log.read_bytes().splitlines()]
    assert numbers == list(range(len(numbers)))


def test_a_held_pod_is_frozen_before_it_is_deleted(server: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HELD, str(tmp_path)]
    Cluster(server).pytorchjob("train", 1, run=True, container={"command": command, "env": [_env("RANK", "1")]})
    out = tmp_path / "out"
    env = {"KUBECONFIG": str(server.kubeconfig)}
    with popen_cli("record", "train", "--out", str(out), env=env, stdin=subprocess.DEVNULL, **_PIPES) as recorder:
        assert wait_until(lambda: '"rank": 3' in _text(out / "atlctl.json"), interval=0.1)
        tmp_path.joinpath("go").touch()
        assert wait_until(lambda: "shard 7" in _texts(out, "worker-0/run-0/**/error.json"))
        server.remove("Pod", "train-worker-0")
        server.remove("PyTorchJob", "train", api_version=TRAINING)
        stdout, stderr = recorder.communicate(timeout=100)
    assert b"ValueError: shard 7" in stdout, stderr
    assert b"job train was deleted" in stderr
    (worker,) = json.loads(_text(out / "atlctl.json"))["workers"]
    assert (worker["state"], worker["reason"]) == ("Unknown", "its pod is gone")


_PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def _env(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _texts(folder: Path, pattern: str) -> str:
    return "".join(path.read_text() for path in folder.glob(pattern))


def test_what_a_cluster_has_deleted_is_told(server: Server) -> None:
    cluster = Cluster(server)
    cluster.pytorchjob("train", 3)
    server.log("train-worker-0", lines=["step 1"], ended=True)
    server.remove("Pod", "train-worker-1")
    server.remove("Pod", "train-worker-2")
    failed = {"type": "Failed", "status": "True", "reason": "PyTorchJobFailed"}
    server.patch("PyTorchJob", "train", {"status": {"conditions": [failed]}}, api_version=TRAINING)
    found = cluster.cli("errors", "train")
    assert b"the pods of workers 1-2 are gone" in found.stderr
    assert b"when a job fails, the platform deletes its running pods" in found.stderr
    assert b"'atlctl record train'" in found.stderr
    gone = cluster.cli("errors", "other")
    assert gone.code == 3
    assert b"'atlctl record other'" in gone.stderr


def test_a_recording_has_what_a_cluster_has_deleted(server: Server, tmp_path: Path) -> None:
    cluster = Cluster(server)
    cluster.pytorchjob("train", 2)
    server.log("train-worker-1", lines=["Traceback (most recent call last):", "ValueError: shard 7 is damaged"])
    env: dict[str, str | None] = {"ATLCTL_STATE_DIR": str(tmp_path / "state")}
    recorder = popen_cli(
        *("record", "train"),
        env={"KUBECONFIG": str(server.kubeconfig), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        kept = tmp_path / "state/recordings/kubernetes/default/train"
        assert wait_until(lambda: "shard 7" in _texts(kept, "*/worker-1.ts.log"))
        server.remove("Pod", "train-worker-1")
        assert wait_until(lambda: "its pod is gone" in _texts(kept, "*/atlctl.json"))
        while_it_runs = cluster.cli("errors", "train", env=env)
        assert b"shard 7 is damaged" in while_it_runs.stdout
        assert b"from the recording in" in while_it_runs.stderr
        recorder.send_signal(signal.SIGKILL)
        recorder.wait()
        # The recording is incomplete: the platform's logs have priority, and the recording is named.
        after = cluster.cli("errors", "train", env=env)
        assert b"an interrupted recording has logs that are gone by now" in after.stderr
        server.remove("PyTorchJob", "train", api_version=TRAINING)
        server.remove("Pod", "train-worker-0")
        gone = cluster.cli("errors", "train", env=env)
        assert b"shard 7 is damaged" in gone.stdout
    finally:
        recorder.kill()
        recorder.wait()


#: A slow training in Megatron-LM's words: the platform's own example, which goes on for two minutes.
SLOW = r"""
i=0
line() { i=$((i+1)); echo " iteration $i/ 500000 | elapsed time per iteration (ms): $1 | lm loss: 2.6E+00 |"; }
while [ $i -lt 82 ]; do line 3101.0; done
while [ $i -lt 87 ]; do line 9465.0; done
while [ $i -lt 92 ]; do line 16704.0; done
while [ ! -e "$0/end" ]; do sleep 0.1; done
"""


def test_a_slow_training_is_warned_of_once_and_its_steps_are_kept(jobs: Registry, tmp_path: Path) -> None:
    jobs.start("train", 2, "sh", "-c", SLOW, str(tmp_path))
    with record(jobs, "train") as recorder:
        assert wait_until(lambda: _steps(jobs, "train") == {"worker-0": 92, "worker-1": 92}, 30, interval=0.1)
        workers = json.loads(jobs.cli("ps", "train", "-o", "json").stdout)["data"]["workers"]
        assert [worker["step"] for worker in workers] == [92, 92]
        assert all(0 <= worker["step_age"] < 600 for worker in workers)
        assert b"STEP  STEP AGE" in jobs.cli("ps", "train").stdout
        document = json.loads(jobs.cli("errors", "train", "-o", "json").stdout)
        assert (document["data"]["verdict"], document["data"]["standstill"]) == ("none", None)
        tmp_path.joinpath("end").touch()
        _, stderr = recorder.communicate(timeout=30)
    warned = [line for line in stderr.decode().splitlines() if "times slower" in line]
    # Each of the two phases once while it runs, for both workers, and at the end.
    assert [line.startswith("warning: ") for line in warned] == [True, True, False, False], stderr
    assert "from step 83 on" in warned[0]
    assert "from step 83 to 87" in warned[2]
    assert "5.4 times slower" in warned[1]
    assert "16.7 s a step instead of 3.1 s" in warned[3]


def _steps(jobs: Registry, job: str) -> dict[str, int]:
    folder = folder_of(jobs, job)
    path = None if folder is None else folder / "steps.jsonl"
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    return {item["worker"]: item["step"] for item in map(json.loads, lines)}
