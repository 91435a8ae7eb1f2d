"""Indexes, names, ranks and attempts of workers, by kind."""

from __future__ import annotations

from typing import Any

import pytest

from atlctl.backends.kubernetes.kinds import registry
from atlctl.backends.kubernetes.kinds.base import JobKind, Past, Sight
from atlctl.backends.kubernetes.kinds.build import build, scope_of
from atlctl.jobs.model import Job, State, Worker
from tests.unit.kubernetes.fakecluster import (
    failed,
    job,
    job_pod,
    jobset,
    jobset_pod,
    obj,
    pod,
    pytorchjob,
    replica,
    trainjob,
)

Object = dict[str, Any]


def kind(resource: str, version: str = "v1") -> JobKind:
    found = registry.kind_of(resource, version)
    assert found is not None
    return found


def built(resource: str, top: Object, pods: list[Object], *children: Object, version: str = "v1") -> Job:
    return build(kind(resource, version), Sight(top, children), pods)


def table(made: Job) -> list[tuple[int, str, int | None]]:
    return [(worker.index, worker.name, worker.node_rank) for worker in made.workers]


def test_a_pytorchjobs_master_has_rank_0() -> None:
    top = pytorchjob("bert")
    made = built("pytorchjobs.kubeflow.org", top, [replica(top, "worker", 1), replica(top, "master", 0)])
    assert table(made) == [(0, "master-0", 0), (2, "worker-1", 2)]
    assert (made.expected, made.missing, made.workers[1].role) == (3, (1,), "worker")


def test_the_command_line_is_that_of_the_first_workers_trainer() -> None:
    top = pytorchjob("bert")
    made = [replica(top, "worker", 0), replica(top, "master", 0)]
    for number, one in enumerate(made):
        trainer = {"name": "pytorch", "command": ["torchrun", f"train-{number}.py"], "args": ["--name", "a b", 7]}
        one["spec"]["containers"] = [{"name": "istio-proxy", "command": ["envoy"]}, trainer]
    assert built("pytorchjobs.kubeflow.org", top, made).command == "torchrun train-1.py --name 'a b'"
    made[1]["spec"]["containers"][1]["args"] = ["x" * 10_000]
    assert len(built("pytorchjobs.kubeflow.org", top, made).command) == 4_000
    made[1]["spec"]["containers"] = None
    assert built("pytorchjobs.kubeflow.org", top, made).command == ""


def test_a_pytorchjob_without_a_master_counts_workers_from_0() -> None:
    top = pytorchjob("bert")
    del top["spec"]["pytorchReplicaSpecs"]["Master"]
    made = built("pytorchjobs.kubeflow.org", top, [replica(top, "worker", 1)])
    assert table(made) == [(1, "worker-1", 1)]
    assert made.expected == 2


@pytest.mark.parametrize(
    ("resource", "field", "roles", "ranks"),
    [
        ("tfjobs", "tfReplicaSpecs", ["chief", "ps", "worker", "evaluator"], [None, None, None, None]),
        ("xgboostjobs", "xgbReplicaSpecs", ["master", "worker"], [0, 1]),
        ("paddlejobs", "paddleReplicaSpecs", ["master", "worker"], [None, None]),
        ("jaxjobs", "jaxReplicaSpecs", ["worker"], [0]),
    ],
)
def test_siblings_of_the_pytorchjob(resource: str, field: str, roles: list[str], ranks: list[int | None]) -> None:
    specs = {role.capitalize(): {"replicas": 1} for role in reversed(roles)}
    top = obj("X", "kubeflow.org/v1", "x", spec={field: specs}, status={})
    made = built(f"{resource}.kubeflow.org", top, [replica(top, role, 0) for role in roles])
    assert [(w.name, w.node_rank) for w in made.workers] == [(f"{r}-0", n) for r, n in zip(roles, ranks, strict=True)]


