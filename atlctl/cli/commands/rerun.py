"""`atlctl rerun`: start the command of a job's kept workers again, or another one, on all of them or on none."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from atlctl.cli import options, say
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, UsageError
from atlctl.jobs.naming import fold_names
from atlctl.render.palette import Tone, Toned

if TYPE_CHECKING:
    from atlctl.backends.base import Argv, Backend
    from atlctl.jobs.model import Job

BEHIND = "cmd"

TEXT = Message(
    "For jobs of 'atlctl run' whose workers are kept, by its --hold or by 'atlctl stop --keep', for pods that are kept "
    "without it, and for ended jobs of 'atlctl local run' and 'atlctl ssh run'. Each worker starts the command in its "
    "original environment and folder, as a new attempt with a new log (in pods: in the pod's log): on all workers or "
    "on none."
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
    from atlctl.cli.commands.stop import described, tell_facts
    from atlctl.cli.prompt import confirm
    from atlctl.cli.target import backend, find_job, stated, with_wrappers

    source = backend(argument, option)
    found = await find_job(source, argument, option, reads_only=False, plan=True)
    source, job = await with_wrappers(source, found)
    names, argv = [worker.name for worker in job.workers], Argv(tuple(cmd)) if cmd else None
    again = source.rerun if isinstance(source, SupervisedBackend) else _in_pods(source)
    with say.doing(Message("asking the workers of job {job}", job=job.name)):
        ready = _agreed(job, await again(job, argv, dry_run=True), Message("nothing was started: {why}"))
    if any(one.get("argv") is None for one in ready.values()):
        raise UsageError(
            Message("nothing was started: the command is not known, as 'atlctl stop --keep' has not ended it"),
            Message("name the command: {command}", command=f"atlctl rerun {job.name} -- CMD"),
        )
    what = Message("job {job}", job=job.name)
    head = Message("starts {what} again", what=what)
    say.line(Toned(head.filled(what=described(what, job, stated(argument, option))), Tone.STRONG, head), 2)
    lines = {shlex.join(map(str, one.get("argv", ()))) for one in ready.values()}
    folders = {str(one.get("chdir", "")) for one in ready.values()}
    attempt = max((one["attempt"] for one in ready.values() if isinstance(one.get("attempt"), int)), default=0)
    tell_facts(
        (
            ("workers", fold_names(names)),
            ("how", Message("attempt {number}: {command}", number=attempt, command="; ".join(sorted(lines)))),
            ("where", fold_names(folders)),
            *_facts(source, job, ready),
        )
    )
    if not dry_run:
        if not yes:
            confirm(Message("Start {what} again?", what=what), Message("nothing was started"))
        with say.doing(Message("starting the workers")):
            _agreed(job, await again(job, argv, dry_run=False), Message("not started everywhere: {why}"))
        say.line(Message("started: {workers}", workers=fold_names(names)))
    else:
        say.note(Message("dry run: nothing was started"))
    if output == "json":
        say.document({"job": job.name, "uid": job.uid, "dry_run": dry_run, "attempt": attempt, "workers": names})
    return 0


def _facts(source: Backend, job: Job, ready: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The place of the log, and the limits of the restoration."""
    from atlctl.backends.hosts.records import RUN

    if source.name != "kubernetes":
        yield "kept", Message("the log of the attempt before: {command}", command=f"atlctl logs {job.name} --previous")
    logs = {name: str(one["log"]) for name, one in ready.items() if one.get("log")}
    if logs:
        text = Message("the output is not in the log of {workers}, but there in {path}")
        yield "note", text.filled(workers=fold_names(logs), path=next(iter(logs.values())))
    if any(one.get("from") == "container" for one in ready.values()):
        yield "note", Message("variables are those of the container's first process, without those of a launch script")
    elif job.kind != RUN:
        yield "note", Message("variables are those of the first start")
    if job.kind != RUN:
        yield "note", Message("limits, mounts and temporary files are those of now")


class Again(Protocol):
    """See `SupervisedBackend.rerun`."""

    async def __call__(
        self, job: Job, argv: Argv | None, *, dry_run: bool
    ) -> Mapping[str, dict[str, Any] | AtlctlError]: ...


def _in_pods(source: Backend) -> Again:
    """As `SupervisedBackend.rerun`, for the containers of a cluster."""
    from atlctl.backends.hosts.starting import rerun_in_place
    from atlctl.backends.kubernetes.stopping import noted_as

    asked: dict[str, dict[str, Any]] = {}

    async def again(job: Job, argv: Argv | None, *, dry_run: bool) -> Mapping[str, dict[str, Any] | AtlctlError]:
        executor = source.executor(job)
        own = {worker.name: noted_as(worker) for worker in job.workers}
        try:
            asked.update(await rerun_in_place(executor, job, own, argv, None if dry_run else asked))
        finally:
            await executor.aclose()
        return asked

    return again


def _agreed(job: Job, answers: Mapping[str, dict[str, Any] | AtlctlError], told: Message) -> dict[str, dict[str, Any]]:
    """The answers of all workers. Raises AtlctlError with the message `told` unless every one agrees."""
    refused = [(name, answer.message) for name, answer in answers.items() if isinstance(answer, AtlctlError)]
    if refused:
        raise AtlctlError(
            told.filled(why="; ".join(f"{who}: {why}" for who, why in say.by_reason(refused))),
            Message("end what runs, and keep the workers: {command}", command=f"atlctl stop --keep {job.name}"),
        )
    return {name: answer for name, answer in answers.items() if not isinstance(answer, AtlctlError)}
