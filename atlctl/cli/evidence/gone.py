"""What evidence of a job its platform has deleted, why, and how to have it the next time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.jobs.errors import AtlctlError, NothingMatched

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.cli.evidence.recorded import Recording
    from atlctl.jobs.model import Job

_NEXT = "next time 'atlctl record {name}', started with the job, keeps it"
#: Pods that are named.
MAX_NAMES = 8


async def events(source: Backend, job: Job) -> Sequence[Mapping[str, Any]]:
    """What the cluster says of a job that lacks workers, or of which some have ended; nothing if it may not be read."""
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
        texts.append(f"earlier attempts of {names} are not looked at: as a rule a restart deletes their pods")
    if texts:
        from atlctl.cli.evidence import recorded

        if recorded.of_job(job) is None:
            texts.append(_NEXT.format(name=job.name))
        say.note("; ".join(texts))


def _waits(job: Job) -> bool:
    """Whether workers may be missing since they were not made yet."""
    from atlctl.jobs.model import State

    return job.state in (State.PENDING, State.QUEUED, State.STARTING)


def _missing(job: Job, events: Sequence[Mapping[str, Any]]) -> str:
    from atlctl.jobs import podnews
    from atlctl.jobs.model import State
    from atlctl.jobs.naming import fold_numbers

    told: dict[str, str] = {}
    for event in events:
        news = podnews.read(str(event.get("reason") or ""), str(event.get("message") or ""))
        if news is not None and news.what == "deleted":
            told.setdefault(news.pod, _time(event))
    times = sorted(time for time in told.values() if time)
    when = f" (since {times[0]}, by its events)" if times else " (its events do not tell when)"
    why = {
        State.FAILED: "of a failed job the platform deletes the pods that still run",
        State.SUSPENDED: "a job that is suspended loses its pods",
        State.RESTARTING: "a restart deletes the pods of the attempt before",
    }.get(job.state, "who deleted them cannot be told")
    pods = ", ".join(list(told)[:MAX_NAMES])
    named = f": {pods}{' and others' if len(told) > MAX_NAMES else ''}" if pods else ""
    if not job.numbered:
        what = f"{len(job.missing)} pods are" if len(job.missing) > 1 else "1 pod is"
    elif len(job.missing) > 1:
        what = f"the pods of workers {fold_numbers(job.missing)} are"
    else:
        what = f"the pod of worker {job.missing[0]} is"
    return f"{what} gone{when}{named}, with all logs; {why}"


def _time(event: Mapping[str, Any]) -> str:
    times = (event.get("lastTimestamp"), event.get("eventTime"), event.get("firstTimestamp"))
    return next((str(time)[:40] for time in times if time), "")


async def job_or_recording(
    source: Backend, argument: str | None, option: str | None, *, living: bool
) -> Job | Recording:
    """The job whose root cause is wanted, or its recording where that tells more. `living`: only the job will do.

    Raises what `find_logged` raises; where the job is gone and was not recorded, with how to have that.
    """
    from atlctl.cli.evidence import recorded
    from atlctl.cli.options import stated_job
    from atlctl.cli.target import find_logged

    try:
        job = await find_logged(source, argument, option)
    except NothingMatched as error:
        named = stated_job(argument, option)
        if named is None or living:
            raise
        found = recorded.newest(source.name, await _namespace(source), named)
        if found is not None:
            say.note(error.message)
            return found
        gone = f"if it was deleted, so were its logs: {_NEXT.format(name=named.rpartition('/')[2])}"
        raise NothingMatched(error.message, f"{error.hint}; {gone}" if error.hint else gone) from error
    found = recorded.of_job(job)
    if found is None or living:
        return job
    if recorded.tells_more(found, job):
        return found
    if recorded.lost(found, job):
        say.note(f"a recording that broke off has what is gone by now: atlctl errors --from {found.folder}")
    return job


async def _namespace(source: Backend) -> str | None:
    if source.name != "kubernetes":
        return None  # and what a cluster needs is not loaded
    from atlctl.backends.kubernetes.backend import KubernetesBackend

    return (await source.api()).namespace if isinstance(source, KubernetesBackend) else None
