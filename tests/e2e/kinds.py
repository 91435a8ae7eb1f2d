"""Job kinds of the suite: how to create each one, and the expected workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.e2e import objects
from tests.e2e.cluster import Cluster, Object
from tests.e2e.describe import describe
from tests.e2e.settings import START, token

PODS = "pods"
SET_LABEL = "atlctl-e2e-set"


#: Name, role and node rank of a worker.
Expected = tuple[str | None, str | None, int | None]


@dataclass(frozen=True)
class Kind:
    """A job kind. `workers` are in the job's order; a name of None is only known at run time.

    `suspends`: atlctl can stop and resume it. `container`: the name that the kind requires.
    """

    id: str
    resource: str
    title: str
    workers: tuple[Expected, ...]
    make: Callable[[str, str, Object, int], list[tuple[str, Object]]]
    container: str = "main"
    suspends: bool = True
    #: Whether a failed worker stays failed: the platform does not restart it.
    fails: bool = True


@dataclass
class Job:
    """A job of the cluster. `words` select it on a command line; `objects`: those created, the job first."""

    kind: Kind
    name: str
    cluster: Cluster
    objects: list[tuple[str, str]] = field(default_factory=list)

    @property
    def words(self) -> tuple[str, str]:
        if self.kind.resource == PODS:
            return ("-l", f"{SET_LABEL}={self.name}")
        return ("-j", self.name)

    @property
    def workers(self) -> list[Object]:
        """Its workers in the output of `ps`."""
        return list(self.cluster.data("ps", *self.words)["workers"])

    @property
    def names(self) -> list[str]:
        return [worker["name"] for worker in self.workers]

    def started(self, seconds: float = START) -> Job:
        """Wait until all workers run."""
        deadline = time.monotonic() + seconds
        while True:
            run = self.cluster.cli("ps", *self.words)
            if run.code == 0:
                workers = self.workers
                if len(workers) == len(self.kind.workers) and all(w["state"] == "Running" for w in workers):
                    return self
            if time.monotonic() > deadline:
                pytest.fail(f"{self.kind.id} {self.name} does not run after {seconds:g} s: {run}")
            time.sleep(1)

    def state(self) -> str:
        """Its state in the list of jobs; empty if it is missing."""
        found = [job for job in self.cluster.data("jobs")["jobs"] if job["name"] == self.name]
        return str(found[0]["state"]) if found else ""

    def remove(self) -> None:
        """Delete the job; if a test is failing, first record the state of the cluster."""
        if sys.exc_info()[0] is not None and not self.cluster.evidence:
            self.cluster.evidence = describe(self.cluster)
        for resource, name in self.objects:
            self.cluster.delete(resource, name)


def create(
    cluster: Cluster, kind: Kind, script: str, *, torch: bool = False, env: dict[str, str] | None = None, **more: Any
) -> Job:
    """Create a job; skips if the cluster does not serve its kind. `more`: fields of the pods' spec."""
    version = served(cluster, kind)
    job = Job(kind, named(kind), cluster)
    variables = [{"name": name, "value": value} for name, value in (env or {}).items()]
    one = objects.container(script, kind.container, torch=torch, env=variables)
    for resource, obj in kind.make(job.name, version, objects.spec(one, **more), len(kind.workers)):
        cluster.create(resource, obj)
        job.objects.insert(0, (resource, obj["metadata"]["name"]))
    return job


def named(kind: Kind) -> str:
    return f"{kind.id}-{token()}"


def served(cluster: Cluster, kind: Kind) -> str:
    """The version of a kind, `v1` for pods. Skips if the cluster does not serve it."""
    if kind.resource != PODS and kind.resource not in cluster.kinds:
        pytest.skip(f"the cluster does not serve {kind.resource}")
    return cluster.kinds.get(kind.resource, "v1")


def _batch(indexed: bool) -> Callable[[str, str, Object, int], list[tuple[str, Object]]]:
    return lambda name, _version, spec, count: [("jobs.batch", objects.batch_job(name, spec, count, indexed=indexed))]


