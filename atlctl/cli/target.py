"""From what was typed to a job and its workers. The only place that picks a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from atlctl.cli import say
from atlctl.cli.options import stated_job
from atlctl.jobs.errors import AtlctlError, NothingMatched, UsageError
from atlctl.jobs.model import Job, RankMap, Worker
from atlctl.jobs.selection import Selection, resolve

if TYPE_CHECKING:
    from atlctl.backends.base import Backend


def backend() -> Backend:
    """The backend of this command. The embedded default is the only one so far."""
    from atlctl.backends.local.backend import LocalBackend

    return LocalBackend()


async def find_job(source: Backend, argument: str | None, option: str | None = None, *, reads_only: bool) -> Job:
    """The job that was named, else the current one.

    In falling order: the argument or -j, ATLCTL_JOB (set in every worker: the job that owns it), and for commands that
    only read the single active job in sight, said on stderr. Raises UsageError where nothing tells.
    """
    name = stated_job(argument, option)
    if name is not None:
        try:
            return await source.get_job(name)
        except NothingMatched as error:
            if argument is None and option is None:
                raise NothingMatched(f"{error.message} (named by ATLCTL_JOB)", error.hint) from error
            raise
    listing = await source.list_jobs()
    jobs = listing.jobs
    active = [job for job in jobs if any(worker.state.active for worker in job.workers)]
    if reads_only and len(active) == 1 and not listing.problems:
        say.note(f"job {active[0].name}, the only active one")
        return active[0]
    if not jobs and listing.problems:
        raise listing.problems[0]
    if not jobs:
        raise NothingMatched(
            "there is no job here", "start one: atlctl local run --workers 2 -- CMD, or try: atlctl demo"
        )
    shown = ", ".join(job.name for job in (active or jobs)[:8])
    raise UsageError("no job is named", f"name one with -j: {shown}; all: atlctl jobs")


async def choose(source: Backend, job: Job, selection: Selection, *, irreversible: bool = False) -> Sequence[Worker]:
    """The workers that the selection means; all of them where it is empty.

    `irreversible`: a computed map of ranks is refused. Raises NothingMatched (exit 3).
    """
    if not job.workers:
        raise NothingMatched(f"job {job.name} has no workers", f"atlctl ps {job.name}")
    if selection.empty:
        selection = replace(selection, all=True)
    ranks: RankMap | None = None
    if selection.ranks:
        ranks = await source.ranks(job)
        if ranks is not None:
            if ranks.guess and irreversible:
                raise AtlctlError(f"where ranks live is only a guess ({ranks.source})", "select workers with -w")
            guess = ", a guess" if ranks.guess else ""
            say.note(f"ranks to workers by {ranks.source}{guess}")
    return resolve(selection, job, ranks)
