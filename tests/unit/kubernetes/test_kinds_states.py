"""States of jobs, and how to stop them, by kind."""

from __future__ import annotations

from typing import Any

import pytest

from atlctl.backends.kubernetes.kinds import registry
from atlctl.backends.kubernetes.kinds.base import JobKind, Sight
from atlctl.backends.kubernetes.kinds.build import build
from atlctl.backends.kubernetes.kinds.mechanism import Refuse, Suspend, VolcanoCommand
from atlctl.jobs.model import Job, State
from tests.unit.kubernetes.fakecluster import (
    START,
    condition,
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
TRAIN, SET, TORCH = "trainjobs.trainer.kubeflow.org", "jobsets.jobset.x-k8s.io", "pytorchjobs.kubeflow.org"
BATCH, VOLCANO, RAY = "jobs.batch", "jobs.batch.volcano.sh", "rayjobs.ray.io"
ELASTIC, LWS, STS = (
    "elasticjobs.elastic.iml.github.io",
    "leaderworkersets.leaderworkerset.x-k8s.io",
    "statefulsets.apps",
)


def kind(resource: str) -> JobKind:
    found = registry.kind_of(resource, "v1")
    assert found is not None
    return found


def state(resource: str, top: Object, *pods: Object, children: tuple[Object, ...] = ()) -> tuple[State, str]:
    made = build(kind(resource), Sight(top, children), pods)
    return made.state, made.reason


def with_status(top: Object, *conditions: Object, **status: Any) -> Object:
    top["status"] = {"conditions": list(conditions), **status}
    return top


def test_a_trainjob_runs_without_a_condition() -> None:
    top, made = trainjob("t"), jobset("t")
    assert state(TRAIN, top, jobset_pod(made, job("c"), "node", 0)) == (State.RUNNING, "")
    assert state(TRAIN, top) == (State.PENDING, "")
    assert state(TRAIN, with_status(top, jobsStatus=[{"active": 1, "ready": 1}])) == (State.RUNNING, "")


def test_a_resumed_trainjob_is_not_suspended() -> None:
    top = with_status(trainjob("t"), condition("Suspended", "False", "Resumed"))
    assert state(TRAIN, top, pod("p")) == (State.RUNNING, "")
    waits = pod("p", phase="Pending", status={"conditions": [condition("PodScheduled", "False", "Unschedulable")]})
    waits["status"]["containerStatuses"] = []
    assert state(TRAIN, top, waits) == (State.PENDING, "Unschedulable")


@pytest.mark.parametrize(("resource", "top"), [(TRAIN, trainjob("t")), (SET, jobset("t")), (BATCH, job("t"))])
def test_right_after_the_patch_nothing_but_the_spec_says_suspended(resource: str, top: Object) -> None:
    top["spec"]["suspend"] = True
    assert state(resource, top, pod("p")) == (State.STOPPING, "Suspending")
    assert state(resource, top) == (State.SUSPENDED, "")
    assert state(resource, with_status(top, condition("Suspended", reason="Because"))) == (State.SUSPENDED, "Because")
    top["spec"]["suspend"] = "true"
    assert not kind(resource).suspended(top)


@pytest.mark.parametrize(
    ("resource", "top", "done"),
    [
        (TRAIN, trainjob("t"), "Complete"),
        (SET, jobset("t"), "Completed"),
        (TORCH, pytorchjob("t"), "Succeeded"),
        (BATCH, job("t"), "Complete"),
    ],
)
def test_ends(resource: str, top: Object, done: str) -> None:
    first = condition("Created")
    assert state(resource, with_status(top, first, condition(done, reason="Done"))) == (State.SUCCEEDED, "Done")
    assert state(resource, with_status(top, condition(done, "False"), condition("Failed", reason="No"))) == (
        State.FAILED,
        "No",
    )
    top["metadata"]["deletionTimestamp"] = START
    assert state(resource, with_status(top)) == (State.STOPPING, "Terminating")


def test_a_failed_pytorchjob_with_workers_that_run_on() -> None:
    top = with_status(pytorchjob("b"), condition("Failed", reason="PyTorchJobFailed", message="1 Worker failed"))
    made = build(kind(TORCH), Sight(top), [replica(top, "master", 0)])
    assert (made.state, made.message, made.ready) == (State.FAILED, "1 Worker failed", 1)


def test_a_pytorchjob_resumed_without_capacity() -> None:
    """Its last condition is Suspended, the last True one is Created, and Running has the reason of the suspension."""
    top = with_status(
        pytorchjob("b"),
        condition("Created"),
        condition("Running", "False", "PyTorchJobSuspended"),
        condition("Suspended", "False", "PyTorchJobResumed"),
    )
    status = {"conditions": [condition("PodScheduled", "False", "Unschedulable")], "containerStatuses": []}
    pods = [replica(top, "worker", index, phase="Pending", status=status) for index in range(2)]
    assert state(TORCH, top, *pods) == (State.PENDING, "Unschedulable")


def test_a_restarting_pytorchjob() -> None:
    top = with_status(pytorchjob("b"), condition("Restarting", reason="PyTorchJobRestarting"))
    assert state(TORCH, top) == (State.RESTARTING, "PyTorchJobRestarting")
    assert state(TORCH, top, replica(top, "master", 0)) == (State.RUNNING, "")


def test_a_jobset_says_restarting_as_long_as_the_new_attempt_runs() -> None:
    top = with_status(jobset("s"), condition("RestartingJobSet", reason="DefaultFailurePolicy"), restarts=1)
    child = job("c", top)
    old, new = (jobset_pod(top, child, "node", n, attempt=str(n)) for n in range(2))
    assert state(SET, top, old) == (State.RESTARTING, "DefaultFailurePolicy")
    assert state(SET, top, new) == (State.RUNNING, "")
    assert state(TRAIN, trainjob("s"), old, children=(top,)) == (State.RESTARTING, "DefaultFailurePolicy")


def test_a_job_whose_workers_have_all_failed_is_not_called_ended_before_its_controller_says_so() -> None:
    top = job("j", size=1)
    assert state(BATCH, top, failed("p", top)) == (State.RESTARTING, "Error")
    decided = with_status(top, condition("FailureTarget", reason="BackoffLimitExceeded"))
    assert state(BATCH, decided, failed("p", top)) == (State.STOPPING, "BackoffLimitExceeded")
    single = build(registry.PODS, Sight(failed("p")), [failed("p")])
    assert single.state is State.FAILED
    assert state(BATCH, job("j"), pod("p", None, {"terminated": {"exitCode": 0}}, phase="Succeeded")) == (
        State.RUNNING,
        "Completing",
    )


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("Pending", State.PENDING),
        ("Running", State.RUNNING),
        ("Restarting", State.RESTARTING),
        ("Aborting", State.STOPPING),
        ("Aborted", State.SUSPENDED),
        ("Completing", State.STOPPING),
        ("Completed", State.SUCCEEDED),
        ("Terminating", State.STOPPING),
        ("Terminated", State.STOPPED),
        ("Failed", State.FAILED),
        ("", State.PENDING),
    ],
)
def test_volcano_phases(phase: str, expected: State) -> None:
    top = obj("Job", "batch.volcano.sh/v1alpha1", "v", spec={}, status={"state": {"phase": phase}})
    assert state(VOLCANO, top)[0] is expected


