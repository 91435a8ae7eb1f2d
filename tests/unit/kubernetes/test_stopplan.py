"""The requests of a stop or resume, for each kind and each refusal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from atlctl.backends.base import Plan, StopRequest
from atlctl.backends.kubernetes import inventory, stopplan
from atlctl.backends.kubernetes.discovery import Served
from atlctl.backends.kubernetes.inventory import FoundJob
from atlctl.backends.kubernetes.stopplan import Steps, World
from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError
from tests.unit.kubernetes import fakecluster as fake

Object = dict[str, Any]
QUEUE = {"kueue.x-k8s.io/queue-name": "team-q"}
PLAIN = StopRequest()
OPTIONS = ("--namespace", "team")
#: With Volcano's commands, which discovery does not list.
ALL = Served(fake.ALL.versions | {"commands.bus.volcano.sh": "v1alpha1"})


def found(name: str, objects: list[Object], **more: Any) -> FoundJob:
    return asyncio.run(inventory.find(fake.FakeApi(objects, **more), name, fake.ALL))


def world(
    objects: list[Object], job: FoundJob, *, problems: dict[str, AtlctlError] | None = None, served: Served = ALL
) -> World:
    workloads, _, _ = asyncio.run(inventory.queues(fake.FakeApi(objects), job, fake.ALL))
    return World(served, workloads, problems or {}, "namespace team", OPTIONS, 1_795_200_000.0)


def stop(name: str, objects: list[Object], request: StopRequest = PLAIN, **more: Any) -> Plan:
    job = found(name, objects)
    return stopplan.stop(job, world(objects, job, **more), job.job.workers, request)


def resume(name: str, objects: list[Object], **more: Any) -> Plan:
    job = found(name, objects)
    return stopplan.resume(job, world(objects, job, **more))


def sent(made: Plan) -> list[tuple[str, str, Object]]:
    assert isinstance(made.steps, Steps)
    return [(write.method, write.path, write.body) for write in made.steps.writes]


def torch(name: str = "x", **parts: Any) -> list[Object]:
    top = fake.pytorchjob(name, **parts)
    return [top, fake.replica(top, "master", 0), fake.replica(top, "worker", 0), fake.replica(top, "worker", 1)]


def volcano(phase: str) -> list[Object]:
    spec, status = {"tasks": [{"name": "worker", "replicas": 1}]}, {"state": {"phase": phase}}
    top = fake.obj("Job", "batch.volcano.sh/v1alpha1", "x", None, spec=spec, status=status)
    labels = {"volcano.sh/job-name": "x", "volcano.sh/task-spec": "worker", "volcano.sh/task-index": "0"}
    return [top, fake.pod("x-worker-0", top, labels=labels)]


def workload(top: Object, *, active: bool = True, name: str = "wl") -> Object:
    conditions = [fake.condition("Admitted")] if active else [fake.condition("Evicted", reason="Deactivated")]
    made = fake.obj(
        "Workload", "kueue.x-k8s.io/v1beta2", name, None, spec={"active": active}, status={"conditions": conditions}
    )
    made["metadata"]["ownerReferences"] = [fake.owned_by(top)]
    return made


@pytest.mark.parametrize(
    ("objects", "path", "spec"),
    [
        (torch(), "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/x", {"runPolicy": {"suspend": True}}),
        (fake.train_world("x"), "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/x", {"suspend": True}),
        (
            [fake.jobset("x"), fake.jobset_pod(fake.jobset("x"), fake.job("x-node-0", fake.jobset("x")), "node", 0)],
            "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets/x",
            {"suspend": True},
        ),
        (
            [fake.job("x"), fake.job_pod(fake.job("x"), 0)],
            "/apis/batch/v1/namespaces/team/jobs/x",
            {"suspend": True},
        ),
    ],
    ids=["pytorchjob", "trainjob", "jobset", "job"],
)
def test_a_kind_that_can_sleep_gets_one_patch_for_its_uid(objects: list[Object], path: str, spec: Object) -> None:
    made = stop("x", objects)
    uid = objects[0]["metadata"]["uid"]
    assert sent(made) == [("PATCH", path, {"spec": spec, "metadata": {"uid": uid}})]
    assert (made.how, made.loses_logs, made.ends_terminal, made.nothing) == ("suspend", True, True, "")
    assert made.undo.startswith("atlctl resume ")
    assert made.undo.endswith("/x --namespace team")


def test_volcano_gets_a_command_that_is_checked_first() -> None:
    objects = volcano("Running")
    made = stop("x", objects)
    ((method, path, body),) = sent(made)
    assert (method, path) == ("POST", "/apis/bus.volcano.sh/v1alpha1/namespaces/team/commands")
    assert (body["action"], body["target"]["uid"]) == ("AbortJob", objects[0]["metadata"]["uid"])
    assert isinstance(made.steps, Steps)
    assert made.steps.writes[0].verify == "/apis/batch.volcano.sh/v1alpha1/namespaces/team/jobs/x"
    with pytest.raises(AtlctlError, match="does not serve Volcano"):
        stop("x", objects, served=fake.ALL)


def test_kueue_is_asked_through_the_workload_of_the_top_object() -> None:
    objects = torch(labels=QUEUE)
    other = workload(objects[1], name="aaa-of-a-pod")
    objects += [other, workload(objects[0])]
    made = stop("x", objects)
    ((method, path, body),) = sent(made)
    assert (method, path) == ("PATCH", "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/wl")
    assert body == {"spec": {"active": False}, "metadata": {"uid": "uid-Workload-wl"}}
    assert made.how == "deactivate"


def test_a_queued_job_without_pods_is_still_taken_off_its_queue() -> None:
    top = fake.pytorchjob("x", labels=QUEUE, spec={"runPolicy": {"suspend": True}})
    assert stop("x", [top, workload(top)]).how == "deactivate"
    asleep = stop("x", [top, workload(top, active=False)])
    assert asleep.nothing != ""
    assert sent(resume("x", [top, workload(top, active=False)]))[0][2]["spec"] == {"active": True}


def test_a_queue_label_without_a_workload() -> None:
    assert stop("x", torch(labels=QUEUE)).how == "suspend"  # running, so not managed by Kueue
    asleep = [fake.pytorchjob("x", labels=QUEUE, spec={"runPolicy": {"suspend": True}})]
    with pytest.raises(AtlctlError, match="no Workload for job x yet"):
        stop("x", asleep)
    assert stop("x", asleep, StopRequest(delete=True)).how == "delete"
    refused = NotAllowed("not allowed: workloads.kueue.x-k8s.io is forbidden")
    with pytest.raises(NotAllowed, match="Kueue manages job x, and not allowed"):
        stop("x", torch(labels=QUEUE), problems={"workloads.kueue.x-k8s.io": refused})
    doubt = dict(stop("x", torch(), problems={"workloads.kueue.x-k8s.io": refused}).facts)["doubt"]
    assert doubt.startswith("cannot check whether Kueue manages it: not allowed")


def test_multikueue_is_refused() -> None:
    with pytest.raises(UsageError, match="MultiKueue"):
        stop("x", torch(spec={"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}))


def test_what_is_asleep_or_ended_needs_nothing_and_what_is_falling_asleep_only_a_wait() -> None:
    suspended = {"runPolicy": {"suspend": True}}
    assert stop("x", [fake.pytorchjob("x", spec=suspended)]).nothing == "job x is Suspended"
    assert stop("x", volcano("Aborted")[:1]).nothing == "job x is Suspended"
    done = [fake.pytorchjob("x", status={"conditions": [fake.condition("Succeeded")]})]
    assert stop("x", done).nothing == "job x is Succeeded"
    half = stop("x", torch(spec=suspended))
    assert (sent(half), half.nothing, len(half.workers)) == ([], "", 3)


def test_a_failed_job_whose_pods_run_needs_a_delete() -> None:
    objects = torch(status={"conditions": [fake.condition("Failed")]})
    with pytest.raises(AtlctlError, match="3 of its workers still run") as caught:
        stop("x", objects)
    assert caught.value.hint == "atlctl stop pytorchjob/x --namespace team --delete"
    objects[0]["metadata"]["deletionTimestamp"] = fake.START
    for pod in objects[1:]:
        pod["metadata"]["deletionTimestamp"] = fake.START
    assert stop("x", objects).nothing != ""


def test_a_delete_is_foreground_with_the_uid_in_its_body() -> None:
    made = stop("x", torch(), StopRequest(delete=True))
    ((method, path, body),) = sent(made)
    assert (method, path) == ("DELETE", "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/x")
    assert body["propagationPolicy"] == "Foreground"
    assert body["preconditions"] == {"uid": "uid-PyTorchJob-x"}
    assert (made.undo, made.how) == ("", "delete")
    ended = [fake.pytorchjob("x", status={"conditions": [fake.condition("Succeeded")]})]
    assert len(sent(stop("x", ended, StopRequest(delete=True)))) == 1


@pytest.mark.parametrize(
    ("kind", "api", "spec", "hint", "deletable"),
    [
        ("RayJob", "ray.io/v1", {}, "kubectl -n team patch rayjobs.ray.io/x", True),
        ("StatefulSet", "apps/v1", {"replicas": 2}, "kubectl -n team scale statefulsets.apps/x --replicas=0", True),
        ("ElasticJob", "elastic.iml.github.io/v1alpha1", {}, "kubectl -n team delete elasticjobs", False),
        ("MPIJob", "kubeflow.org/v2beta1", {}, "kubectl -n team patch mpijobs.kubeflow.org/x", True),
    ],
)
def test_other_kinds_name_the_native_command(kind: str, api: str, spec: Object, hint: str, deletable: bool) -> None:
    objects = [fake.obj(kind, api, "x", None, spec=spec, status={})]
    with pytest.raises(UsageError) as caught:
        stop("x", objects)
    assert (caught.value.hint or "").startswith(hint)
    assert ("--delete" in caught.value.message) is deletable
    if deletable:
        assert sent(stop("x", objects, StopRequest(delete=True)))[0][0] == "DELETE"
    else:
        with pytest.raises(UsageError):
            stop("x", objects, StopRequest(delete=True))


def select(selector: str, pods: list[Object], request: StopRequest) -> Plan:
    top = {"metadata": {"name": selector, "namespace": "team"}}
    api = fake.FakeApi(pods)
    job = asyncio.run(inventory.select(api, "")) if not selector else asyncio.run(inventory.select(api, selector))
    assert top["metadata"]["name"] == job.job.name
    return stopplan.stop(job, world(pods, job), job.job.workers, request)


def test_selected_pods_are_deleted_one_by_one_each_for_its_uid() -> None:
    pods = [fake.pod(f"w-{index}", labels={"app": "x"}) for index in range(2)]
    made = select("app=x", pods, StopRequest(delete=True))
    assert [(method, path.rsplit("/", 1)[1], body["preconditions"]["uid"]) for method, path, body in sent(made)] == [
        ("DELETE", "w-0", "uid-Pod-w-0"),
        ("DELETE", "w-1", "uid-Pod-w-1"),
    ]
    with pytest.raises(UsageError, match="cannot be suspended"):
        select("app=x", pods, StopRequest())


@pytest.mark.parametrize("request_", [StopRequest(delete=True), StopRequest(keep=True)])
def test_an_empty_selector_is_refused(request_: StopRequest) -> None:
    with pytest.raises(UsageError, match="nearly all pods"):
        select("", [fake.pod("w-0")], request_)


@pytest.mark.parametrize(
    ("selector", "restricts"),
    [
        ("app=x", True),
        ("app in (a, b)", True),
        ("app", True),
        ("!app,tier==gpu", True),
        ("", False),
        (" , ", False),
        ("!app", False),
        (" ! app", False),
        ("app!=x", False),
        ("app notin (a,b)", False),
        ("app notin (a,b),!x,y!=z", False),
    ],
)
def test_which_selectors_may_mean_every_pod(selector: str, restricts: bool) -> None:
    assert stopplan.restricting(selector) is restricts


def test_pods_of_a_job_are_not_deleted_as_pods() -> None:
    top = fake.obj("ReplicaSet", "apps/v1", "rs", None)
    with pytest.raises(UsageError, match="pods of ReplicaSet/rs"):
        select("app=x", [fake.pod("w-0", top, labels={"app": "x"})], StopRequest(delete=True))


def test_a_job_that_may_not_be_read_is_not_stopped() -> None:
    objects = torch()
    job = found("x", objects, forbidden=["pytorchjobs"])
    with pytest.raises(NotAllowed, match=r"pytorchjobs\.kubeflow\.org"):
        stopplan.stop(job, world(objects, job), job.job.workers, StopRequest())


def test_the_end_of_processes_may_be_of_some_workers_and_warns() -> None:
    job = found("x", torch())
    made = stopplan.stop(job, world([], job), job.job.workers[:1], StopRequest(keep=True, grace=3))
    assert isinstance(made.steps, Steps)
    assert (made.how, made.steps.writes, made.steps.grace, made.ends_terminal) == ("processes", (), 3, False)
    assert "may be deleted with their logs" in dict(made.facts)["risk"]
    with pytest.raises(UsageError, match="stopped as a whole"):
        stopplan.stop(job, world([], job), job.job.workers[:1], StopRequest())
    with pytest.raises(UsageError, match="exclude each other"):
        stopplan.stop(job, world([], job), job.job.workers, StopRequest(keep=True, delete=True))


def test_resume() -> None:
    asleep = [fake.pytorchjob("x", spec={"runPolicy": {"suspend": True}})]
    body = {"spec": {"runPolicy": {"suspend": False}}, "metadata": {"uid": "uid-PyTorchJob-x"}}
    assert [write[2] for write in sent(resume("x", asleep))] == [body]
    assert resume("x", torch()).nothing == "job x is Running"
    assert sent(resume("x", volcano("Aborted")))[0][2]["action"] == "ResumeJob"
    with pytest.raises(AtlctlError, match="cannot be resumed"):
        resume("x", [fake.pytorchjob("x", status={"conditions": [fake.condition("Failed")]})])
    with pytest.raises(UsageError, match="ElasticJobs"):
        resume("x", [fake.obj("ElasticJob", "elastic.iml.github.io/v1alpha1", "x", None, spec={}, status={})])
