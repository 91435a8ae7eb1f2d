"""`atlctl ssh rm`: remove ended jobs of hosts, with their logs and folders there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import State
from atlctl.jobs.naming import fold_names
from atlctl.jobs.statedir import state_dir

if TYPE_CHECKING:
    from atlctl.backends.ssh.launched.records import Record
    from atlctl.jobs.model import Job


def command(
    names: Annotated[list[str], typer.Argument(metavar="JOB")],
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
) -> int:
    return run_async(lambda: _remove(list(dict.fromkeys(names)), yes, dry_run))


async def _remove(names: list[str], yes: bool, dry_run: bool) -> int:
    from atlctl.backends.ssh.backend import SshBackend
    from atlctl.backends.ssh.executor import SshExecutor
    from atlctl.backends.ssh.launched import records, stopping
    from atlctl.cli import hosts
    from atlctl.cli.prompt import confirm
    from atlctl.fanout.retry import forget, job_key

    found = [records.load(name) for name in names]
    connections = hosts.connections()
    context().closers.append(connections.aclose)
    source = SshBackend(connections, ())
    jobs = [await source.get_job(record.name) for record in found]
    for record, job in zip(found, jobs, strict=True):
        _must_have_ended(job)
        where = fold_names(record.hosts)
        say.line(f"removes {job.name} ({job.state}): its logs and records on {where}, and what is noted of it here")
    if dry_run:
        say.note("dry run: nothing was removed")
        return 0
    if not yes and not confirm("Remove?"):
        raise AtlctlError("nothing was removed")
    for record, job in zip(found, jobs, strict=True):
        errors = await stopping.remove(SshExecutor(connections, record.hosts), record)
        if errors:
            raise _left(record, errors)
        forget(state_dir(), job_key(job))
        if not context().quiet:
            say.out(f"{record.name}\n")
    return 0


def _must_have_ended(job: Job) -> None:
    unknown = [worker for worker in job.workers if worker.state is State.UNKNOWN]
    if unknown:
        names = fold_names(worker.name for worker in unknown)
        raise AtlctlError(
            f"job {job.name}: whether it still runs on {names} is not known: {unknown[0].reason}",
            f"where a host is gone for good, forget the job: rm -r {os.path.join(state_dir(), 'ssh', job.name)}",
        )
    if any(worker.state.active for worker in job.workers):
        raise AtlctlError(f"job {job.name} is still running", f"stop it first: atlctl stop {job.name}")


def _left(record: Record, errors: dict[str, AtlctlError]) -> AtlctlError:
    first = next(iter(errors.values()))
    return AtlctlError(f"job {record.name} is not removed from {fold_names(errors)}: {first.message}", first.hint)
