"""`atlctl local run`: start a job on this machine, and stay with it unless --detach."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import following, options, say
from atlctl.i18n import Message

if TYPE_CHECKING:
    from atlctl.backends.hosts.starting import StartSpec


TEXT = Message(
    "Every worker is a process group in its own folder, with MASTER_ADDR, MASTER_PORT, WORLD_SIZE (number of workers) "
    "and RANK (this worker's index) set. An ended job of that name is kept under a number: train becomes train.1."
)
EXAMPLES = Message(
    """\
atlctl local run --workers 2 -- python3 "$PWD/train.py"
atlctl local run --workers 2 --chdir . -- torchrun train.py
atlctl local run --name try-1 --workers 4 --detach -- sh -c 'sleep 600'"""
)


async def command(
    cmd: options.Command,
    workers: Annotated[int, typer.Option("-w", "--workers", min=1, metavar="N", help=Message("how many workers"))],
    name: options.Name = None,
    env: options.Env = None,
    chdir: Annotated[
        str | None,
        typer.Option(
            "--chdir", metavar="DIR", help=Message("the working folder of all workers (default: one for each worker)")
        ),
    ] = None,
    master_port: options.MasterPort = None,
    detach: options.Detach = False,
) -> int:
    from atlctl.cli.target import local

    if chdir is None:
        _hint_relative(cmd)
    spec = following.spec(cmd, name, env, master_port, chdir=chdir)
    return await following.begin(local(), _start(spec, workers), detach)


def _hint_relative(cmd: list[str]) -> None:
    """Each worker has its own folder: a file named relative to this one will not be found there."""
    import os

    for word in cmd:
        if not word.startswith(("/", "-")) and "." in word and os.path.isfile(word):
            say.note(
                Message(
                    "each worker runs in its own folder, without '{file}'; write \"$PWD/{file}\", or add --chdir .",
                    file=word,
                )
            )


async def _start(spec: StartSpec, workers: int) -> str:
    from atlctl.backends.hosts.starting import start_here

    # In a separate thread: the start waits for the supervisor, and signals must be handled meanwhile.
    starting = asyncio.create_task(asyncio.to_thread(start_here, spec, workers))
    try:
        started = await asyncio.shield(starting)
    except asyncio.CancelledError:
        started = await starting  # a thread cannot be cancelled
    if started.before is not None:
        say.note(
            Message(
                "the ended job {job} is now {kept}; to remove it: {command}",
                job=started.name,
                kept=started.before,
                command=f"atlctl local rm {started.before}",
            )
        )
    return started.name
