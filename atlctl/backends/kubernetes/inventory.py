"""Job inventory of a cluster: lists all jobs of namespaces, or finds a job by name.

It sends one LIST of pods for each job looked up, and one for each namespace listed. Resources that may not be read are
reported. A job whose object may not be read is found by its pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import quote

from atlctl.backends.base import Listing
from atlctl.backends.kubernetes import discovery, objects, queueing
from atlctl.backends.kubernetes.api import Api, ApiError, Denied, Items, NoServer, NotFound, Object, Unlisted
from atlctl.backends.kubernetes.discovery import Served
from atlctl.backends.kubernetes.kinds import jobset, registry
from atlctl.backends.kubernetes.kinds.base import JobKind, Sight
from atlctl.backends.kubernetes.kinds.build import build, scope_of
from atlctl.i18n import LIST, Message, joined
from atlctl.jobs import fields
from atlctl.jobs.errors import SEE_PERMISSIONS, AtlctlError, NothingMatched, UsageError
from atlctl.jobs.model import Job
from atlctl.jobs.naming import MAX_JOB_NAME, meant_job, natural_key

_T = TypeVar("_T")
_PODS = registry.PODS.resource
#: Maximum depth of owners, above that of any platform; deeper ones form a cycle.
_MAX_DEPTH = 10
_MAX_NAME = 253
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An object with a requested name. `readable` is False if it is known only from a reference or label.

    `owner`: reference to its controller that is not a job kind, for the plan of a stop.
    """

    kind: JobKind
    version: str
    top: Object
    readable: bool = True
    owner: Object | None = None

    @property
    def identity(self) -> tuple[str, str]:
        uid = objects.uid(self.top)
        return ("", uid) if uid else (self.kind.resource.name, objects.name(self.top))


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job with the objects that it was read from.

    `readable` is False if its object may not be read: `sight.top` then has its name, namespace and, if an owner
    reference has it, UID. `owner`: reference to its controller that is not a job kind.
    """

    job: Job
    kind: JobKind
    version: str
    sight: Sight
    pods: tuple[Object, ...]
    readable: bool = True
    owner: Object | None = None

    @property
    def uids(self) -> tuple[str, ...]:
        """UIDs of the job, its children, its pods and their owners: the subjects of events and queues."""
        own = (self.sight.top, *self.sight.children, *self.pods)
        owners = (fields.text((objects.controller(pod) or {}).get("uid")) for pod in self.pods)
        return tuple(dict.fromkeys(uid for uid in (*map(objects.uid, own), *owners) if uid))


async def list_jobs(api: Api, namespaces: Sequence[str] | None, served: Served) -> Listing:
    """Jobs in `namespaces` (None: in all), ordered by namespace, name and kind.

    Failed lists become problems. Raises NothingMatched for a namespace that does not exist, NoServer.
    """
    scopes: Sequence[str | None] = [None] if namespaces is None else list(dict.fromkeys(namespaces))
    parts = await asyncio.gather(*(_list_namespace(api, scope, served) for scope in scopes))
    empty = [scope for scope, part in zip(scopes, parts, strict=True) if scope and not (part.jobs or part.problems)]
    await asyncio.gather(*(_existing(api, place) for place in empty))
    jobs = [job for part in parts for job in part.jobs]
    jobs.sort(key=lambda job: (job.namespace or "", natural_key(job.name), job.kind))
    return Listing(tuple(jobs), (*served.problems, *(problem for part in parts for problem in part.problems)))


async def find(api: Api, name: str, served: Served, namespace: str | None = None) -> FoundJob:
    """Find a job by `NAME`, `KIND/NAME` or the name of a pod or child; returns the top of its owners.

    Raises UsageError if the name is ambiguous or the kind unknown; NothingMatched, Denied, NoServer.
    """
    place = namespace or api.namespace
    word, _, bare = name.rpartition("/")
    resources = _resources(word, served) if word else [*(kind.resource.name for kind, _ in served.kinds()), _PODS.name]
    if not valid_name(bare):
        raise NothingMatched(
            Message("no job named {job} in namespace {place}: no object can have such a name", job=name, place=place)
        )
    hits, problems = await _hits(api, resources, served, place, bare)
    tops = distinct(await asyncio.gather(*(to_top(api, hit, served, place) for hit in hits)))
    if len(tops) > 1:
        forms = joined((registry.form(hit.kind.resource, objects.name(hit.top)) for hit in tops), LIST)
        raise UsageError(
            Message("{name} is the name of {count} jobs in namespace {place}", name=name, count=len(tops), place=place),
            Message("name one of: {jobs}", jobs=forms),
        )
    if tops:
        return await _complete(api, tops[0], served, place)
    told, more = await _by_labels(api, resources, served, place, bare)
    if told is not None:
        return told
    raise await _not_found(api, name, bare, place, served, problems | more)


async def select(api: Api, selector: str, namespace: str | None = None) -> FoundJob:
    """The pods of a label selector as one job without an object. Raises NothingMatched, Denied, NoServer."""
    place = namespace or api.namespace
    pods = await _pods(api, place, selector)
    if not pods:
        await _existing(api, place)
        raise NothingMatched(Message("no pods match {selector} in namespace {place}", selector=selector, place=place))
    top = {"metadata": {"name": selector, "namespace": place}}
    sight = Sight(top)
    return FoundJob(build(registry.PODS, sight, pods), registry.PODS, "v1", sight, tuple(pods), readable=False)


async def _existing(api: Api, place: str) -> None:
    """Raises NothingMatched if the namespace does not exist, because its lists are empty; not if it may not be read."""
    try:
        await api.get(f"/api/v1/namespaces/{quote(place, safe='')}")
    except NotFound:
        raise NothingMatched(
            Message("namespace {place} does not exist", place=place), Message("name one of yours: -n NAMESPACE")
        ) from None
    except ApiError:
        pass


async def queues(
    api: Api, found: FoundJob, served: Served
) -> tuple[list[Object], list[Object], dict[str, AtlctlError]]:
    """Kueue's Workloads and the PodGroups of a job, and errors by `plural.group`. Raises NoServer.

    `queueing.workload` and `queueing.pod_group` interpret them.
    """
    place = found.job.namespace or api.namespace
    wanted = (discovery.WORKLOADS, discovery.VOLCANO_PODGROUPS, discovery.COSCHEDULING_PODGROUPS)
    paths = {resource.name: path for resource in wanted if (path := served.path(resource, place)) is not None}
    lists, problems = await _all(list(paths), (api.list(path) for path in paths.values()))
    items = {name: listed.items for name, listed in lists.items()}
    workloads = items.pop(discovery.WORKLOADS.name, [])
    groups = [obj for listed in items.values() for obj in listed]
    return (
        queueing.workloads_of(workloads, found.uids),
        queueing.pod_groups_of(groups, found.uids, found.pods),
        problems,
    )


def _resources(word: str, served: Served) -> list[str]:
    found = registry.typed(word, served.versions)
    if not found:
        kinds = sorted({kind.title.lower() for kind, _ in served.kinds()} | {"pod"})
        raise UsageError(
            Message("this server has no kind of job {word}", word=word),
            Message("there are: {names}", names=", ".join(kinds)),
        )
    return found


async def _all(keys: Sequence[str], calls: Iterable[Awaitable[_T]]) -> tuple[dict[str, _T], dict[str, AtlctlError]]:
    """Answers by key, and errors other than 404 by key. Raises NoServer."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    found: dict[str, _T] = {}
    problems: dict[str, AtlctlError] = {}
    for key, answer in zip(keys, answers, strict=True):
        if not isinstance(answer, BaseException):
            found[key] = answer
        elif isinstance(answer, NoServer) or not isinstance(answer, AtlctlError):
            raise answer
        elif not isinstance(answer, NotFound):
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
    hits = [Candidate(kind, version, top) for kind, version in kinds for top in _items(lists, kind.resource.name)]
    by_owner = _index(pods)
    children: dict[str, list[Object]] = {}
    uids = {objects.uid(hit.top) for hit in hits}
    uids |= {objects.uid(pod) for uid in tuple(uids) for pod in by_owner.get(uid, ())}  # leaders own sets of workers
    tops = []
    for hit in hits:
        owner = fields.text((objects.controller(hit.top) or {}).get("uid"))
        if owner in uids:
            children.setdefault(owner, []).append(hit.top)
        else:
            tops.append(hit)
    jobs = [_listed(hit, children, by_owner) for hit in tops]
    return Listing(tuple(jobs), _folded(problems, place))