def test_a_volcano_job_that_its_policy_terminated_failed() -> None:
    status = {"state": {"phase": "Terminated"}, "failed": 1}
    top = obj("Job", "batch.volcano.sh/v1alpha1", "v", spec={}, status=status)
    assert state(VOLCANO, top) == (State.FAILED, "Terminated")
    top["status"] = {"state": {"phase": "Aborted"}}
    assert state(VOLCANO, top, pod("p"))[0] is State.STOPPING


def test_an_elasticjob_called_suspended_whose_workers_train_on() -> None:
    top = obj(
        "ElasticJob", "elastic.iml.github.io/v1alpha1", "d", spec={"suspend": True}, status={"phase": "Suspended"}
    )
    assert state(ELASTIC, top, pod("p")) == (State.RUNNING, "scaling suspended")
    assert state(ELASTIC, top)[0] is State.SUSPENDED
    top["status"]["phase"] = "Failed"
    assert state(ELASTIC, top, pod("p"))[0] is State.FAILED


@pytest.mark.parametrize("resource", [LWS, STS])
def test_what_is_scaled_to_nothing(resource: str) -> None:
    top = obj("X", "x/v1", "x", spec={"replicas": 0}, status={})
    assert state(resource, top) == (State.SUSPENDED, "")
    assert state(resource, top, pod("x-0")) == (State.STOPPING, "Suspending")
    top["spec"]["replicas"] = 2
    assert state(resource, top, pod("x-0")) == (State.RUNNING, "")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"}, State.PENDING),
        ({"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}, State.SUCCEEDED),
        ({"jobStatus": "FAILED", "jobDeploymentStatus": "Failed"}, State.FAILED),
        ({"jobStatus": "FAILED", "jobDeploymentStatus": "Retrying"}, State.RESTARTING),
        ({"jobStatus": "STOPPED", "jobDeploymentStatus": "Complete"}, State.STOPPED),
        ({"jobDeploymentStatus": "ValidationFailed"}, State.FAILED),
        ({"jobDeploymentStatus": "Suspending"}, State.STOPPING),
    ],
)
def test_rayjobs(status: Object, expected: State) -> None:
    assert state(RAY, obj("RayJob", "ray.io/v1", "r", spec={}, status=status))[0] is expected


