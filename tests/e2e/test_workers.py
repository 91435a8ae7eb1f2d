"""`jobs` and `ps`: kinds, names, ranks, states and reasons on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e import kinds, objects
from tests.e2e.cluster import Cluster, Object, until
from tests.e2e.kinds import Job, Kind
from tests.e2e.settings import token


def test_jobs_lists_every_kind(cluster: Cluster, idle: Job) -> None:
    if idle.kind.resource == kinds.PODS:  # they have no object that could be listed
        found = cluster.data("ps", *idle.words)["job"]
    else:
        (found,) = [job for job in cluster.data("jobs")["jobs"] if job["name"] == idle.name]
        assert found["kind"] == idle.kind.title
    assert (found["state"], found["namespace"]) == ("Running", cluster.namespace)
    count = len(idle.kind.workers)
    assert found["workers"] == {"expected": count, "present": count, "running": count}
    assert found["gpus"] is None


def test_ps_names_workers_roles_and_ranks(idle: Job) -> None:
    workers = idle.workers
    assert [worker["index"] for worker in workers] == list(range(len(idle.kind.workers)))
    for worker, (name, role, rank) in zip(workers, idle.kind.workers, strict=True):
        assert (worker["role"], worker["node_rank"]) == (role, rank)
        assert worker["name"] == (worker["name"] if name is None else name)
        assert (worker["state"], worker["restarts"]) == ("Running", 0)
        assert all(worker[field] for field in ("pod", "node", "address", "started"))
    assert len({worker["name"] for worker in workers}) == len({worker["pod"] for worker in workers}) == len(workers)


def test_a_pod_and_a_child_object_mean_their_job(cluster: Cluster, idle: Job) -> None:
    if idle.kind.resource == kinds.PODS:
        pytest.skip("pods without a job have none above them")
    pod = idle.workers[0]["pod"]
    assert cluster.data("ps", pod)["job"]["name"] == idle.name


def test_ps_on_a_terminal_has_a_row_for_each_worker(cluster: Cluster, job: Job) -> None:
    run = cluster.cli("ps", *job.words, tty=True, columns=200)
    assert run.code == 0
    assert all(worker["pod"].encode() in run.stdout for worker in job.workers)


def test_an_unknown_job_is_3(cluster: Cluster) -> None:
    run = cluster.cli("ps", f"no-such-{token()}")
    assert (run.stdout, run.code) == (b"", 3)


@contextmanager
def made(cluster: Cluster, resource: str, obj: Object) -> Iterator[str]:
    """Create an object for one test; yields its name."""
    name = obj["metadata"]["name"]
    cluster.create(resource, obj)
    try:
        yield name
    finally:
        cluster.delete(resource, name)


def state(cluster: Cluster, name: str, index: int = 0) -> tuple[str, str]:
    """State and reason of a worker; empty while it does not exist."""
    run = cluster.cli("ps", name)
    if run.code:
        return "", ""
    found = [worker for worker in cluster.data("ps", name)["workers"] if worker["index"] == index]
    return (found[0]["state"], found[0]["reason"]) if found else ("", "")


def test_a_worker_that_no_node_takes_is_unschedulable(cluster: Cluster) -> None:
    nowhere = objects.spec(objects.container(objects.IDLE), nodeSelector={"atlctl.dev/nowhere": token()})
    with made(cluster, "jobs.batch", objects.batch_job(f"nowhere-{token()}", nowhere, 1)) as name:
        until("Pending (Unschedulable)", lambda: state(cluster, name) == ("Pending", "Unschedulable"))
        events = until("an event", lambda: cluster.data("events", name)["events"])
        assert "FailedScheduling" in {event["reason"] for event in events}
        run = cluster.cli("exec", "-j", name, "--", "true")
        assert run.code == 255, run


def test_an_image_that_is_not_there_is_named_as_the_reason(cluster: Cluster) -> None:
    lacking = objects.container(objects.IDLE, image="localhost/atlctl-e2e:none", imagePullPolicy="Never")
    with made(cluster, "jobs.batch", objects.batch_job(f"lacking-{token()}", objects.spec(lacking), 1)) as name:
        until("its image's error", lambda: "Image" in state(cluster, name)[1])
        run = cluster.cli("logs", name)
        assert run.stdout == b""
        assert b"Image" in run.stderr, run


def test_workers_that_do_not_exist_yet_are_missing_by_number(cluster: Cluster) -> None:
    unready = {"exec": {"command": ["sh", "-c", "exit 1"]}, "periodSeconds": 5}
    one = objects.spec(objects.container(objects.IDLE, readinessProbe=unready))
    with made(cluster, "statefulsets.apps", objects.statefulset(f"slow-{token()}", one, 3, ordered=True)) as name:
        until("its first pod", lambda: state(cluster, name)[0])
        assert cluster.data("ps", name)["job"]["missing"] == [1, 2]
        rows = cluster.cli("ps", name).stdout.decode().splitlines()
        assert [row.split()[0] for row in rows if "missing" in row] == ["1", "2"]


@pytest.mark.parametrize("kind", [kind for kind in kinds.EACH if kind.fails], ids=lambda kind: kind.id)
def test_a_worker_that_failed_is_told_with_its_exit_code(cluster: Cluster, kind: Kind) -> None:
    own = kinds.create(cluster, kind, objects.ENDING)
    try:
        own.started()
        (first, *_) = own.workers
        failing = first["name"]
        assert cluster.cli("exec", *own.words, "-w", failing, "--", "sh", "-c", "echo 3 > end").code == 0

        def failed() -> list[Object]:
            run = cluster.cli("ps", *own.words)
            return [worker for worker in own.workers if worker["state"] == "Failed"] if run.code == 0 else []

        (worker,) = until("a failed worker", failed)[:1]
        assert worker["exit_code"] == 3
        if kind.resource != kinds.PODS:
            until("the job's failure", lambda: own.state() == "Failed")
        run = cluster.cli("logs", *own.words, "--failed")
        assert b"leaving" in run.stdout, run
    finally:
        own.remove()
