"""`atlctl top`: GPUs, CPU and memory of all workers, live on a terminal, once elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, undisturbed
from atlctl.i18n import Message
from atlctl.jobs.errors import ExitCode, UsageError, fold_errors

if TYPE_CHECKING:
    from atlctl.cli.top.view import View
    from atlctl.cli.top.watching import Watch

#: A driver that is loaded for the question alone takes seconds for each GPU.
TIMEOUT_SECONDS = 20.0
INTERVAL_SECONDS = 3.0
#: Below that the samplers themselves would be what is seen.
_LEAST_SECONDS = 1.0
#: Rows of a terminal on which everything is shown.
_ENDLESS = 1 << 20
ORDERS = ("odd", "worker", "util", "power", "memory", "temp", "cpu")


TEXT = Message(
    "Refreshes on a terminal until q or Ctrl-C (? lists the keys); prints one table on a pipe, with --once and with "
    "-o json. Marks that end in '?' come from comparing a GPU with its peers. Workers without data are listed with the "
    "reason."
)
EXAMPLES = Message(
    """\
atlctl top train-7
atlctl top train-7 -w 0-3 --interval 10
atlctl top train-7 --sort util                 # the least busy GPUs on top
atlctl top train-7 --once                      # one table
atlctl top train-7 -o json"""
)


@options.selecting
async def command(
    argument: options.Job = None,
    option: options.JobOption = None,
    selection: options.Selected = options.NO_SELECTION,
    once: Annotated[bool, typer.Option("--once", help=Message("print the table once and exit"))] = False,
    interval: Annotated[
        float, options.duration("--interval", zero=True, help=Message("time between two refreshes (at least 1s)"))
    ] = INTERVAL_SECONDS,
    sort: Annotated[
        str,
        options.choice(
            "--sort",
            values=ORDERS,
            help=Message(
                "first: odd GPUs, the lowest util or power, or the highest memory, temp or cpu; worker: by index"
            ),
        ),
    ] = "odd",
    timeout: Annotated[
        float,
        options.duration(
            "--timeout", help=Message("time limit for each worker; live: for connecting to it (10, 1.5s, 2m, 1h)")
        ),
    ] = TIMEOUT_SECONDS,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    from atlctl.cli.target import backend, job_and_workers
    from atlctl.cli.top.watching import Watch

    if interval < _LEAST_SECONDS:
        hint = Message("use the default of {seconds:g} s, or: --interval {least:g}")
        raise UsageError(
            Message("--interval must be at least {seconds:g} s", seconds=_LEAST_SECONDS),
            hint.filled(seconds=INTERVAL_SECONDS, least=_LEAST_SECONDS),
        )
    source = backend(argument, option)
    job, chosen = await job_and_workers(source, argument, option, selection, timeout)
    watch = Watch(source, job, chosen, timeout)
    live = context().streams.stdout_tty and output == "table" and not once
    if live and any(worker.state.active for worker in chosen):
        from atlctl.cli.top.live import show

        with undisturbed():
            await show(watch, interval, sort)
        return ExitCode.OK
    await watch.look()
    return _once(watch, output, sort)


def _once(watch: Watch, output: str, sort: str) -> int:
    from atlctl.cli.top.view import judge, to_data

    views = watch.views
    errors = [view.error for view in views if view.error is not None]
    if output == "json":
        judged = judge(views)
        problems = [
            {"kind": view.error.kind, "worker": view.worker.name, "message": view.error.message, "hint": None}
            for view in views
            if view.error is not None
        ]
        workers = [to_data(view, judged[view.worker.name]) for view in views]
        say.document({"job": watch.job.name, "uid": watch.job.uid, "workers": workers}, problems)
    else:
        from atlctl.cli.top.table import Browsing, Picture, whole
        from atlctl.render.screen import Screen, ascii_only

        streams = context().streams
        if streams.stdout_tty:
            lines, _ = Picture(watch.job.name, views, None).page(Browsing(sort), (streams.width, _ENDLESS), keys=False)
            say.out(Screen(True, streams.stdout_color, ascii_only(os.environ)).draw(lines, streams.width, _ENDLESS))
        else:
            say.out("".join(f"{line}\n" for line in whole(views, sort)))
        _tell(views)
    return fold_errors(errors)


def _tell(views: Sequence[View]) -> None:
    """On stderr: workers without data and why, folded; workers without a GPU; lines that do not describe one."""
    from atlctl.cli.top.view import ALSO_SAID

    said: list[tuple[str, tuple[bool, str]]] = []
    for view in views:
        name = view.worker.name
        if view.error is not None:
            said.append((name, (True, view.error.message)))
            continue
        if view.gpus.devices:
            said.append((name, (True, Message("there are GPU devices, but no nvidia-smi"))))
        elif view.bare:
            said.append((name, (False, view.bare)))
        said += ((name, (True, ALSO_SAID.filled(line=line))) for line in view.readout.odd)
    say.about(said)
