"""Waits until a job's pods are gone or its state is reached, and says what did not go, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from atlctl.backends.base import StopResult
from atlctl.backends.kubernetes import pods as podstate
from atlctl.backends.kubernetes.api import Api, ApiError, Missing, NoServer, Object
from atlctl.backends.kubernetes.inventory import Found
from atlctl.backends.kubernetes.kinds import fields, registry
from atlctl.backends.kubernetes.kinds.build import scope_of
from atlctl.backends.kubernetes.stopping.plan import Goal, Steps
from atlctl.jobs.errors import AtlctlError, TimedOut
from atlctl.jobs.model import Worker

#: Seconds between two looks: the first, and the longest.
FIRST, LONGEST = 0.2, 2.0
_PODS = registry.PODS.resource


@dataclass(frozen=True, slots=True)
class Look:
    """How it stands. `top` is None where the job is gone, or another has its name; `pods` are its own that live."""

    top: Object | None
    pods: tuple[Object, ...]


async def look(api: Api, found: Found) -> Look:
    """Asks for the job's object and pods. Raises ApiError, NoServer."""
    kind, place = found.kind, found.job.namespace or api.namespace
    name, uid = fields.name(found.sight.top), fields.uid(found.sight.top)
    top: Object | None = None
    listed: list[Object] = []
    if kind is registry.PODS and uid:
        listed = await _named(api, place, name)
    elif kind is registry.PODS:
        listed = await _selected(api, place, name)
    else:
        try:
            top = await api.get(kind.resource.path(found.version, place, name))
        except Missing:
            top = None
        if top is not None and fields.uid(top) != uid:
            top = None
        for selector in kind.selectors(found.sight.top):
            listed += await _selected(api, place, selector)
    known = {fields.uid(pod) for pod in found.pods}
    scope = scope_of(kind, found.sight, complete=True)
    own = {fields.uid(pod): pod for pod in listed if fields.uid(pod) in known or scope.has(pod)}
    return Look(top, tuple(pod for pod in own.values() if _lives(pod)))


async def _named(api: Api, place: str, name: str) -> list[Object]:
    try:
        return [await api.get(_PODS.path("v1", place, name))]
    except Missing:
        return []


async def _selected(api: Api, place: str, selector: str) -> list[Object]:
    return (await api.list(_PODS.path("v1", place), [("labelSelector", selector)])).items


def _lives(pod: Object) -> bool:
    return fields.status(pod).get("phase") not in ("Succeeded", "Failed") or bool(
        fields.meta(pod).get("deletionTimestamp")
    )


async def settle(api: Api, steps: Steps, workers: Sequence[Worker], timeout: float, now: float) -> list[StopResult]:
    """A result for each of `workers`, and for what else is left, after at most `timeout` seconds.

    `now`: the time at the begin, in seconds since the epoch. Raises AtlctlError where nothing could be looked at.
    """
    begun = asyncio.get_running_loop().time()
    pause, last = FIRST, None
    problem: AtlctlError | None = None
    while True:
        try:
            async with asyncio.timeout_at(begun + max(timeout, FIRST)):
                last, problem = await look(api, steps.found), None
        except (ApiError, NoServer) as error:  # the request was taken; what it does may still be seen
            problem = error
        except TimeoutError:
            problem = problem or TimedOut(f"the API server did not answer within {timeout:g} s")
        passed = asyncio.get_running_loop().time() - begun
        if last is not None and problem is None and _reached(steps.goal, steps.found, last):
            return _results(steps, workers, last, now + passed)
        if passed + pause > timeout:
            break
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LONGEST)
    if last is None:
        assert problem is not None
        raise AtlctlError(
            f"the request was taken, but what it does could not be looked at: {problem.message}",
            f"atlctl ps {steps.found.job.name}",
        )
    return _results(steps, workers, last, now + timeout)


def _reached(goal: Goal, found: Found, at: Look) -> bool:
    if goal == "awake":
        return at.top is not None and not found.kind.suspended(at.top)
    if at.pods:
        return False
    return at.top is None or (goal == "asleep" and found.kind.suspended(at.top))


def _results(steps: Steps, workers: Sequence[Worker], at: Look, now: float) -> list[StopResult]:
    left = {fields.uid(pod): pod for pod in at.pods}
    found, results = steps.found, []
    if steps.goal != "awake":
        for worker in workers:
            pod = left.pop(worker.uid or "", None)
            if pod is None:
                results.append(StopResult(worker.name, "gone"))
            else:
                results.append(StopResult(worker.name, "not-stopped", reason=why_left(pod, now)))
        results += [StopResult(fields.name(pod), "not-stopped", reason=why_left(pod, now)) for pod in left.values()]
    if not _reached(steps.goal, found, at) and not at.pods:
        name = registry.form(found.kind.resource, found.job.name)
        results.append(StopResult(name, "not-stopped", reason=_why_not(steps.goal, at.top or {})))
    return results


def _why_not(goal: Goal, top: Object) -> str:
    """Why the job itself is not as it should be."""
    if goal == "gone":
        held = [item for item in _texts(fields.meta(top).get("finalizers")) if item != "foregroundDeletion"]
        return f"finalizers are left: {', '.join(held)}" if held else "it is still being deleted"
    return "the request was taken and nothing acted on it: does its controller run?"


def why_left(pod: Object, now: float) -> str:
    """Why a pod is still there. `now` is in seconds since the epoch."""
    meta = fields.meta(pod)
    node = fields.text(fields.spec(pod).get("nodeName"))
    ends = fields.moment(meta.get("deletionTimestamp"))
    state = podstate.condition(pod, None)
    if not meta.get("deletionTimestamp"):
        return f"nothing has asked it to end, it is {state.state}"
    if held := _texts(meta.get("finalizers")):
        return f"finalizers are left: {', '.join(held)}"
    if state.reason == "NodeLost":
        return f"its node {node} does not answer: the pod stays until it is back, and may still run there"
    if ends is not None and ends > now:
        return f"its grace period ends in {int(ends - now) + 1} s"
    return f"it is ending on node {node}, past its grace period"


def _texts(value: object) -> list[str]:
    return [item for item in value if type(item) is str] if type(value) is list else []
