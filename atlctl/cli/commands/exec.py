"""`atlctl exec`: one command on the selected workers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options
from atlctl.cli.runtime import context
from atlctl.i18n import Message, about, joined
from atlctl.jobs.errors import LEAVE_ONE_OUT, UsageError

if TYPE_CHECKING:
    from atlctl.cli.execute import Form


TEXT = Message(
    "Options end at the first word of CMD, which gets its own options untouched. Exit code: that of the command if "
    "one worker is selected; of several, 255 if any was lost, else 124 if any timed out, else the highest."
)
EXAMPLES = Message(
    """\
atlctl exec --all nvidia-smi -L
atlctl exec -j train-7 -w 0,2-5 -- ps -ef
atlctl exec --failed --gather dmesg            # equal outputs folded into one
atlctl exec --all -- sh -c 'df -h /data | tail -1'
atlctl exec -w 3 -i -- python3 - < probe.py    # with standard input"""
)


@options.selecting
async def command(
    cmd: Annotated[list[str] | None, typer.Argument(metavar="CMD", help=options.CMD)] = None,
    job: options.JobOption = None,
    selection: options.Selected = options.NO_SELECTION,
    stdin: Annotated[
        bool, typer.Option("-i", "--stdin", help=Message("send standard input to every selected worker"))
    ] = False,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, metavar="N", help=Message("how many workers to connect to at once"))
    ] = 64,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, metavar="N", help=Message("how many commands run at once (default: all)")),
    ] = None,
    timeout: options.Timeout = None,
    connect_timeout: options.ConnectTimeout = None,
    gather: Annotated[
        bool,
        typer.Option("--gather", help=Message("show equal outputs once, at the end, with the workers they came from")),
    ] = False,
    output_dir: Annotated[
        str | None,
        typer.Option(
            "--output-dir",
            metavar="DIR",
            help=Message(
                "write each worker's output to files in this folder (NAME.out, NAME.err) instead of showing it"
            ),
        ),
    ] = None,
    no_prefix: options.NoPrefix = False,
    raw: options.Raw = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed", help=Message("run the job's last command again on the workers on which it failed")
        ),
    ] = False,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    context().container = container
    from atlctl.cli.execute import Form, execute, retry
    from atlctl.fanout.engine import Limits

    form = Form(json=output == "json", gather=gather, folder=output_dir, prefix=not no_prefix, raw=raw)
    _check(form)
    limits = Limits(parallel, batch, timeout, connect_timeout)
    if retry_failed:
        if cmd or not selection.empty or selection.exclude:
            raise UsageError(
                Message(
                    "--retry-failed runs the last command again on the workers on which it failed; it takes "
                    "neither a command nor a selection"
                ),
                "atlctl exec --retry-failed",
            )
        return await retry(job, stdin, limits, form)
    if not cmd:
        raise UsageError(Message("no command to run"), "atlctl exec --all nvidia-smi")
    return await execute(job, selection, tuple(cmd), stdin, limits, form)


def _check(form: Form) -> None:
    asked = {"-o json": form.json, "--gather": form.gather, "--output-dir": form.folder is not None}
    chosen = [name for name, on in asked.items() if on]
    if len(chosen) > 1:
        raise UsageError(
            Message("{options} are two forms of the same output", options=joined(chosen, about("list", " and "))),
            Message("choose one"),
        )
    if form.raw and chosen:
        raise UsageError(Message("--raw means live output, not {option}", option=chosen[0]), LEAVE_ONE_OUT)