def _jobset(*, roles: bool) -> Callable[[str, str, Object, int], list[tuple[str, Object]]]:
    def make(name: str, version: str, spec: Object, count: int) -> list[tuple[str, Object]]:
        replicated = {"leader": 1, "node": count - 1} if roles else {"node": count}
        return [("jobsets.jobset.x-k8s.io", objects.jobset(name, version, spec, replicated))]

    return make


def _trainjob(name: str, version: str, spec: Object, count: int) -> list[tuple[str, Object]]:
    return [
        ("trainingruntimes.trainer.kubeflow.org", objects.training_runtime(name, version, spec)),
        ("trainjobs.trainer.kubeflow.org", objects.trainjob(name, version, name, count)),
    ]


def _pytorchjob(*, master: bool) -> Callable[[str, str, Object, int], list[tuple[str, Object]]]:
    def make(name: str, version: str, spec: Object, count: int) -> list[tuple[str, Object]]:
        roles = {"Master": 1, "Worker": count - 1} if master else {"Worker": count}
        return [("pytorchjobs.kubeflow.org", objects.pytorchjob(name, version, spec, roles))]

    return make


def _pods(name: str, _version: str, spec: Object, count: int) -> list[tuple[str, Object]]:
    return [(PODS, objects.pod(f"{name}-{i}", {SET_LABEL: name, "node-rank": str(i)}, spec)) for i in range(count)]


def _statefulset(name: str, _version: str, spec: Object, count: int) -> list[tuple[str, Object]]:
    return [("statefulsets.apps", objects.statefulset(name, spec, count))]


def _row(
    role: str, count: int = 2, first: int = 0, shown: str | None = None
) -> tuple[tuple[str, str | None, int], ...]:
    return tuple((f"{role}-{i}", shown, first + i) for i in range(count))


INDEXED = Kind("indexed", "jobs.batch", "Job", _row("worker"), _batch(True))
PLAIN = Kind("plain", "jobs.batch", "Job", ((None, None, None),) * 2, _batch(False))
JOBSET = Kind("jobset", "jobsets.jobset.x-k8s.io", "JobSet", _row("node", 2, 0, "node"), _jobset(roles=False))
#: Several replicated Jobs are not known to be one world: no ranks.
ROLES = Kind(
    "roles",
    "jobsets.jobset.x-k8s.io",
    "JobSet",
    (("leader-0", "leader", None), ("node-0", "node", None), ("node-1", "node", None)),
    _jobset(roles=True),
)
TRAINJOB = Kind(
    "trainjob", "trainjobs.trainer.kubeflow.org", "TrainJob", _row("node", 2, 0, "node"), _trainjob, container="node"
)
PYTORCHJOB = Kind(
    "pytorchjob",
    "pytorchjobs.kubeflow.org",
    "PyTorchJob",
    _row("master", 1, 0, "master") + _row("worker", 1, 1, "worker"),
    _pytorchjob(master=True),
    container="pytorch",
)
#: Without a master no worker waits for one, and ranks begin with the first worker.
MASTERLESS = Kind(
    "masterless",
    "pytorchjobs.kubeflow.org",
    "PyTorchJob",
    _row("worker", 2, 0, "worker"),
    _pytorchjob(master=False),
    container="pytorch",
)
BARE = Kind("pods", PODS, "Pods", ((None, None, 0), (None, None, 1)), _pods, suspends=False)
STATEFULSET = Kind(
    "statefulset", "statefulsets.apps", "StatefulSet", _row("worker"), _statefulset, suspends=False, fails=False
)
#: One of each kind, followed by those with another layout of workers.
EACH: Sequence[Kind] = (INDEXED, PLAIN, JOBSET, TRAINJOB, PYTORCHJOB, BARE, STATEFULSET)
ALL: Sequence[Kind] = (*EACH, ROLES, MASTERLESS)
