"""`atlctl cp`: files to or from workers."""

from __future__ import annotations

from typing import Annotated

import typer

from atlctl.cli import options
from atlctl.cli.runtime import context, run_async


def command(
    source: Annotated[str, typer.Argument(metavar="SRC")],
    destination: Annotated[str, typer.Argument(metavar="DST")],
    job: options.JobOption = None,
    all_workers: options.AllWorkers = False,
    workers: options.Workers = None,
    rank: options.Rank = None,
    role: options.Role = None,
    failed: options.Failed = False,
    exclude: options.Exclude = None,
    parallel: Annotated[int, typer.Option("--parallel", min=1, metavar="N")] = 64,
    timeout: options.Timeout = None,
    connect_timeout: options.ConnectTimeout = None,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json")] = "table",  # noqa: ARG001 - read off the context
) -> int:
    context().container = container
    from atlctl.cli.copying import copy
    from atlctl.fanout.engine import Limits
    from atlctl.transfer.spec import parse

    selection = options.selection(
        all_workers=all_workers, workers=workers, rank=rank, role=role, failed=failed, exclude=exclude
    )
    spec = parse(source, destination)
    # A thousand streams at once help nobody: as many copies run as are being connected to.
    limits = Limits(parallel, parallel, timeout, connect_timeout)
    return run_async(lambda: copy(job, selection, spec, limits))
