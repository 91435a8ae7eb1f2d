"""Objects with random JSON in any field: no reader may raise, and names stay unique."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atlctl.backends.kubernetes import discovery, inventory, objects, pods, queueing
from atlctl.backends.kubernetes.api import NotFound
from atlctl.backends.kubernetes.kinds import registry
from atlctl.backends.kubernetes.kinds.base import Sight
from atlctl.backends.kubernetes.kinds.build import build, scope_of
from atlctl.jobs.errors import AtlctlError
from tests.unit.kubernetes.fakecluster import (
    ALL,
    FakeApi,
    condition,
    failed,
    job_pod,
    obj,
    pytorchjob,
    replica,
    train_world,
)

Object = dict[str, Any]

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
_WORDS = st.sampled_from(
    ["True", "Running", "0", "1", "99999999999999999999", "2026-11-20T18:00:00Z", "\x1b[31m", "\ud800"]
)
JSON = st.recursive(
    _LEAVES | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def world() -> list[Object]:
    """A TrainJob, a PyTorchJob and a Volcano Job with all fields that readers use."""
    top, made, child, *pods = train_world("t")
    top["status"] = {"conditions": [condition("Suspended", "False")], "jobsStatus": [{"active": 1, "ready": 1}]}
    made["status"] = {"conditions": [condition("RestartingJobSet")], "restarts": 1}
    torch = pytorchjob("b")
    torch["status"] = {"conditions": [condition("Restarting")], "completionTime": "2026-11-20T18:00:00Z"}
    broken = replica(torch, "worker", 0, phase="Pending", spec={"initContainers": [{"name": "i"}]})
    broken["status"]["initContainerStatuses"] = [{"name": "i", "state": {"waiting": {"reason": "X"}}, "lastState": {}}]
    broken["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    spec = {"tasks": [{"name": "w", "replicas": 1}], "plugins": {"pytorch": ["--master=w"]}, "managedBy": "x"}
    volcano = obj("Job", "batch.volcano.sh/v1alpha1", "v", spec=spec, status={"state": {"phase": "Aborted"}})
    groups = [{"groupName": "g", "replicas": 1, "numOfHosts": 1}]
    ray = obj(
        "RayJob",
        "ray.io/v1",
        "r",
        spec={"rayClusterSpec": {"workerGroupSpecs": groups}},
        status={"rayClusterName": "rc"},
    )
    lws = obj(
        "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "l", spec={"replicas": 2, "leaderWorkerTemplate": {"size": 2}}
    )
    old = failed("old", child, labels=dict(pods[0]["metadata"]["labels"]))
    return [top, made, child, torch, volcano, ray, lws, *pods, broken, old, job_pod(child, 1, suffix="b")]


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [here] if here else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += paths(inner, (*here, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += paths(inner, (*here, index))
    return found


WORLD = world()
#: Whole objects are not replaced, because a server's lists always contain objects.
PATHS = [path for path in paths(WORLD) if len(path) > 1]


@st.composite
def damaged(draw: st.DrawFn) -> list[Object]:
    objects = copy.deepcopy(WORLD)
    for path in draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=4)):
        place: Any = objects
        try:
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = draw(JSON)
        except (KeyError, IndexError, TypeError):
            continue  # removed by an earlier change
    return objects


def look(tops: list[Object], pods: list[Object]) -> None:
    for kind in (*registry.KINDS, registry.PODS):
        for top in tops:
            sight = Sight(top, tuple(tops))
            scope = scope_of(kind, sight, complete=False)
            for item in pods:
                scope.has(item)
            made = build(kind, sight, pods)
            assert len({worker.index for worker in made.workers}) == len(made.workers)
            if not kind.own_names:
                assert len({worker.name for worker in made.workers}) == len(made.workers)
            assert 0 <= made.expected <= 4 * objects.MAX_COUNT
            kind.selectors(top)
            kind.children(top)
            queueing.stopping(kind, top, tops)
            queueing.stopping(kind, top, tops, resume=True)
            queueing.refined(made, [queueing.workload(top), queueing.pod_group(top)])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_a_damaged_field_raises_nothing(objects: list[Object]) -> None:
    look(objects[:7], objects[7:])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["metadata", "spec", "status", "x"]), JSON, max_size=4), max_size=3))
def test_objects_that_are_no_such_things_raise_nothing(objects: list[Object]) -> None:
    look(objects[:1], objects)
    for item in objects:
        pods.cards(item)
        queueing.pod_groups_of(objects, ["u"], objects)
        queueing.workloads_of(objects, ["u"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["kind", "items", "resources", "groupVersion", "groups"]), JSON)))
def test_discovery_of_anything_raises_nothing(documents: list[Object]) -> None:
    discovery.read(documents)
    discovery.read([{**document, "kind": "APIGroupDiscoveryList"} for document in documents])
    for document in documents:
        discovery.group_versions(document)


class Damaged(FakeApi):
    """A cluster with the damaged objects in the place of the original ones."""

    def __init__(self, objects: list[Object]) -> None:
        super().__init__(WORLD)
        self.by_place = {id(whole): broken for whole, broken in zip(WORLD, objects, strict=True)}

    def _select(self, path: str) -> list[Object]:
        return [self.by_place[id(item)] for item in super()._select(path)]

    async def get(self, path: str, query: Any = ()) -> Object:
        if path == "/api/v1/namespaces/team":
            return {}
        for item in super()._select(path.rsplit("/", 1)[0]):
            if item["metadata"]["name"] == path.rsplit("/", 1)[1]:
                return self.by_place[id(item)]
        raise NotFound(404, "NotFound", "not found")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged(), st.sampled_from(["t", "b", "v", "r", "l", "t-node-0-0-aaaaa", "t-node-0"]))
def test_an_inventory_of_damaged_objects_raises_its_own_errors_only(objects: list[Object], name: str) -> None:
    asyncio.run(inventory.list_jobs(Damaged(objects), ["team"], ALL))
    try:
        asyncio.run(inventory.find(Damaged(objects), name, ALL))
    except AtlctlError as error:
        assert error.message  # noqa: PT017 - any error of atlctl is accepted