def _folded(problems: Mapping[str, AtlctlError], place: str | None) -> tuple[AtlctlError, ...]:
    """Joins several refusals into one: without access to other namespaces, every kind would be refused there."""
    refused = {key: error for key, error in problems.items() if isinstance(error, Denied) and error.status == 403}
    if len(refused) < 2:
        return tuple(problems.values())
    where, hint = Message("in all namespaces"), Message("name a namespace of yours: -n NAMESPACE")
    if place is not None:
        where, hint = Message("in namespace {place}", place=place), Message("print the missing Role: atlctl doctor")
    one = Unlisted(list(refused), where, next(iter(refused.values())).text, hint)
    return (one, *(error for key, error in problems.items() if key not in refused))


def _items(lists: Mapping[str, Items], key: str) -> list[Object]:
    return lists[key].items if key in lists else []


def _index(pods: Iterable[Object]) -> dict[str, list[Object]]:
    """Pods by the UID of their controller and of their JobSet."""
    found: dict[str, list[Object]] = {}
    for pod in pods:
        owner = objects.controller(pod)
        if owner is not None:
            of_set = fields.text(objects.labels(pod).get(jobset.UID_LABEL))
            for uid in {fields.text(owner.get("uid")), of_set} - {""}:
                found.setdefault(uid, []).append(pod)
    return found


