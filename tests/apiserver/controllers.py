"""Minimal controllers of the job kinds: suspend, resume, Volcano's commands, Kueue's Workload.active, failures.

After a failure they act like the recorded real ones: the Job controller counts all pods as failed, deletes those that
still run and keeps the failed one; the training-operator deletes all pods, first reports the culprit's exit code, and
creates a pod of the culprit's name again. They write the same events.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from tests.apiserver import deleting, podstatus
from tests.apiserver.cluster import Cluster
from tests.apiserver.resources import Resource
from tests.apiserver.store import Event, Record, now

Object = dict[str, Any]

#: Kind -> reason and message of the condition Suspended when it becomes True and False. {} is the object's name.
WORDS = {
    "Job": ("JobSuspended", "Job suspended", "JobResumed", "Job resumed"),
    "JobSet": ("SuspendedJobs", "jobset is suspended", "ResumeJobs", "jobset is resumed"),
    "TrainJob": ("Suspended", "TrainJob is suspended", "Resumed", "TrainJob is resumed"),
}
TRAINING = "kubeflow.org"
#: Kinds whose failed pods are handled.
FAILING = (("Job", "batch/v1"), ("PyTorchJob", "kubeflow.org/v1"))
#: Reason of the event for a created pod.
CREATED = {"Job": "SuccessfulCreate", "PyTorchJob": "SuccessfulCreatePod"}
VOLCANO = "batch.volcano.sh"
KEPT = ("name", "generateName", "namespace", "labels", "annotations", "ownerReferences")


class Controllers:
    """Off until a test switches them on. They act `delay` seconds after each change, like real controllers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.on = False
        self.delay = 0.05
        #: UID of an owner -> pods deleted by its suspension, and whether they had processes.
        self._away: dict[str, list[tuple[Object, bool]]] = {}
        cluster.store.listeners.append(self._happened)

    def switch(self, on: bool, delay: float) -> None:
        self.on = on
        self.delay = delay

    def _happened(self, event: Event) -> None:
        if not self.on or event.new is None:
            return
        group, plural = event.storage
        if (group, plural) == ("", "pods"):
            self._pod_happened(event.old, event.new)
            return
        resource = next((r for r in self.cluster.served.resources if (r.group, r.plural) == (group, plural)), None)
        if resource is None:
            return
        if plural == "commands" and group == "bus.volcano.sh" and event.old is None:
            self.cluster.kubelet.spawn(self._command(resource, event.new))
        elif plural == "workloads" and _active(event.old) != _active(event.new):
            self.cluster.kubelet.spawn(self._workload(resource, event.new))
        elif _follows(resource) and event.old is not None and _suspended(event.old) != _suspended(event.new):
            self.cluster.kubelet.spawn(self._suspend(resource, event.new))

    # failures

    def _pod_happened(self, old: Record | None, new: Record) -> None:
        """A pod was created or has failed by itself; failures of pods being deleted are ignored."""
        above = next((one for one in new.obj["metadata"].get("ownerReferences") or [] if one.get("controller")), None)
        if above is None or (above["kind"], above["apiVersion"]) not in FAILING:
            return
        resource = self.cluster.served.of(above)
        owner = self.cluster.store.get(resource, new.obj["metadata"]["namespace"], above["name"])
        if owner is None or owner.uid != above["uid"]:
            return
        going = new.obj["metadata"].get("deletionTimestamp")
        if old is None:
            self._tell(owner, CREATED[resource.kind], f"Created pod: {new.name}")
        elif going and not old.obj["metadata"].get("deletionTimestamp") and _phase(new) == "Running":
            self._tell(new, "Killing", f"Stopping container {new.obj['spec']['containers'][0]['name']}")
        elif not going and _failed(new) and not _failed(old):
            failing = self._job_failed if resource.kind == "Job" else self._training_failed
            self.cluster.kubelet.spawn(failing(resource, owner, new))

    async def _job_failed(self, resource: Resource, job: Record, culprit: Record) -> None:
        """`backoffLimit: 0`: all pods count as failed; running ones are deleted, with their logs."""
        await asyncio.sleep(self.delay)
        current = self._again(resource, job)
        if current is None or current.obj["spec"].get("backoffLimit", 6):
            return
        pods = [(below, one) for below, one in self._children(job.uid) if below.plural == "pods"]
        left = [(below, one) for below, one in pods if not _failed(one)]
        for below, one in left:
            self._delete_pod(current, below, one, "SuccessfulDelete")
        text = "Job has reached the specified backoff limit"
        listed: list[Object] = []
        _condition(listed, "FailureTarget", "True", "BackoffLimitExceeded", text)
        counts: Object = {"failed": len(pods), "ready": 0, "uncountedTerminatedPods": {}}
        status = {"conditions": listed, **counts, "terminating": len(left)}
        self.cluster.store.update(resource, current, status=status)
        while any(self.cluster.store.pod(one.obj["metadata"]["namespace"], one.name) for _, one in left):
            await self.cluster.store.changed(0.05)
        current = self._again(resource, job)
        if current is not None:
            listed = json.loads(json.dumps(listed))
            _condition(listed, "Failed", "True", "BackoffLimitExceeded", text)
            self.cluster.store.update(resource, current, status={"conditions": listed, **counts, "terminating": 0})
            self._tell(current, "BackoffLimitExceeded", text, warning=True)

    async def _training_failed(self, resource: Resource, job: Record, culprit: Record) -> None:
        """`cleanPodPolicy: Running` of the training-operator, which also deletes the failed pod."""
        code = _exit_code(culprit)
        self._tell(
            job, "ExitedWithCode", f"Pod: {culprit.obj['metadata']['namespace']}.{culprit.name} exited with code {code}"
        )
        await asyncio.sleep(self.delay)
        current = self._again(resource, job)
        if current is None:
            return
        for below, one in self._children(job.uid):
            if below.plural == "pods" and not one.obj["metadata"].get("deletionTimestamp"):
                self._delete_pod(current, below, one, "SuccessfulDeletePod")
        text = f"{resource.kind} {job.name} is failed because 1 Worker replica(s) failed."
        status = json.loads(json.dumps(current.obj.get("status") or {}))
        _condition(status.setdefault("conditions", []), "Running", "False", f"{resource.kind}Running", text)
        _condition(status["conditions"], "Failed", "True", f"{resource.kind}Failed", text)
        self.cluster.store.update(resource, current, status=status)
        self._tell(current, f"{resource.kind}Failed", text)
        self._again_and_gone(culprit)

    def _again_and_gone(self, culprit: Record) -> None:
        """The operator creates a pod of the culprit's name again, and deletes it before it runs."""
        pods = self.cluster.served.find("", "v1", "pods")
        assert pods is not None
        if self.cluster.store.pod(culprit.obj["metadata"]["namespace"], culprit.name) is not None:
            return
        metadata = {key: value for key, value in culprit.obj["metadata"].items() if key in KEPT}
        spec = {key: value for key, value in culprit.obj["spec"].items() if key != "nodeName"}
        status = {"phase": "Pending"}
        made = self.cluster.store.write(pods, {"metadata": metadata, "spec": spec, "status": status})
        deleting.delete(self.cluster, pods, made, {})

    def _delete_pod(self, owner: Record, pods: Resource, pod: Record, reason: str) -> None:
        deleting.delete(self.cluster, pods, pod, {})
        self._tell(owner, reason, f"Deleted pod: {pod.name}")

    def _tell(self, about: Record, reason: str, message: str, *, warning: bool = False) -> None:
        """Write an event like a controller or kubelet."""
        events = self.cluster.served.find("", "v1", "events")
        assert events is not None
        metadata = about.obj["metadata"]
        its = {"kind": about.obj["kind"], "namespace": metadata["namespace"], "name": about.name, "uid": about.uid}
        event = {
            "metadata": {"name": f"{about.name}.{secrets.token_hex(8)}", "namespace": metadata["namespace"]},
            "involvedObject": its | {"apiVersion": about.obj["apiVersion"]},
            "reason": reason,
            "message": message,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
            "type": "Warning" if warning else "Normal",
        }
        self.cluster.store.write(events, event)

    async def _suspend(self, resource: Resource, record: Record) -> None:
        """Apply spec.suspend: delete or restore the children, then update the status."""
        await asyncio.sleep(self.delay)
        current = self._again(resource, record)
        if current is None:
            return
        off = _suspended(current)
        if off and (workload := self._workload_of(current.uid)) and _active(workload[1]) and _admitted(workload[1]):
            # Kueue has admitted it, so it is resumed immediately.
            self._set_suspend(resource, current, value=False)
            return
        if off:
            self._take_pods(current.uid)
        for below, one in self._children(current.uid):
            if _follows(below):
                self._set_suspend(below, one, value=off)
        if not off:
            self._bring_pods(current.uid)
        current = self._again(resource, record)
        if current is not None:
            self.cluster.store.update(resource, current, status=_status(resource, current.obj, off=off))

    async def _command(self, resource: Resource, record: Record) -> None:
        """Volcano: AbortJob and ResumeJob; the command object is deleted."""
        await asyncio.sleep(self.delay)
        self.cluster.store.remove(resource, record.obj["metadata"].get("namespace", ""), record.name)
        target = record.obj.get("target") or {}
        jobs = self.cluster.served.find(VOLCANO, "v1alpha1", "jobs")
        if jobs is None:
            return
        job = self.cluster.store.get(jobs, record.obj["metadata"]["namespace"], target.get("name", ""))
        if job is None or job.uid != target.get("uid", job.uid):
            return
        if record.obj.get("action") == "AbortJob":
            self._phase(jobs, job, "Aborting")
            self._take_pods(job.uid)
            await asyncio.sleep(self.delay)
            while any(below.plural == "pods" for below, _ in self._children(job.uid)):
                await self.cluster.store.changed(0.05)
            self._phase(jobs, job, "Aborted", running=0)
        elif record.obj.get("action") == "ResumeJob":
            self._phase(jobs, job, "Restarting")
            await asyncio.sleep(self.delay)
            self._phase(jobs, job, "Running", running=self._bring_pods(job.uid))

    def _phase(self, resource: Resource, record: Record, phase: str, **counts: int) -> None:
        if (current := self._again(resource, record)) is not None:
            state = {"lastTransitionTime": now(), "phase": phase, "reason": ""}
            status = (current.obj.get("status") or {}) | {"state": state} | counts
            self.cluster.store.update(resource, current, status=status)

    async def _workload(self, resource: Resource, record: Record) -> None:
        """Kueue: an inactive workload suspends its job and is evicted; an active one is admitted again."""
        await asyncio.sleep(self.delay)
        current = self._again(resource, record)
        if current is None:
            return
        on = _active(current)
        status = json.loads(json.dumps(current.obj.get("status") or {}))
        listed = status.setdefault("conditions", [])
        if on:
            _condition(listed, "QuotaReserved", "True", "QuotaReserved", "Quota reserved")
            _condition(listed, "Evicted", "False", "QuotaReserved", "")
            _condition(listed, "Admitted", "True", "Admitted", "The workload is admitted")
        else:
            _condition(listed, "Evicted", "True", "Deactivated", "The workload is deactivated")
            _condition(listed, "QuotaReserved", "False", "Pending", "The workload is deactivated")
            _condition(listed, "Admitted", "False", "NoReservation", "The workload has no reservation")
        self.cluster.store.update(resource, current, status=status)
        owners = {owner["uid"] for owner in current.obj["metadata"].get("ownerReferences") or []}
        for above, _, one in list(self.cluster.store.everything()):
            if one.uid in owners:
                self._set_suspend(above, one, value=not on)

    # what the controllers share

    def _again(self, resource: Resource, record: Record) -> Record | None:
        """The current object; None if it is gone or was replaced."""
        namespace = record.obj["metadata"].get("namespace", "")
        found = self.cluster.store.get(resource, namespace, record.name)
        return found if found is not None and found.uid == record.uid else None

    def _children(self, uid: str) -> list[tuple[Resource, Record]]:
        return [
            (resource, record)
            for resource, _, record in list(self.cluster.store.everything())
            if any(owner["uid"] == uid for owner in record.obj["metadata"].get("ownerReferences") or [])
        ]

    def _workload_of(self, uid: str) -> tuple[Resource, Record] | None:
        return next(((r, one) for r, one in self._children(uid) if r.plural == "workloads"), None)

    def _set_suspend(self, resource: Resource, record: Record, *, value: bool) -> None:
        spec = dict(record.obj.get("spec") or {})
        if resource.group == TRAINING:
            spec["runPolicy"] = (spec.get("runPolicy") or {}) | {"suspend": value}
        else:
            spec["suspend"] = value
        if spec != record.obj.get("spec"):
            metadata = record.obj["metadata"]
            metadata = metadata | {"generation": metadata.get("generation", 1) + 1}
            self.cluster.store.write(resource, record.obj | {"spec": spec, "metadata": metadata})

    def _take_pods(self, uid: str) -> None:
        """Delete an owner's pods that have not ended, and remember them."""
        for resource, record in self._children(uid):
            if resource.plural != "pods" or record.obj["metadata"].get("deletionTimestamp"):
                continue
            if (record.obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                continue
            known = self.cluster.kubelet.pods.get(record.uid)
            self._away.setdefault(uid, []).append((record.obj, bool(known and known.containers)))
            deleting.delete(self.cluster, resource, record, {})

    def _bring_pods(self, uid: str) -> int:
        """Create new pods in place of the deleted ones; returns their number."""
        pods = self.cluster.served.find("", "v1", "pods")
        assert pods is not None
        away = self._away.pop(uid, [])
        for old, ran in away:
            metadata = {key: value for key, value in old["metadata"].items() if key in KEPT}
            if (prefix := metadata.get("generateName")) is not None:
                metadata["name"] = prefix + secrets.token_hex(3)[:5]
            # A pod of the same name may still be terminating.
            elif self.cluster.store.pod(metadata["namespace"], metadata["name"]) is not None:
                self.cluster.store.remove(pods, metadata["namespace"], metadata["name"])
            made = {"metadata": metadata, "spec": old["spec"], "status": {"phase": "Pending"}}
            record = self.cluster.store.write(pods, made)
            if ran:
                self.cluster.kubelet.run(record)
            else:
                self.cluster.store.update(pods, record, status=podstatus.fake_running(record.obj))
        return len(away)


def _phase(pod: Record) -> str:
    return str((pod.obj.get("status") or {}).get("phase"))


def _failed(pod: Record) -> bool:
    return _phase(pod) == "Failed"


def _exit_code(pod: Record) -> int:
    for status in (pod.obj.get("status") or {}).get("containerStatuses") or []:
        if end := (status.get("state") or {}).get("terminated"):
            return int(end["exitCode"])
    return 1


def _follows(resource: Resource) -> bool:
    """Whether the kind has a field `suspend`."""
    return (resource.kind in WORDS and resource.group != VOLCANO) or resource.group == TRAINING


def _suspended(record: Record) -> bool:
    spec = record.obj.get("spec") or {}
    return bool((spec.get("runPolicy") or {}).get("suspend", spec.get("suspend")))


def _active(record: Record | None) -> bool:
    return record is None or (record.obj.get("spec") or {}).get("active") is not False


def _admitted(record: Record) -> bool:
    listed = (record.obj.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Admitted" and one["status"] == "True" for one in listed)


def _status(resource: Resource, obj: Object, *, off: bool) -> Object:
    """The status after suspending or resuming."""
    status: Object = json.loads(json.dumps(obj.get("status") or {}))
    listed = status.setdefault("conditions", [])
    name = obj["metadata"]["name"]
    if resource.group == TRAINING:
        verb = "suspended" if off else "resumed"
        reason = f"{resource.kind}{verb.title()}"
        text = f"{resource.kind} {name} is {verb}."
        _condition(listed, "Suspended", str(off), reason, text)
        if off:
            _condition(listed, "Running", "False", reason, text)
        else:
            _condition(listed, "Running", "True", f"{resource.kind}Running", f"{resource.kind} {name} is running.")
        return status
    reason, text, back, again = WORDS[resource.kind]
    _condition(listed, "Suspended", str(off), *((reason, text) if off else (back, again)))
    if resource.kind == "Job":
        if off:
            status.pop("active", None)
            status.pop("startTime", None)
            status["ready"] = 0
        else:
            status["startTime"] = now()
            status["active"] = obj["spec"].get("parallelism", 1)
    return status


def _condition(listed: list[Object], kind: str, value: str, reason: str, message: str) -> None:
    """Replace a condition, or append it."""
    made = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": now()}
    for index, one in enumerate(listed):
        if one["type"] == kind:
            listed[index] = made
            return
    listed.append(made)
