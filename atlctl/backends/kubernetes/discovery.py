"""Which kinds of job a server has, and at which version: from its discovery documents.

A kind is addressed as `plural.group`; `jobs` alone has two meanings, and `mpijobs.kubeflow.org` two versions.
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

#: What else of a cluster concerns jobs: queues and gangs, and the way to stop a Volcano Job.
WORKLOADS = Resource("kueue.x-k8s.io", "workloads", "Workload", ("v1beta2", "v1beta1"))
VOLCANO_PODGROUPS = Resource("scheduling.volcano.sh", "podgroups", "PodGroup", ("v1beta1",))
COSCHEDULING_PODGROUPS = Resource("scheduling.x-k8s.io", "podgroups", "PodGroup", ("v1alpha1",))
COMMANDS = Resource("bus.volcano.sh", "commands", "Command", ("v1alpha1",))
_OTHERS = (WORKLOADS, VOLCANO_PODGROUPS, COSCHEDULING_PODGROUPS, COMMANDS)

#: What is looked for: `plural.group` -> the versions that are known, the preferred one first.
_KNOWN: dict[str, list[str]] = {}
for _resource in (*_OTHERS, *(kind.resource for kind in (*registry.KINDS, registry.PODS))):
    _KNOWN.setdefault(_resource.name, []).extend(_resource.versions)
_GROUPS = frozenset(name.partition(".")[2] for name in _KNOWN)


@dataclass(frozen=True, slots=True)
class Served:
    """What of ours a server has: `plural.group` -> the version to ask for. Pods are always there.

    `problems`: parts of the discovery that could not be had; what they serve is then not known.
    """

    versions: dict[str, str] = field(default_factory=dict)
    problems: tuple[AtlctlError, ...] = ()

    def kinds(self) -> list[tuple[JobKind, str]]:
        """The kinds of job that are served, in the registry's order, each with its version."""
        found = []
        for kind in registry.KINDS:
            version = self.versions.get(kind.resource.name)
            if version is not None and registry.kind_of(kind.resource.name, version) is kind:
                found.append((kind, version))
        return found

    def kind(self, resource: str) -> tuple[JobKind, str] | None:
        """The kind of a `plural.group`, None where it is not served."""
        if resource == registry.PODS.resource.name:
            return registry.PODS, "v1"
        version = self.versions.get(resource)
        kind = None if version is None else registry.kind_of(resource, version)
        return None if kind is None or version is None else (kind, version)

    def path(self, resource: Resource, namespace: str | None, name: str | None = None) -> str | None:
        """The path of a resource at the version that is served; None where it is not."""
        version = self.versions.get(resource.name)
        return None if version is None else resource.path(version, namespace, name)


def read(documents: Iterable[Object]) -> Served:
    """From aggregated documents (APIGroupDiscoveryList) and classic ones (APIResourceList), in any mixture."""
    versions: dict[str, list[str]] = {}
    for document in documents:
        found = _aggregated(document) if document.get("kind") == "APIGroupDiscoveryList" else _classic(document)
        for resource, version in found:
            if resource in _KNOWN:
                known = versions.setdefault(resource, [])
                known += [version] if version not in known else []
    return Served({resource: _choice(resource, found) for resource, found in versions.items()})


def group_versions(groups: Object) -> list[tuple[str, str]]:
    """The groups and versions of a classic APIGroupList that may hold something of ours, in the server's order."""
    found = []
    for group in entries(groups.get("groups")):
        name = text(group.get("name"))
        if name in _GROUPS:
            versions = [text(item.get("version")) for item in entries(group.get("versions"))]
            found += [(name, version) for version in versions if version]
    return found


async def discover(api: Api) -> Served:
    """Asks the server. One request where it answers in the aggregated form, else one more for each group of ours.

    Raises what `/apis` raises. A group that cannot be read becomes a problem; one that is gone is none.
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
    """A version whose server did not answer (freshness Stale) may be listed with what it had before: still asked."""
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
    """Commands can only be created; everything else is read."""
    verbs = resource.get("verbs")
    return (
        namespaced and type(verbs) is list and bool({"get", "create"}.intersection(v for v in verbs if type(v) is str))
    )


def _name(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _choice(resource: str, served: list[str]) -> str:
    """The first version that a reader knows, in the reader's order; else the server's own first."""
    for known in _KNOWN[resource]:
        if known in served:
            return known
    return served[0]
