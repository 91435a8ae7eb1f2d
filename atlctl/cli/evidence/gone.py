"""What evidence of a job its platform has deleted, why, and how to have it the next time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.jobs.errors import AtlctlError, NothingMatched

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.cli.evidence.recorded import Recording
    from atlctl.jobs.model import Job

#: Workers of a kind of job that deletes them are told by such events: `Deleted pod: train-node-0-1-x7k2p`.
_DELETED = re.compile(r"Deleted pod: ([a-z0-9.-]{1,253})")
_NEXT = "next time 'atlctl record {name}', started with the job, keeps it"
#: Pods that are named.
MAX_NAMES = 8


async def tell(source: Backend, job: Job) -> None:
    """Notes which logs a verdict cannot rest on, since their pods are gone. Says nothing where none are."""
    if source.name != "kubernetes":
        return
    texts: list[str] = []
    if job.missing and not _waits(job):
        events: Sequence[Mapping[str, Any]] = ()
        with suppress(AtlctlError):  # events that may not be read tell nothing
            events = await source.raw_events(job)
        texts.append(_missing(job, events))
    replaced = [worker for worker in job.workers if worker.attempt]
    if replaced:
        from atlctl.jobs.naming import fold_names

        names = fold_names(worker.name for worker in replaced)
        texts.append(f"earlier attempts of {names} are not looked at: as a rule a restart deletes their pods")
    if texts:
        say.note(f"{'; '.join(texts)}; {_NEXT.format(name=job.name)}")


def _waits(job: Job) -> bool:
    """Whether workers may be missing since they were not made yet."""
    from atlctl.jobs.model import State

    return job.state in (State.PENDING, State.QUEUED, State.STARTING)


def _missing(job: Job, events: Sequence[Mapping[str, Any]]) -> str:
    from atlctl.jobs.model import State
    from atlctl.jobs.naming import fold_numbers

    told = [(found[1], _time(event)) for event in events if (found := _DELETED.search(str(event.get("message") or "")))]
    times = sorted(time for _, time in told if time)
    when = f" (since {times[0]}, by its events)" if times else " (its events do not tell when)"
    why = {
        State.FAILED: "of a failed job the platform deletes the pods that still run",
        State.SUSPENDED: "a job that is suspended loses its pods",
        State.RESTARTING: "a restart deletes the pods of the attempt before",
    }.get(job.state, "who deleted them cannot be told")
    pods = ", ".join(name for name, _ in told[:MAX_NAMES])
    named = f": {pods}{' and others' if len(told) > MAX_NAMES else ''}" if pods else ""
    what = f"the pods of workers {fold_numbers(job.missing)} are" if len(job.missing) > 1 else _one(job.missing[0])
    return f"{what} gone{when}{named}, with all logs; {why}"


def _one(index: int) -> str:
    return f"the pod of worker {index} is"


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
