"""`atlctl exec`: one command on the selected workers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options
from atlctl.cli.runtime import context, run_async
from atlctl.jobs.errors import UsageError

if TYPE_CHECKING:
    from atlctl.cli.execute import Form


def command(
    cmd: Annotated[list[str] | None, typer.Argument(metavar="CMD")] = None,
    job: options.JobOption = None,
    all_workers: options.AllWorkers = False,
    workers: options.Workers = None,
    rank: options.Rank = None,
    role: options.Role = None,
    failed: options.Failed = False,
    exclude: options.Exclude = None,
    stdin: Annotated[bool, typer.Option("-i", "--stdin")] = False,
    parallel: Annotated[int, typer.Option("--parallel", min=1, metavar="N")] = 64,
    batch: Annotated[int | None, typer.Option("--batch", min=1, metavar="N")] = None,
    timeout: options.Timeout = None,
    connect_timeout: options.ConnectTimeout = None,
    gather: Annotated[bool, typer.Option("--gather")] = False,
    output_dir: Annotated[str | None, typer.Option("--output-dir", metavar="DIR")] = None,
    no_prefix: Annotated[bool, typer.Option("--no-prefix")] = False,
    raw: Annotated[bool, typer.Option("--raw")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed")] = False,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    context().container = container
    from atlctl.cli.execute import Form, execute, retry
    from atlctl.fanout.engine import Limits

    selection = options.selection(
        all_workers=all_workers, workers=workers, rank=rank, role=role, failed=failed, exclude=exclude
    )
    form = Form(json=output == "json", gather=gather, folder=output_dir, prefix=not no_prefix, raw=raw)
    _check(form)
    limits = Limits(parallel, batch, timeout, connect_timeout)
    if retry_failed:
        if cmd or not selection.empty or selection.exclude:
            raise UsageError(
                "--retry-failed runs the last command where it failed: it takes neither a command nor a selection",
                "atlctl exec --retry-failed",
            )
        return run_async(lambda: retry(job, stdin, limits, form))
    if not cmd:
        raise UsageError("no command to run", "atlctl exec --all nvidia-smi")
    return run_async(lambda: execute(job, selection, tuple(cmd), stdin, limits, form))


def _check(form: Form) -> None:
    asked = {"-o json": form.json, "--gather": form.gather, "--output-dir": form.folder is not None}
    chosen = [name for name, on in asked.items() if on]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} are two forms of the same output", "choose one")
    if form.raw and chosen:
        raise UsageError(f"--raw means live output, not {chosen[0]}", "leave one of them out")
