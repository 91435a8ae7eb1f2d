"""Builds a job from its object and pods: selects its pods, chooses its workers and orders them."""

from __future__ import annotations

import heapq
import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes import pods as podstate
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds import barepods, jobset
from atlctl.backends.kubernetes.kinds.base import JobKind, JobRole, JobStatus, Past, PodPlace, Sight, queue_of
from atlctl.jobs import fields
from atlctl.jobs.model import Job, State, Worker
from atlctl.jobs.naming import natural_key

#: Characters to keep of a command line, which may be a whole script.
_MOST_OF_COMMAND = 4_000


@dataclass(frozen=True, slots=True)
class PodScope:
    """The condition for a pod to belong to the job: its controller or JobSet has one of these UIDs.

    `since` is set if an object between the job and its pods was not read. Then a pod also belongs to the job if the
    labels match and it is not older than the job, unless its JobSet is known to be another one (`jobset`).
    """

    uids: frozenset[str]
    since: float | None = None
    jobset: bool = False

    def has(self, pod: Object) -> bool:
        owner = objects.controller(pod)
        if owner is None:
            return False
        if fields.text(owner.get("uid")) in self.uids:
            return True
        if of_set := fields.text(objects.labels(pod).get(jobset.UID_LABEL)):
            if of_set in self.uids:
                return True
            if self.jobset:
                return False
        return self.since is not None and (objects.created(pod) or 0.0) >= self.since


def scope_of(kind: JobKind, sight: Sight, *, complete: bool) -> PodScope:
    """`complete`: each object between the job and its pods was read, or is known not to exist."""
    uids = {uid for obj in (sight.top, *sight.children) if (uid := objects.uid(obj))}
    since = None if complete or kind.direct else objects.created(sight.top) or 0.0
    known = kind.resource.name == jobset.RESOURCE or any(jobset.replicated_jobs(child) for child in sight.children)
    return PodScope(frozenset(uids), since, known)


def build(kind: JobKind, sight: Sight, pods: Sequence[Object]) -> Job:
    """The job of `sight` with its own `pods`. If several pods have the same place, the newest live one is the
    worker."""
    top = sight.top
    numbered = True
    if kind.own_names:
        workers, expected = _by_own_names(kind, pods), len(pods)
    else:
        workers, expected, numbered = _by_place(kind, sight, pods)
    verdict = kind.state(sight, workers)
    return Job(
        name=objects.name(top),
        kind=kind.title,
        backend="kubernetes",
        state=verdict.state,
        uid=objects.uid(top),
        expected=expected,
        workers=workers,
        reason=verdict.reason,
        message=verdict.message,
        namespace=objects.namespace(top) or None,
        created=objects.created(top) or min((c for pod in pods if (c := objects.created(pod))), default=None),
        ended=_ended(top, verdict, workers),
        resource=kind.resource.name,
        suspended=kind.suspended(top),
        queue=queue_of(top),
        command=next((_command(kind, pod) for pod in pods if workers and objects.name(pod) == workers[0].pod), ""),
        numbered=numbered,
    )


def _command(kind: JobKind, pod: Object) -> str:
    name = podstate.trainer_container(pod, kind.containers, first=kind.first_trains).name
    containers = fields.entries(objects.spec(pod).get("containers"))
    own = next((item for item in containers if fields.text(item.get("name")) == name), {})
    return shlex.join([*fields.texts(own.get("command")), *fields.texts(own.get("args"))])[:_MOST_OF_COMMAND]


def _worker(kind: JobKind, pod: Object) -> Worker:
    container = podstate.trainer_container(pod, kind.containers, first=kind.first_trains)
    return podstate.worker_of(pod, container)


def _by_own_names(kind: JobKind, pods: Sequence[Object]) -> tuple[Worker, ...]:
    ordered = sorted(pods, key=lambda pod: natural_key(objects.name(pod)))
    ranks = barepods.user_ranks(ordered)
    return tuple(
        replace(_worker(kind, pod), index=index, node_rank=None if ranks is None else ranks[index])
        for index, pod in enumerate(ordered)
    )


@dataclass(slots=True)
class _Try:
    """A pod that is or was a worker. `ended`: when another pod may replace it; None while it is alive."""

    worker: Worker
    created: float
    ended: float | None
    shown: str | None
    attempt: int | None

    @property
    def name(self) -> str:
        return self.worker.name

    @property
    def rank(self) -> tuple[bool, float, str]:
        return self.worker.state.active, self.created, self.worker.name


def _try(worker: Worker, pod: Object, place: PodPlace) -> _Try:
    created = objects.created(pod) or 0.0
    ended = None
    if worker.state in (State.FAILED, State.STOPPING):
        deleted = fields.moment(objects.meta(pod).get("deletionTimestamp"))
        if deleted is not None:  # the time when its grace period ends
            deleted -= objects.count(objects.meta(pod).get("deletionGracePeriodSeconds")) or 0
        ended = min((at for at in (worker.ended, deleted) if at is not None), default=created)
    return _Try(worker, created, ended, place.shown, place.attempt)


