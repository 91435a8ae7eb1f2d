"""The wait after a stop: until the pods are deleted, or why they are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from atlctl.backends.base import StopResult
from atlctl.backends.kubernetes import inventory, stopping
from atlctl.backends.kubernetes.api import ApiError, Items, NoServer, Query
from atlctl.backends.kubernetes.stopplan import Goal, Steps
from atlctl.jobs.errors import AtlctlError
from tests.unit.kubernetes import fakecluster as fake

Object = dict[str, Any]
NOW = 1_795_200_000.0  # 2026-11-20T18:40:00Z
LATER = "2026-11-20T18:50:00Z"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "FIRST", 0.01)
    monkeypatch.setattr(stopping, "LONGEST", 0.02)


def top(*, suspended: bool = True, **parts: Any) -> Object:
    return fake.pytorchjob("x", spec={"runPolicy": {"suspend": suspended}}, **parts)


def replicas(owner: Object, count: int = 2, **parts: Any) -> list[Object]:
    return [fake.replica(owner, "worker", index, uid=f"pod-{index}", **parts) for index in range(count)]


def settle(
    before: Sequence[Object], after: Sequence[Object], goal: Goal = "asleep", timeout: float = 0.1
) -> list[StopResult]:
    """Stop a job: the cluster has the objects `before`, and then `after`."""
    found = asyncio.run(inventory.find(fake.FakeApi(before), "x", fake.ALL))
    steps = Steps(found, goal)
    return asyncio.run(stopping.settle(fake.FakeApi(after), steps, found.job.workers, timeout, NOW))


def test_all_pods_are_gone_and_the_job_sleeps() -> None:
    job = top()
    results = settle([job, *replicas(job)], [job])
    assert [(result.worker, result.how) for result in results] == [("worker-0", "gone"), ("worker-1", "gone")]


def test_a_finished_pod_may_stay() -> None:
    job = top()
    done = fake.failed("x-worker-0", job, labels=replicas(job)[0]["metadata"]["labels"], uid="pod-0")
    assert {result.how for result in settle([job, *replicas(job)], [job, done])} == {"gone"}


def test_a_job_that_was_deleted_is_gone_and_another_of_its_name_is_none_of_it() -> None:
    job = top(suspended=False)
    before = [job, *replicas(job)]
    assert {result.how for result in settle(before, [], "gone")} == {"gone"}
    other = fake.pytorchjob("x", uid="another")
    after = [other, *(fake.replica(other, "worker", index, uid=f"other-{index}") for index in range(2))]
    assert {result.how for result in settle(before, after, "gone")} == {"gone"}


def test_a_job_that_nothing_puts_to_sleep() -> None:
    job = top(suspended=False)
    (result,) = settle([job], [job])
    assert (result.worker, result.how) == ("pytorchjob/x", "not-stopped")
    assert result.reason == "the request was accepted, but nothing acted on it; check whether its controller is running"


def test_finalizers_of_the_job_are_named() -> None:
    job = top(suspended=False)
    held = top(suspended=False)
    held["metadata"]["finalizers"] = ["foregroundDeletion", "example.org/hold"]
    (result,) = settle([job], [held], "gone")
    assert result.reason == "finalizers are left: example.org/hold"


def test_a_pod_that_came_after_the_stop_is_told_too() -> None:
    job = top()
    late = fake.replica(job, "worker", 0, uid="new")
    results = settle([job, *replicas(job)], [job, late])
    assert [(result.worker, result.how) for result in results] == [
        ("worker-0", "gone"),
        ("worker-1", "gone"),
        ("x-worker-0", "not-stopped"),
    ]
    assert results[-1].reason == "nothing has requested its end; it is Running"


def ending(**parts: Any) -> Object:
    pod = fake.pod("w", None, **parts)
    pod["metadata"]["deletionTimestamp"] = parts.get("created", "2026-11-20T18:30:00Z")
    return pod


def lost() -> Object:
    conditions = [
        {"type": "Ready", "status": "False"},
        {"type": "ContainersReady", "status": "True"},
    ]
    return ending(status={"conditions": conditions})


def held() -> Object:
    pod = ending()
    pod["metadata"]["finalizers"] = ["a", "b"]
    return pod


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (fake.pod("w"), "nothing has requested its end; it is Running"),
        (held(), "finalizers are left: a, b"),
        (lost(), "its node node1 does not answer: the pod stays until it is back, and may still run there"),
        (ending(created=LATER), "its grace period ends in 601 s"),
        (ending(), "it is ending on node node1, past its grace period"),
    ],
    ids=["asked by nobody", "finalizers", "lost node", "grace", "late"],
)
def test_why_a_pod_is_still_there(pod: Object, why: str) -> None:
    assert stopping.why_left(pod, NOW) == why


class Failing(fake.FakeApi):
    """`fails` may raise instead of returning a pod list."""

    def __init__(self, objects: Sequence[Object], fails: Callable[[], None]) -> None:
        super().__init__(objects)
        self.fails = fails

    async def list(self, path: str, query: Query = ()) -> Items:
        self.fails()
        return await super().list(path, query)


def test_a_server_that_stumbles_is_asked_again() -> None:
    job = top()
    found = asyncio.run(inventory.find(fake.FakeApi([job, *replicas(job)]), "x", fake.ALL))
    errors: list[Exception] = [NoServer("gone"), ApiError(500, "", "dialing")]

    def fails() -> None:
        if errors:
            raise errors.pop()

    results = asyncio.run(stopping.settle(Failing([job], fails), Steps(found, "asleep"), found.job.workers, 5, NOW))
    assert {result.how for result in results} == {"gone"}


def test_a_server_that_says_nothing_leaves_the_outcome_open() -> None:
    job = top()
    found = asyncio.run(inventory.find(fake.FakeApi([job, *replicas(job)]), "x", fake.ALL))

    def fails() -> None:
        raise NoServer("gone")

    with pytest.raises(AtlctlError, match=r"the request was accepted, but .*: gone"):
        asyncio.run(stopping.settle(Failing([job], fails), Steps(found, "asleep"), found.job.workers, 0.05, NOW))


def test_resumed_is_what_sleeps_no_more() -> None:
    assert settle([top()], [top(suspended=False)], "awake") == []
    (result,) = settle([top()], [top()], "awake")
    assert result.how == "not-stopped"


@pytest.mark.parametrize("selected", [False, True])
def test_pods_without_a_job(selected: bool) -> None:
    pods = [fake.pod(f"w-{index}", labels={"app": "x"}, uid=f"pod-{index}") for index in range(2)]
    api = fake.FakeApi(pods)
    found = asyncio.run(inventory.select(api, "app=x") if selected else inventory.find(api, "pod/w-1", fake.ALL))
    steps = Steps(found, "gone")
    workers = found.job.workers
    assert {r.how for r in asyncio.run(stopping.settle(fake.FakeApi([]), steps, workers, 1, NOW))} == {"gone"}
    anew = [fake.pod("w-1", labels={"app": "x"}, uid="another")]
    assert {r.how for r in asyncio.run(stopping.settle(fake.FakeApi(anew), steps, workers, 1, NOW))} == {"gone"}
    left = asyncio.run(stopping.settle(fake.FakeApi(pods[1:]), steps, workers, 0.05, NOW))
    assert [(r.worker, r.how) for r in left if r.how != "gone"] == [("w-1", "not-stopped")]


class Silent(fake.FakeApi):
    async def get(self, path: str, query: Query = ()) -> Object:
        await asyncio.sleep(1000)
        raise AssertionError("waited for too long")


def test_a_server_that_is_silent_is_waited_for_no_longer_than_was_asked() -> None:
    found = asyncio.run(inventory.find(fake.FakeApi([top()]), "x", fake.ALL))
    with pytest.raises(AtlctlError, match=r"the request was accepted.*did not answer within 0.1 s"):
        asyncio.run(asyncio.wait_for(stopping.settle(Silent([]), Steps(found, "asleep"), (), 0.1, NOW), 100))
