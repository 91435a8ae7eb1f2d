"""`atlctl events`: the cluster's events about a job, its pods and nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from atlctl.cli import options, say
from atlctl.cli.runtime import context
from atlctl.i18n import Message
from atlctl.jobs.errors import UsageError
from atlctl.render.palette import Tone, Toned

if TYPE_CHECKING:
    from atlctl.backends.kubernetes.events import JobEvent
    from atlctl.jobs.model import Job
    from atlctl.render.streams import Streams


@runtime_checkable
class HasEvents(Protocol):
    """A backend whose platform keeps events."""

    async def events(self, job: Job) -> Sequence[JobEvent]: ...


EXAMPLES = Message(
    """\
atlctl events train-7
atlctl events train-7 -o json"""
)


async def command(
    argument: options.Job = None,
    option: options.JobOption = None,
    output: Annotated[str, options.output("table", "json", "yaml")] = "table",
) -> int:
    from atlctl.cli.target import backend, find_job
    from atlctl.cli.views import job_data

    source = backend(argument, option)
    if not isinstance(source, HasEvents):
        raise UsageError(
            Message("the backend '{backend}' keeps no events", backend=source.name),
            Message("output of its workers: atlctl logs"),
        )
    job = await find_job(source, argument, option, reads_only=True)
    with say.doing(Message("reading the events")):
        events = await source.events(job)
    if output in ("json", "yaml"):
        say.document({"job": job_data(job), "events": [event_data(event) for event in events]})
    elif events:
        say.out(events_table(events, context().streams))
    else:
        say.note(Message("no events of {job}: a cluster keeps them for an hour, as a rule", job=job.name))
    return 0


def events_table(events: Sequence[JobEvent], streams: Streams) -> str:
    """Oldest first, so that the latest is next to the prompt."""
    from atlctl.render.table import Column, Table, render_table

    now = time.time()
    terminal = streams.stdout_tty
    columns = [
        Column(Message("LAST SEEN"), "right" if terminal else "left"),
        Column(Message("TYPE"), spare=2),
        Column(Message("REASON")),
        Column(Message("OBJECT"), spare=1),
        Column(Message("COUNT"), "right", spare=3),
        Column(Message("MESSAGE"), least=30),
    ]
    rows: list[list[str | Toned]] = [
        [
            say.moment(event.time, streams, now),
            Toned(event.type, Tone.WARN if event.type == "Warning" else Tone.DIM),
            event.reason,
            _object(event),
            str(event.count),
            event.message,
        ]
        for event in events
    ]
    return render_table(Table(columns, rows), streams, False)


def _object(event: JobEvent) -> str:
    """Whose event it is: a worker's, a node's, or the job's own."""
    if event.worker is not None:
        return event.worker
    return Message("node {name}", name=event.node) if event.kind == "Node" else event.kind or "-"


def event_data(event: JobEvent) -> dict[str, Any]:
    """An event as `-o json` shows it. The time is RFC 3339, UTC."""
    from atlctl.render.table import rfc3339

    return {
        "time": None if event.time is None else rfc3339(event.time, "microseconds"),
        "type": event.type,
        "reason": event.reason,
        "worker": event.worker,
        "node": event.node,
        "kind": event.kind,
        "count": event.count,
        "message": event.message,
    }
