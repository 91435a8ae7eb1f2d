"""`atlctl ssh run`: start a job on hosts, and stay with it unless --detach."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from atlctl.cli import following, options, say
from atlctl.cli.runtime import context
from atlctl.i18n import Message
from atlctl.jobs.errors import UsageError

TEXT = Message(
    "Every host runs one worker with MASTER_ADDR, MASTER_PORT, WORLD_SIZE (number of hosts) and RANK (its place in "
    "the list) set. The job continues when this command ends; other commands find it by its name. Hosts need "
    "Python 3.8 or newer. The job starts on all of them or on none."
)
EXAMPLES = Message(
    """\
atlctl ssh run --hostfile hosts -- bash /shared/train.sh
atlctl ssh run --hostfile hosts --include 'gpu1@gpu2:0,2' -- bash train.sh
atlctl ssh run -j cluster --chdir /shared/project -- bash train.sh"""
)


async def command(
    cmd: options.Command,
    job: Annotated[
        str | None,
        typer.Option(
            "-j", "--job", metavar="JOB", help=Message("a list of hosts of the configuration, instead of --hostfile")
        ),
    ] = None,
    include: Annotated[
        str | None,
        typer.Option(
            "--include",
            metavar="HOSTS",
            help=Message("only these hosts of the list, or some of their slots (gpu1@gpu2:0,2)"),
        ),
    ] = None,
    exclude: Annotated[
        str | None,
        typer.Option(
            "--exclude",
            metavar="HOSTS",
            help=Message("all but these hosts, or all but some of their slots (gpu1@gpu2:0,2)"),
        ),
    ] = None,
    name: options.Name = None,
    env: options.Env = None,
    chdir: Annotated[
        str | None,
        typer.Option(
            "--chdir", metavar="DIR", help=Message("the working folder on the hosts (default: the home folder)")
        ),
    ] = None,
    master_addr: Annotated[
        str | None,
        typer.Option(
            "--master-addr",
            metavar="ADDRESS",
            help=Message("MASTER_ADDR of the workers (default: the address of the first host)"),
        ),
    ] = None,
    master_port: options.MasterPort = None,
    detach: options.Detach = False,
) -> int:
    from atlctl.backends.hosts import lists
    from atlctl.backends.hosts.hostfile import pick
    from atlctl.backends.hosts.ssh import SshBackend
    from atlctl.backends.hosts.starting import start
    from atlctl.backends.hosts.stream import SshExecutor
    from atlctl.cli import hosts

    file = context().hostfile
    if (file is None) == (job is None):
        raise UsageError(
            Message("on which hosts? --hostfile FILE, or -j NAME of a list in the configuration"),
            "atlctl ssh run --hostfile hosts -- torchrun train.py",
        )
    listed = lists.of_file(file) if file is not None else hosts.list_named(str(job))
    for remark in listed.remarks:
        say.note(remark)
    where = {host.name: host for host in pick(listed.hosts, include or "", exclude or "")}
    spec = following.spec(cmd, name, env, master_port, chdir=chdir, master_addr=master_addr, hostfile=file)
    connections = hosts.connections()
    context().closers.append(connections.aclose)
    if spec.master_addr is None:
        # An alias of ~/.ssh/config means nothing to the other hosts.
        spec = replace(spec, master_addr=connections.target(next(iter(where.values()))).host)

    async def started() -> str:
        return (await start(lambda hosts: SshExecutor(connections, hosts), spec, where)).name

    return await following.begin(SshBackend(connections, ()), started(), detach)
