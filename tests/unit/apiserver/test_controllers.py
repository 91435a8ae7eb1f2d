"""The simple controllers of the test API server, and the class that starts it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.apiserver.handle import Server
from tests.support.proc import wait_until
from tests.unit.apiserver.client import Client, pod, run

#: Kind, version, plural, path of `suspend`.
SUSPENDED = [
    ("Job", "batch/v1", "jobs", "spec"),
    ("JobSet", "jobset.x-k8s.io/v1alpha2", "jobsets", "spec"),
    ("TrainJob", "trainer.kubeflow.org/v1alpha1", "trainjobs", "spec"),
    ("PyTorchJob", "kubeflow.org/v1", "pytorchjobs", "runPolicy"),
]


def top(kind: str, version: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "j", "namespace": "default"}, "spec": spec}


def owned(name: str, owner: dict[str, Any], *command: str) -> dict[str, Any]:
    made = pod(name, *command, terminationGracePeriodSeconds=1)
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": "j"}
    made["metadata"]["ownerReferences"] = [reference | {"uid": owner["metadata"]["uid"]}]
    return made


def conditions(obj: dict[str, Any] | None) -> dict[str, str]:
    return {one["type"]: one["status"] for one in ((obj or {}).get("status") or {}).get("conditions") or []}


@pytest.mark.parametrize(("kind", "version", "plural", "place"), SUSPENDED)
def test_suspend_and_resume(kind: str, version: str, plural: str, place: str) -> None:
    async def work(client: Client) -> None:
        client.control.controller(True)
        owner = client.control.put(top(kind, version))
        client.control.put(owned("w-0", owner, "sleep", "1060"), run=True)
        client.control.put(owned("w-1", owner), fake=True)
        await client.phase("w-0", "Running")
        first = client.control.get("Pod", "w-0")

        async def suspend(value: bool) -> None:
            patch = {"spec": {"suspend": value} if place == "spec" else {"runPolicy": {"suspend": value}}}
            path = f"/apis/{version}/namespaces/default/{plural}/j"
            assert (await client.call("PATCH", path, patch, merge=True))[0] == 200

        await suspend(True)
        assert client.control.get("Pod", "w-0") is not None, "nothing has changed at once"
        await client.until(lambda: client.control.get("Pod", "w-0") is None)
        await client.until(lambda: client.control.get("Pod", "w-1") is None)
        now = client.control.get(kind, "j", api_version=version)
        assert conditions(now)["Suspended"] == "True"
        await suspend(False)
        again = await client.phase("w-0", "Running")
        assert first is not None
        assert again["metadata"]["uid"] != first["metadata"]["uid"]
        assert len(client.control.processes("w-0")) == 1
        await client.phase("w-1", "Running")
        assert conditions(client.control.get(kind, "j", api_version=version))["Suspended"] == "False"

    run(work)


def test_the_chain_of_a_trainjob() -> None:
    async def work(client: Client) -> None:
        client.control.controller(True)
        owner = client.control.put(top("TrainJob", "trainer.kubeflow.org/v1alpha1"))
        for kind, version in (("JobSet", "jobset.x-k8s.io/v1alpha2"), ("Job", "batch/v1")):
            below = top(kind, version)
            below["metadata"]["ownerReferences"] = owned("x", owner)["metadata"]["ownerReferences"]
            owner = client.control.put(below)
        client.control.put(owned("w", owner), fake=True)
        path = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/j"
        await client.call("PATCH", path, {"spec": {"suspend": True}}, merge=True)
        await client.until(lambda: client.control.get("Pod", "w") is None)
        await client.call("PATCH", path, {"spec": {"suspend": False}}, merge=True)
        await client.phase("w", "Running")

    run(work)


def test_commands_of_volcano() -> None:
    async def work(client: Client) -> None:
        client.control.controller(True)
        job = client.control.put(top("Job", "batch.volcano.sh/v1alpha1"))
        client.control.put(owned("w", job), fake=True)

        async def command(action: str) -> None:
            target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j"}
            body = {"metadata": {"generateName": "c-"}, "action": action}
            body["target"] = target | {"uid": job["metadata"]["uid"]}
            path = "/apis/bus.volcano.sh/v1alpha1/namespaces/default/commands"
            assert (await client.call("POST", path, body))[0] == 201

        def phase() -> str:
            found = client.control.get("Job", "j", api_version="batch.volcano.sh/v1alpha1")
            return str((found or {}).get("status", {}).get("state", {}).get("phase"))

        await command("AbortJob")
        await client.until(lambda: phase() == "Aborted")
        assert client.control.get("Pod", "w") is None
        await command("ResumeJob")
        await client.until(lambda: phase() == "Running")
        await client.phase("w", "Running")

    run(work)


def test_workloads_of_kueue() -> None:
    """An admitted job suspended by hand is resumed; an inactive workload keeps it suspended."""

    async def work(client: Client) -> None:
        client.control.controller(True)
        job = client.control.put(top("Job", "batch/v1", suspend=False))
        client.control.put(owned("w", job), fake=True)
        workload = top("Workload", "kueue.x-k8s.io/v1beta1", active=True)
        workload["metadata"]["ownerReferences"] = owned("x", job)["metadata"]["ownerReferences"]
        workload["status"] = {"conditions": [{"type": "Admitted", "status": "True"}]}
        client.control.put(workload)
        path = "/apis/batch/v1/namespaces/default/jobs/j"
        await client.call("PATCH", path, {"spec": {"suspend": True}}, merge=True)
        await client.until(lambda: client.control.get("Job", "j", api_version="batch/v1")["spec"]["suspend"] is False)  # type: ignore[index]
        assert client.control.get("Pod", "w") is not None
        path = "/apis/kueue.x-k8s.io/v1beta1/namespaces/default/workloads/j"
        await client.call("PATCH", path, {"spec": {"active": False}}, merge=True)
        await client.until(lambda: client.control.get("Pod", "w") is None)
        found = client.control.get("Workload", "j", api_version="kueue.x-k8s.io/v1beta1")
        assert conditions(found) == {"Admitted": "False", "Evicted": "True", "QuotaReserved": "False"}
        await client.call("PATCH", path, {"spec": {"active": True}}, merge=True)
        await client.phase("w", "Running")

    run(work)


def test_the_handle_ends_everything() -> None:
    server = Server()
    try:
        server.put(pod("p", "sh", "-c", "setsid sleep 1000 & sleep 1001"), run=True)
        server.wait_phase("p", "Running")
        assert wait_until(lambda: len(server.processes("p")) == 3)
        pids = [one["pid"] for one in server.processes("p")]
        with pytest.raises(RuntimeError, match="no such fault"):
            server.fault("nonsense")
        assert server.errors() == ""
    finally:
        server.close()
    assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert server.process.returncode == 0


def test_a_server_whose_test_was_killed_ends_too() -> None:
    server = Server()
    server.put(pod("p", "sleep", "1000"), run=True)
    server.wait_phase("p", "Running")
    pids = [one["pid"] for one in server.processes("p")]
    assert server.process.stdin is not None
    server.process.stdin.close()  # like the end of this process
    server.process.wait(30)
    assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    server.close()
