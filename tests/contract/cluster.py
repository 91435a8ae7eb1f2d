"""Workers in "pods" of the test API server: real processes behind a real TLS connection."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import time
from collections.abc import Sequence
from typing import Any, cast

from atlctl.backends.base import Backend
from atlctl.backends.kubernetes.backend import KubernetesBackend
from atlctl.jobs.model import Job
from tests.apiserver.handle import Server
from tests.contract.fresh import Fresh
from tests.contract.world import IDLE, client_of
from tests.support import proc

_NUMBERS = itertools.count(1)
_GROUP = "kubeflow.org/v1"
_PREFIX = "training.kubeflow.org/"


class KubernetesWorld:
    """PyTorchJobs without a master: `worker-N` has node rank N. No controller acts on them."""

    def __init__(self, server: Server) -> None:
        """Each test has its own namespace and node on the shared server."""
        self.server = server
        self.namespace = f"test-{next(_NUMBERS)}"
        server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        self.kubeconfig = server.write_kubeconfig(f"{self.namespace}.yaml", namespace=self.namespace)
        self.backend = cast("Backend", Fresh("kubernetes", self._connect, self._operate))
        self._pods: list[str] = []
        self._jobs: list[str] = []

    def start(self, argv: Sequence[str] = IDLE, workers: int = 1, name: str = "job") -> Job:
        self._jobs.append(name)
        made = self.server.put(self._placed(_job(name, workers)))
        for index in range(workers):
            pod = self._placed(_pod(name, made["metadata"]["uid"], index, workers, argv))
            pod["spec"]["nodeName"] = f"node-{self.namespace}"
            self._pods.append(pod["metadata"]["name"])
            self.server.put(pod, run=True)
        deadline = time.monotonic() + 100
        while True:
            job = asyncio.run(self.backend.get_job(name))
            if len(job.workers) == workers and all(worker.started for worker in job.workers):
                return job
            assert time.monotonic() < deadline, job
            time.sleep(0.02)

    def _connect(self) -> KubernetesBackend:
        return KubernetesBackend(str(self.kubeconfig), None, self.namespace)

    def _operate(self) -> None:
        """Update a job's conditions like the training operator when its pods end."""
        for name in dict.fromkeys(self._jobs):
            pods = [
                self.server.get("Pod", pod, self.namespace) for pod in self._pods if pod.startswith(f"{name}-worker-")
            ]
            phases = [pod["status"].get("phase") for pod in pods if pod is not None]
            ended = "Failed" if "Failed" in phases else "Succeeded" if set(phases) == {"Succeeded"} else None
            if ended is not None:
                condition = {"type": ended, "status": "True", "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ")}
                self.server.patch("PyTorchJob", name, {"status": {"conditions": [condition]}}, self.namespace, _GROUP)

    def _placed(self, obj: dict[str, Any]) -> dict[str, Any]:
        obj["metadata"]["namespace"] = self.namespace
        return obj

    def inside(self, job: Job, index: int = 0) -> list[proc.Process]:
        found = self.server.processes(f"{job.name}-worker-{index}", self.namespace)
        inside = [process for one in found if (process := proc.read(one["pid"])) is not None]
        # A command's guard has the command's words in its command line.
        return [process for process in inside if "@atlctl-" not in process.command]

    def end_worker(self, job: Job, index: int = 0) -> None:
        self.server.kill(f"{job.name}-worker-{index}", self.namespace)

    def lose(self, job: Job) -> None:
        self.server.node(f"node-{self.namespace}", up=False)

    def replace(self, job: Job) -> Job:
        for worker in job.workers:
            assert worker.pod is not None
            self.server.remove("Pod", worker.pod, self.namespace)
        self.server.remove("PyTorchJob", job.name, self.namespace, _GROUP)
        return self.start(name=job.name)

    def client(self, job: Job, argv: Sequence[str], *, stdin: bool) -> subprocess.Popen[bytes]:
        return client_of(job, argv, stdin=stdin, KUBECONFIG=str(self.kubeconfig))

    def close(self) -> None:
        for name in dict.fromkeys(self._pods):
            self.server.remove("Pod", name, self.namespace)


def _job(name: str, workers: int) -> dict[str, Any]:
    running = [{"type": kind, "status": "True"} for kind in ("Created", "Running")]
    return {
        "apiVersion": _GROUP,
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}},
        "status": {"conditions": running},
    }


def _pod(name: str, uid: str, index: int, workers: int, argv: Sequence[str]) -> dict[str, Any]:
    labels = {"job-name": name, "operator-name": "pytorchjob-controller", "replica-type": "worker"}
    labels["replica-index"] = str(index)
    owner = {"apiVersion": _GROUP, "kind": "PyTorchJob", "name": name, "uid": uid, "controller": True}
    env = {"RANK": index, "WORLD_SIZE": workers}
    container = {
        "name": "pytorch",
        "command": list(argv),
        "env": [{"name": key, "value": str(value)} for key, value in env.items()],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-worker-{index}",
            "labels": {_PREFIX + key: value for key, value in labels.items()},
            "ownerReferences": [owner],
        },
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
