"""`atlctl local rm`: remove ended jobs of this machine, with their logs and folders."""

from __future__ import annotations

from atlctl.cli import options
from atlctl.i18n import Message

EXAMPLES = Message(
    """\
atlctl local rm try-1
atlctl local rm try-1 try-2 --yes"""
)


async def command(names: options.EndedJobs, yes: options.Yes = False, dry_run: options.DryRun = False) -> int:
    from atlctl.backends.hosts.local import LocalBackend
    from atlctl.cli.removing import remove

    return await remove(LocalBackend(), names, yes=yes, dry_run=dry_run)
