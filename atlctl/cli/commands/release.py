"""`atlctl release`: let the kept workers of a job go; each wrapper exits with the code of its last attempt."""

from __future__ import annotations

from atlctl.cli import options, say
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NothingMatched
from atlctl.jobs.naming import fold_names

#: Seconds for the answers of all workers.
_SECONDS = 30.0

TEXT = Message(
    "For jobs of 'atlctl run' whose workers are kept, by its --hold or by 'atlctl stop --keep'. A worker whose command "
    "still runs is not held when it ends."
)
EXAMPLES = Message(
    """\
atlctl release
atlctl release train-7"""
)


async def command(argument: options.OwnJob = None, option: options.JobOption = None) -> int:
    from atlctl.backends.hosts.records import RUN
    from atlctl.backends.hosts.ssh import SshBackend
    from atlctl.cli.target import backend, find_job, with_wrappers

    source = backend(argument, option)
    job = await find_job(source, argument, option, reads_only=False, plan=True)
    source, job = await with_wrappers(source, job)
    if not isinstance(source, SshBackend) or job.kind != RUN:
        raise NothingMatched(
            Message("job {job} was not started with 'atlctl run'", job=job.name),
            Message("start the command of each worker with: {command}", command="atlctl run -- CMD"),
        )
    names = [worker.name for worker in job.workers]
    answers = await source.ask_wrappers(job, names, "release", {}, _SECONDS)
    for name, answer in answers.items():
        if isinstance(answer, AtlctlError):
            say.warning(Message("{worker}: {why}", worker=name, why=answer.message))
    done = [name for name, answer in answers.items() if not isinstance(answer, AtlctlError)]
    if done:
        say.line(Message("released: {workers}", workers=fold_names(done)))
    if len(done) < len(names):
        raise AtlctlError(
            Message("not released: {workers}", workers=fold_names(name for name in names if name not in done)),
            Message("look: {command}", command=f"atlctl ps {job.name}"),
        )
    return 0
