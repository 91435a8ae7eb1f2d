"""Jobs of a cluster: all of some namespaces, or the one that a name means.

One LIST of pods for each job that is looked at, one for each namespace that is listed. What may not be read is named,
and a job whose object may not be read is told by its pods.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import quote

from atlctl.backends.base import Listing
from atlctl.backends.kubernetes import discovery, owners, queueing
from atlctl.backends.kubernetes.api import Api, ApiError, Items, Missing, NoServer, Object, Refused, Unlisted
from atlctl.backends.kubernetes.discovery import Served
from atlctl.backends.kubernetes.kinds import fields, jobset, registry
from atlctl.backends.kubernetes.kinds.base import Kind, Sight
from atlctl.backends.kubernetes.kinds.build import build, scope_of
from atlctl.backends.kubernetes.owners import Hit
from atlctl.jobs.errors import AtlctlError, NothingMatched, UsageError
from atlctl.jobs.model import Job
from atlctl.jobs.naming import natural_key

_T = TypeVar("_T")
_PODS = registry.PODS.resource
#: How many names a failed search shows.
_NEAR = 3


@dataclass(frozen=True, slots=True)
class Found:
    """A job and what it was read from.

    `readable` is False where its object may not be read: `sight.top` then holds name, namespace and, where an owner
    reference tells it, UID. `owner` is the reference to a controller above it that is no kind of job.
    """

    job: Job
    kind: Kind
    version: str
    sight: Sight
    pods: tuple[Object, ...]
    readable: bool = True
    owner: Object | None = None

    @property
    def uids(self) -> tuple[str, ...]:
        """UIDs of the job, the objects that it made, its pods and their owners: what events and queues may be about."""
        objects = (self.sight.top, *self.sight.children, *self.pods)
        owners = (fields.text((fields.controller(pod) or {}).get("uid")) for pod in self.pods)
        return tuple(dict.fromkeys(uid for uid in (*map(fields.uid, objects), *owners) if uid))


async def list_jobs(api: Api, namespaces: Sequence[str] | None, served: Served) -> Listing:
    """The jobs of `namespaces` (None: of all), ordered by namespace, name and kind.

    What could not be listed is a problem. Raises NothingMatched for a namespace that does not exist, NoServer.
    """
    scopes: Sequence[str | None] = [None] if namespaces is None else list(dict.fromkeys(namespaces))
    parts = await asyncio.gather(*(_list_namespace(api, scope, served) for scope in scopes))
    empty = [scope for scope, part in zip(scopes, parts, strict=True) if scope and not (part.jobs or part.problems)]
    await asyncio.gather(*(_existing(api, place) for place in empty))
    jobs = [job for part in parts for job in part.jobs]
    jobs.sort(key=lambda job: (job.namespace or "", natural_key(job.name), job.kind))
    return Listing(tuple(jobs), (*served.problems, *(problem for part in parts for problem in part.problems)))


async def find(api: Api, name: str, served: Served, namespace: str | None = None) -> Found:
    """The job that `NAME`, `KIND/NAME` or a pod's name means; a child's name means the job at the top of its owners.

    Raises UsageError where it means several jobs, or no such kind is known; NothingMatched, Refused, NoServer.
    """
    place = namespace or api.namespace
    word, _, bare = name.rpartition("/")
    resources = _resources(word, served) if word else [*(kind.resource.name for kind, _ in served.kinds()), _PODS.name]
    if not owners.valid_name(bare):
        raise NothingMatched(f"no job named {name} in namespace {place}: no object can have such a name")
    hits, problems = await _hits(api, resources, served, place, bare)
    tops = owners.distinct(await asyncio.gather(*(owners.to_top(api, hit, served, place) for hit in hits)))
    if len(tops) > 1:
        forms = ", ".join(registry.form(hit.kind.resource, fields.name(hit.top)) for hit in tops)
        raise UsageError(f"{name} means {len(tops)} jobs in namespace {place}", f"name one of: {forms}")
    if tops:
        return await _complete(api, tops[0], served, place)
    told, more = await _by_labels(api, resources, served, place, bare)
    if told is not None:
        return told
    raise await _not_found(api, name, bare, place, served, problems | more)


async def select(api: Api, selector: str, namespace: str | None = None) -> Found:
    """The pods of a label selector as one job without an object. Raises NothingMatched, Refused, NoServer."""
    place = namespace or api.namespace
    pods = await _pods(api, place, selector)
    if not pods:
        await _existing(api, place)
        raise NothingMatched(f"no pods match {selector} in namespace {place}")
    top = {"metadata": {"name": selector, "namespace": place}}
    sight = Sight(top)
    return Found(build(registry.PODS, sight, pods), registry.PODS, "v1", sight, tuple(pods), readable=False)


async def _existing(api: Api, place: str) -> None:
    """Lists of a namespace that does not exist are empty: raises NothingMatched for one, unless it may not be read."""
    try:
        await api.get(f"/api/v1/namespaces/{quote(place, safe='')}")
    except Missing:
        raise NothingMatched(f"namespace {place} does not exist", "name one of yours: -n NAMESPACE") from None
    except ApiError:
        pass


async def queues(api: Api, found: Found, served: Served) -> tuple[list[Object], list[Object], list[AtlctlError]]:
    """Kueue's Workloads and the PodGroups of a job, and what kept others from being read. Raises NoServer.

    Made into words by `queueing.workload` and `queueing.pod_group`.
    """
    place = found.job.namespace or api.namespace
    wanted = (discovery.WORKLOADS, discovery.VOLCANO_PODGROUPS, discovery.COSCHEDULING_PODGROUPS)
    paths = [path for resource in wanted if (path := served.path(resource, place)) is not None]
    lists, problems = await _all(paths, (api.list(path) for path in paths))
    items = {path: listed.items for path, listed in lists.items()}
    workloads = items.pop(served.path(discovery.WORKLOADS, place) or "", [])
    groups = [obj for listed in items.values() for obj in listed]
    return (
        queueing.workloads_of(workloads, found.uids),
        queueing.pod_groups_of(groups, found.uids, found.pods),
        list(problems.values()),
    )


def _resources(word: str, served: Served) -> list[str]:
    found = registry.typed(word, served.versions)
    if not found:
        kinds = sorted({kind.title.lower() for kind, _ in served.kinds()} | {"pod"})
        raise UsageError(f"no kind of job {word} on this server", f"there are: {', '.join(kinds)}")
    return found


async def _all(keys: Sequence[str], calls: Iterable[Awaitable[_T]]) -> tuple[dict[str, _T], dict[str, AtlctlError]]:
    """Answers by key, and errors other than 404 by key. A server that cannot be reached ends all."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    found: dict[str, _T] = {}
    problems: dict[str, AtlctlError] = {}
    for key, answer in zip(keys, answers, strict=True):
        if not isinstance(answer, BaseException):
            found[key] = answer
        elif isinstance(answer, NoServer) or not isinstance(answer, AtlctlError):
            raise answer
        elif not isinstance(answer, Missing):
            problems[key] = answer
    return found, problems


