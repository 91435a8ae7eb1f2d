"""`atlctl doctor` with a job: which job it chooses and why, the torch of its workers, and timeouts."""

from __future__ import annotations

import importlib.metadata
import json
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.handle import Server
from tests.integration.local import Registry, registry
from tests.integration.stopping import Cluster
from tests.support import proc
from tests.support.cli import run_cli
from tests.support.pace import within

#: The folder of this suite's Python, which has torch.
BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parents[2]
CANARY = "canary-4711"


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    """torch: two workers with torch in their python3. bare: a worker without it."""
    with registry() as own:
        venv.create(own.home / "env", symlinks=True)
        # The smoke test's agent reports variables with these names.
        secrets = [word for name in ("NCCL_X", "TORCH_X", "PET_X") for word in ("--env", f"{name}={CANARY}")]
        own.start("torch", 2, options=("--env", f"PATH={BIN}:/usr/bin:/bin", *secrets))
        own.start("bare", 1, options=("--env", f"PATH={own.home}/env/bin:/usr/bin:/bin"))
        yield own


def checks(data: Any, name: str) -> list[tuple[str, str]]:
    return [(one["status"], one["text"]) for one in data["checks"] if one["name"] == name]


def test_workers_with_torch(jobs: Registry) -> None:
    data = jobs.data("doctor", "-j", "torch")
    version = importlib.metadata.version("torch")
    ((status, text),) = checks(data, "torch")
    assert status == "ok"
    assert text.startswith(f"worker-[0-1] (2): torch {version} (")
    assert f"Python {sys.version.split()[0]} ({BIN}/python3)" in text
    assert [(one["worker"], one["torch"], one["own"]) for one in data["torch"]] == [
        (f"worker-{index}", version, True) for index in range(2)
    ]
    assert checks(data, "worker.clock") == [("ok", "within 2 s of this machine's (2)")]
    assert (data["job"]["name"], data["job"]["how"]) == ("torch", "named")
    # It was only checked: no agent is left.
    assert proc.wait_until(lambda: not jobs.running("atlctl-smoke"))


def test_a_worker_whose_python_has_none(jobs: Registry) -> None:
    """The process of this test suite has torch and is found like a trainer: this is reported correctly."""
    data = jobs.data("doctor", "-j", "bare")
    ((status, text),) = checks(data, "torch")
    assert status == "ok"
    assert "its own python3 has no torch" in text
    assert [one["own"] for one in data["torch"]] == [False]


def test_which_job_is_meant(jobs: Registry) -> None:
    data = jobs.data("doctor")
    ((status, text),) = checks(data, "job")
    assert (status, text, data["job"], data["torch"]) == ("skipped", "no job is named", None, [])
    assert data["first_steps"] == []
    data = jobs.data("doctor", env={"ATLCTL_JOB": "bare"})
    assert (data["job"]["name"], data["job"]["how"]) == ("bare", "variable")
    run = jobs.cli("doctor", "-j", "nowhere", "-o", "json")
    data = json.loads(run.stdout)["data"]
    assert (run.code, checks(data, "job")[0][0], data["verdict"]) == (1, "fail", "fail")


def test_inside_a_worker(jobs: Registry) -> None:
    line = f"exec {sys.executable} -m atlctl doctor -o json"
    given = {"PYTHONPATH": str(REPOSITORY)}
    env = " ".join(f"{name}={value}" for name, value in given.items())
    run = jobs.exec("torch", "-w", "0", "--", "env", *env.split(), "sh", "-c", line)
    data = json.loads(run.stdout)["data"]
    assert data["backend"] == {"name": "local", "why": "worker", "value": "worker-0"}
    assert (data["job"]["name"], data["job"]["how"]) == ("torch", "variable")


def test_a_job_that_has_ended(jobs: Registry) -> None:
    jobs.start("over", 1, "true")
    jobs.until("over", "Succeeded")
    data = jobs.data("doctor", "-j", "over")
    assert checks(data, "torch") == [("skipped", "not asked: no worker is running")]


