"""Served resources, and the discovery documents for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
REVIEW = ["create"]


@dataclass(frozen=True, slots=True)
class Resource:
    """A plural of a group and version. `verbs` is empty for the usual ones."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ("status",)
    review: bool = False

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def builtin(self) -> bool:
        """Whether the real server has it compiled in: items of its lists have no kind."""
        return "." not in self.group or (self.group.endswith("k8s.io") and "x-k8s" not in self.group)

    @property
    def verbs(self) -> list[str]:
        return REVIEW if self.review else VERBS


POD_SUBRESOURCES = ("status", "log", "exec", "eviction", "attach", "portforward")

DEFAULT = (
    Resource("", "v1", "pods", "Pod", short=("po",), subresources=POD_SUBRESOURCES),
    Resource("", "v1", "events", "Event", short=("ev",), subresources=()),
    Resource("", "v1", "configmaps", "ConfigMap", short=("cm",), subresources=()),
    Resource("", "v1", "services", "Service", short=("svc",)),
    Resource("", "v1", "nodes", "Node", namespaced=False, short=("no",)),
    Resource("", "v1", "namespaces", "Namespace", namespaced=False, short=("ns",)),
    Resource("events.k8s.io", "v1", "events", "Event", short=("ev",), subresources=()),
    Resource("batch", "v1", "jobs", "Job"),
    Resource("apps", "v1", "statefulsets", "StatefulSet", short=("sts",)),
    Resource("apps", "v1", "replicasets", "ReplicaSet", short=("rs",)),
    Resource("apps", "v1", "deployments", "Deployment", short=("deploy",)),
    Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, review=True),
    Resource("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False, review=True),
    Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False, review=True),
    Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"),
    Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"),
    Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime", subresources=()),
    Resource("trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", False),
    Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob"),
    Resource("kubeflow.org", "v1", "tfjobs", "TFJob"),
    Resource("kubeflow.org", "v1", "xgboostjobs", "XGBoostJob"),
    Resource("kubeflow.org", "v1", "paddlejobs", "PaddleJob"),
    Resource("kubeflow.org", "v1", "jaxjobs", "JAXJob"),
    Resource("kubeflow.org", "v1", "mpijobs", "MPIJob"),
    Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob"),
    Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job", short=("vcjob", "vj")),
    Resource("bus.volcano.sh", "v1alpha1", "commands", "Command", subresources=()),
    Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", short=("pg",)),
    Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", False, short=("q",)),
    Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", short=("pg",)),
    Resource("kueue.x-k8s.io", "v1beta1", "workloads", "Workload", short=("wl",)),
    Resource("kueue.x-k8s.io", "v1beta1", "clusterqueues", "ClusterQueue", False, short=("cq",)),
    Resource("kueue.x-k8s.io", "v1beta1", "localqueues", "LocalQueue", short=("lq",)),
    Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", short=("lws",)),
    Resource("ray.io", "v1", "rayjobs", "RayJob"),
    Resource("ray.io", "v1", "rayclusters", "RayCluster"),
    Resource("elastic.iml.github.io", "v1alpha1", "elasticjobs", "ElasticJob"),
    Resource("elastic.iml.github.io", "v1alpha1", "scaleplans", "ScalePlan"),
)

#: Kinds of subresource bodies that differ from the resource's.
SUB_KINDS = {
    "exec": "PodExecOptions",
    "attach": "PodAttachOptions",
    "portforward": "PodPortForwardOptions",
    "eviction": "Eviction",
}

V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
V2BETA1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"


