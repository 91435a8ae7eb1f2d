"""`atlctl local rm`: remove ended jobs of this machine, with their logs and folders."""

from __future__ import annotations

from typing import Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context
from atlctl.jobs.errors import AtlctlError, UsageError


def command(
    names: Annotated[list[str], typer.Argument(metavar="JOB")],
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
) -> int:
    from atlctl.backends.local import registry
    from atlctl.cli.prompt import confirm
    from atlctl.fanout.retry import forget, job_key
    from atlctl.jobs.statedir import state_dir

    unique = list(dict.fromkeys(names))
    entries = [registry.load(name) for name in unique]
    for entry in entries:
        if entry.presence == "alive":
            raise AtlctlError(f"job {entry.job.name} is still running", f"stop it first: atlctl stop {entry.job.name}")
        if entry.presence == "elsewhere":
            raise AtlctlError(
                f"job {entry.job.name} was started elsewhere: it cannot be seen from here whether it still runs",
                f"where it runs: atlctl ps {entry.job.name}; remove it there",
            )
    for entry in entries:
        say.line(
            f"removes {entry.job.name} ({entry.job.state}): its logs, records and working folders in {entry.folder}"
        )
    if dry_run:
        say.note("dry run: nothing was removed")
        return 0
    if not yes and not confirm("Remove?"):
        raise AtlctlError("nothing was removed")
    with registry.locked():
        for entry in entries:
            if registry.load(entry.job.name).job.uid != entry.job.uid:
                raise UsageError(f"job {entry.job.name} was started anew meanwhile", "run the command again")
            registry.remove(entry.folder)
            forget(state_dir(), job_key(entry.job))
            if not context().quiet:
                say.out(f"{entry.job.name}\n")
    return 0
