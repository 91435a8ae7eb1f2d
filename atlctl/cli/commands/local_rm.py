"""`atlctl local rm`: remove ended jobs of this machine, with their logs and folders."""

from __future__ import annotations

from atlctl.cli import options
from atlctl.cli.runtime import run_async
from atlctl.i18n import Message

EXAMPLES = Message(
    """\
atlctl local rm try-1
atlctl local rm try-1 try-2 --yes"""
)


def command(names: options.EndedJobs, yes: options.Yes = False, dry_run: options.DryRun = False) -> int:
    from atlctl.backends.hosts.local import LocalBackend
    from atlctl.cli.removing import remove

    return run_async(lambda: remove(LocalBackend(), names, yes=yes, dry_run=dry_run))
