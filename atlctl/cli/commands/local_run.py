"""`atlctl local run`: start a job on this machine, and stay with it unless --detach."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import following, options, say
from atlctl.cli.runtime import run_async
from atlctl.i18n import Message

if TYPE_CHECKING:
    from atlctl.backends.hosts.launching import LaunchSpec


TEXT = Message(
    "Every worker is a process group with MASTER_ADDR, MASTER_PORT, WORLD_SIZE (number of workers) and RANK "
    "(this worker's index) set, in a folder of its own. A job that ended gives way to a new one of its name."
)
EXAMPLES = Message(
    """\
atlctl local run --workers 2 -- python3 "$PWD/train.py"
atlctl local run --name try-1 --workers 4 --detach -- sh -c 'sleep 600'"""
)


def command(
    cmd: options.Command,
    workers: Annotated[int, typer.Option("-w", "--workers", min=1, metavar="N", help=Message("how many workers"))],
    name: options.Name = None,
    env: options.Env = None,
    master_port: options.MasterPort = None,
    detach: options.Detach = False,
) -> int:
    from atlctl.backends.base import Argv
    from atlctl.backends.hosts.launching import LaunchSpec
    from atlctl.diagnosis.torchelastic import FAILURE_MARKERS

    _hint_relative(cmd)
    spec = LaunchSpec(
        argv=Argv(tuple(cmd)),
        workers=workers,
        name=name,
        env=dict(following.pair(text) for text in env or []),
        master_port=master_port,
        failure_markers=[marker.decode() for marker in FAILURE_MARKERS],
    )
    return run_async(lambda: _run(spec, detach))


def _hint_relative(cmd: list[str]) -> None:
    """Workers run in folders of their own: a file named relative to this one will not be found there."""
    import os

    for word in cmd:
        if not word.startswith(("/", "-")) and "." in word and os.path.isfile(word):
            say.note(
                Message(
                    "each worker runs in a folder of its own: '{file}' will not be found there; write \"$PWD/{file}\"",
                    file=word,
                )
            )


async def _run(spec: LaunchSpec, detach: bool) -> int:
    from atlctl.backends.hosts.launching import launch
    from atlctl.cli.target import local

    source = local()
    # In a thread of its own: the start waits for the supervisor, and signals must come through meanwhile.
    starting = asyncio.create_task(asyncio.to_thread(launch, spec))
    try:
        name = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await following.interrupted(source, await source.get_job(await starting))
        raise
    if detach:
        say.out(f"{name}\n")
        return 0
    return await following.stay(source, await source.get_job(name))