def test_what_kueue_has_not_admitted_is_queued() -> None:
    top = job("q", labels={"kueue.x-k8s.io/queue-name": "team"})
    top["spec"]["suspend"] = True
    made = build(kind(BATCH), Sight(top), [])
    assert (made.state, made.queue, made.suspended) == (State.QUEUED, "team", True)


def test_how_kinds_are_stopped_and_resumed() -> None:
    suspend = ("spec", "suspend")
    for resource in (TRAIN, SET, BATCH):
        assert kind(resource).stop({}) == Suspend(suspend, True)
        assert kind(resource).resume({}) == Suspend(suspend, False)
    stop = kind(TORCH).stop({})
    assert isinstance(stop, Suspend)
    assert stop.body == {"spec": {"runPolicy": {"suspend": True}}}
    assert kind(VOLCANO).stop({}) == VolcanoCommand("AbortJob")
    assert kind(VOLCANO).resume({}) == VolcanoCommand("ResumeJob")


def test_a_command_for_volcano() -> None:
    top = obj("Job", "batch.volcano.sh/v1alpha1", "vc", uid="u-1")
    body = VolcanoCommand("AbortJob").body(top, "v1alpha1")
    assert body["metadata"]["generateName"] == "vc-abortjob-"
    assert body["action"] == "AbortJob"
    assert (body["target"]["uid"], body["target"]["blockOwnerDeletion"]) == ("u-1", False)
    assert body["metadata"]["ownerReferences"] == [body["target"]]


PATCH = "kubectl -n team patch {} --type=merge -p '{}'"
ASLEEP = '{"spec":{"suspend":true}}'


@pytest.mark.parametrize(
    ("resource", "version", "command"),
    [
        (LWS, "v1", "kubectl -n team scale leaderworkersets.leaderworkerset.x-k8s.io/x --replicas=0"),
        (STS, "v1", "kubectl -n team scale statefulsets.apps/x --replicas=0"),
        (RAY, "v1", PATCH.format("rayjobs.ray.io/x", ASLEEP)),
        ("rayclusters.ray.io", "v1", PATCH.format("rayclusters.ray.io/x", ASLEEP)),
        (
            "mpijobs.kubeflow.org",
            "v2beta1",
            PATCH.format("mpijobs.kubeflow.org/x", '{"spec":{"runPolicy":{"suspend":true}}}'),
        ),
        (ELASTIC, "v1alpha1", "kubectl -n team delete elasticjobs.elastic.iml.github.io/x"),
        ("pods", "v1", "kubectl -n team delete pod x"),
    ],
)
def test_kinds_that_atlctl_does_not_stop_tell_the_native_command(resource: str, version: str, command: str) -> None:
    reader = registry.kind_of(resource, version)
    assert reader is not None
    stop = reader.stop(obj("X", "x/v1", "x", spec={"replicas": 2}))
    assert isinstance(stop, Refuse)
    assert stop.command == command
    assert isinstance(reader.resume(obj("X", "x/v1", "x")), Refuse)


def test_a_hostile_name_in_a_native_command_is_one_word() -> None:
    stop = kind(STS).stop({"metadata": {"name": "x; rm -rf /", "namespace": "$(id)"}})
    assert isinstance(stop, Refuse)
    assert stop.command == "kubectl -n '$(id)' scale 'statefulsets.apps/x; rm -rf /' --replicas=0"


def test_times_of_a_job() -> None:
    top = with_status(job("j"), condition("Complete"), completionTime="2026-11-20T18:10:00Z")
    made: Job = build(kind(BATCH), Sight(top), [])
    assert made.created is not None
    assert made.ended is not None
    assert made.ended - made.created == 600
    told = build(kind(SET), Sight(with_status(jobset("s"), condition("Completed", reason="All"))), [])
    assert told.ended == told.created
    running = build(kind(BATCH), Sight(job("j")), [job_pod(job("j"), 0)])
    assert running.ended is None
