"""`atlctl ssh run`: start a job on hosts, and stay with it unless --detach."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import following, options, say
from atlctl.cli.runtime import context, run_async
from atlctl.jobs.errors import UsageError

if TYPE_CHECKING:
    from atlctl.backends.ssh.launched.starting import StartSpec


def command(
    cmd: Annotated[list[str], typer.Argument(metavar="CMD")],
    job: options.JobOption = None,
    include: Annotated[str | None, typer.Option("--include", metavar="HOSTS")] = None,
    exclude: Annotated[str | None, typer.Option("--exclude", metavar="HOSTS")] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", metavar="K=V")] = None,
    chdir: Annotated[str | None, typer.Option("--chdir", metavar="DIR")] = None,
    master_addr: Annotated[str | None, typer.Option("--master-addr", metavar="ADDRESS")] = None,
    master_port: Annotated[int | None, typer.Option("--master-port", min=1, max=65535, metavar="PORT")] = None,
    detach: Annotated[bool, typer.Option("--detach")] = False,
) -> int:
    from atlctl.backends.base import Argv
    from atlctl.backends.ssh import lists
    from atlctl.backends.ssh.hostfile import pick
    from atlctl.backends.ssh.launched.starting import StartSpec
    from atlctl.cli import hosts
    from atlctl.diagnosis.torchelastic import FAILURE_MARKERS

    file = context().hostfile
    if (file is None) == (job is None):
        raise UsageError(
            "on which hosts? --hostfile FILE, or -j NAME of a list in the configuration",
            "atlctl ssh run --hostfile hosts -- torchrun train.py",
        )
    listed = lists.of_file(file) if file is not None else hosts.list_named(str(job))
    for remark in listed.remarks:
        say.note(remark)
    picked = pick(listed.hosts, include or "", exclude or "")
    spec = StartSpec(
        argv=Argv(tuple(cmd)),
        hosts={host.name: host for host in picked},
        name=name,
        env=dict(following.pair(text) for text in env or []),
        chdir=chdir,
        master_addr=master_addr,
        master_port=master_port,
        hostfile=file,
        failure_markers=[marker.decode() for marker in FAILURE_MARKERS],
    )
    return run_async(lambda: _run(spec, detach))


async def _run(spec: StartSpec, detach: bool) -> int:
    from atlctl.backends.ssh.backend import SshBackend
    from atlctl.backends.ssh.executor import SshExecutor
    from atlctl.backends.ssh.launched.starting import start
    from atlctl.cli import hosts

    connections = hosts.connections()
    context().closers.append(connections.aclose)
    if spec.master_addr is None:
        # An alias of ~/.ssh/config means nothing to the other hosts.
        spec = replace(spec, master_addr=connections.target(next(iter(spec.hosts.values()))).host)
    source = SshBackend(connections, ())
    starting = asyncio.create_task(start(lambda where: SshExecutor(connections, where), spec))
    try:
        record = await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await following.interrupted(source, await source.get_job(starting.result().name))
        raise
    if detach:
        say.out(f"{record.name}\n")
        return 0
    return await following.stay(source, await source.get_job(record.name))