def _by_place(kind: JobKind, sight: Sight, pods: Sequence[Object]) -> tuple[tuple[Worker, ...], int, bool]:
    """The workers, their expected number, and whether their numbers are known."""
    places: dict[str, dict[int, list[_Try]]] = {}
    loose: dict[str, list[_Try]] = {}
    for pod in pods:
        place = kind.place(pod, sight.top)
        made = _try(_worker(kind, pod), pod, place)
        numbered = places.setdefault(place.role, {})
        if place.number is None:
            loose.setdefault(place.role, []).append(made)
        else:
            numbered.setdefault(place.number, []).append(made)
    present = {objects.name(pod) for pod in pods}
    past = [item for item in sight.past if item.name not in present]
    known = kind.vanished(sight.top, pods) <= len(past)
    for role, tries in loose.items():
        count = next((item.count for item in kind.roles(sight, {}) if item.name == role), 0)
        if not known or not _number(places[role], tries, past, count):
            known = False
            _in_order(places[role], tries)
    seen = {role: max(numbered, default=-1) + 1 for role, numbered in places.items()}
    roles = list(kind.roles(sight, seen))
    roles += [
        JobRole(role, count, counted=False) for role, count in seen.items() if role not in {r.name for r in roles}
    ]
    workers: list[Worker] = []
    offset = expected = 0
    for group in sorted(roles, key=lambda item: not item.counted):
        if group.counted:
            expected = offset + group.count
        workers += _of_role(group, offset, places.get(group.name, {}))
        offset += max(group.count, seen.get(group.name, 0))
    if not known:
        workers = [replace(worker, name=worker.pod or worker.name) for worker in workers]
    return tuple(workers), expected, known


def _of_role(role: JobRole, offset: int, numbered: Mapping[int, list[_Try]]) -> Iterable[Worker]:
    for number in sorted(numbered):
        tries = numbered[number]
        now = max(tries, key=lambda item: item.rank) if len(tries) > 1 else tries[0]
        earlier = len(tries) - 1
        yield replace(
            now.worker,
            name=f"{role.name}-{number}",
            index=offset + number,
            role=now.shown,
            node_rank=None if role.first_rank is None else role.first_rank + number,
            attempt=now.attempt if now.attempt is not None else earlier or None,
            restarts=now.worker.restarts + max(now.attempt or 0, earlier),
        )


def _number(numbered: dict[int, list[_Try]], tries: Sequence[_Try], past: Sequence[Past], count: int) -> bool:
    """Number pods by creation time; returns False if that does not show their numbers.

    A pod created after another one failed or was deleted takes that number: it is the next attempt. `past`: deleted
    pods; `count`: number of pods created at first.
    """
    made: list[_Try | Past] = [*tries, *past]
    found: list[tuple[int, _Try]] = []
    taken = set(numbered)
    ended: list[tuple[float, int]] = []
    lost: list[int] = []
    free = 0
    for item in sorted(made, key=lambda item: (item.created, item.name)):
        while free in taken:
            free += 1
        number = free
        if number < count:
            pass  # times are whole seconds: none of the first pods replaces another
        elif ended and ended[0][0] <= item.created:
            number = heapq.heappop(ended)[1]
        elif lost:
            if len(lost) > 1:
                return False
            number = lost.pop()
        taken.add(number)
        if isinstance(item, _Try):
            found.append((number, item))
        if item.ended is not None:
            heapq.heappush(ended, (item.ended, number))
        elif isinstance(item, Past):
            lost.append(number)
    for number, item in found:
        numbered.setdefault(number, []).append(item)
    return True


def _in_order(numbered: dict[int, list[_Try]], tries: Sequence[_Try]) -> None:
    """Places pods with unknown numbers one after the other."""
    free = (number for number in itertools.count() if number not in numbered)
    for number, item in zip(free, sorted(tries, key=lambda item: (item.created, item.name)), strict=False):
        numbered[number] = [item]


def _ended(top: Object, verdict: JobStatus, workers: Sequence[Worker]) -> float | None:
    """End time of a job: from its object, else from the condition that ended it, else from its last worker."""
    if verdict.state.active:
        return None
    if (said := fields.moment(objects.status(top).get("completionTime"))) is not None:
        return said
    for condition in objects.conditions(top).values():
        if condition.get("status") == "True" and objects.word(condition) == (verdict.reason, verdict.message):
            return fields.moment(condition.get("lastTransitionTime"))
    return max((worker.ended for worker in workers if worker.ended is not None), default=None)
