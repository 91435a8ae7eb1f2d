from __future__ import annotations

import asyncio
from typing import Any

import pytest

from atlctl.backends.base import Listing
from atlctl.backends.kubernetes import inventory
from atlctl.backends.kubernetes.discovery import Served
from atlctl.backends.kubernetes.inventory import FoundJob
from atlctl.jobs.errors import NotAllowed, NothingMatched, UsageError
from atlctl.jobs.model import State
from tests.unit.kubernetes.fakecluster import (
    ALL,
    FakeApi,
    job,
    job_pod,
    jobset,
    obj,
    owned_by,
    pod,
    pytorchjob,
    replica,
    train_world,
)


def find(api: FakeApi, name: str, served: Served = ALL) -> FoundJob:
    return asyncio.run(inventory.find(api, name, served))


def listing(api: FakeApi, *namespaces: str) -> Listing:
    return asyncio.run(inventory.list_jobs(api, namespaces or None, ALL))


def names(found: FoundJob) -> list[str]:
    return [worker.name for worker in found.job.workers]


def test_a_trainjob_is_found_once_with_its_pods_and_one_list_of_pods() -> None:
    api = FakeApi(train_world("llama"))
    found = find(api, "llama")
    assert (found.job.kind, found.job.state, names(found)) == ("TrainJob", State.RUNNING, ["node-0", "node-1"])
    assert [worker.node_rank for worker in found.job.workers] == [0, 1]
    assert found.job.expected == 2
    assert found.job.resource == "trainjobs.trainer.kubeflow.org"
    assert api.listed("pods") == 1


@pytest.mark.parametrize(
    "form",
    ["trainjob/llama", "trainjobs/llama", "trainjobs.trainer.kubeflow.org/llama", "TrainJob/llama", "jobset/llama"],
)
def test_forms_of_a_kind_and_a_name(form: str) -> None:
    assert find(FakeApi(train_world("llama")), form).job.kind == "TrainJob"


@pytest.mark.parametrize("child", ["llama-node-0", "llama-node-0-1-aaaaa", "pod/llama-node-0-1-aaaaa"])
def test_a_child_climbs_to_the_job_at_the_top(child: str) -> None:
    found = find(FakeApi(train_world("llama")), child)
    assert (found.job.kind, found.job.name, len(found.job.workers)) == ("TrainJob", "llama", 2)


def test_a_name_of_several_jobs_is_refused_with_the_forms_that_tell_them_apart() -> None:
    plain = job("dual")
    api = FakeApi([*train_world("dual"), plain, job_pod(plain, 0)])
    with pytest.raises(UsageError) as caught:
        find(api, "dual")
    assert caught.value.hint == "name one of: trainjob/dual, jobs.batch/dual"
    assert find(api, "jobs.batch/dual").job.kind == "Job"
    assert find(api, "trainjob/dual").job.kind == "TrainJob"


def test_a_job_and_a_volcano_job_of_one_name_need_their_groups() -> None:
    volcano = obj("Job", "batch.volcano.sh/v1alpha1", "x", uid="vc", spec={}, status={})
    api = FakeApi([job("x"), volcano])
    with pytest.raises(UsageError) as caught:
        find(api, "job/x")
    assert caught.value.hint == "name one of: jobs.batch.volcano.sh/x, jobs.batch/x"
    assert find(api, "vcjob/x").job.kind == "VolcanoJob"


def test_pods_of_a_job_that_had_the_name_before_are_not_its_own() -> None:
    top = pytorchjob("bert")
    before = {**top, "metadata": {**top["metadata"], "uid": "before"}}
    api = FakeApi([top, replica(top, "master", 0), replica(before, "worker", 0), replica(before, "worker", 1)])
    assert names(find(api, "bert")) == ["master-0"]
    assert find(api, "bert").job.missing == (1, 2)


def test_pods_of_an_operator_before_prefixed_labels() -> None:
    top = pytorchjob("bert", 1)
    api = FakeApi([top, replica(top, "master", 0, ""), replica(top, "worker", 0, "")])
    assert names(find(api, "bert")) == ["master-0", "worker-0"]


