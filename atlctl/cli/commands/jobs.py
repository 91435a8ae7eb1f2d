"""`atlctl jobs`: the jobs in sight."""

from __future__ import annotations

from typing import Annotated

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async
from atlctl.i18n import Message, joined
from atlctl.jobs.errors import UsageError

EXAMPLES = Message(
    """\
atlctl jobs
atlctl jobs -o name                # names only, for scripts
atlctl jobs -o json"""
)


def command(
    all_namespaces: options.AllNamespaces = False,
    output: Annotated[str, options.output("table", "wide", "json", "yaml", "name")] = "table",
) -> int:
    return run_async(lambda: _list(all_namespaces, output))


async def _list(everywhere: bool, output: str) -> int:
    from atlctl.cli.target import START_ONE, backend, not_for, remember
    from atlctl.cli.views import job_data, jobs_table
    from atlctl.render.jsonout import error_data
    from atlctl.render.sanitize import clean

    source = backend(of_job=False, everywhere=everywhere)
    if everywhere and source.name != "kubernetes":
        raise UsageError(not_for("--all-namespaces", source.name), Message("see: {command}", command="atlctl jobs -h"))
    listing = await source.list_jobs()
    jobs = listing.jobs
    remember(source, jobs, whole=not listing.problems, everywhere=everywhere)
    for problem in listing.problems:
        say.warning(joined((problem.message, problem.hint)) if problem.hint else problem.message)
    if output in ("json", "yaml"):
        say.document({"jobs": [job_data(job) for job in jobs]}, [error_data(problem) for problem in listing.problems])
    elif output == "name":
        say.out("".join(f"{clean(job.name)}\n" for job in jobs))
    elif jobs:
        say.out(jobs_table(jobs, context().streams, output == "wide", spread=everywhere))
    elif not listing.problems:
        none = Message("no jobs here")
        say.note(joined((none, START_ONE)) if source.name == "local" else none)
    return max((problem.exit_code for problem in listing.problems), default=0)
