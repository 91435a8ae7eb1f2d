"""Carries out a stop or resume: sends the requests of a plan and waits for their effect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from atlctl.backends.base import Argv, ExecRequest, Executor, Exited, FailedToStart, Lost, Output, Plan, StopResult
from atlctl.backends.kubernetes import inventory, objects
from atlctl.backends.kubernetes import pods as podstate
from atlctl.backends.kubernetes.api import LATE, Api, ApiError, Denied, JsonAnswer, NoServer, NotFound, Object
from atlctl.backends.kubernetes.discovery import Served
from atlctl.backends.kubernetes.inventory import FoundJob
from atlctl.backends.kubernetes.kinds import registry
from atlctl.backends.kubernetes.kinds.build import scope_of
from atlctl.backends.kubernetes.stopplan import Goal, Steps, World, Write
from atlctl.backends.questions import ask_each
from atlctl.i18n import Message
from atlctl.jobs import fields
from atlctl.jobs.errors import AtlctlError, NotAllowed, TimedOut
from atlctl.jobs.fields import texts
from atlctl.jobs.model import Job, Worker
from atlctl.remote.sending import shell

#: Seconds between checks of the effect: the first and the longest.
FIRST, LONGEST = 0.2, 2.0
_PODS = registry.PODS.resource


class StopBackend(Protocol):
    """The part of the backend that stopping needs."""

    async def api(self) -> Api: ...

    async def served(self) -> Served: ...

    def executor(self, job: Job) -> Executor: ...

    def options(self) -> tuple[str, ...]: ...


async def world(source: StopBackend, found: FoundJob) -> World:
    """The input of a plan. Raises ApiError, NoServer."""
    api, served = await source.api(), await source.served()
    workloads, _, problems = await inventory.queues(api, found, served)
    namespace = found.job.namespace or api.namespace
    place = Message("namespace {namespace}, {server}", namespace=namespace, server=api.server)
    if api.context:
        place = Message("context {context}, {rest}", context=api.context, rest=place)
    options = source.options()
    if "--namespace" not in options:
        options = (*options, "--namespace", namespace)
    if api.context and "--context" not in options:
        options = (*options, "--context", api.context)
    return World(served, workloads, problems, place, options, time.time())


async def check(source: StopBackend, agreed: Plan) -> None:
    """Send all requests as a dry run."""
    steps = _steps(agreed)
    if steps is not None:
        await send(await source.api(), steps.writes, dry_run=True)


async def carry_out(
    source: StopBackend, agreed: Plan, timeout: float, told: Callable[[str], None]
) -> Sequence[StopResult]:
    """See `Controller.carry_out`."""
    steps = _steps(agreed)
    if steps is None:
        return []
    api = await source.api()
    if steps.goal == "processes":
        return await _end_training(source, api, agreed, steps)
    begun = time.monotonic()
    try:
        async with asyncio.timeout(timeout):
            warnings = await send(api, steps.writes)
    except TimeoutError as error:
        text = Message(
            "the API server did not answer within {timeout:g} s; the request may have taken effect", timeout=timeout
        )
        raise TimedOut(text, f"atlctl ps {agreed.job.name}") from error
    for warning in warnings:
        told(Message("the server warns: {text}", text=warning))
    if steps.quick:
        return []
    waiting = Message("requested; waiting up to {timeout:g} s until {count} pods are gone")
    if steps.goal == "awake":
        waiting = Message("requested; waiting up to {timeout:g} s until it takes effect")
    told(waiting.filled(count=len(agreed.workers), timeout=timeout))
    left = max(0.0, timeout - (time.monotonic() - begun))
    return await settle(api, steps, agreed.workers, left, time.time())


def _steps(agreed: Plan) -> Steps | None:
    assert agreed.steps is None or isinstance(agreed.steps, Steps), "a plan of this backend"
    return agreed.steps


async def _end_training(source: StopBackend, api: Api, agreed: Plan, steps: Steps) -> list[StopResult]:
    """Ends training only in pods of the plan: new pods of some kinds have the same names."""
    there = {objects.uid(pod) for pod in (await look(api, steps.found)).pods}
    same = [worker for worker in agreed.workers if worker.uid in there]
    executor = source.executor(agreed.job)
    try:
        ended = {result.worker: result for result in await end_training(executor, same, steps.grace)}
    finally:
        await executor.aclose()
    gone = Message("its pod is gone, or was recreated meanwhile")
    return [ended.get(w.name) or StopResult(w.name, "not-stopped", reason=gone) for w in agreed.workers]


async def send(api: Api, writes: Sequence[Write], *, dry_run: bool = False) -> list[str]:
    """Send all `writes` and return the server's warnings; with `dry_run` the server only checks them.

    Objects that are gone need no deletion. After a failure the others are still sent; then the first failure is raised.
    Raises AtlctlError if another object has taken the name or the answer lacks the requested change; NotAllowed,
    NoServer.
    """
    warnings: list[str] = []
    failure: AtlctlError | None = None
    for write in writes:
        try:
            answer = await _write(api, write, dry_run)
        except AtlctlError as error:
            failure = failure or error
            continue
        if answer is not None:
            warnings += answer.warnings
    if failure is not None:
        raise failure
    return warnings


async def _write(api: Api, write: Write, dry_run: bool) -> JsonAnswer | None:
    try:
        if write.verify and objects.uid(await api.get(write.verify)) != write.uid:
            raise _replaced(write)
        if write.method == "DELETE":
            # The server ignores the query of a DELETE with a body: dryRun there would delete.
            body = {**write.body, "dryRun": ["All"]} if dry_run else write.body
            return await api.send("DELETE", write.path, body)
        query = [("dryRun", "All")] if dry_run else []
        answer = await api.send(write.method, write.path, write.body, query, merge_patch=write.method == "PATCH")
    except NotFound as error:
        if write.method == "DELETE":
            return None
        raise AtlctlError(Message("{what} is gone: nothing was changed", what=write.what), "atlctl jobs") from error
    except Denied as error:
        raise NotAllowed(
            Message("{what} was not changed: {why}", what=write.what, why=error.text or error.message), "atlctl doctor"
        ) from error
    except NoServer as error:
        said = Message("connection lost while changing {what}; whether the change took effect is not known ({why})")
        hint = Message("running the command again is safe")
        raise NoServer(said.filled(what=write.what, why=error.message), hint) from error
    except ApiError as error:
        replaced = error.status in (409, 422) and await _made_anew(api, write)
        raise (_replaced(write) if replaced else error) from error
    _check(write, answer)
    return answer


async def _made_anew(api: Api, write: Write) -> bool:
    """Whether another object has taken the name. A failed precondition is a 409 (DELETE) or 422 (PATCH), like other
    conflicts."""
    try:
        return objects.uid(await api.get(write.verify or write.path)) != write.uid
    except AtlctlError:
        return False


def _finalizers(held: Iterable[str]) -> Message:
    return Message("finalizers are left: {finalizers}", finalizers=", ".join(held))


def _check(write: Write, answer: JsonAnswer) -> None:
    """Raises if the change is missing: the server drops an unknown field with a warning and still reports success."""
    if write.expect is None:
        return
    path, value = write.expect
    if objects.dig(answer.data, *path) is value or objects.dig(answer.data, *path) == value:
        return
    said = Message("; the server says: {text}", text="; ".join(answer.warnings)) if answer.warnings else ""
    text = Message("{what} was not changed: its {field} is not {value} in the server's answer{said}")
    raise AtlctlError(
        text.filled(what=write.what, field=".".join(path), value=value, said=said),
        Message("this version of the controller may not know the field"),
    )


def _replaced(write: Write) -> AtlctlError:
    text = Message("{what} was replaced by another object of the same name meanwhile; it was not changed")
    hint = Message("check it with atlctl jobs, then run the command again")
    return AtlctlError(text.filled(what=write.what), hint)


@dataclass(frozen=True, slots=True)
class Remaining:
    """The remaining objects. `top` is None if the job is gone or its name has a new object; `pods`: its live ones."""

    top: Object | None
    pods: tuple[Object, ...]


async def look(api: Api, found: FoundJob) -> Remaining:
    """Query the job's object and pods. Raises ApiError, NoServer."""
    kind, place = found.kind, found.job.namespace or api.namespace
    name, uid = objects.name(found.sight.top), objects.uid(found.sight.top)
    top: Object | None = None
    listed: list[Object] = []
    if kind is registry.PODS and uid:
        listed = await _named(api, place, name)
    elif kind is registry.PODS:
        listed = await _selected(api, place, name)
    else:
        with suppress(NotFound):
            now = await api.get(kind.resource.path(found.version, place, name))
            top = now if objects.uid(now) == uid else None
        for selector in kind.selectors(found.sight.top):
            listed += await _selected(api, place, selector)
    known = {objects.uid(pod) for pod in found.pods}
    scope = scope_of(kind, found.sight, complete=True)
    own = {objects.uid(pod): pod for pod in listed if objects.uid(pod) in known or scope.has(pod)}
    return Remaining(top, tuple(pod for pod in own.values() if _lives(pod)))