def test_a_job_whose_object_may_not_be_read_works_by_its_pods() -> None:
    top = pytorchjob("bert", 1)
    api = FakeApi([top, replica(top, "master", 0), replica(top, "worker", 0)], forbidden=["pytorchjobs"])
    found = find(api, "bert")
    assert (found.job.kind, found.readable, found.job.uid) == ("PyTorchJob", False, top["metadata"]["uid"])
    assert [(w.name, w.node_rank) for w in found.job.workers] == [("master-0", 0), ("worker-0", 1)]
    assert found.job.state is State.RUNNING


def test_pods_that_outlive_their_job_are_still_found_by_its_name() -> None:
    top = pytorchjob("bert")
    api = FakeApi([replica(top, "worker", 0), replica(top, "master", 0)])
    assert names(find(api, "bert")) == ["master-0", "worker-0"]
    orphans = [job_pod(job("sweep"), index) for index in range(2)]
    for item in orphans:
        del item["metadata"]["ownerReferences"]
    found = find(FakeApi(orphans), "sweep")
    assert (found.job.kind, found.job.uid, names(found)) == ("Job", "", ["worker-0", "worker-1"])


def test_a_pod_whose_owners_may_not_be_read_tells_its_jobset() -> None:
    world = train_world("llama")
    api = FakeApi(world, forbidden=["trainjobs", "jobsets", "jobs"])
    found = find(api, "llama-node-0-1-aaaaa")
    assert (found.job.name, found.job.uid, names(found)) == ("llama", world[1]["metadata"]["uid"], ["node-0", "node-1"])
    assert names(find(api, "llama")) == ["node-0", "node-1"]


def test_an_unreadable_trainjob_above_a_readable_jobset() -> None:
    found = find(FakeApi(train_world("llama"), forbidden=["trainjobs"]), "llama")
    assert (found.job.kind, found.readable, len(found.job.workers)) == ("TrainJob", False, 2)
    assert found.job.uid == "uid-TrainJob-llama"


