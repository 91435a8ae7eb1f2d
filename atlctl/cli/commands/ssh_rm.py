"""`atlctl ssh rm`: remove ended jobs of hosts, with their logs and folders there."""

from __future__ import annotations

from atlctl.cli import options
from atlctl.cli.runtime import context
from atlctl.i18n import Message

EXAMPLES = Message(
    """\
atlctl ssh rm try-1
atlctl ssh rm try-1 try-2 --yes"""
)


async def command(names: options.EndedJobs, yes: options.Yes = False, dry_run: options.DryRun = False) -> int:
    from atlctl.backends.hosts import records
    from atlctl.backends.hosts.ssh import SshBackend
    from atlctl.cli import hosts
    from atlctl.cli.removing import remove

    for name in names:
        records.load(name)  # a name that is wrong is reported before a host is asked
    source = SshBackend(hosts.connections(), ())
    context().closers.append(source.aclose)
    return await remove(source, names, yes=yes, dry_run=dry_run)
