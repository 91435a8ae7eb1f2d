from __future__ import annotations

from dataclasses import replace
from typing import Any

from atlctl.backends.kubernetes import queueing
from atlctl.backends.kubernetes.kinds import mechanism, registry
from atlctl.backends.kubernetes.kinds.base import Sight
from atlctl.backends.kubernetes.kinds.build import build
from atlctl.backends.kubernetes.kinds.mechanism import Refuse, Suspend, VolcanoCommand
from atlctl.backends.kubernetes.queueing import refined
from atlctl.jobs.model import Job, State
from tests.support.recordings import load, needs_recordings
from tests.unit.kubernetes.fakecluster import condition, job, obj, pod, pytorchjob, trainjob

Object = dict[str, Any]


def workload(*conditions: Object, **parts: Any) -> Object:
    spec = {"queueName": "team", **parts.pop("spec", {})}
    status = {"conditions": list(conditions), **parts.pop("status", {})}
    return obj("Workload", "kueue.x-k8s.io/v1beta2", "w", uid="w-uid", spec=spec, status=status, **parts)


def group(phase: str, *conditions: Object, **status: Any) -> Object:
    spec = {"minMember": 3, "queue": "default"}
    told = {"phase": phase, "conditions": list(conditions), **status}
    return obj("PodGroup", "scheduling.volcano.sh/v1beta1", "g", spec=spec, status=told)


def test_workloads() -> None:
    waits = queueing.workload(workload(condition("QuotaReserved", "False", "WaitingForQuota", "4 more GPUs")))
    assert (waits.phase, waits.waits, waits.reason, waits.message) == (
        "Pending",
        True,
        "WaitingForQuota",
        "4 more GPUs",
    )
    assert waits.queue == "team"
    checks = [condition("QuotaReserved"), condition("Admitted", "False", "UnsatisfiedAdmissionChecks")]
    reserved = queueing.workload(workload(*checks))
    assert (reserved.phase, reserved.reason) == ("QuotaReserved", "UnsatisfiedAdmissionChecks")
    admitted = queueing.workload(workload(condition("QuotaReserved"), condition("Admitted"), condition("Evicted")))
    assert (admitted.phase, admitted.waits, admitted.reason) == ("Admitted", False, "")
    evicted = queueing.workload(workload(condition("Evicted", reason="Preempted"), condition("Admitted", "False")))
    assert (evicted.phase, evicted.waits, evicted.reason) == ("Evicted", True, "Preempted")
    over = queueing.workload(workload(condition("Admitted"), condition("Finished", reason="Succeeded")))
    assert (over.phase, over.waits) == ("Finished", False)


def test_a_deactivated_workload() -> None:
    stopped = queueing.workload(workload(condition("Evicted", reason="Deactivated"), spec={"active": False}))
    assert (stopped.phase, stopped.active, stopped.reason) == ("Deactivated", False, "Deactivated")


def test_pod_groups() -> None:
    text = "3/3 tasks in gang unschedulable"
    waits = queueing.pod_group(group("Inqueue", condition("Unschedulable", reason="NotEnoughResources", message=text)))
    assert (waits.phase, waits.waits, waits.reason, waits.message) == ("Inqueue", True, "NotEnoughResources", text)
    assert waits.queue == "default"
    runs = queueing.pod_group(group("Running", condition("Unschedulable", reason="NotEnoughResources")))
    assert (runs.waits, runs.reason) == (False, "")
    counted = queueing.pod_group(group("Scheduling", scheduled=1))
    assert counted.message == "1 of 3 pods scheduled"