def test_pods_of_a_job_are_asked_where_that_is_allowed() -> None:
    with Server() as server:
        cluster = Cluster(server)
        server.settings(path=f"{BIN}:/usr/bin:/bin")
        cluster.pytorchjob("train", 2, run=True)
        for index in range(2):
            server.wait_phase(f"train-worker-{index}", "Running")
        env = {"KUBECONFIG": str(server.kubeconfig)}
        data = json.loads(run_cli("doctor", "-o", "json", env=env).stdout)["data"]
        assert (data["job"]["name"], data["job"]["kind"], data["job"]["how"]) == ("train", "PyTorchJob", "only")
        ((status, text),) = checks(data, "torch")
        assert (status, text.partition(": ")[0]) == ("ok", "worker-[0-1] (2)")
        everything = {"namespace": "*", "verbs": ["get", "list", "watch"], "apiGroups": ["*"], "resources": ["*"]}
        server.user("viewer", [{**everything, "role": "view-all"}])
        viewer = {"KUBECONFIG": str(server.write_kubeconfig("viewer", user="viewer"))}
        server.forget_requests()
        data = json.loads(run_cli("doctor", "-o", "json", env=viewer).stdout)["data"]
        assert checks(data, "torch")[0][0] == "skipped"
        assert not [one for one in server.requests() if one["path"].endswith("/exec")]


# Hanging parts


def config(path: Path, server: str, **user: Any) -> dict[str, str]:
    """The environment for a kubeconfig with one server and one user."""
    text = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(text))
    return {"KUBECONFIG": str(path)}


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = config(tmp_path / "config", f"https://127.0.0.1:{silent.getsockname()[1]}", token="x")
        begun = time.monotonic()
        run = run_cli("doctor", env=env, timeout=50)
        assert within(time.monotonic() - begun, 30)
    assert run.code == 1
    assert b"fail  server" in run.stdout
    assert b"locale" in run.stdout


LOGIN = """
import asyncio, subprocess, sys, time
from atlctl.cli import patience
from atlctl.jobs.errors import TimedOut
words = sys.argv[1:]
async def main():
    try:
        print(await patience.login(asyncio.to_thread(subprocess.check_output, words), 1.0))
    except TimedOut as error:
        print(error.message)
begun = time.monotonic()
asyncio.run(main())
print(time.monotonic() - begun)
"""


def test_a_login_program_that_hangs_is_ended_with_all_that_it_has_started() -> None:
    words = ("sh", "-c", "sleep 987.5 & sh -c 'trap \"\" TERM; sleep 987.5; true' & wait")
    run = subprocess.run([sys.executable, "-c", LOGIN, *words], stdout=-1, timeout=100, check=True, cwd=REPOSITORY)
    message, seconds = run.stdout.decode().splitlines()
    assert message.startswith("authentication timed out after 1 s")
    assert within(float(seconds), 5)
    assert proc.wait_until(lambda: not [one for one in proc.processes() if "sleep 987.5" in one.command])


def test_a_login_program_that_ends_in_time_is_left_alone() -> None:
    run = subprocess.run(
        [sys.executable, "-c", LOGIN, "echo", "token"], stdout=-1, timeout=100, check=True, cwd=REPOSITORY
    )
    message, seconds = run.stdout.decode().splitlines()
    assert message == "b'token\\n'"
    assert within(float(seconds), 5)


def test_a_login_program_that_fails_is_4(tmp_path: Path) -> None:
    asked = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Never"}
    run = run_cli("doctor", env=config(tmp_path / "config", "https://127.0.0.1:1", exec=asked))
    assert run.code == 4
    assert b"fail  cluster" in run.stdout


@pytest.mark.parametrize("form", ["json", "table"])
def test_no_variable_of_the_user_or_of_a_worker_is_told(jobs: Registry, form: str) -> None:
    names = ("NCCL_SECRET_KEY", "ATLCTL_TOKEN", "SSH_PASS")
    run = jobs.cli("doctor", "-vv", "--debug", "-j", "torch", "-o", form, env=dict.fromkeys(names, CANARY))
    assert run.code == 0
    assert b"torch" in run.stdout
    assert CANARY.encode() not in run.stdout + run.stderr
