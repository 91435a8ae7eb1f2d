"""`atlctl jobs`: the jobs in sight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from atlctl.cli import options, say
from atlctl.cli.runtime import context
from atlctl.i18n import Message, joined
from atlctl.jobs.errors import UsageError

if TYPE_CHECKING:
    from atlctl.backends.base import Listing

_NONE = Message("no jobs here")

EXAMPLES = Message(
    """\
atlctl jobs
atlctl jobs -o name                # names only, for scripts
atlctl jobs --watch
atlctl jobs -o json"""
)


async def command(
    everywhere: options.AllNamespaces = False,
    watch: options.Watch = False,
    output: Annotated[str, options.output("table", "wide", "json", "yaml", "name")] = "table",
) -> int:
    from atlctl.cli.target import START_ONE, backend, not_for, remember
    from atlctl.cli.watch import show

    source = backend(everywhere=everywhere)
    if everywhere and source.name != "kubernetes":
        raise UsageError(not_for("--all-namespaces", source.name), Message("see: {command}", command="atlctl jobs -h"))
    last: Listing | None = None

    async def look() -> tuple[str, bool]:
        """Warnings and notes are repeated only when they change."""
        nonlocal last
        listing, before = await source.list_jobs(), last
        last = listing
        remember(source, listing.jobs, whole=not listing.problems, everywhere=everywhere)
        if before is None or [str(problem) for problem in before.problems] != [str(one) for one in listing.problems]:
            for problem in listing.problems:
                say.warning(joined((problem.message, problem.hint)) if problem.hint else problem.message)
        if output in ("table", "wide") and not (listing.jobs or listing.problems) and (before is None or before.jobs):
            say.note(joined((_NONE, START_ONE)) if source.name == "local" else _NONE)
        return _rendered(listing, everywhere, output), False

    with say.doing(Message("listing the jobs")):
        await show(look, source, output, watch=watch)
    return max((problem.exit_code for problem in last.problems), default=0) if last else 0


def _rendered(listing: Listing, everywhere: bool, output: str) -> str:
    from atlctl.cli.views import job_data, jobs_table
    from atlctl.render.jsonout import error_data
    from atlctl.render.sanitize import clean

    jobs = listing.jobs
    if output in ("json", "yaml"):
        problems = [error_data(problem) for problem in listing.problems]
        return say.as_document({"jobs": [job_data(job) for job in jobs]}, problems)
    if output == "name":
        return "".join(f"{clean(job.name)}\n" for job in jobs)
    return jobs_table(jobs, context().streams, output == "wide", spread=everywhere) if jobs else ""