def test_mpijobs_of_both_operators() -> None:
    specs = {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}
    top = obj("MPIJob", "kubeflow.org/v1", "hvd", spec={"mpiReplicaSpecs": specs}, status={})
    pods = [replica(top, "worker", 0), replica(top, "worker", 1), replica(top, "launcher", 0)]
    old = built("mpijobs.kubeflow.org", top, pods)
    assert table(old) == [(0, "worker-0", 0), (1, "worker-1", 1), (2, "launcher-0", None)]
    assert (old.expected, old.missing) == (2, ())
    top["spec"]["runLauncherAsWorker"] = True
    for item in pods:
        role = item["metadata"]["labels"].pop("training.kubeflow.org/replica-type")
        item["metadata"]["labels"]["training.kubeflow.org/job-role"] = role
    new = built("mpijobs.kubeflow.org", top, pods, version="v2beta1")
    assert table(new) == [(0, "launcher-0", 0), (1, "worker-0", 1), (2, "worker-1", 2)]
    assert new.expected == 3


def test_a_job_may_serve_mpijobs_at_either_version() -> None:
    assert kind("mpijobs.kubeflow.org", "v1").full
    assert not kind("mpijobs.kubeflow.org", "v2beta1").full
    assert not kind("mpijobs.kubeflow.org", "v2").full
    assert registry.kind_of("widgets.example.com", "v1") is None


def test_several_pods_of_one_index_are_attempts_of_one_worker() -> None:
    top = job("sweep")
    old = failed("sweep-1-old", top, created="2026-11-20T18:00:00Z")
    old["metadata"]["labels"] = {"batch.kubernetes.io/job-completion-index": "1"}
    new = job_pod(top, 1, created="2026-11-20T18:05:00Z")
    made = built("jobs.batch", top, [new, old, job_pod(top, 0)])
    assert [(w.name, w.pod, w.restarts, w.attempt) for w in made.workers] == [
        ("worker-0", "sweep-0-aaaaa", 0, None),
        ("worker-1", "sweep-1-aaaaa", 1, 1),
    ]


def test_the_newest_living_pod_counts_though_a_newer_one_has_ended() -> None:
    top = job("sweep", size=1)
    newer = failed("sweep-0-new", top, created="2026-11-20T18:09:00Z")
    newer["metadata"]["labels"] = {"batch.kubernetes.io/job-completion-index": "0"}
    made = built("jobs.batch", top, [job_pod(top, 0), newer])
    assert [w.state for w in made.workers] == [State.RUNNING]


def test_a_plain_job_numbers_its_pods_and_a_replacement_takes_its_place() -> None:
    spec = {"parallelism": 2, "backoffLimit": 6}
    top = obj("Job", "batch/v1", "plain", spec=spec, status={})
    first = failed("plain-zzzzz", top, created="2026-11-20T18:00:00Z")
    second = pod("plain-bbbbb", top, created="2026-11-20T18:00:01Z")
    third = pod("plain-aaaaa", top, created="2026-11-20T18:02:00Z")
    made = built("jobs.batch", top, [third, second, first])
    assert [(w.name, w.pod) for w in made.workers] == [("worker-0", "plain-aaaaa"), ("worker-1", "plain-bbbbb")]
    assert [w.restarts for w in made.workers] == [1, 0]
    assert [w.node_rank for w in made.workers] == [None, None]


def plain(size: int, **status: Any) -> Object:
    return obj("Job", "batch/v1", "plain", spec={"parallelism": size, "completions": size}, status=status)


def at(seconds: int) -> str:
    return f"2026-11-20T18:00:{seconds:02}Z"