def test_which_groups_and_workloads_are_a_jobs() -> None:
    top = pytorchjob("bert")
    uid = top["metadata"]["uid"]
    owned = obj("PodGroup", "scheduling.x-k8s.io/v1alpha1", "a", top)
    named = obj("PodGroup", "scheduling.x-k8s.io/v1alpha1", "b")
    other = obj("PodGroup", "scheduling.x-k8s.io/v1alpha1", "b", namespace="else")
    item = pod("p", top, labels={"scheduling.x-k8s.io/pod-group": "b"})
    assert queueing.pod_groups_of([owned, named, other], [uid], [item]) == [owned, named]
    mine = [obj("Workload", "k/v1", "a", top), obj("Workload", "k/v1", "b", labels={"kueue.x-k8s.io/job-uid": uid})]
    assert queueing.workloads_of([*mine, workload()], [uid]) == mine
    assert queueing.workloads_of([workload()], [""]) == []
    assert queueing.workloads_of([obj("Workload", "k/v1", "c", labels={"kueue.x-k8s.io/job-uid": [uid]})], [uid]) == []


def pending(**parts: Any) -> Job:
    top = job("j", **parts)
    return build(registry.KINDS[-2], Sight(top), [])


def test_what_keeps_a_job_in_its_queue_is_told_of_the_job() -> None:
    entry = queueing.workload(workload(condition("QuotaReserved", "False", "WaitingForQuota", "why")))
    found = refined(pending(), [entry])
    assert (found.state, found.reason, found.message, found.queue) == (State.QUEUED, "WaitingForQuota", "why", "team")
    running = replace(pending(), state=State.RUNNING)
    assert refined(running, [entry]).state is State.RUNNING
    stopped = queueing.workload(workload(spec={"active": False}))
    assert refined(replace(pending(), state=State.QUEUED), [stopped]).state is State.SUSPENDED
    gang = queueing.pod_group(group("Pending", condition("Unschedulable", reason="NotEnoughResources")))
    assert (refined(pending(), [gang]).state, refined(pending(), [gang]).reason) == (State.QUEUED, "NotEnoughResources")
    asleep = replace(pending(), state=State.SUSPENDED, suspended=True)
    assert refined(asleep, [gang]).state is State.SUSPENDED
    silent = queueing.pod_group(group(""))
    assert refined(pending(), [silent]).state is State.PENDING


def test_kueue_would_start_a_suspended_job_again_so_its_workload_is_stopped() -> None:
    kind = registry.kind_of("trainjobs.trainer.kubeflow.org", "v1alpha1")
    assert kind is not None
    plain = trainjob("t")
    assert queueing.stopping(kind, plain, []) == Suspend(("spec", "suspend"), True)
    assert queueing.stopping(kind, plain, [], resume=True) == Suspend(("spec", "suspend"), False)
    managed = trainjob("t", labels={"kueue.x-k8s.io/queue-name": "team"})
    stop = queueing.stopping(kind, managed, [workload()])
    assert stop == mechanism.Workload("w", "w-uid", active=False)
    assert stop.body == {"spec": {"active": False}}
    assert queueing.stopping(kind, managed, []) == mechanism.Workload("", "", active=False)
    assert queueing.stopping(kind, plain, [workload()], resume=True) == mechanism.Workload("w", "w-uid", active=True)
    volcano = registry.kind_of("jobs.batch.volcano.sh", "v1alpha1")
    assert volcano is not None
    assert queueing.stopping(volcano, plain, []) == VolcanoCommand("AbortJob")


def test_a_job_of_multikueue_runs_elsewhere() -> None:
    kind = registry.kind_of("pytorchjobs.kubeflow.org", "v1")
    assert kind is not None
    for spec in ({"managedBy": "kueue.x-k8s.io/multikueue"}, {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}):
        top = obj("PyTorchJob", "kubeflow.org/v1", "b", spec=spec)
        stop = queueing.stopping(kind, top, [workload(status={"clusterName": "east"})])
        assert isinstance(stop, Refuse)
        assert stop.why == "MultiKueue runs it in the cluster east"


@needs_recordings
def test_recorded_pod_groups() -> None:
    (found,) = load("kinds/volcano-running.child-podgroups")["response"]["body"]["items"]
    top = load("kinds/volcano-running.top")["response"]["body"]
    entry = queueing.pod_group(found)
    assert entry.queue == "default"
    assert queueing.pod_groups_of([found], [top["metadata"]["uid"]], []) == [found]
    pods = load("kinds/volcano-running.pods")["response"]["body"]["items"]
    assert queueing.pod_groups_of([found], [], pods) == [found]
