"""Jobs on the test API server for tests of `stop` and `resume`, and `atlctl` runs on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.apiserver.handle import Server
from tests.support.cli import Result, run_cli

Object = dict[str, Any]
TRAINING = "kubeflow.org/v1"
_PREFIX = "training.kubeflow.org/"


def owner(obj: Object) -> Object:
    meta = obj["metadata"]
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }


def pod(name: str, above: Object | None, labels: Object, **spec: Any) -> Object:
    container = {"name": "pytorch", "command": ["sh", "-c", "echo step 1; sleep 4000"]}
    container |= spec.pop("container", {})
    metadata: Object = {"name": name, "labels": labels} | spec.pop("metadata", {})
    if above is not None:
        metadata["ownerReferences"] = [owner(above)]
    spec = {"restartPolicy": "Never", "nodeName": "node1", "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Cluster:
    """A server with helpers; `cli` runs atlctl on it as `user`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        server.serve("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")

    def pytorchjob(self, name: str, workers: int = 2, *, run: bool = False, **more: Any) -> Object:
        """Create a job and its pods; `run`: with real processes. `more`: for the pods' spec."""
        metadata = {"name": name, "labels": more.pop("labels", {}), "annotations": more.pop("annotations", {})}
        made = self.server.put(
            {
                "apiVersion": TRAINING,
                "kind": "PyTorchJob",
                "metadata": metadata,
                "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}, "runPolicy": {}},
                "status": {"conditions": [{"type": kind, "status": "True"} for kind in ("Created", "Running")]},
            }
        )
        for index in range(workers):
            labels = {"job-name": name, "replica-type": "worker", "replica-index": str(index)}
            one = pod(f"{name}-worker-{index}", made, {_PREFIX + k: v for k, v in labels.items()}, **dict(more))
            self.server.put(one, run=run, fake=not run)
        return made

    def volcano(self, name: str, workers: int = 2) -> Object:
        made = self.server.put(
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "metadata": {"name": name},
                "spec": {"tasks": [{"name": "worker", "replicas": workers}]},
                "status": {"state": {"phase": "Running"}},
            }
        )
        for index in range(workers):
            labels = {"job-name": name, "task-spec": "worker", "task-index": str(index)}
            one = pod(f"{name}-worker-{index}", made, {f"volcano.sh/{k}": v for k, v in labels.items()})
            self.server.put(one, fake=True)
        return made

    def workload(self, job: Object, name: str) -> Object:
        """Create the job's Kueue Workload, admitted."""
        admitted = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")]
        return self.server.put(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "Workload",
                "metadata": {"name": name, "ownerReferences": [owner(job)]},
                "spec": {"active": True, "queueName": "team"},
                "status": {"conditions": admitted},
            }
        )

    def cli(self, *words: str, env: dict[str, str | None] | None = None, tty: bool = False, **more: Any) -> Result:
        merged = {"KUBECONFIG": str(self.server.kubeconfig), **(env or {})}
        return run_cli(*words, env=merged, tty=tty, **more)

    def data(self, *words: str) -> Any:
        run = self.cli(*words, "-o", "json")
        return json.loads(run.stdout)["data"]

    def pods(self, prefix: str, count: int) -> list[Object | None]:
        return [self.server.get("Pod", f"{prefix}-worker-{index}") for index in range(count)]

    def writes(self, since: int = 0) -> Sequence[Object]:
        """Requests that change something, except permission checks."""
        asked = [request for request in self.server.requests(since) if "/authorization" not in request["path"]]
        return [request for request in asked if request["method"] in ("POST", "PATCH", "PUT", "DELETE")]
