from __future__ import annotations

from typing import Annotated

import typer

from atlctl.cli import options
from tests.unit.cli.sample import seen

EXAMPLES = "atlctl command"


def command(
    cmd: Annotated[list[str] | None, typer.Argument(metavar="CMD")] = None,
    named: options.JobOption = None,
    all_workers: options.AllWorkers = False,
    timeout: options.Timeout = None,
    parallel: Annotated[int, typer.Option("--parallel", metavar="N", min=1)] = 64,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    seen.update(cmd=cmd, all=all_workers, timeout=timeout, parallel=parallel, named=named, output=output)
    return 0
