"""Objects in an API server's format, and an Api for a dict of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import unquote

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Api, Denied, Items, JsonAnswer, NotFound, Query, Socket, Stream
from atlctl.backends.kubernetes.discovery import Served

Object = dict[str, Any]
START = "2026-11-20T18:00:00Z"
#: The resources of a cluster with every kind.
ALL = Served(
    {
        "trainjobs.trainer.kubeflow.org": "v1alpha1",
        "jobsets.jobset.x-k8s.io": "v1alpha2",
        "pytorchjobs.kubeflow.org": "v1",
        "mpijobs.kubeflow.org": "v2beta1",
        "jobs.batch": "v1",
        "jobs.batch.volcano.sh": "v1alpha1",
        "leaderworkersets.leaderworkerset.x-k8s.io": "v1",
        "rayjobs.ray.io": "v1",
        "rayclusters.ray.io": "v1",
        "elasticjobs.elastic.iml.github.io": "v1alpha1",
        "statefulsets.apps": "v1",
        "workloads.kueue.x-k8s.io": "v1beta2",
        "podgroups.scheduling.volcano.sh": "v1beta1",
        "podgroups.scheduling.x-k8s.io": "v1alpha1",
    }
)


def owned_by(owner: Object, *, controller: bool = True) -> Object:
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": controller,
    }


def obj(kind: str, api: str, name: str, owner: Object | None = None, **parts: Any) -> Object:
    """An object. `labels`, `annotations`, `created` and `uid` are metadata, other `parts` are top-level fields."""
    meta: Object = {
        "name": name,
        "namespace": parts.pop("namespace", "team"),
        "uid": parts.pop("uid", f"uid-{kind}-{name}"),
        "creationTimestamp": parts.pop("created", START),
        "labels": parts.pop("labels", {}),
        "annotations": parts.pop("annotations", {}),
    }
    if owner is not None:
        meta["ownerReferences"] = [owned_by(owner)]
    return {"apiVersion": api, "kind": kind, "metadata": meta, **parts}


def pod(name: str, owner: Object | None = None, state: Object | None = None, **parts: Any) -> Object:
    """A running pod with one container `main`; `state`: of the container, `phase`: of the pod."""
    status: Object = {"phase": parts.pop("phase", "Running")}
    status["containerStatuses"] = [{"name": "main", "state": state or {"running": {"startedAt": START}}}]
    status |= parts.pop("status", {})
    spec: Object = {"nodeName": "node1", "restartPolicy": "Never", "containers": [{"name": "main"}]}
    spec |= parts.pop("spec", {})
    return obj("Pod", "v1", name, owner, spec=spec, status=status, **parts)


def failed(name: str, owner: Object | None = None, code: int = 1, reason: str = "Error", **parts: Any) -> Object:
    end = {"exitCode": code, "reason": reason, "startedAt": START, "finishedAt": "2026-11-20T18:01:00Z"}
    return pod(name, owner, {"terminated": end}, phase="Failed", **parts)


def job(name: str, owner: Object | None = None, size: int = 2, **parts: Any) -> Object:
    spec = {"parallelism": size, "completions": size, "completionMode": "Indexed"}
    return obj("Job", "batch/v1", name, owner, **{"spec": spec, "status": {}, **parts})


def job_pod(owner: Object, index: int, **parts: Any) -> Object:
    labels = {
        "batch.kubernetes.io/job-completion-index": str(index),
        "batch.kubernetes.io/controller-uid": owner["metadata"]["uid"],
        "batch.kubernetes.io/job-name": owner["metadata"]["name"],
    }
    name = f"{owner['metadata']['name']}-{index}-{parts.pop('suffix', 'aaaaa')}"
    return pod(name, owner, labels=labels | parts.pop("labels", {}), **parts)


def jobset(name: str, owner: Object | None = None, sizes: Mapping[str, int] | None = None, **parts: Any) -> Object:
    replicated = [
        {"name": role, "replicas": 1, "template": {"spec": {"parallelism": size}}}
        for role, size in (sizes or {"node": 2}).items()
    ]
    spec = {"replicatedJobs": replicated, **parts.pop("spec", {})}
    return obj("JobSet", "jobset.x-k8s.io/v1alpha2", name, owner, **{"spec": spec, "status": {}, **parts})


def jobset_pod(jobset: Object, child: Object, role: str, index: int, **parts: Any) -> Object:
    labels = {
        "jobset.sigs.k8s.io/jobset-name": jobset["metadata"]["name"],
        "jobset.sigs.k8s.io/jobset-uid": jobset["metadata"]["uid"],
        "jobset.sigs.k8s.io/replicatedjob-name": role,
        "jobset.sigs.k8s.io/job-index": "0",
        "jobset.sigs.k8s.io/restart-attempt": parts.pop("attempt", "0"),
    }
    return job_pod(child, index, labels=labels, **parts)


def trainjob(name: str, **parts: Any) -> Object:
    spec = {"trainer": {"numNodes": 2}, **parts.pop("spec", {})}
    return obj("TrainJob", "trainer.kubeflow.org/v1alpha1", name, None, **{"spec": spec, "status": {}, **parts})


def train_world(name: str, **parts: Any) -> list[Object]:
    """A running TrainJob of two nodes with its dependents: TrainJob, JobSet, Job, pods."""
    top = trainjob(name, **parts)
    made = jobset(name, top)
    child = job(f"{name}-node-0", made)
    return [top, made, child, *(jobset_pod(made, child, "node", index) for index in range(2))]


def pytorchjob(name: str, workers: int = 2, **parts: Any) -> Object:
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": workers}}
    spec = {"pytorchReplicaSpecs": replicas, **parts.pop("spec", {})}
    return obj("PyTorchJob", "kubeflow.org/v1", name, None, **{"spec": spec, "status": {}, **parts})


def replica(owner: Object, role: str, index: int, prefix: str = "training.kubeflow.org/", **parts: Any) -> Object:
    name = owner["metadata"]["name"]
    labels = {f"{prefix}job-name": name, f"{prefix}replica-type": role, f"{prefix}replica-index": str(index)}
    if not prefix:
        labels["group-name"] = "kubeflow.org"
    return pod(f"{name}-{role}-{index}", owner, labels=labels, **parts)


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": START}


class FakeApi(Api):
    """Answers GET and list requests for `objects`. `forbidden`: plurals; `requests`: all paths with queries."""

    def __init__(self, objects: Sequence[Object], served: Served = ALL, forbidden: Sequence[str] = ()) -> None:
        self.server, self.context, self.namespace = "https://127.0.0.1:1", None, "team"
        self.forbidden = set(forbidden)
        self.namespaces = {"team", *(item["metadata"].get("namespace") for item in objects)}
        self.requests: list[tuple[str, str]] = []
        self._lists: dict[str, list[Object]] = {"/api/v1/pods": [], "/api/v1/events": []}
        for name, version in served.versions.items():
            plural, _, group = name.partition(".")
            self._lists[f"/apis/{group}/{version}/{plural}"] = []
        for item in objects:
            plural = {"Pod": "pods"}.get(item["kind"], item["kind"].lower() + "s")
            root = "/apis/" if "/" in item["apiVersion"] else "/api/"
            self._lists[f"{root}{item['apiVersion']}/{plural}"].append(item)

    async def get(self, path: str, query: Query = ()) -> Object:
        self.requests.append((path, ""))
        where, name = path.rsplit("/", 1)
        if where == "/api/v1/namespaces":
            if "namespaces" in self.forbidden:
                raise Denied(403, "Forbidden", "namespaces is forbidden")
            if unquote(name) in self.namespaces:
                return {"metadata": {"name": unquote(name)}}
            raise NotFound(404, "NotFound", f"{path} not found")
        for item in self._select(where):
            if item["metadata"]["name"] == unquote(name):
                return item
        raise NotFound(404, "NotFound", f"{path} not found")

    async def list(self, path: str, query: Query = ()) -> Items:
        selector, chosen = (dict(query).get(key, "") for key in ("labelSelector", "fieldSelector"))
        self.requests.append((path, selector))
        wanted = [part.split("=", 1) for part in selector.split(",") if part]
        parts = [part.split("=", 1) for part in chosen.split(",") if part]
        return Items(
            [
                item
                for item in self._select(path)
                if all(objects.labels(item).get(key) == value for key, value in wanted)
                and all(objects.dig(item, *key.split(".")) == value for key, value in parts)
            ]
        )

    def _select(self, path: str) -> Sequence[Object]:
        parts = path.split("/")
        namespace = parts[-2] if "namespaces" in parts else None
        key = "/".join(parts[:-3] + parts[-1:]) if namespace else path
        if parts[-1] in self.forbidden:
            raise Denied(403, "Forbidden", f"{parts[-1]} is forbidden")
        if key not in self._lists:
            raise NotFound(404, "", "404 page not found")
        return [item for item in self._lists[key] if namespace in (None, item["metadata"]["namespace"])]

    async def send(
        self, method: str, path: str, body: Object | None, query: Query = (), *, merge_patch: bool = False
    ) -> JsonAnswer:
        raise AssertionError("an inventory changes nothing")

    def stream(self, path: str, query: Query = ()) -> AbstractAsyncContextManager[tuple[int, Stream]]:
        raise AssertionError("an inventory reads no stream")

    async def socket(self, path: str, query: Query, protocols: Sequence[str]) -> Socket:
        raise AssertionError("an inventory opens no socket")

    def listed(self, plural: str) -> int:
        """The number of list requests for this plural."""
        return sum(path.endswith(f"/{plural}") for path, _ in self.requests)