def test_a_leaderworkersets_workers_are_found_through_its_leaders() -> None:
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 2}}
    top = obj("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "vllm", spec=spec, status={})
    leaders = obj("StatefulSet", "apps/v1", "vllm", top, uid="leaders", spec={"replicas": 2}, status={})
    objects = [top, leaders]
    prefix = "leaderworkerset.sigs.k8s.io/"
    for group in range(2):
        labels = {f"{prefix}name": "vllm", f"{prefix}group-index": str(group)}
        leader = pod(f"vllm-{group}", leaders, labels=labels | {f"{prefix}worker-index": "0"})
        workers = obj("StatefulSet", "apps/v1", f"vllm-{group}", leader, uid=f"sts-{group}", spec={}, status={})
        worker = pod(f"vllm-{group}-1", workers, labels=labels | {f"{prefix}worker-index": "1"})
        objects += [leader, workers, worker]
    api = FakeApi(objects)
    assert names(find(api, "lws/vllm")) == ["worker-0", "worker-1", "worker-2", "worker-3"]
    assert [w.role for w in find(api, "vllm-1-1").job.workers] == ["leader", "worker", "leader", "worker"]
    (only,) = listing(api).jobs
    assert (only.kind, only.ready, only.expected) == ("LeaderWorkerSet", 4, 4)


def test_a_mpijobs_launcher_is_a_pod_of_a_job_that_it_makes() -> None:
    specs = {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}
    top = obj("MPIJob", "kubeflow.org/v2beta1", "hvd", spec={"mpiReplicaSpecs": specs}, status={})
    launcher = job("hvd-launcher", top, 1)
    labels = {"training.kubeflow.org/job-name": "hvd", "training.kubeflow.org/operator-name": "mpi-operator"}
    role, index = "training.kubeflow.org/job-role", "training.kubeflow.org/replica-index"
    pods = [pod(f"hvd-worker-{i}", top, labels=labels | {role: "worker", index: str(i)}) for i in range(2)]
    pods.append(pod("hvd-launcher-x", launcher, labels=labels | {role: "launcher"}))
    found = find(FakeApi([top, launcher, *pods]), "hvd")
    assert names(found) == ["worker-0", "worker-1", "launcher-0"]
    assert (found.job.expected, [w.node_rank for w in found.job.workers]) == (2, [0, 1, None])


def test_a_bare_pod_and_a_selection_of_pods() -> None:
    labelled = [pod(f"adhoc-{n}", labels={"group": "adhoc", "rank": str(r)}) for n, r in (("a", 1), ("b", 0))]
    api = FakeApi(labelled)
    found = find(api, "adhoc-a")
    assert (found.job.kind, names(found), found.job.uid) == ("Pod", ["adhoc-a"], "uid-Pod-adhoc-a")
    selected = asyncio.run(inventory.select(api, "group=adhoc"))
    assert [(w.name, w.index, w.node_rank) for w in selected.job.workers] == [("adhoc-a", 0, 1), ("adhoc-b", 1, 0)]
    with pytest.raises(NothingMatched):
        asyncio.run(inventory.select(api, "group=other"))


def test_an_owner_that_is_no_job_is_told_and_one_created_anew_is_none() -> None:
    workflow = obj("Workflow", "argoproj.io/v1alpha1", "flow")
    owner = find(FakeApi([pytorchjob("bert") | {"x": 1}]), "bert").owner
    assert owner is None
    child = obj("PyTorchJob", "kubeflow.org/v1", "bert", workflow, spec={}, status={})
    assert (find(FakeApi([child]), "bert").owner or {})["kind"] == "Workflow"
    other = jobset("set")
    stray = job("stray", {**other, "metadata": {**other["metadata"], "uid": "gone"}})
    assert find(FakeApi([other, stray]), "stray").job.kind == "Job"


def test_owners_in_a_circle_end() -> None:
    one, two = job("one"), job("two")
    one["metadata"]["ownerReferences"], two["metadata"]["ownerReferences"] = [owned_by(two)], [owned_by(one)]
    with pytest.raises((UsageError, NothingMatched)) as caught:
        find(FakeApi([one, two]), "three")
    assert caught.value.exit_code == 3
    assert find(FakeApi([one, two]), "one").job.kind == "Job"


def test_nothing_of_that_name_tells_near_names_and_what_was_not_allowed() -> None:
    api = FakeApi([job("llama-sft"), job("bert")], forbidden=["pytorchjobs"])
    with pytest.raises(NothingMatched) as caught:
        find(api, "lama-sft")
    unread = "not allowed to read pytorchjobs.kubeflow.org; see your permissions: atlctl doctor"
    assert caught.value.hint == f"did you mean 'llama-sft'? ({unread})"
    with pytest.raises(UsageError, match="no kind of job deployment"):
        find(api, "deployment/x")


@pytest.mark.parametrize("name", ["", "../pods", "a b", "x%2fy", "A", "-a", "a" * 300, "x\x1b[31m", "é"])
def test_a_name_that_no_object_can_have_reaches_no_path(name: str) -> None:
    api = FakeApi([job("x")])
    with pytest.raises((NothingMatched, UsageError)):
        find(api, name)
    assert not any(name in path for path, _ in api.requests if name)


def test_where_nothing_may_be_read_the_refusal_is_told() -> None:
    every = [name.partition(".")[0] for name in ALL.versions] + ["pods"]
    with pytest.raises(NotAllowed):
        find(FakeApi([], forbidden=every), "x")


def test_a_listing_drops_children_and_keeps_what_was_refused() -> None:
    plain = job("dual")
    objects = [*train_world("dual"), plain, job_pod(plain, 0), pytorchjob("bert"), pod("alone")]
    api = FakeApi(objects, forbidden=["rayjobs", "jobs.batch.volcano.sh"])
    found = listing(api, "team")
    assert [(j.name, j.kind, len(j.workers)) for j in found.jobs] == [
        ("bert", "PyTorchJob", 0),
        ("dual", "Job", 1),
        ("dual", "TrainJob", 2),
    ]
    assert [problem.exit_code for problem in found.problems] == [4]
    assert api.listed("pods") == 1


@pytest.mark.parametrize(
    ("namespaces", "where", "hint"),
    [(["team"], "in namespace team", "atlctl doctor"), ([], "in all namespaces", "-n NAMESPACE")],
)
def test_refusals_of_many_lists_are_one_problem(namespaces: list[str], where: str, hint: str) -> None:
    found = listing(FakeApi([pytorchjob("bert")], forbidden=["rayjobs", "rayclusters", "trainjobs"]), *namespaces)
    assert [j.name for j in found.jobs] == ["bert"]
    assert [problem.message for problem in found.problems] == [
        f"not allowed to list {where}: trainjobs.trainer.kubeflow.org, rayjobs.ray.io, rayclusters.ray.io"
    ]
    assert hint in (found.problems[0].hint or "")


def test_a_listing_of_all_namespaces_and_of_several() -> None:
    objects = [job("x", namespace="a", uid="1"), job("x", namespace="b", uid="2"), job("y", namespace="c", uid="3")]
    api = FakeApi(objects)
    assert [(j.namespace, j.name) for j in listing(api).jobs] == [("a", "x"), ("b", "x"), ("c", "y")]
    assert api.listed("pods") == 1
    assert [j.namespace for j in listing(api, "a", "c", "a").jobs] == ["a", "c"]


def test_queues_of_a_job_are_those_that_it_or_its_pods_name() -> None:
    top = pytorchjob("bert")
    worker = replica(top, "worker", 0, annotations={"scheduling.k8s.io/group-name": "gang"})
    workloads = [
        obj("Workload", "kueue.x-k8s.io/v1beta2", f"w-{n}", uid=f"w{n}", labels={"kueue.x-k8s.io/job-uid": uid})
        for n, uid in ((0, top["metadata"]["uid"]), (1, "other"))
    ]
    group = obj("PodGroup", "scheduling.volcano.sh/v1beta1", "gang", uid="g")
    api = FakeApi([top, worker, *workloads, group], forbidden=[])
    found = find(api, "bert")
    queues: Any = asyncio.run(inventory.queues(api, found, ALL))
    assert [[item["metadata"]["name"] for item in part] for part in queues[:2]] == [["w-0"], ["gang"]]
    assert queues[2] == {}


def test_a_namespace_that_does_not_exist_is_not_an_empty_one() -> None:
    empty, unknown = FakeApi([]), FakeApi([], forbidden=["namespaces"])
    assert listing(empty, "team").jobs == ()
    unknown.namespace = empty.namespace = "tema"
    calls = (
        lambda api: asyncio.run(inventory.list_jobs(api, ["tema"], ALL)),
        lambda api: find(api, "bert"),
        lambda api: asyncio.run(inventory.select(api, "app=x")),
    )
    for call in calls:
        with pytest.raises(NothingMatched) as caught:
            call(empty)
        assert caught.value.message == "namespace tema does not exist"
    assert listing(unknown, "tema").jobs == ()
    for call in calls[1:]:
        with pytest.raises(NothingMatched, match="in namespace tema"):
            call(unknown)


def test_a_namespace_with_pods_is_not_asked_for() -> None:
    api = FakeApi(train_world("llama"))
    listing(api, "team")
    assert not any(path == "/api/v1/namespaces/team" for path, _ in api.requests)


def test_who_may_read_nothing_is_not_told_of_a_kind_that_was_not_asked_for() -> None:
    plurals = [name.partition(".")[0] for name in ALL.versions]
    with pytest.raises(NotAllowed) as caught:
        find(FakeApi([jobset("js")], forbidden=[*plurals, "pods", "namespaces"]), "js")
    assert caught.value.message == "not allowed to look for job js in namespace team: neither jobs nor pods may be read"
    assert caught.value.hint == "see your permissions: atlctl doctor"