async def _named(api: Api, place: str, name: str) -> list[Object]:
    try:
        return [await api.get(_PODS.path("v1", place, name))]
    except NotFound:
        return []


async def _selected(api: Api, place: str, selector: str) -> list[Object]:
    return (await api.list(_PODS.path("v1", place), [("labelSelector", selector)])).items


def _lives(pod: Object) -> bool:
    return objects.status(pod).get("phase") not in ("Succeeded", "Failed") or bool(
        objects.meta(pod).get("deletionTimestamp")
    )


async def settle(api: Api, steps: Steps, workers: Sequence[Worker], timeout: float, now: float) -> list[StopResult]:
    """A result for each of `workers` and for other remaining pods, after at most `timeout` seconds.

    `now`: start time in seconds since the epoch. Raises AtlctlError if no check was possible.
    """
    begun = asyncio.get_running_loop().time()
    pause, last = FIRST, None
    problem: AtlctlError | None = None
    while True:
        try:
            async with asyncio.timeout_at(begun + max(timeout, FIRST)):
                last, problem = await look(api, steps.found), None
        except (ApiError, NoServer) as error:  # the request was accepted, its effect may still be seen
            problem = error
        except TimeoutError:
            problem = problem or TimedOut(
                Message("the API server did not answer within {timeout:g} s", timeout=timeout)
            )
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
            Message("the request was accepted, but its effect could not be checked: {why}", why=problem.message),
            f"atlctl ps {steps.found.job.name}",
        )
    return _results(steps, workers, last, now + timeout)


