"""Reports on a job in a cluster after its controller has deleted the failed pods."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.handle import Server
from tests.integration.stopping import TRAINING, Cluster, pod
from tests.support.cli import popen_cli
from tests.support.proc import wait_until

Object = dict[str, Any]
#: Wait for the file, then print `say` and exit with 3.
WAITS = "while [ ! -e {file} ]; do sleep 0.05; done; echo {say}; exit 3"
#: Names like those of a Job controller: the pod in the middle is the second by name.
PLAIN = ("sweep-6jmq2", "sweep-mtcpw", "sweep-prh2b")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Server() as server:
        server.controller(on=True)
        yield Cluster(server)


def started(cluster: Cluster, names: Sequence[str]) -> None:
    for name in names:
        cluster.server.wait_phase(name, "Running")


def waits(name: str, say: str = "failing") -> Object:
    """A container that fails when a file with its pod's name exists."""
    return {"command": ["sh", "-c", WAITS.format(file=Path.cwd() / name, say=say)]}


def fail(name: str) -> None:
    Path(name).touch()


def plain_job(cluster: Cluster) -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "sweep"},
        "spec": {"parallelism": 3, "completions": 3, "backoffLimit": 0, "completionMode": "NonIndexed"},
        "status": {"active": 3, "ready": 3},
    }
    made = cluster.server.put(job)
    labels = {"batch.kubernetes.io/controller-uid": made["metadata"]["uid"], "batch.kubernetes.io/job-name": "sweep"}
    for name in PLAIN:
        one = pod(name, made, labels, container=waits(name), terminationGracePeriodSeconds=1)
        cluster.server.put(one, run=True)
    started(cluster, PLAIN)


def left(cluster: Cluster, names: Sequence[str]) -> list[str]:
    return [name for name in names if cluster.server.get("Pod", name) is not None]


def test_the_pod_that_a_plain_job_keeps_has_the_number_that_it_had(cluster: Cluster) -> None:
    plain_job(cluster)
    names = {worker["pod"]: worker["name"] for worker in cluster.data("ps", "sweep")["workers"]}
    assert names == {pod: f"worker-{index}" for index, pod in enumerate(PLAIN)}
    fail("sweep-mtcpw")
    assert wait_until(lambda: left(cluster, PLAIN) == ["sweep-mtcpw"])
    now = cluster.cli("ps", "sweep", "-o", "json")
    assert [(w["name"], w["index"]) for w in json.loads(now.stdout)["data"]["workers"]] == [("worker-1", 1)]
    assert b"nothing shows the order" not in now.stderr
    (cause,) = cluster.data("errors", "sweep")["root_causes"]
    assert (cause["worker"], cause["exit_code"]) == ("worker-1", 3)


def test_where_nothing_keeps_the_numbers_a_worker_has_the_name_of_its_pod(cluster: Cluster) -> None:
    plain_job(cluster)
    fail("sweep-mtcpw")
    assert wait_until(lambda: left(cluster, PLAIN) == ["sweep-mtcpw"])
    cluster.server.fault("status", kind="list", resource="events", code=403, message="events are forbidden")
    run = cluster.cli("errors", "sweep", "-o", "json")
    (cause,) = json.loads(run.stdout)["data"]["root_causes"]
    assert (cause["worker"], cause["exit_code"]) == ("sweep-mtcpw", 3)
    assert b"nothing shows the order in which they were made" in run.stderr
    assert b"the pods of workers 1-2" not in run.stderr
    assert b"2 pods are gone" in run.stderr


def pytorchjob(cluster: Cluster, say: str = "failing") -> list[str]:
    """Create one master and two workers; returns the names of their pods."""
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}
    made = cluster.server.put(
        {
            "apiVersion": TRAINING,
            "kind": "PyTorchJob",
            "metadata": {"name": "bert"},
            "spec": {"pytorchReplicaSpecs": replicas, "runPolicy": {"cleanPodPolicy": "Running"}},
            "status": {"conditions": [{"type": kind, "status": "True"} for kind in ("Created", "Running")]},
        }
    )
    names = []
    for role, index in (("master", 0), ("worker", 0), ("worker", 1)):
        names.append(f"bert-{role}-{index}")
        labels = {"job-name": "bert", "replica-type": role, "replica-index": str(index)}
        labels = {f"training.kubeflow.org/{key}": value for key, value in labels.items()}
        one = pod(names[-1], made, labels, container=waits(names[-1], say), terminationGracePeriodSeconds=1)
        cluster.server.put(one, run=True)
    started(cluster, names)
    return names


def test_the_events_of_a_pytorchjob_name_the_culprit_when_all_its_pods_are_gone(cluster: Cluster) -> None:
    names = pytorchjob(cluster)
    fail("bert-worker-0")
    assert wait_until(lambda: not left(cluster, names))
    run = cluster.cli("errors", "bert", "-o", "json")
    data = json.loads(run.stdout)["data"]
    (cause,) = data["root_causes"]
    assert (data["verdict"], cause["worker"], cause["exit_code"], cause["category"]) == (
        "worker",
        "worker-0",
        3,
        "explicit_exit",
    )
    assert cause["confidence"] == "likely"
    assert any("exited with code 3" in proof["text"] for proof in cause["evidence"])
    assert b"the pods of workers 0-2 are gone (since 20" in run.stderr


def test_a_pod_that_was_deleted_from_outside_is_the_first_and_not_a_lost_node(cluster: Cluster) -> None:
    names = pytorchjob(cluster)
    cluster.server.delete("Pod", "bert-worker-1", grace=1)
    assert wait_until(lambda: "bert-worker-1" not in left(cluster, names))
    time.sleep(1.1)  # events have a resolution of one second
    fail("bert-worker-0")
    assert wait_until(lambda: not left(cluster, names))
    (cause,) = cluster.data("errors", "bert")["root_causes"]
    assert (cause["worker"], cause["category"]) == ("worker-1", "preemption")


def test_a_recording_with_out_is_used_and_keeps_the_numbers(cluster: Cluster) -> None:
    plain_job(cluster)
    env = {"KUBECONFIG": str(cluster.server.kubeconfig)}
    with popen_cli("record", "sweep", "--out", "mine", env=env) as recorder:
        assert wait_until(Path("mine/atlctl.json").exists)
        fail("sweep-mtcpw")
        assert recorder.wait(60) == 0
    assert wait_until(lambda: left(cluster, PLAIN) == ["sweep-mtcpw"])
    cluster.server.fault("status", kind="list", resource="events", code=403, message="events are forbidden")
    run = cluster.cli("errors", "sweep", "-o", "json")
    data = json.loads(run.stdout)["data"]
    assert [(cause["worker"], cause["exit_code"]) for cause in data["root_causes"]] == [("worker-1", 3)]
    assert f"from the recording in {Path('mine').absolute()}, which reaches to the end".encode() in run.stderr
    assert b"next time" not in run.stderr
    assert [worker["name"] for worker in cluster.data("ps", "sweep")["workers"]] == ["worker-1"]
    assert b"nothing shows the order" not in cluster.cli("ps", "sweep").stderr