class Served:
    """The currently served resources."""

    def __init__(self, resources: Iterable[Resource] = DEFAULT) -> None:
        self.resources = list(resources)
        #: Groups whose aggregated server does not answer, with their version: stale in discovery, 503 otherwise.
        self.broken: dict[str, str] = {}
        self._index()

    def _index(self) -> None:
        self._by_path = {(r.group, r.version, r.plural): r for r in self.resources}
        self._by_kind = {(r.group_version, r.kind): r for r in self.resources}

    def add(self, resource: Resource) -> None:
        self.resources.append(resource)
        self._index()

    def drop(self, group: str) -> None:
        """Stop serving a group, as on a cluster without its CRDs."""
        self.resources = [r for r in self.resources if r.group != group]
        self._index()

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._by_path.get((group, version, plural))

    def of(self, obj: Object) -> Resource:
        """The resource of an object. Raises KeyError if it is not served."""
        return self._by_kind[obj["apiVersion"], obj["kind"]]

    def groups(self) -> dict[str, list[str]]:
        """Group -> versions, without the core group; the preferred version first."""
        found: dict[str, list[str]] = {}
        for resource in self.resources:
            if resource.group and resource.version not in found.setdefault(resource.group, []):
                found[resource.group].append(resource.version)
        return found | {group: [version] for group, version in self.broken.items()}

    def group(self, name: str) -> Object | None:
        versions = self.groups().get(name)
        if versions is None:
            return None
        listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
        return {"name": name, "versions": listed, "preferredVersion": listed[0]}

    def resource_list(self, group: str, version: str) -> Object | None:
        """The classic document for a group and version; None if nothing of it is served."""
        resources = []
        for r in self.resources:
            if (r.group, r.version) != (group, version):
                continue
            one: Object = {"name": r.plural, "singularName": r.kind.lower(), "namespaced": r.namespaced}
            one |= {"kind": r.kind, "verbs": r.verbs}
            if r.short:
                one["shortNames"] = list(r.short)
            resources.append(one)
            for sub in () if r.review else r.subresources:
                part: Object = {"name": f"{r.plural}/{sub}", "singularName": "", "namespaced": r.namespaced}
                resources.append(part | {"kind": SUB_KINDS.get(sub, r.kind), "verbs": _sub_verbs(sub)})
        if not resources:
            return None
        head = {"kind": "APIResourceList"} | ({"apiVersion": "v1"} if group else {})
        return head | {"groupVersion": f"{group}/{version}" if group else version, "resources": resources}

    def aggregated(self, core: bool) -> Object:
        """The aggregated document (v2) of /api or /apis."""
        groups: dict[str, list[str]] = {"": ["v1"]} if core else self.groups()
        items = []
        for name, versions in groups.items():
            listed = [
                {"version": v, "freshness": "Stale"}
                if name in self.broken
                else {"version": v, "resources": self._aggregated_resources(name, v), "freshness": "Current"}
                for v in versions
            ]
            items.append({"metadata": {"name": name} if name else {}, "versions": listed})
        return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}

    def _aggregated_resources(self, group: str, version: str) -> list[Object]:
        found = []
        for r in self.resources:
            if (r.group, r.version) != (group, version):
                continue
            kind = {"group": "" if r.builtin else group, "version": "" if r.builtin else version, "kind": r.kind}
            one: Object = {"resource": r.plural, "responseKind": kind}
            one |= {"scope": "Namespaced" if r.namespaced else "Cluster", "singularResource": r.kind.lower()}
            one["verbs"] = r.verbs
            if r.short:
                one["shortNames"] = list(r.short)
            if r.subresources and not r.review:
                one["subresources"] = [
                    {"subresource": sub, "responseKind": kind, "verbs": _sub_verbs(sub)} for sub in r.subresources
                ]
            found.append(one)
        return found


def _sub_verbs(sub: str) -> list[str]:
    return {"exec": ["create", "get"], "attach": ["create", "get"], "portforward": ["create", "get"]}.get(
        sub, {"log": ["get"], "eviction": ["create"]}.get(sub, ["get", "patch", "update"])
    )


def negotiate(accept: str) -> str | None:
    """The format for an Accept header, `aggregated` or `classic`; None if the server supports neither."""
    for wanted in accept.replace(" ", "").split(",") if accept else ["*/*"]:
        if wanted.startswith((V2, V2BETA1)):
            return wanted
        kind, _, parameters = wanted.partition(";")
        if kind in ("application/json", "*/*", "application/*") and "as=" not in parameters:
            return "classic"
    return None