def _reached(goal: Goal, found: FoundJob, at: Remaining) -> bool:
    if goal == "awake":
        return at.top is not None and not found.kind.suspended(at.top)
    if at.pods:
        return False
    return at.top is None or (goal == "asleep" and found.kind.suspended(at.top))


def _results(steps: Steps, workers: Sequence[Worker], at: Remaining, now: float) -> list[StopResult]:
    left = {objects.uid(pod): pod for pod in at.pods}
    found, results = steps.found, []
    if steps.goal != "awake":
        for worker in workers:
            pod = left.pop(worker.uid or "", None)
            if pod is None:
                results.append(StopResult(worker.name, "gone"))
            else:
                results.append(StopResult(worker.name, "not-stopped", reason=why_left(pod, now)))
        results += [StopResult(objects.name(pod), "not-stopped", reason=why_left(pod, now)) for pod in left.values()]
    if not _reached(steps.goal, found, at) and not at.pods:
        name = registry.form(found.kind.resource, found.job.name)
        results.append(StopResult(name, "not-stopped", reason=_why_not(steps.goal, at.top or {})))
    return results


def _why_not(goal: Goal, top: Object) -> str:
    """The reason why the job itself has not reached the goal."""
    if goal == "gone":
        held = [item for item in texts(objects.meta(top).get("finalizers")) if item != "foregroundDeletion"]
        return _finalizers(held) if held else Message("it is still being deleted")
    return Message("the request was accepted, but nothing acted on it; check whether its controller is running")


def why_left(pod: Object, now: float) -> str:
    """The reason why a pod still exists. `now`: seconds since the epoch."""
    meta = objects.meta(pod)
    node = fields.text(objects.spec(pod).get("nodeName"))
    ends = fields.moment(meta.get("deletionTimestamp"))
    state = podstate.condition(pod, None)
    if not meta.get("deletionTimestamp"):
        return Message("nothing has requested its end; it is {state}", state=state.state.label)
    if held := texts(meta.get("finalizers")):
        return _finalizers(held)
    if state.reason == "NodeLost":
        return Message(
            "its node {node} does not answer: the pod stays until it is back, and may still run there", node=node
        )
    if ends is not None and ends > now:
        return Message("its grace period ends in {seconds} s", seconds=int(ends - now) + 1)
    return Message("it is ending on node {node}, past its grace period", node=node)


