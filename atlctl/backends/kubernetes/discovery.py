"""Discovery: which job kinds a server has, and at which version.

Kinds are addressed as `plural.group`: `jobs` alone is ambiguous, and `mpijobs.kubeflow.org` has two versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from atlctl.backends.kubernetes.api import Api, NoServer, NotFound, Object
from atlctl.backends.kubernetes.kinds import registry
from atlctl.backends.kubernetes.kinds.base import JobKind, Resource
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.fields import entries, mapping, text

#: Other resources that concern jobs: queues, gangs, and the commands that stop a Volcano Job.
WORKLOADS = Resource("kueue.x-k8s.io", "workloads", "Workload", ("v1beta2", "v1beta1"))
VOLCANO_PODGROUPS = Resource("scheduling.volcano.sh", "podgroups", "PodGroup", ("v1beta1",))
COSCHEDULING_PODGROUPS = Resource("scheduling.x-k8s.io", "podgroups", "PodGroup", ("v1alpha1",))
COMMANDS = Resource("bus.volcano.sh", "commands", "Command", ("v1alpha1",))
_OTHERS = (WORKLOADS, VOLCANO_PODGROUPS, COSCHEDULING_PODGROUPS, COMMANDS)

#: Resources to look for: `plural.group` -> known versions, the preferred one first.
_KNOWN: dict[str, list[str]] = {}
for _resource in (*_OTHERS, *(kind.resource for kind in (*registry.KINDS, registry.PODS))):
    _KNOWN.setdefault(_resource.name, []).extend(_resource.versions)
_GROUPS = frozenset(name.partition(".")[2] for name in _KNOWN)


@dataclass(frozen=True, slots=True)
class Served:
    """Known resources of a server: `plural.group` -> version to use. Pods are always available.

    `problems`: failed discovery requests; the resources of these groups are unknown.
    """

    versions: dict[str, str] = field(default_factory=dict)
    problems: tuple[AtlctlError, ...] = ()

    def kinds(self) -> list[tuple[JobKind, str]]:
        """The job kinds of the server with their versions, in the registry's order."""
        found = []
        for kind in registry.KINDS:
            version = self.versions.get(kind.resource.name)
            if version is not None and registry.kind_of(kind.resource.name, version) is kind:
                found.append((kind, version))
        return found

    def kind(self, resource: str) -> tuple[JobKind, str] | None:
        """The kind of a `plural.group`; None if the server does not have it."""
        if resource == registry.PODS.resource.name:
            return registry.PODS, "v1"
        version = self.versions.get(resource)
        kind = None if version is None else registry.kind_of(resource, version)
        return None if kind is None or version is None else (kind, version)

    def path(self, resource: Resource, namespace: str | None, name: str | None = None) -> str | None:
        """The path of a resource at the served version; None if the server does not have it."""
        version = self.versions.get(resource.name)
        return None if version is None else resource.path(version, namespace, name)


def read(documents: Iterable[Object]) -> Served:
    """Read discovery documents: aggregated (APIGroupDiscoveryList), classic (APIResourceList) or mixed."""
    versions: dict[str, list[str]] = {}
    for document in documents:
        found = _aggregated(document) if document.get("kind") == "APIGroupDiscoveryList" else _classic(document)
        for resource, version in found:
            if resource in _KNOWN:
                known = versions.setdefault(resource, [])
                known += [version] if version not in known else []
    return Served({resource: _choice(resource, found) for resource, found in versions.items()})


def group_versions(groups: Object) -> list[tuple[str, str]]:
    """Groups and versions of a classic APIGroupList that may have known resources, in the server's order."""
    found = []
    for group in entries(groups.get("groups")):
        name = text(group.get("name"))
        if name in _GROUPS:
            versions = [text(item.get("version")) for item in entries(group.get("versions"))]
            found += [(name, version) for version in versions if version]
    return found


async def discover(api: Api) -> Served:
    """Query the server: one request if it supports aggregated discovery, else another one for each known group.

    Raises the errors of `/apis`. A group that cannot be read becomes a problem; one that is gone is ignored.
    """
    answer = await api.get("/apis")
    if answer.get("kind") == "APIGroupDiscoveryList":
        return read([answer])
    asked = [Resource(group, "", "", ()).path(version, None).rstrip("/") for group, version in group_versions(answer)]
    replies = await asyncio.gather(*(api.get(path) for path in asked), return_exceptions=True)
    documents, problems = [], []
    for reply in replies:
        if isinstance(reply, NoServer) or (isinstance(reply, BaseException) and not isinstance(reply, AtlctlError)):
            raise reply
        if isinstance(reply, AtlctlError):
            problems += [] if isinstance(reply, NotFound) else [reply]
        else:
            documents.append(reply)
    return Served(read(documents).versions, tuple(problems))


def _aggregated(document: Object) -> Iterable[tuple[str, str]]:
    """Also lists stale versions, whose server did not answer: their last known resources are tried."""
    for item in entries(document.get("items")):
        group = text(mapping(item.get("metadata")).get("name"))
        for version in entries(item.get("versions")):
            for resource in entries(version.get("resources")):
                if _usable(resource, resource.get("scope") == "Namespaced"):
                    yield _name(text(resource.get("resource")), group), text(version.get("version"))


def _classic(document: Object) -> Iterable[tuple[str, str]]:
    group, _, version = text(document.get("groupVersion")).rpartition("/")
    for resource in entries(document.get("resources")):
        if _usable(resource, resource.get("namespaced") is True):
            yield _name(text(resource.get("name")), group), version


def _usable(resource: Object, namespaced: bool) -> bool:
    """Whether the resource can be read. Commands can only be created."""
    verbs = resource.get("verbs")
    return (
        namespaced and type(verbs) is list and bool({"get", "create"}.intersection(v for v in verbs if type(v) is str))
    )


def _name(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _choice(resource: str, served: list[str]) -> str:
    """The first version that a reader knows, in its order of preference; else the server's first one."""
    for known in _KNOWN[resource]:
        if known in served:
            return known
    return served[0]
