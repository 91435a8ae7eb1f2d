"""`atlctl rerun`: start the command of a job's kept workers again, or another one, on all of them or on none."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlctl.cli import options, say
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NothingMatched
from atlctl.jobs.naming import fold_names
from atlctl.render.palette import Tone, Toned

if TYPE_CHECKING:
    from atlctl.backends.base import Argv
    from atlctl.backends.hosts.backend import SupervisedBackend
    from atlctl.jobs.model import Job

BEHIND = "cmd"

TEXT = Message(
    "For jobs of 'atlctl run' whose workers are kept, by its --hold or by 'atlctl stop --keep', and for ended jobs of "
    "'atlctl local run' and 'atlctl ssh run'. Each worker starts the command in its original environment and folder, "
    "as a new attempt with a new log: on all workers or on none."
)
EXAMPLES = Message(
    """\
atlctl rerun                     # the same command, after its script was mended
atlctl rerun train-7 --dry-run
atlctl rerun -- bash launch_ddp.sh mended.py"""
)


async def command(
    argument: options.OwnJob = None,
    cmd: Annotated[
        list[str] | None,
        typer.Argument(metavar="CMD", help=Message("behind --: another command (default: the same)")),
    ] = None,
    option: options.JobOption = None,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    from atlctl.backends.base import Argv
    from atlctl.backends.hosts.backend import SupervisedBackend
    from atlctl.backends.hosts.records import RUN
    from atlctl.cli.commands.stop import described, tell_facts
    from atlctl.cli.prompt import confirm
    from atlctl.cli.target import backend, find_job, stated, with_wrappers

    source = backend(argument, option)
    found = await find_job(source, argument, option, reads_only=False, plan=True)
    source, job = await with_wrappers(source, found)
    if not isinstance(source, SupervisedBackend):
        raise not_of_run(job)
    names, argv = [worker.name for worker in job.workers], Argv(tuple(cmd)) if cmd else None
    with say.doing(Message("asking the workers of job {job}", job=job.name)):
        ready = await _all(source, job, argv, dry_run=True)
    what = Message("job {job}", job=job.name)
    head = Message("starts {what} again", what=what)
    say.line(Toned(head.filled(what=described(what, job, stated(argument, option))), Tone.STRONG, head), 2)
    lines = {shlex.join(map(str, one.get("argv", ()))) for one in ready.values()}
    folders = {str(one.get("chdir", "")) for one in ready.values()}
    attempt = max((one["attempt"] for one in ready.values() if isinstance(one.get("attempt"), int)), default=0)
    as_now = Message("variables are those of the first start; limits, mounts and temporary files are those of now")
    tell_facts(
        (
            ("workers", fold_names(names)),
            ("how", Message("attempt {number}: {command}", number=attempt, command="; ".join(sorted(lines)))),
            ("where", fold_names(folders)),
            ("kept", Message("the log of the attempt before: {command}", command=f"atlctl logs {job.name} --previous")),
            *(() if job.kind == RUN else (("note", as_now),)),
        )
    )
    if not dry_run:
        if not yes:
            confirm(Message("Start {what} again?", what=what), Message("nothing was started"))
        with say.doing(Message("starting the workers")):
            await _all(source, job, argv, dry_run=False)
        say.line(Message("started: {workers}", workers=fold_names(names)))
    else:
        say.note(Message("dry run: nothing was started"))
    if output == "json":
        say.document({"job": job.name, "uid": job.uid, "dry_run": dry_run, "attempt": attempt, "workers": names})
    return 0


def not_of_run(job: Job) -> NothingMatched:
    return NothingMatched(
        Message("job {job} was not started with 'atlctl run'", job=job.name),
        Message("start the command of each worker with: {command}", command="atlctl run -- CMD"),
    )


async def _all(source: SupervisedBackend, job: Job, argv: Argv | None, *, dry_run: bool) -> dict[str, dict[str, Any]]:
    """The answers of all workers. Raises AtlctlError unless every one agrees."""
    answers = await source.rerun(job, argv, dry_run=dry_run)
    refused = [(name, answer.message) for name, answer in answers.items() if isinstance(answer, AtlctlError)]
    if refused:
        reasons = "; ".join(f"{who}: {why}" for who, why in say.by_reason(refused))
        raise AtlctlError(
            Message("nothing was started: {why}", why=reasons)
            if dry_run
            else Message("not started everywhere: {why}", why=reasons),
            Message("end what runs, and keep the workers: {command}", command=f"atlctl stop --keep {job.name}"),
        )
    return {name: answer for name, answer in answers.items() if not isinstance(answer, AtlctlError)}