#: 2026-11-20T18:00:00Z
EPOCH = 1795197600.0


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        ((), [(0, "plain-bbbbb")]),
        ((Past("plain-aaaaa", EPOCH),), [(0, "plain-bbbbb")]),
        ((Past("plain-aaaaa", EPOCH), Past("plain-ccccc", EPOCH + 1)), [(1, "worker-1")]),
        ((Past("plain-zzzzz", EPOCH), Past("plain-ccccc", EPOCH + 1)), [(0, "worker-0")]),
    ],
    ids=["no events", "some events", "second by name", "first by name"],
)
def test_a_pod_that_is_left_of_a_plain_job_has_its_number_only_if_all_pods_are_known(
    past: tuple[Past, ...], expected: list[tuple[int, str]]
) -> None:
    """Recorded from a real Job controller: a worker fails, and the others are deleted."""
    top = plain(3, failed=3)
    left = failed("plain-bbbbb", top, created=at(0))
    made = build(kind("jobs.batch"), Sight(top, past=past), [left])
    assert [(w.index, w.name) for w in made.workers] == expected
    assert made.numbered is expected[0][1].startswith("worker-")


@pytest.mark.parametrize(
    ("status", "vanished"),
    [
        ({"active": 3, "ready": 3}, 2),
        ({"uncountedTerminatedPods": {"failed": ["u", "v", "w"]}, "terminating": 2}, 2),
        ({"failed": 3}, 2),
        ({"active": 1, "failed": 0}, 0),
        ({}, 0),
        ({"active": "x", "uncountedTerminatedPods": [3]}, 0),
    ],
)
def test_pods_that_a_plain_job_has_made_and_lost(status: Object, vanished: int) -> None:
    top = plain(3, **status)
    assert kind("jobs.batch").vanished(top, [pod("plain-bbbbb", top)]) == vanished
    top["spec"]["completionMode"] = "Indexed"
    assert kind("jobs.batch").vanished(top, [pod("plain-bbbbb", top)]) == 0


def test_a_replacement_takes_the_number_of_the_one_pod_that_is_gone_and_of_none_if_there_are_two() -> None:
    top = plain(3, active=3, failed=1)
    pods = [pod("plain-aaaaa", top, created=at(0)), pod("plain-ccccc", top, created=at(0))]
    new = pod("plain-ddddd", top, created=at(9))
    gone = Past("plain-bbbbb", EPOCH)
    made = build(kind("jobs.batch"), Sight(top, past=(gone,)), [*pods, new])
    assert [(w.name, w.pod) for w in made.workers] == [
        ("worker-0", "plain-aaaaa"),
        ("worker-1", "plain-ddddd"),
        ("worker-2", "plain-ccccc"),
    ]
    top["status"] = {"active": 2, "failed": 2}
    past = (gone, Past("plain-ccccc", EPOCH))
    two = build(kind("jobs.batch"), Sight(top, past=past), [pods[0], new])
    assert ([w.name for w in two.workers], two.numbered) == (["plain-aaaaa", "plain-ddddd"], False)
    known = (Past("plain-bbbbb", EPOCH, EPOCH + 5), Past("plain-ccccc", EPOCH))
    one = build(kind("jobs.batch"), Sight(top, past=known), [pods[0], new])
    assert [(w.name, w.pod) for w in one.workers] == [("worker-0", "plain-aaaaa"), ("worker-1", "plain-ddddd")]


def test_pods_made_anew_after_all_were_deleted_take_the_numbers_in_their_order() -> None:
    top = plain(2, active=2, failed=2)
    pods = [pod(f"plain-{name}", top, created=at(30)) for name in ("ccccc", "ddddd")]
    past = tuple(Past(f"plain-{name}", EPOCH, EPOCH + 20) for name in ("yyyyy", "zzzzz"))
    made = build(kind("jobs.batch"), Sight(top, past=past), pods)
    assert [(w.name, w.pod) for w in made.workers] == [("worker-0", "plain-ccccc"), ("worker-1", "plain-ddddd")]


def test_a_jobset_numbers_its_roles_in_their_order() -> None:
    top = jobset("loop", sizes={"learners": 2, "actors": 3})
    child = job("loop-x", top)
    pods = [jobset_pod(top, child, "actors", 2, attempt="1"), jobset_pod(top, child, "learners", 0, suffix="b")]
    made = built("jobsets.jobset.x-k8s.io", top, pods, version="v1alpha2")
    assert table(made) == [(0, "learners-0", None), (4, "actors-2", None)]
    assert (made.expected, made.workers[1].attempt, made.workers[1].restarts) == (5, 1, 1)