def _listed(hit: Candidate, children: Mapping[str, list[Object]], by_owner: Mapping[str, list[Object]]) -> Job:
    """The job with all pods that it or its children control."""
    below: list[Object] = []
    seen = {objects.uid(hit.top)}
    waiting = [objects.uid(hit.top)]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            uid = objects.uid(child)
            if uid not in seen:
                seen.add(uid)
                waiting.append(uid)
                below.append(child)
    pods = {objects.uid(pod): pod for uid in seen for pod in by_owner.get(uid, ())}
    for pod in list(pods.values()):
        for child in children.get(objects.uid(pod), ()):
            pods |= {objects.uid(other): other for other in by_owner.get(objects.uid(child), ())}
    return build(hit.kind, Sight(hit.top, tuple(below)), list(pods.values()))


async def _hits(
    api: Api, resources: Sequence[str], served: Served, place: str, name: str
) -> tuple[list[Candidate], dict[str, AtlctlError]]:
    """The objects with this name, and errors by resource."""
    kinds = [known for resource in resources if (known := served.kind(resource)) is not None]
    keys = [kind.resource.name for kind, _ in kinds]
    answers, problems = await _all(keys, (api.get(k.resource.path(v, place, name)) for k, v in kinds))
    for problem in problems.values():
        if not isinstance(problem, Denied):
            raise problem
    found = [(*known, answers[key]) for key, known in zip(keys, kinds, strict=True) if key in answers]
    return [Candidate(*one) for one in found], problems


async def _complete(api: Api, hit: Candidate, served: Served, place: str) -> FoundJob:
    """The job of a top object, with its children and pods."""
    if hit.kind is registry.PODS:
        sight = Sight(hit.top)
        return FoundJob(build(hit.kind, sight, [hit.top]), hit.kind, hit.version, sight, (hit.top,), owner=hit.owner)
    children, complete = await _children(api, hit, served, place)
    sight = Sight(hit.top, children)
    scope = scope_of(hit.kind, sight, complete=complete)
    pods: list[Object] = []
    for selector in hit.kind.selectors(hit.top) if valid_name(objects.name(hit.top)) else ():
        pods = [pod for pod in await _pods(api, place, selector) if scope.has(pod)]
        if pods:
            break
    if hit.kind.vanished(hit.top, pods):
        from atlctl.backends.kubernetes import events

        sight = replace(sight, past=await events.past(api, place, objects.uid(hit.top)))
    job = build(hit.kind, sight, pods)
    return FoundJob(job, hit.kind, hit.version, sight, tuple(pods), readable=hit.readable, owner=hit.owner)


async def _children(api: Api, hit: Candidate, served: Served, place: str) -> tuple[tuple[Object, ...], bool]:
    """A job's children, and whether they are complete: none is unreadable or of a kind that is not served."""
    wanted = [(served.kind(resource), name) for resource, name in hit.kind.children(hit.top) if valid_name(name)]
    known = [(kind[0].resource, kind[1], name) for kind, name in wanted if kind is not None]
    paths = [resource.path(version, place, name) for resource, version, name in known]
    answers, problems = await _all(paths, (api.get(path) for path in paths))
    own = [obj for obj in answers.values() if (objects.controller(obj) or {}).get("uid") == objects.uid(hit.top)]
    between = not hit.kind.direct and hit.kind.resource.plural in ("leaderworkersets", "jobsets")
    return tuple(own), hit.readable and not problems and len(known) == len(wanted) and not between


async def _by_labels(
    api: Api, resources: Sequence[str], served: Served, place: str, name: str
) -> tuple[FoundJob | None, dict[str, AtlctlError]]:
    """A job found only by the labels of its pods, because its object is gone or may not be read."""
    kinds = [kind for kind, _ in served.kinds() if kind.resource.name in resources]
    labels = registry.name_labels(kinds if served.versions else registry.KINDS)
    if not valid_label(name):
        return None, {}
    lists, problems = await _all(list(labels), (_pods(api, place, f"{key}={name}") for key in labels))
    for key, pods in lists.items():
        if pods:
            kind, uid, own = newest_owner(labels[key], pods)
            sight = Sight({"metadata": {"name": name, "namespace": place, "uid": uid}})
            version = served.versions.get(kind.resource.name, kind.resource.versions[0])
            return FoundJob(build(kind, sight, own), kind, version, sight, tuple(own), readable=False), {}
    return None, dict.fromkeys((_PODS.name,), next(iter(problems.values()))) if problems else {}


