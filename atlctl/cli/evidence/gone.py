"""Report evidence of a job that its platform has deleted, why, and how to keep it the next time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.i18n import LIST, Message, joined, plural
from atlctl.jobs.errors import AtlctlError, NothingMatched

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.cli.evidence.recorded import Recording
    from atlctl.jobs.model import Job

#: Pods that are named.
MAX_NAMES = 8


async def events(source: Backend, job: Job) -> Sequence[Mapping[str, Any]]:
    """The events of a job with missing or ended workers; empty if they may not be read."""
    from atlctl.jobs.model import State

    if source.name != "kubernetes" or _waits(job):
        return ()
    if not job.missing and all(worker.state is State.RUNNING for worker in job.workers):
        return ()
    with suppress(AtlctlError):
        return await source.raw_events(job)
    return ()


def tell(job: Job, known: Sequence[Mapping[str, Any]]) -> None:
    """Notes which logs a verdict cannot rest on, since their pods are gone. `known` are the events of the job."""
    if job.backend != "kubernetes":
        return
    texts: list[str] = []
    if job.missing and not _waits(job):
        texts.append(_missing(job, known))
    replaced = [worker for worker in job.workers if worker.attempt]
    if replaced:
        from atlctl.jobs.naming import fold_names

        names = fold_names(worker.name for worker in replaced)
        texts.append(
            Message("earlier attempts of {workers} were not read: a restart usually deletes their pods", workers=names)
        )
    if texts:
        from atlctl.cli.evidence import recorded

        if recorded.of_job(job) is None:
            texts.append(_next_time(job.name))
        say.note(joined(texts))


def _next_time(name: str) -> Message:
    return Message("to keep them next time, start 'atlctl record {job}' together with the job", job=name)


def _waits(job: Job) -> bool:
    """Whether workers may be missing since they were not made yet."""
    from atlctl.jobs.model import State

    return job.state in (State.PENDING, State.QUEUED, State.STARTING)


def _missing(job: Job, events: Sequence[Mapping[str, Any]]) -> Message:
    from atlctl.jobs import podnews
    from atlctl.jobs.model import State
    from atlctl.jobs.naming import fold_numbers

    told: dict[str, str] = {}
    for event in events:
        news = podnews.read(str(event.get("reason") or ""), str(event.get("message") or ""))
        if news is not None and news.what == "deleted":
            told.setdefault(news.pod, _time(event))
    times = sorted(time for time in told.values() if time)
    when = Message("since {time}, by its events", time=times[0]) if times else Message("its events do not show when")
    why = {
        State.FAILED: Message("when a job fails, the platform deletes its running pods"),
        State.SUSPENDED: Message("suspending a job deletes its pods"),
        State.RESTARTING: Message("a restart deletes the pods of the previous attempt"),
    }.get(job.state, Message("it is unknown who deleted them"))
    if not job.numbered:
        what = plural("{n} pod is gone", "{n} pods are gone", len(job.missing))
    elif len(job.missing) > 1:
        what = Message("the pods of workers {numbers} are gone", numbers=fold_numbers(job.missing))
    else:
        what = Message("the pod of worker {number} is gone", number=job.missing[0])
    what = Message("{what} ({when})", what=what, when=when)
    if told:
        names = joined(list(told)[:MAX_NAMES], LIST)
        if len(told) > MAX_NAMES:
            names = Message("{names} and others", names=names)
        what = Message("{what}: {names}", what=what, names=names)
    return joined((Message("{what}, and so are their logs", what=what), why))


def _time(event: Mapping[str, Any]) -> str:
    times = (event.get("lastTimestamp"), event.get("eventTime"), event.get("firstTimestamp"))
    return next((str(time)[:40] for time in times if time), "")


async def job_or_recording(
    source: Backend, argument: str | None, option: str | None, *, living: bool
) -> Job | Recording:
    """The job to diagnose, or its recording if that has more evidence. `living`: only the job.

    Raises the errors of `find_logged`; if the job is gone and was not recorded, with a hint how to record it.
    """
    from atlctl.cli.evidence import recorded
    from atlctl.cli.target import find_logged, stated

    try:
        job = await find_logged(source, argument, option)
    except NothingMatched as error:
        named = stated(argument, option)
        if named is None or living:
            raise
        found = recorded.newest(source.name, await _namespace(source), named.name)
        if found is not None:
            say.note(error.message)
            return found
        next_time = _next_time(named.name.rpartition("/")[2])
        gone = Message("if it was deleted, so were its logs: {next_time}", next_time=next_time)
        raise NothingMatched(error.message, joined((error.hint, gone)) if error.hint else gone) from error
    found = recorded.of_job(job)
    if found is None or living:
        return job
    if recorded.tells_more(found, job):
        return found
    if recorded.lost(found, job):
        say.note(
            Message(
                "an interrupted recording has logs that are gone by now: atlctl errors --from {path}", path=found.folder
            )
        )
    return job


async def _namespace(source: Backend) -> str | None:
    if source.name != "kubernetes":
        return None  # and what a cluster needs is not loaded
    from atlctl.backends.kubernetes.backend import KubernetesBackend

    return (await source.api()).namespace if isinstance(source, KubernetesBackend) else None