async def _pods(api: Api, place: str | None, selector: str = "") -> list[Object]:
    query = [("labelSelector", selector)] if selector else []
    return (await api.list(_PODS.path("v1", place), query)).items


async def _list_namespace(api: Api, place: str | None, served: Served) -> Listing:
    kinds = served.kinds()
    keys = [kind.resource.name for kind, _ in kinds]
    paths = [kind.resource.path(version, place) for kind, version in kinds]
    lists, problems = await _all([*keys, _PODS.name], (api.list(path) for path in (*paths, _PODS.path("v1", place))))
    pods = _items(lists, _PODS.name)
    hits = [Hit(kind, version, top) for kind, version in kinds for top in _items(lists, kind.resource.name)]
    by_owner = _index(pods)
    children: dict[str, list[Object]] = {}
    uids = {fields.uid(hit.top) for hit in hits}
    uids |= {fields.uid(pod) for uid in tuple(uids) for pod in by_owner.get(uid, ())}  # leaders own sets of workers
    tops = []
    for hit in hits:
        owner = fields.text((fields.controller(hit.top) or {}).get("uid"))
        if owner in uids:
            children.setdefault(owner, []).append(hit.top)
        else:
            tops.append(hit)
    jobs = [_listed(hit, children, by_owner) for hit in tops]
    return Listing(tuple(jobs), _folded(problems, place))


def _folded(problems: Mapping[str, AtlctlError], place: str | None) -> tuple[AtlctlError, ...]:
    """Refusals of several lists as one: who may look into one namespace gets one for every kind elsewhere."""
    refused = {key: error for key, error in problems.items() if isinstance(error, Refused) and error.status == 403}
    if len(refused) < 2:
        return tuple(problems.values())
    where = "in all namespaces" if place is None else f"in namespace {place}"
    hint = "name a namespace of yours: -n NAMESPACE" if place is None else "the Role that is missing: atlctl doctor"
    one = Unlisted(list(refused), where, next(iter(refused.values())).text, hint)
    return (one, *(error for key, error in problems.items() if key not in refused))


def _items(lists: Mapping[str, Items], key: str) -> list[Object]:
    return lists[key].items if key in lists else []


def _index(pods: Iterable[Object]) -> dict[str, list[Object]]:
    """Pods by the UID of their controller, and of their JobSet."""
    found: dict[str, list[Object]] = {}
    for pod in pods:
        owner = fields.controller(pod)
        if owner is not None:
            of_set = fields.text(fields.labels(pod).get(jobset.UID_LABEL))
            for uid in {fields.text(owner.get("uid")), of_set} - {""}:
                found.setdefault(uid, []).append(pod)
    return found


def _listed(hit: Hit, children: Mapping[str, list[Object]], by_owner: Mapping[str, list[Object]]) -> Job:
    """A job with every pod that it or what it made controls."""
    below: list[Object] = []
    seen = {fields.uid(hit.top)}
    waiting = [fields.uid(hit.top)]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            uid = fields.uid(child)
            if uid not in seen:
                seen.add(uid)
                waiting.append(uid)
                below.append(child)
    pods = {fields.uid(pod): pod for uid in seen for pod in by_owner.get(uid, ())}
    for pod in list(pods.values()):
        for child in children.get(fields.uid(pod), ()):
            pods |= {fields.uid(other): other for other in by_owner.get(fields.uid(child), ())}
    return build(hit.kind, Sight(hit.top, tuple(below)), list(pods.values()))


