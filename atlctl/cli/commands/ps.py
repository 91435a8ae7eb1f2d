"""`atlctl ps`: a job's workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from atlctl.cli import options, say
from atlctl.cli.runtime import context
from atlctl.i18n import Message
from atlctl.jobs.model import State

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.jobs.model import Job, Worker
    from atlctl.jobs.selection import Selection


TEXT = Message("Also spelled 'atlctl workers'.")
EXAMPLES = Message(
    """\
atlctl ps train-7
atlctl ps train-7 --failed -o wide
atlctl ps train-7 --watch"""
)


@options.selecting
async def command(
    argument: options.Job = None,
    option: options.JobOption = None,
    selection: options.Selected = options.NO_SELECTION,
    watch: options.Watch = False,
    output: Annotated[str, options.output("table", "wide", "json", "yaml", "name")] = "table",
) -> int:
    from atlctl.cli.target import backend, find_job
    from atlctl.cli.watch import show

    source = backend(argument, option)
    known = [await find_job(source, argument, option, reads_only=True)]
    said: set[str] = set()

    async def look() -> tuple[str, bool]:
        job = known.pop() if known else await source.get_job(name)
        shown = await _render(source, job, selection, output, said)
        return shown, not any(worker.state.active for worker in job.workers)

    name = known[0].name
    await show(look, source, output, watch=watch)
    return 0


async def _render(source: Backend, job: Job, selection: Selection, output: str, said: set[str]) -> str:
    """`said`: notes on stderr, each of them once."""
    from atlctl.backends.base import Looking
    from atlctl.cli.evidence import held
    from atlctl.cli.evidence.recorded import last_steps
    from atlctl.cli.target import choose
    from atlctl.cli.views import workers_table
    from atlctl.render.sanitize import clean
    from atlctl.render.streams import note_text

    with say.doing(Message("looking at the workers of job {job}", job=job.name)):
        job = await source.look(job) if isinstance(source, Looking) else await held.look(source, job)
    # A job that waits or sleeps has no worker, and is worth a look all the same.
    workers = await choose(source, job, selection, looked=True) if job.workers or not selection.empty else ()
    steps = last_steps(job)
    if output in ("json", "yaml"):
        return _document(job, workers, steps)
    if output == "name":
        return "".join(f"{clean(worker.name)}\n" for worker in workers)
    missing = job.missing if selection.empty or selection.all else ()
    streams = context().streams
    table = workers_table(workers, missing, streams, output == "wide", steps)
    if not job.reason or job.state not in (State.PENDING, State.QUEUED, State.SUSPENDED):
        return table
    note = Message("job {job} is {state}", job=job.name, state=say.state(job.state, job.reason))
    if job.message:
        note = Message("{what}: {why}", what=note, why=job.message)
    if streams.stdout_tty:  # below the table, where --watch draws over it
        return f"{table}{note_text(note, streams.stdout_color, streams.width)}\n"
    if note not in said:
        say.note(note)
        said.add(note)
    return table


def _document(job: Job, workers: Sequence[Worker], steps: Mapping[str, tuple[int, float]]) -> str:
    from atlctl.cli.views import job_data, worker_data

    def shown(worker: Worker) -> dict[str, Any]:
        if not steps:
            return worker_data(worker)
        step, age = steps.get(worker.name, (None, None))
        return {**worker_data(worker), "step": step, "step_age": None if age is None else round(age, 1)}

    return say.as_document({"job": job_data(job), "workers": list(map(shown, workers))})