async def _not_found(
    api: Api, name: str, bare: str, place: str, served: Served, refused: Mapping[str, AtlctlError]
) -> AtlctlError:
    listing = await list_jobs(api, [place], served)
    unlisted = sum(len(one.resources) if isinstance(one, Unlisted) else 1 for one in listing.problems)
    if refused and unlisted > len(served.kinds()):  # no resource may be read
        first = next(iter(refused.values()))
        if not isinstance(first, Denied) or first.status != 403:
            return first
        message = Message("not allowed to look for job {job} in namespace {place}: neither jobs nor pods may be read")
        message = message.filled(job=name, place=place)
        return Denied(403, first.reason, first.text, message=message, hint=SEE_PERMISSIONS)
    hint = meant_job(bare, (job.name for job in listing.jobs)) or Message("see atlctl jobs")
    if refused:
        more = Message("{hint} (not allowed to read {resources}; see your permissions: atlctl doctor)")
        hint = more.filled(hint=hint, resources=", ".join(refused))
    return NothingMatched(Message("no job named {job} in namespace {place}", job=name, place=place), hint)


def valid_name(name: str) -> bool:
    """Whether this is a valid object name. Other names are never put into a path."""
    return 0 < len(name) <= _MAX_NAME and _NAME_CHARS.issuperset(name) and name[0] not in ".-" and name[-1] not in ".-"


def valid_label(value: str) -> bool:
    """Whether this can be the value of a label."""
    return valid_name(value) and len(value) <= MAX_JOB_NAME


def distinct(hits: Iterable[Candidate]) -> list[Candidate]:
    """Candidates without duplicates; those that were read take precedence."""
    found: dict[tuple[str, str], Candidate] = {}
    for hit in sorted(hits, key=lambda hit: not hit.readable):
        found.setdefault(hit.identity, hit)
    return list(found.values())


async def to_top(api: Api, hit: Candidate, served: Served, place: str) -> Candidate:
    """The job at the top of the controllers above `hit`, in the namespace `place`, where its owners are.

    A deleted owner, or a new one of the same name, does not count. An owner that may not be read is the top, as far as
    its reference describes it. Raises ApiError other than 403 and 404, and NoServer.
    """
    for _ in range(_MAX_DEPTH):
        owner = objects.controller(hit.top)
        if owner is None:
            return hit
        resource = registry.of_owner(owner.get("apiVersion"), owner.get("kind"))
        known = None if resource is None else served.kind(resource)
        name, uid = fields.text(owner.get("name")), fields.text(owner.get("uid"))
        if known is None or not valid_name(name):
            return replace(hit, owner=owner)
        kind, version = known
        try:
            top = await api.get(kind.resource.path(version, place, name))
        except NotFound:
            return hit
        except Denied:
            return _unreadable(hit, kind, version, {"name": name, "namespace": place, "uid": uid}, served)
        if objects.uid(top) != uid:
            return hit
        hit = Candidate(kind, version, top)
    return hit


def _unreadable(hit: Candidate, kind: JobKind, version: str, metadata: Object, served: Served) -> Candidate:
    """The owner, from its reference. A pod of a JobSet is labelled with it, which is nearer to the top than its Job."""
    labels = objects.labels(hit.top)
    name, uid = fields.text(labels.get(jobset.NAME_LABEL)), fields.text(labels.get(jobset.UID_LABEL))
    if kind.resource.name == "jobs.batch" and valid_label(name) and uid:
        known = served.kind(jobset.RESOURCE) or (jobset.JobSet(), jobset.JobSet.resource.versions[0])
        return Candidate(*known, {"metadata": {**metadata, "name": name, "uid": uid}}, readable=False)
    return Candidate(kind, version, {"metadata": metadata}, readable=False)


def newest_owner(kinds: Sequence[JobKind], pods: Sequence[Object]) -> tuple[JobKind, str, list[Object]]:
    """Kind and UID of the job for pods that name it in a label, and the pods that belong to it.

    The newest pod's owner counts: other pods belong to an earlier job of that name. A JobSet made by a TrainJob is
    called a JobSet, because the pods do not show the difference.
    """
    newest = max(pods, key=lambda pod: (objects.created(pod) or 0.0, objects.name(pod)))
    owner = objects.controller(newest) or {}
    kind = next((kind for kind in kinds if kind.direct and kind.resource.kind == owner.get("kind")), kinds[-1])
    key = jobset.UID_LABEL
    if uid := fields.text(objects.labels(newest).get(key)):
        return kind, uid, [pod for pod in pods if objects.labels(pod).get(key) == uid]
    uid = fields.text(owner.get("uid"))
    if not kind.direct:  # the pods' owners are the job's children, of which there may be several
        return kind, "", list(pods)
    return kind, uid, [pod for pod in pods if fields.text((objects.controller(pod) or {}).get("uid")) == uid]
