"""`atlctl report` for a job in a cluster: logs, events and pod states, deleted pods, and no credentials."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.handle import Server
from tests.integration.stopping import TRAINING, Cluster
from tests.support.cli import popen_cli
from tests.support.markup import read
from tests.support.proc import wait_until

CANARY = "CANARY-4711-CANARY"
FAILED = [
    "PyTorch version: 2.8.0+cu128",
    f"HF_TOKEN={CANARY}",
    "Traceback (most recent call last):",
    f"ValueError: shard 7 is damaged, api_key={CANARY}",
]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A job of two workers, the second failed, and an event with a secret."""
    with Server() as server:
        own = Cluster(server)
        own.pytorchjob("train", 2, container={"args": ["train.sh", "--token", CANARY]})
        server.log("train-worker-0", lines=["step 1"])
        server.log("train-worker-1", lines=FAILED, ended=True)
        pod = server.get("Pod", "train-worker-1", "default")
        assert pod is not None
        event = {
            "metadata": {"name": "event-1"},
            "involvedObject": {"kind": "Pod", "name": "train-worker-1", "uid": pod["metadata"]["uid"]},
            "reason": "FailedMount",
            "message": f"cannot mount https://user:{CANARY}@storage/x",
            "lastTimestamp": "2026-11-20T17:45:05Z",
        }
        server.put({"apiVersion": "v1", "kind": "Event", **event})
        server.token("admin", CANARY)  # the token in the kubeconfig of `secret`
        yield own


def test_a_job(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "report"
    config = str(cluster.server.write_kubeconfig("secret", token=CANARY))
    run = cluster.cli("-vv", "--debug", "report", "train", "--out", str(out), env={"KUBECONFIG": config})
    assert run.code == 0, run
    kept = json.loads((out / "verdict.json").read_text())
    (cause,) = kept["root_causes"] or kept["candidates"]
    assert (cause["worker"], cause["message"]) == ("worker-1", "ValueError: shard 7 is damaged, api_key=[redacted]")
    page = read((out / "index.html").read_text())
    assert page.problems == []
    for words in (
        "FailedMount",
        "https://user:[redacted]@storage/x",
        "train-worker-1",
        "node1",
        "2.8.0+cu128",
        "train.sh --token [redacted]",
    ):
        assert words in page.text
    data = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert CANARY.encode() not in data + run.stdout + run.stderr


def test_what_is_gone_comes_from_the_recording(cluster: Cluster, tmp_path: Path) -> None:
    server = cluster.server
    env: dict[str, str | None] = {"ATLCTL_STATE_DIR": str(tmp_path / "state")}
    with popen_cli(
        *("record", "train"),
        env={"KUBECONFIG": str(server.kubeconfig), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as recorder:
        kept = tmp_path / "state/recordings/kubernetes/default/train"
        assert wait_until(lambda: "shard 7" in "".join(p.read_text() for p in kept.glob("*/worker-1.ts.log")))
        server.remove("PyTorchJob", "train", api_version=TRAINING)
        for index in (0, 1):
            server.remove("Pod", f"train-worker-{index}")
        recorder.wait(30)
    out = tmp_path / "report"
    run = cluster.cli("report", "train", "--out", str(out), env=env)
    assert run.code == 0, run
    assert b"from the recording in" in run.stderr
    page = read((out / "index.html").read_text())
    assert "shard 7 is damaged" in page.text
    assert "States" in page.headings
    assert CANARY not in page.text