def test_a_replicated_job_counts_over_its_jobs() -> None:
    top = jobset("loop", sizes={"actors": 2})
    top["spec"]["replicatedJobs"][0]["replicas"] = 2
    item = jobset_pod(top, job("x", top), "actors", 1)
    item["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"] = "1"
    made = built("jobsets.jobset.x-k8s.io", top, [item], version="v1alpha2")
    assert (table(made), made.expected) == ([(3, "actors-3", 3)], 4)


def test_a_trainjobs_initializers_are_no_expected_workers() -> None:
    top = trainjob("llama")
    made_set = jobset("llama", top, {"dataset-initializer": 1, "trainer-node": 2})
    template = made_set["spec"]["replicatedJobs"][1]["template"]
    template["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    child = job("x", made_set)
    pods = [jobset_pod(made_set, child, "dataset-initializer", 0, suffix="i")]
    pods += [jobset_pod(made_set, child, "trainer-node", index) for index in range(2)]
    made = built("trainjobs.trainer.kubeflow.org", top, pods, made_set, version="v1alpha1")
    assert table(made) == [(0, "trainer-node-0", 0), (1, "trainer-node-1", 1), (2, "dataset-initializer-0", None)]
    assert made.expected == 2


def test_a_trainjobs_launcher_that_trains_is_its_first_node() -> None:
    top = trainjob("mpi")
    made_set = jobset("mpi", top, {"launcher": 1, "node": 2})
    template = made_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    child = job("x", made_set)
    pods = [jobset_pod(made_set, child, "node", 0), jobset_pod(made_set, child, "launcher", 0, suffix="l")]
    made = built("trainjobs.trainer.kubeflow.org", top, pods, made_set, version="v1alpha1")
    assert table(made) == [(0, "node-0", 0), (2, "launcher-0", None)]
    template["template"] = {"spec": {"containers": [{"name": "node"}]}}
    made = built("trainjobs.trainer.kubeflow.org", top, pods, made_set, version="v1alpha1")
    assert table(made) == [(0, "launcher-0", 0), (1, "node-0", 1)]
    assert made.expected == 3


def volcano(tasks: dict[str, int], **spec: Any) -> Object:
    listed = [{"name": name, "replicas": count} for name, count in tasks.items()]
    return obj("Job", "batch.volcano.sh/v1alpha1", "vc", spec={"tasks": listed, **spec}, status={})


def task(top: Object, name: str, index: int, retries: str = "0") -> Object:
    labels = {"volcano.sh/task-spec": name, "volcano.sh/task-index": str(index)}
    return pod(f"vc-{name}-{index}", top, labels=labels, annotations={"volcano.sh/job-retry-count": retries})


def test_a_volcano_jobs_tasks() -> None:
    top = volcano({"worker": 2, "master": 1})
    pods = [task(top, "worker", 1, "2"), task(top, "master", 0)]
    made = built("jobs.batch.volcano.sh", top, pods, version="v1alpha1")
    assert table(made) == [(0, "master-0", 0), (2, "worker-1", 2)]
    assert (made.kind, made.expected, made.workers[1].attempt) == ("VolcanoJob", 3, 2)
    other = volcano({"ps": 1, "trainer": 2})
    made = built("jobs.batch.volcano.sh", other, [task(other, "trainer", 0)], version="v1alpha1")
    assert table(made) == [(1, "trainer-0", None)]
    named = volcano({"aux": 1, "head": 1, "rest": 2}, plugins={"pytorch": ["--master=head", "--worker=rest"]})
    made = built("jobs.batch.volcano.sh", named, [task(named, "rest", 1), task(named, "aux", 0)], version="v1alpha1")
    assert table(made) == [(2, "rest-1", 2), (3, "aux-0", None)]


def test_an_elasticjobs_rank_is_not_its_nodes_id() -> None:
    specs = {"worker": {"replicas": 2}}
    top = obj("ElasticJob", "elastic.iml.github.io/v1alpha1", "dl", spec={"replicaSpecs": specs}, status={})
    labels = {"replica-type": "worker", "replica-index": "7", "rank-index": "1", "relaunch-count": "3"}
    master = {"elasticjob.dlrover/replica-type": "dlrover-master", "elasticjob.dlrover/replica-index": "0"}
    pods = [pod("dl-7", top, labels={f"elasticjob.dlrover/{key}": value for key, value in labels.items()})]
    pods.append(pod("dl-master", top, labels=master))
    made = built("elasticjobs.elastic.iml.github.io", top, pods, version="v1alpha1")
    assert table(made) == [(1, "worker-1", 1), (2, "dlrover-master-0", None)]
    assert (made.expected, made.missing, made.workers[0].attempt, made.workers[0].restarts) == (2, (0,), 3, 3)


def test_a_statefulset_that_begins_with_another_ordinal() -> None:
    top = obj("StatefulSet", "apps/v1", "ps", spec={"replicas": 2, "ordinals": {"start": 5}}, status={})
    made = built("statefulsets.apps", top, [pod("ps-5", top), pod("ps-6", top)])
    assert table(made) == [(0, "worker-0", 0), (1, "worker-1", 1)]


def test_a_raycluster() -> None:
    groups = [{"groupName": "gpu", "replicas": 2, "numOfHosts": 1}]
    top = obj("RayCluster", "ray.io/v1", "ray", spec={"workerGroupSpecs": groups}, status={})
    node, group = "ray.io/node-type", "ray.io/group"
    pods = [pod(f"ray-{n}", top, labels={node: "worker", group: "gpu"}) for n in "ba"]
    pods.append(pod("ray-head", top, labels={node: "head", group: "headgroup"}))
    made = built("rayclusters.ray.io", top, pods)
    assert [(w.name, w.pod) for w in made.workers] == [("head-0", "ray-head"), ("gpu-0", "ray-a"), ("gpu-1", "ray-b")]
    assert made.expected == 3


def test_more_workers_than_the_object_asks_for_keep_their_own_indexes() -> None:
    top = pytorchjob("bert", 1)
    pods = [replica(top, "master", index) for index in range(2)] + [replica(top, "worker", 0)]
    made = built("pytorchjobs.kubeflow.org", top, pods)
    assert [(w.index, w.name) for w in made.workers] == [(0, "master-0"), (1, "master-1"), (2, "worker-0")]


def test_a_pod_is_a_jobs_own_by_its_controller_or_its_jobset() -> None:
    top = jobset("set")
    child = job("child", top)
    own = jobset_pod(top, child, "node", 0)
    before = jobset_pod({**top, "metadata": {**top["metadata"], "uid": "before"}}, child, "node", 0)
    bare = pod("bare", None, labels={"jobset.sigs.k8s.io/jobset-name": "set"})
    scope = scope_of(kind("jobsets.jobset.x-k8s.io"), Sight(top), complete=False)
    assert [scope.has(item) for item in (own, before, bare)] == [True, False, False]
    strict = scope_of(kind("pytorchjobs.kubeflow.org"), Sight(top), complete=False)
    assert strict.since is None


def test_names_of_workers_are_unique() -> None:
    top = jobset("loop", sizes={"a": 2, "a-1": 2})
    child = job("c", top)
    pods = [jobset_pod(top, child, role, index, suffix=role) for role in ("a", "a-1") for index in range(2)]
    names: list[Worker] = list(built("jobsets.jobset.x-k8s.io", top, pods, version="v1alpha2").workers)
    assert len({worker.name for worker in names}) == len({worker.index for worker in names}) == 4
