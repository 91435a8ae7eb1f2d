"""Removing ended jobs of this machine or of hosts, after a question: `atlctl local rm`, `atlctl ssh rm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from atlctl.cli import say
from atlctl.cli.runtime import context
from atlctl.i18n import LIST, Message, joined
from atlctl.jobs.statedir import state_dir

if TYPE_CHECKING:
    from atlctl.backends.hosts.backend import SupervisedBackend


async def remove(source: SupervisedBackend, names: Sequence[str], *, yes: bool, dry_run: bool) -> int:
    """Remove what is left of these jobs, all of which must have ended. Raises AtlctlError."""
    from atlctl.cli.prompt import confirm
    from atlctl.fanout.retry import forget, job_key

    with say.doing(Message("looking at what is left of {jobs}", jobs=joined(names, LIST))):
        jobs = [await source.get_job(name) for name in dict.fromkeys(names)]
        left = [await source.left_of(job) for job in jobs]
    for job, what in zip(jobs, left, strict=True):
        say.line(Message("removes {job} ({state}): {what}", job=job.name, state=job.state.label, what=what), 2)
    if dry_run:
        say.note(Message("dry run: nothing was removed"))
        return 0
    if not yes:
        confirm(Message("Remove?"), Message("nothing was removed"))
    for job in jobs:
        with say.doing(Message("removing {job}", job=job.name)):
            await source.remove(job)
        forget(state_dir(), job_key(job))
        if not context().quiet:
            say.out(f"{job.name}\n")
    return 0
