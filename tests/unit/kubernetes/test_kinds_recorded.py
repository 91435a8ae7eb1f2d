"""Every recorded object of a kind, with the states and names from the recordings' index."""

from __future__ import annotations

from typing import Any

import pytest

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.kinds import registry
from atlctl.backends.kubernetes.kinds.base import Sight
from atlctl.backends.kubernetes.kinds.build import build, scope_of
from atlctl.jobs.model import Job, State
from tests.support.recordings import load, names, needs_recordings

pytestmark = needs_recordings

TWO = ["node-0", "node-1"]
ACTORS = ["actors-0", "actors-1", "learners-0", "learners-1"]
BERT = ["master-0", "worker-0", "worker-1"]


def indexed(count: int) -> list[str]:
    return [f"worker-{index}" for index in range(count)]


#: Recording -> state, reason, expected workers, names of existing workers.
EXPECTED: dict[str, tuple[State, str, int, list[str]]] = {
    "job-complete": (State.SUCCEEDED, "CompletionsReached", 2, indexed(2)),
    "job-failed": (State.FAILED, "BackoffLimitExceeded", 2, indexed(2)),
    "job-failed-index": (State.RUNNING, "", 4, indexed(4)),
    "job-resumed": (State.RUNNING, "", 4, indexed(4)),
    "job-running": (State.RUNNING, "", 4, indexed(4)),
    "job-suspended": (State.SUSPENDED, "JobSuspended", 4, []),
    "job-suspending": (State.STOPPING, "Suspending", 4, indexed(4)),
    "job-two-attempts": (State.RUNNING, "", 2, indexed(2)),
    "jobset-completed": (State.SUCCEEDED, "AllJobsCompleted", 4, ACTORS),
    "jobset-failed": (State.FAILED, "ReachedMaxRestarts", 4, ["actors-0", "actors-1", "actors-2"]),
    "jobset-restarted": (State.RESTARTING, "DefaultFailurePolicy", 4, ["actors-3"]),
    "jobset-resumed": (State.RUNNING, "", 4, ACTORS),
    "jobset-running": (State.RUNNING, "", 4, ACTORS),
    "jobset-suspended": (State.SUSPENDED, "SuspendedJobs", 4, []),
    "lws-running": (State.RUNNING, "", 4, indexed(4)),
    "pytorchjob-failed": (State.FAILED, "PyTorchJobFailed", 3, BERT),
    "pytorchjob-resumed": (State.RUNNING, "", 3, BERT),
    "pytorchjob-running": (State.RUNNING, "", 3, BERT),
    "pytorchjob-starting": (State.STARTING, "ContainerCreating", 3, BERT),
    "pytorchjob-succeeded": (State.SUCCEEDED, "PyTorchJobSucceeded", 3, BERT),
    "pytorchjob-suspended": (State.SUSPENDED, "PyTorchJobSuspended", 3, []),
    "same-name.job": (State.RUNNING, "", 2, indexed(2)),
    "same-name.trainjob": (State.RUNNING, "", 2, TWO),
    "statefulset-running": (State.RUNNING, "", 3, indexed(3)),
    "statefulset-scaled-0": (State.SUSPENDED, "", 0, []),
    "statefulset-scaling-down": (State.STOPPING, "Suspending", 0, indexed(3)),
    "torchrun-killed": (State.RUNNING, "", 2, indexed(2)),
    "torchrun-killed-later": (State.FAILED, "BackoffLimitExceeded", 2, indexed(1)),
    "torchrun-rdzv-failed": (State.STARTING, "ContainerCreating", 2, indexed(2)),
    "torchrun-rdzv-waiting": (State.RUNNING, "", 2, indexed(2)),
    "trainjob-complete": (State.SUCCEEDED, "AllJobsCompleted", 2, TWO),
    "trainjob-failed": (State.FAILED, "FailedJobs", 2, ["node-1"]),
    "trainjob-failing": (State.RUNNING, "", 2, TWO),
    "trainjob-resumed": (State.RUNNING, "", 2, TWO),
    "trainjob-running": (State.RUNNING, "", 2, TWO),
    "trainjob-suspended": (State.SUSPENDED, "Suspended", 2, []),
    "trainjob-suspending": (State.STOPPING, "Suspending", 2, TWO),
    "volcano-aborted": (State.SUSPENDED, "", 3, []),
    "volcano-running": (State.RUNNING, "", 3, BERT),
}


def read(name: str) -> tuple[Job, int]:
    """The job of a recording, and the number of pods that its label selector matched."""
    top = load(f"kinds/{name}.top")
    _, _, group, version, _, _, plural, _ = top["request"]["path"].split("/")
    kind = registry.kind_of(f"{plural}.{group}", version)
    assert kind is not None
    children: list[Any] = []
    for child in names(f"kinds/{name}.child-*.json"):
        body = load(child)["response"]["body"]
        children += body.get("items", [body])
    uid = top["response"]["body"]["metadata"]["uid"]
    own = tuple(item for item in children if (objects.controller(item) or {}).get("uid") == uid)
    sight = Sight(top["response"]["body"], own)
    scope = scope_of(kind, sight, complete=plural == "trainjobs")
    pods = load(f"kinds/{name}.pods")["response"]["body"]["items"]
    return build(kind, sight, [pod for pod in pods if scope.has(pod)]), len(pods)


def test_every_recorded_object_is_expected() -> None:
    assert {name.removeprefix("kinds/").removesuffix(".top") for name in names("kinds/*.top.json")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_jobs(name: str) -> None:
    made, _ = read(name)
    found = (made.state, made.reason, made.expected, [worker.name for worker in made.workers])
    assert found == EXPECTED[name]
    assert all(worker.uid and worker.pod and worker.container for worker in made.workers)
    assert not any(worker.container_guessed for worker in made.workers)


def test_every_recorded_pod_belongs_to_the_job_that_its_label_names() -> None:
    for name in EXPECTED:
        made, hit = read(name)
        tries = sum(1 + (worker.restarts if name == "job-two-attempts" else 0) for worker in made.workers)
        assert tries == hit, name


def test_recorded_ranks_attempts_and_cards() -> None:
    assert [w.node_rank for w in read("pytorchjob-running")[0].workers] == [0, 1, 2]
    assert [w.node_rank for w in read("trainjob-running")[0].workers] == [0, 1]
    assert [w.node_rank for w in read("volcano-running")[0].workers] == [0, 1, 2]
    assert read("trainjob-running")[0].gpus == 16
    retried = read("job-two-attempts")[0].workers[1]
    assert (retried.pod, retried.restarts, retried.attempt) == ("sweep-retry-1-v7gmb", 1, 1)
    assert [w.attempt for w in read("jobset-failed")[0].workers] == [1, 1, 1]
    assert [w.state for w in read("pytorchjob-failed")[0].workers] == [State.RUNNING, State.RUNNING, State.FAILED]


def test_recorded_bare_pods() -> None:
    pods = load("kinds/bare-pods.pods")["response"]["body"]["items"]
    made = build(registry.PODS, Sight({"metadata": {"name": "group=adhoc"}}), pods)
    assert [(w.name, w.node_rank) for w in made.workers] == [("adhoc-a", 0), ("adhoc-b", 1), ("adhoc-c", 2)]
    assert (made.state, made.kind, made.resource) == (State.RUNNING, "Pod", "pods")
