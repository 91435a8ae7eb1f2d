"""`atlctl resume`: takes back a stop that can be taken back."""

from __future__ import annotations

from typing import Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.commands.stop import TIMEOUT_SECONDS, described, tell_facts
from atlctl.i18n import Message, translated
from atlctl.jobs.errors import AtlctlError
from atlctl.render.palette import Tone, Toned

EXAMPLES = Message(
    """\
atlctl resume train-7
atlctl resume train-7 --dry-run"""
)


async def command(
    argument: Annotated[
        str | None, typer.Argument(metavar="JOB", help=Message("the job to resume; never guessed"))
    ] = None,
    option: options.JobOption = None,
    timeout: Annotated[
        float, options.duration("--timeout", help=Message("how long to wait for the job to resume (10, 1.5s, 2m, 1h)"))
    ] = TIMEOUT_SECONDS,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    from atlctl.cli.patience import within
    from atlctl.cli.prompt import confirm
    from atlctl.cli.target import backend, find_job, stated

    source = backend(argument, option)
    async with within(timeout):
        job = await find_job(source, argument, option, reads_only=False, plan=True)
        with say.doing(Message("planning to resume job {job}", job=job.name)):
            plan = await source.plan_resume(job)
    if plan.nothing:
        say.line(Message("{why}: nothing to resume", why=plan.nothing))
    else:
        what = Message("job {job}", job=job.name)
        question = Message("Resume {what}?", what=what)
        if plan.question:
            question = Message("Resume {what} ({where})?", what=what, where=plan.question)
        head = Message("resumes {what}", what=what)
        say.line(Toned(head.filled(what=described(what, job, stated(argument, option))), Tone.STRONG, head), 2)
        tell_facts(plan.facts)
        if dry_run:
            await source.check(plan)
            say.note(Message("dry run: nothing was resumed"))
        else:
            if not yes:
                confirm(question, Message("nothing was resumed"))
            with say.doing(Message("resuming job {job}", job=job.name), limit=timeout):
                results = await source.carry_out(plan, timeout, say.line)
            for result in results:
                raise AtlctlError(
                    Message("not resumed: {why}", why=result.reason),
                    Message("look at it: atlctl ps {job}", job=job.name),
                )
    done = not plan.nothing and not dry_run
    if output == "json":
        about = {"job": job.name, "uid": job.uid, "namespace": job.namespace, "dry_run": dry_run, "resumed": done}
        say.document({**about, "mechanism": plan.how, "stop": plan.undo or None})
    elif done:
        say.out(translated(Message("resumed: job {job}\n", job=job.name)))
    return 0
