"""`atlctl use`: the current job of this terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import current, options, say
from atlctl.cli.runtime import context, run_async
from atlctl.i18n import COMMA, Message, joined, translated
from atlctl.jobs.errors import NothingMatched
from atlctl.render.sanitize import clean

if TYPE_CHECKING:
    from atlctl.backends.base import Backend

TEXT = Message(
    "Commands in this terminal that name no job then mean this one. JOB, -j and ATLCTL_JOB come first; the job of the "
    "worker that atlctl runs in comes after. If a new job takes the name, commands refuse it. The choice ends with "
    "the terminal."
)
_NONE = Message("this terminal has no current job")
EXAMPLES = Message(
    """\
atlctl use train-7
atlctl use train-7 -n ml-team --context gpu-cluster
atlctl use                         # which job it is
atlctl use -                       # forget it"""
)


def command(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help=Message("the job, or - to forget it (default: show it)"))
    ] = None,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    if job == "-":
        current.forget()
        _tell(None, output)
    elif job is None:
        used = current.load()
        if used is None:
            choose = Message("choose one: {command}", command="atlctl use JOB")
            raise NothingMatched(_NONE, choose)
        _tell(used, output)
    else:
        run_async(lambda: _use(job, output))
    return 0


async def _use(name: str, output: str) -> None:
    from atlctl.cli.target import backend

    asked = context()
    source = backend(name)
    job = await source.get_job(name)
    found = {
        "backend": source.name,
        "kubeconfig": current.place("kubeconfig", asked.kubeconfig),
        "context": await _context(source),
        "namespace": job.namespace,
        "hostfile": current.place("hostfile", asked.hostfile),
    }
    used = current.Used(job.reference, job.uid, {option: value for option, value in found.items() if value is not None})
    current.save(used)
    _tell(used, output)


async def _context(source: Backend) -> str | None:
    """The kubeconfig's context, so that no change of the current one leads to another cluster."""
    if source.name != "kubernetes":
        return None  # and what a cluster needs is not loaded
    from atlctl.backends.kubernetes.backend import KubernetesBackend

    return (await source.api()).access.context if isinstance(source, KubernetesBackend) else None


def _tell(used: current.Used | None, output: str) -> None:
    if output == "json":
        say.document({"job": None if used is None else _data(used)})
        return
    if used is None:
        say.note(_NONE)
        return
    parts = [
        Message("context {name}", name=used.asked["context"]) if "context" in used.asked else None,
        Message("namespace {name}", name=used.asked["namespace"]) if "namespace" in used.asked else None,
        used.asked.get("hostfile"),
        Message("uid {uid}", uid=used.uid or Message("unknown")),
    ]
    where = joined((used.asked["backend"], *filter(None, parts)), COMMA)
    say.out(f"{clean(translated(Message('{job} ({where})', job=used.short, where=where)))}\n")
    stated = os.environ.get("ATLCTL_JOB")
    if stated and stated != used.short:
        say.note(Message("ATLCTL_JOB names job {job}, which comes first", job=stated))


def _data(used: current.Used) -> dict[str, str | None]:
    return {"name": used.short, "uid": used.uid, **{option: used.asked.get(option) for option in current.PLACE}}
