from __future__ import annotations

from typing import Annotated

from atlctl.cli import options
from tests.unit.cli.sample import seen

EXAMPLES = "atlctl command"


def command(
    job: options.Job = None,
    named: options.JobOption = None,
    workers: options.Workers = None,
    exclude: options.Exclude = None,
    all_workers: options.AllWorkers = False,
    failed: options.Failed = False,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    seen.update(job=job, named=named, output=output)
    seen["selection"] = options.selection(all_workers=all_workers, workers=workers, failed=failed, exclude=exclude)
    return 7
