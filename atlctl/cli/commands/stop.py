"""`atlctl stop`: the plan, the question, the end of the workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async
from atlctl.jobs.errors import AtlctlError, ExitCode

if TYPE_CHECKING:
    from atlctl.backends.base import StopResult
    from atlctl.jobs.model import Job, Worker
    from atlctl.jobs.selection import Selection

GRACE_SECONDS = 10.0


def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    all_workers: options.AllWorkers = False,
    workers: options.Workers = None,
    rank: options.Rank = None,
    role: options.Role = None,
    failed: options.Failed = False,
    exclude: options.Exclude = None,
    grace: Annotated[float, options.duration("--grace", zero=True)] = GRACE_SECONDS,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    selection = options.selection(
        all_workers=all_workers, workers=workers, rank=rank, role=role, failed=failed, exclude=exclude
    )
    return run_async(lambda: _stop(job, job_option, selection, grace, yes, dry_run, output))


async def _stop(
    argument: str | None, option: str | None, selection: Selection, grace: float, yes: bool, dry_run: bool, output: str
) -> int:
    from atlctl.cli.prompt import confirm
    from atlctl.cli.target import backend, choose, find_job

    source = backend()
    job = await find_job(source, argument, option, reads_only=False)
    workers = await choose(source, job, selection, irreversible=True)
    running = [worker for worker in workers if worker.state.active]
    if not running:
        say.line(f"job {job.name} is {job.state}: nothing to stop")
        _report(job, [], dry_run, output)
        return 0
    for text in _plan(job, workers, running, grace):
        say.line(text)
    if dry_run:
        say.note("dry run: nothing was stopped")
        _report(job, [], dry_run, output)
        return 0
    if not yes and not confirm(f"Stop {_what(job, workers, running)}?"):
        raise AtlctlError("nothing was stopped")
    if _is_inside(job, running):
        say.warning("this terminal runs inside a worker that is stopped: it ends, too")
        context().writer.flush(1.0)
    results = await source.stop(job, running, grace)
    _report(job, results, dry_run, output)
    left = [result for result in results if result.how == "not-stopped"]
    if left:
        names = ", ".join(result.worker for result in left)
        raise AtlctlError(f"not stopped: {names}", f"look at it: atlctl ps {job.name}; a second stop is safe")
    return int(ExitCode.OK)


def _is_inside(job: Job, running: Sequence[Worker]) -> bool:
    from atlctl.backends.local.backend import current_worker

    return current_worker() in [(job.name, worker.name) for worker in running]


def _what(job: Job, workers: Sequence[Worker], running: Sequence[Worker]) -> str:
    from atlctl.jobs.naming import fold_names

    whole = len(workers) == len(job.workers)
    return f"job {job.name}" if whole else f"{fold_names(w.name for w in running)} of job {job.name}"


def _plan(job: Job, workers: Sequence[Worker], running: Sequence[Worker], grace: float) -> list[str]:
    from atlctl.jobs.naming import fold_names
    from atlctl.render.table import rfc3339

    since = f", since {rfc3339(job.created)}" if job.created is not None else ""
    return [
        f"stops {_what(job, workers, running)} ({job.kind}, {job.state}{since}, uid {job.uid})",
        f"  workers: {fold_names(worker.name for worker in running)} ({len(running)} of {job.expected})",
        f"  how: SIGTERM to each worker's process group, after {grace:g} s SIGKILL to all that is left of it",
        f"  kept: logs and exit codes, until 'atlctl local rm {job.name}'; not reversible: the processes are gone",
    ]


def _report(job: Job, results: Sequence[StopResult], dry_run: bool, output: str) -> None:
    from atlctl.jobs.naming import fold_names

    if output == "json":
        data = [
            {"worker": r.worker, "how": r.how, "processes": r.processes, "reason": r.reason or None} for r in results
        ]
        say.document({"job": job.name, "uid": job.uid, "dry_run": dry_run, "workers": data})
        return
    texts = {
        "terminated": "ended after SIGTERM",
        "killed": "killed after the grace period",
        "already-ended": "had ended already",
        "not-stopped": "NOT stopped",
    }
    for how, text in texts.items():
        found = [result for result in results if result.how == how]
        if found:
            count = sum(result.processes for result in found)
            processes = f", {count} process{'' if count == 1 else 'es'}" if count else ""
            say.out(f"{text}: {fold_names(result.worker for result in found)} ({len(found)}{processes})\n")
