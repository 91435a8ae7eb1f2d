"""`atlctl run` in a worker of another backend's job: no second job."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.handle import Server
from tests.integration.local import Registry, registry
from tests.integration.stopping import Cluster
from tests.integration.wrapped import Wrapped, wrapped
from tests.support import proc
from tests.support.cli import Result, run_cli

RUN = (sys.executable, "-m", "atlctl", "run", "--items", "none", "--settle", "0", "--hold", "10m")
#: Fails on worker 1 until it is mended.
SCRIPT = """\
import os, sys, time
print(os.environ["ATLCTL_JOB"], os.environ["ATLCTL_WORKER"], flush=True)
for step in range(1, 80):
    print(f"step {step} loss 2.5", file=sys.stderr)  # one stream: its lines are in order
    time.sleep(0.02)
if os.environ["RANK"] == "1" and not os.path.exists(sys.argv[1]):
    raise ValueError("a bad batch")
"""


@pytest.fixture
def jobs() -> Iterator[Registry]:
    with registry() as own:
        yield own


def test_in_a_local_job(jobs: Registry) -> None:
    (jobs.home / "train.py").write_text(SCRIPT)
    mended = jobs.home / "mended"
    train = (*RUN, "--dir", str(jobs.home / "shared"), "--", sys.executable, str(jobs.home / "train.py"), str(mended))
    jobs.start("own", 2, *train)
    assert proc.wait_until(lambda: jobs.cli("logs", "own").stdout.count(b" is kept: ") == 2, 60, 0.2)

    assert jobs.cli("jobs", "-o", "name").stdout == b"own\n"
    kept = jobs.data("ps", "own")
    assert [(worker["state"], worker["step"] > 20) for worker in kept["workers"]] == [("Held", True)] * 2
    assert (kept["job"]["state"], kept["job"]["reason"]) == ("Held", "worker-[0-1] held")
    found = jobs.data("errors", "own")
    assert found["job"] == "own"
    assert "ValueError: a bad batch" in json.dumps(found), (found, jobs.cli("logs", "own").stdout)
    said = jobs.cli("logs", "own").stdout
    assert b"worker-1: own worker-1\n" in said  # the environment of the command is that of its owner
    assert said.count(b"atlctl: this run belongs to job own") == 1
    (inside,) = jobs.data("jobs", "--backend", "ssh")["jobs"]
    assert inside["name"] != "own"
    (record, _) = (jobs.state / "run").glob("*/*.json")
    assert json.loads(record.read_text())["owner"] == "own"

    mended.touch()
    done = jobs.cli("rerun", "own", "--yes")
    assert done.code == 0, done
    assert b"attempt 2: " in done.stderr
    assert b"ValueError: a bad batch" in jobs.cli("logs", "own", "--attempt", "1", "-w", "1").stdout
    jobs.until("own", "Succeeded")


def test_let_go_by_the_name_of_its_owner(jobs: Registry) -> None:
    jobs.start("own", 1, *RUN, "--name", "own", "--", "sh", "-c", "exit 3")
    assert proc.wait_until(lambda: b" is kept: " in jobs.cli("logs", "own").stdout, 60, 0.2)
    assert jobs.cli("release", "own").stderr == b"released: worker-0\n"
    jobs.until("own", "Failed")


def test_ended_and_kept_by_the_name_of_its_owner(jobs: Registry) -> None:
    jobs.start("own", 2, *RUN, "--dir", str(jobs.home / "shared"), "--", "sleep", "871")
    assert proc.wait_until(lambda: len([*(jobs.state / "run").glob("*/*.json")]) == 2, 60, 0.1)
    stopped = jobs.cli("stop", "own", "--keep", "--yes")
    assert stopped.code == 0, stopped
    kept = jobs.data("ps", "own")["workers"]
    assert [worker["state"] for worker in kept] == ["Debugging", "Debugging"]
    assert jobs.data("ps", "own")["job"]["state"] == "Debugging"
    assert jobs.cli("rerun", "own", "--yes").code == 0
    assert proc.wait_until(lambda: len(jobs.commands("sleep 871")) == 2, 60, 0.1)
    assert jobs.cli("stop", "own", "--yes").code == 0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Server() as own:
        yield Cluster(own)


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[Wrapped]:
    pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "HOSTNAME": "own-worker-0"}
    with wrapped(tmp_path, 2, {"KUBECONFIG": str(cluster.server.kubeconfig), **pod}) as made:
        yield made


def in_pod(job: Wrapped, index: int, *words: str) -> Result:
    """`atlctl WORDS` as in a web terminal of a pod."""
    env = {**job.environ, "ATLCTL_STATE_DIR": job.state(index), "HOSTNAME": f"own-worker-{index}"}
    return run_cli(*words, env=env)


def test_in_pods_that_can_be_read(cluster: Cluster, job: Wrapped, tmp_path: Path) -> None:
    cluster.pytorchjob("own")
    job.start("--", "sleep", "600")
    job.until_said(0, "this run belongs to job own: atlctl ps own")

    def owners() -> list[str]:
        return [json.loads(path.read_text())["owner"] for path in tmp_path.glob("state-*/run/*/*.json")]

    assert proc.wait_until(lambda: owners() == ["own", "own"], 60, 0.1), owners()
    for index in (0, 1):
        assert in_pod(job, index, "jobs", "-o", "name").stdout == b"own\n"
        seen = in_pod(job, index, "ps")
        assert b"note: job own, which this worker belongs to\n" in seen.stderr
        assert b"own-worker-1" in seen.stdout
        reached = in_pod(job, index, "exec", "--backend", "ssh", "--all", "--", "sh", "-c", "echo $RANK")
        assert sorted(reached.stdout.splitlines()) == [b"worker-0: 0", b"worker-1: 1"]
    assert in_pod(job, 1, "release", "own").stderr == b"released: worker-[0-1]\n"


def test_in_pods_that_cannot_be_read(cluster: Cluster, job: Wrapped) -> None:
    """The job of `run` is the only one then."""
    job.start("--", "sleep", "600")
    job.until_states(1, "Running", "Running")
    assert b"belongs to job" not in job.said(0).encode()
