"""`atlctl jobs`: the jobs in sight."""

from __future__ import annotations

from typing import Annotated

from atlctl.cli import say
from atlctl.cli.options import output
from atlctl.cli.runtime import context, run_async


def command(output: Annotated[str, output("table", "wide", "json", "yaml", "name")] = "table") -> int:
    return run_async(lambda: _list(output))


async def _list(output: str) -> int:
    from atlctl.cli.target import backend
    from atlctl.cli.views import error_data, job_data, jobs_table
    from atlctl.render.sanitize import clean

    listing = await backend().list_jobs()
    jobs = listing.jobs
    for problem in listing.problems:
        say.warning(f"{problem.message}; {problem.hint}" if problem.hint else problem.message)
    if output in ("json", "yaml"):
        say.document({"jobs": [job_data(job) for job in jobs]}, [error_data(problem) for problem in listing.problems])
    elif output == "name":
        say.out("".join(f"{clean(job.name)}\n" for job in jobs))
    elif jobs:
        say.out(jobs_table(jobs, context().streams, output == "wide"))
    elif not listing.problems:
        say.note("no jobs here; start one: atlctl local run --workers 2 -- CMD, or try: atlctl demo")
    return max((problem.exit_code for problem in listing.problems), default=0)
