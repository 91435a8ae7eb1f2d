"""`atlctl stop`: the plan, the question, the evidence, the end of the job or of its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async
from atlctl.jobs.errors import AtlctlError, ExitCode, UsageError

if TYPE_CHECKING:
    from atlctl.backends.base import Backend, Plan, StopRequest, StopResult
    from atlctl.cli.evidence.saving import Keeping
    from atlctl.jobs.model import Job, Worker
    from atlctl.jobs.selection import Selection

GRACE_SECONDS = 10.0
TIMEOUT_SECONDS = 120.0
#: Lines about what was not stopped, or was not saved.
MAX_LINES = 20


def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    all_workers: options.AllWorkers = False,
    workers: options.Workers = None,
    rank: options.Rank = None,
    role: options.Role = None,
    failed: options.Failed = False,
    exclude: options.Exclude = None,
    delete: Annotated[bool, typer.Option("--delete")] = False,
    keep_pods: Annotated[bool, typer.Option("--keep-pods")] = False,
    out: Annotated[str | None, typer.Option("--out", metavar="DIR")] = None,
    no_save: Annotated[bool, typer.Option("--no-save")] = False,
    grace: Annotated[float, options.duration("--grace", zero=True)] = GRACE_SECONDS,
    timeout: Annotated[float, options.duration("--timeout")] = TIMEOUT_SECONDS,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    from atlctl.backends.base import StopRequest

    if out is not None and no_save:
        raise UsageError("--out and --no-save exclude each other", "leave one of them out")
    selection = options.selection(
        all_workers=all_workers, workers=workers, rank=rank, role=role, failed=failed, exclude=exclude
    )
    request = StopRequest(delete, keep_pods, grace)
    return run_async(
        lambda: _stop(job, job_option, selection, request, (out, no_save), timeout, (yes, dry_run), output)
    )


async def _stop(
    argument: str | None,
    option: str | None,
    selection: Selection,
    request: StopRequest,
    wanted: tuple[str | None, bool],
    timeout: float,
    how: tuple[bool, bool],
    output: str,
) -> int:
    from atlctl.cli.evidence import saving
    from atlctl.cli.patience import within
    from atlctl.cli.prompt import confirm
    from atlctl.cli.target import backend, choose, find_job

    yes, dry_run = how
    source = backend(argument, option)
    async with within(timeout):
        job = await find_job(source, argument, option, reads_only=False)
        workers = job.workers if selection.empty else await choose(source, job, selection, irreversible=True)
        plan = await source.plan_stop(job, workers, request)
    if plan.nothing:
        say.line(f"{plan.nothing}: nothing to stop")
        _report(plan, [], dry_run, output)
        return 0
    own = await source.current_worker(job)
    inside = own is not None and plan.ends_terminal and own in {worker.name for worker in plan.workers}
    what = _what(job, workers, plan.workers)
    say.line(headline("stops", what, job))
    for label, text in plan.facts:
        say.line(f"  {label}: {text}")
    if inside:
        say.warning("the stop ends this terminal, too: it runs in one of these workers")
    keeping = saving.keeping(plan, *wanted, inside=inside)
    for label, text in keeping.facts:
        say.line(f"  {label}: {text}")
    if dry_run:
        await source.check(plan)
        say.note("dry run: nothing was stopped")
        _report(plan, [], dry_run, output)
        return 0
    if not yes and not confirm(f"Stop {what}{plan.question and f' ({plan.question})'}?"):
        raise AtlctlError("nothing was stopped")
    saved = await saving.keep(source, job, keeping)
    results = await _carry_out(source, plan, timeout)
    _report(plan, results, dry_run, output, saved)
    return _code(plan, results)


async def _carry_out(source: Backend, plan: Plan, timeout: float) -> Sequence[StopResult]:
    """The request is the last thing that is done: all that was said before is out, since this terminal may end."""

    def told(text: str) -> None:
        say.line(text)
        context().on_first = lambda: say.line("interrupted; what was asked for goes on without atlctl")

    context().writer.flush(5.0)
    try:
        return await source.carry_out(plan, timeout, told)
    finally:
        context().on_first = None


def headline(verb: str, what: str, job: Job) -> str:
    """The first line of a plan."""
    from atlctl.render.table import rfc3339

    since = f", since {rfc3339(job.created)}" if job.created is not None else ""
    return f"{verb} {what} ({job.kind}, {job.state}{since}, uid {job.uid or 'unknown'})"


def _what(job: Job, workers: Sequence[Worker], running: Sequence[Worker]) -> str:
    from atlctl.jobs.naming import fold_names

    whole = len(workers) == len(job.workers)
    return f"job {job.name}" if whole else f"{fold_names(w.name for w in running)} of job {job.name}"


def _code(plan: Plan, results: Sequence[StopResult]) -> int:
    from atlctl.jobs.naming import fold_names

    left = [result for result in results if result.how == "not-stopped"]
    for result in left[:MAX_LINES]:
        if result.reason:
            say.line(f"  {result.worker}: {result.reason}")
    if len(left) > MAX_LINES:
        say.line(f"  and {len(left) - MAX_LINES} more")
    if left:
        names = fold_names(result.worker for result in left)
        raise AtlctlError(f"not stopped: {names}", f"look at it: atlctl ps {plan.job.name}; a second stop is safe")
    return int(ExitCode.OK)


def _report(
    plan: Plan, results: Sequence[StopResult], dry_run: bool, output: str, saved: Keeping | None = None
) -> None:
    from atlctl.cli.evidence.saving import as_data
    from atlctl.jobs.naming import fold_names

    job = plan.job
    if output == "json":
        data = [
            {"worker": r.worker, "how": r.how, "processes": r.processes, "reason": r.reason or None} for r in results
        ]
        whole = {"job": job.name, "uid": job.uid, "dry_run": dry_run, "workers": data}
        more = {"namespace": job.namespace, "mechanism": plan.how, "resume": _undo(plan), "saved": as_data(saved)}
        say.document({**whole, **more})
        return
    texts = {
        "terminated": "ended after SIGTERM",
        "killed": "killed after the grace period",
        "already-ended": "had ended already",
        "gone": "pods are gone",
        "not-stopped": "NOT stopped",
    }
    for how, text in texts.items():
        found = [result for result in results if result.how == how]
        if found:
            count = sum(result.processes for result in found)
            processes = f", {count} process{'' if count == 1 else 'es'}" if count else ""
            say.out(f"{text}: {fold_names(result.worker for result in found)} ({len(found)}{processes})\n")
    if results and (undo := _undo(plan)):
        say.out(f"resume: {undo}\n")


def _undo(plan: Plan) -> str | None:
    return plan.undo or None