async def _hits(
    api: Api, resources: Sequence[str], served: Served, place: str, name: str
) -> tuple[list[Hit], dict[str, AtlctlError]]:
    """The objects with a name, and the errors of resources that could not be read, by resource."""
    kinds = [known for resource in resources if (known := served.kind(resource)) is not None]
    keys = [kind.resource.name for kind, _ in kinds]
    answers, problems = await _all(keys, (api.get(k.resource.path(v, place, name)) for k, v in kinds))
    for problem in problems.values():
        if not isinstance(problem, Refused):
            raise problem
    hits = [
        Hit(kind, version, answers[key]) for key, (kind, version) in zip(keys, kinds, strict=True) if key in answers
    ]
    return hits, problems


async def _complete(api: Api, hit: Hit, served: Served, place: str) -> Found:
    """The job of a top object, with the objects that it made and its pods."""
    if hit.kind is registry.PODS:
        sight = Sight(hit.top)
        return Found(build(hit.kind, sight, [hit.top]), hit.kind, hit.version, sight, (hit.top,), owner=hit.owner)
    children, complete = await _children(api, hit, served, place)
    sight = Sight(hit.top, children)
    scope = scope_of(hit.kind, sight, complete=complete)
    pods: list[Object] = []
    for selector in hit.kind.selectors(hit.top) if owners.valid_name(fields.name(hit.top)) else ():
        pods = [pod for pod in await _pods(api, place, selector) if scope.has(pod)]
        if pods:
            break
    if hit.kind.vanished(hit.top, pods):
        from atlctl.backends.kubernetes import events

        sight = replace(sight, past=await events.past(api, place, fields.uid(hit.top)))
    job = build(hit.kind, sight, pods)
    return Found(job, hit.kind, hit.version, sight, tuple(pods), readable=hit.readable, owner=hit.owner)


async def _children(api: Api, hit: Hit, served: Served, place: str) -> tuple[tuple[Object, ...], bool]:
    """Objects that a job made, and whether none is unknown: one that may not be read, or whose kind is not served."""
    wanted = [(served.kind(resource), name) for resource, name in hit.kind.children(hit.top) if owners.valid_name(name)]
    known = [(kind[0].resource, kind[1], name) for kind, name in wanted if kind is not None]
    paths = [resource.path(version, place, name) for resource, version, name in known]
    answers, problems = await _all(paths, (api.get(path) for path in paths))
    own = [obj for obj in answers.values() if (fields.controller(obj) or {}).get("uid") == fields.uid(hit.top)]
    between = not hit.kind.direct and hit.kind.resource.plural in ("leaderworkersets", "jobsets")
    return tuple(own), hit.readable and not problems and len(known) == len(wanted) and not between


async def _by_labels(
    api: Api, resources: Sequence[str], served: Served, place: str, name: str
) -> tuple[Found | None, dict[str, AtlctlError]]:
    """A job told by the labels of its pods alone: its object may not be read, or is gone."""
    kinds = [kind for kind, _ in served.kinds() if kind.resource.name in resources]
    labels = registry.name_labels(kinds if served.versions else registry.KINDS)
    if not owners.valid_label(name):
        return None, {}
    lists, problems = await _all(list(labels), (_pods(api, place, f"{key}={name}") for key in labels))
    for key, pods in lists.items():
        if pods:
            kind, uid, own = owners.newest_owner(labels[key], pods)
            sight = Sight({"metadata": {"name": name, "namespace": place, "uid": uid}})
            version = served.versions.get(kind.resource.name, kind.resource.versions[0])
            return Found(build(kind, sight, own), kind, version, sight, tuple(own), readable=False), {}
    return None, dict.fromkeys((_PODS.name,), next(iter(problems.values()))) if problems else {}


async def _not_found(
    api: Api, name: str, bare: str, place: str, served: Served, refused: Mapping[str, AtlctlError]
) -> AtlctlError:
    listing = await list_jobs(api, [place], served)
    unlisted = sum(len(one.resources) if isinstance(one, Unlisted) else 1 for one in listing.problems)
    if refused and unlisted > len(served.kinds()):  # nothing at all may be read
        first = next(iter(refused.values()))
        if not isinstance(first, Refused) or first.status != 403:
            return first
        message = f"not allowed to look for job {name} in namespace {place}: neither jobs nor pods may be read"
        return Refused(403, first.reason, first.text, message=message, hint="atlctl doctor shows what is allowed")
    near = difflib.get_close_matches(bare, [job.name for job in listing.jobs], _NEAR)
    hint = f"near it: {', '.join(near)}" if near else "see atlctl jobs"
    if refused:
        hint += f"; not allowed to read {', '.join(refused)}: atlctl doctor shows what is allowed"
    return NothingMatched(f"no job named {name} in namespace {place}", hint)