# Ends the training and keeps the pods: a POSIX `sh` script runs in each worker (`remote/sh/stop.sh`).
#
# It searches `/proc` for launchers (torchrun and others) by command line, for torchelastic processes by environment,
# and for their descendants. If there are none, every Python counts as training, except services for users (Jupyter,
# debuggers, atlctl). SIGTERM is sent to the top of each process tree, because launchers forward it, and to the
# remaining tops once these have ended. After the grace period all remaining processes get SIGKILL.
#
# No signal is sent to PID 1, to commands of `atlctl exec` or to processes of another cgroup (another container). If the
# training is PID 1, or the child for which a container's init waits, its end would end the container, so nothing is
# done. For processes of another user the environment is not readable, and they cannot be signalled.
#
# If no training is found, PID 1 decides: an init, a server or a script that only keeps the container (`sleep 10000`)
# leaves nothing to end; a shell or another program may be the training itself and is reported as not stopped. The same
# applies to training that a loop in PID 1 restarts.

#: Workers in which the script runs at once.
AT_ONCE = 64
#: Seconds beyond the grace period for each worker: for the start and for SIGKILL.
SLACK = 20.0
_SAID = 4096


def request(grace: float, own: str) -> ExecRequest:
    """The command that runs in a worker; `grace` in seconds, `own` as `noted_as`."""
    return ExecRequest(Argv(("sh", "-c", shell("stop"), "sh", str(max(0, round(grace * 10))), own)))


def noted_as(worker: Worker) -> str:
    """The name of a worker's folders in its container: of no other pod that has the same home folder."""
    return f"{worker.pod}-{worker.uid}"


def read_end(worker: str, said: bytes) -> StopResult | None:
    """The result in the script's last line; None if there is none."""
    for line in reversed(said.decode("utf-8", "replace").splitlines()):
        word, _, rest = line.removeprefix("atlctl: ").partition(" ")
        if not line.startswith("atlctl: "):
            continue
        match word:
            case "first":
                why = Message("the training is the container's first process; ending it would end the container")
                return StopResult(worker, "not-stopped", reason=why)
            case "again":
                why = Message(
                    "its first process, or a script below it, starts the training again as soon as it is ended"
                )
                return StopResult(worker, "not-stopped", reason=why)
            case "idle":
                return StopResult(worker, "already-ended")
            case "none":
                return StopResult(worker, "not-stopped", reason=_unknown(rest.split()))
            case "ended":
                count, _, killed = rest.partition(" ")
                number = int(count) if count.isascii() and count.isdigit() and len(count) < 8 else 0
                return StopResult(worker, "killed" if killed.strip() else "terminated", number)
            case "left":
                left = rest.split()
                why = Message("{count} processes survived SIGKILL or belong to another user: {processes}")
                why = why.filled(count=len(left), processes=" ".join(left[:8]))
                return StopResult(worker, "not-stopped", len(left), why)
            case "failed":
                return StopResult(worker, "not-stopped", reason=rest)
    return None


def _unknown(programs: Sequence[str]) -> str:
    """The reason why nothing was ended. `programs`: the first process, then those below it that may be at work."""
    first, below = "".join(programs[:1]), list(dict.fromkeys(programs[1:]))[:8]
    why = Message(
        "no launcher or Python process was found, and ending the first process ({program}) would end the container",
        program=first,
    )
    return Message("{why}; running below it: {programs}", why=why, programs=", ".join(below)) if below else why


async def end_training(executor: Executor, workers: Sequence[Worker], grace: float) -> list[StopResult]:
    """Run the script in all `workers`, with limited concurrency; results in the same order."""

    async def one(worker: Worker) -> StopResult:
        try:
            async with asyncio.timeout(grace + SLACK):
                return await _in(executor, worker, grace)
        except TimeoutError:
            return StopResult(worker.name, "not-stopped", reason=LATE)

    return await ask_each(workers, one, AT_ONCE)


async def _in(executor: Executor, worker: Worker, grace: float) -> StopResult:
    execution = executor.run(worker, request(grace, noted_as(worker)))
    said = bytearray()
    reason: str = Message("the script reported nothing")
    try:
        async for event in execution:
            if isinstance(event, Output):
                said = (said + event.data)[-_SAID:]
            elif isinstance(event, Lost | FailedToStart):
                reason = event.reason
            elif isinstance(event, Exited) and event.exit_code:
                reason = Message("the script ended with exit code {code}", code=event.exit_code)
            elif isinstance(event, Exited) and event.signal:
                reason = Message("the script was ended by signal {number}", number=event.signal)
    finally:
        await execution.aclose()
    return read_end(worker.name, bytes(said)) or StopResult(worker.name, "not-stopped", reason=reason)
