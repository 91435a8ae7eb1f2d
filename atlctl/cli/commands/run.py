"""`atlctl run`: the wrapper of a launch script, in each worker."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import run_async
from atlctl.i18n import LIST, Message, joined
from atlctl.jobs.config import load_config
from atlctl.jobs.errors import AtlctlError, UsageError
from atlctl.jobs.statedir import read_bytes
from atlctl.render.palette import Tone, Toned

if TYPE_CHECKING:
    from atlctl.run.own import Settings

#: Modules that are imported if they can be, for what a wrapper does not do: asyncio's TLS, and a fast search in large
#: logs. They take 4 MB each.
_NOT_NEEDED = ("ssl", "pydantic_core")
#: Bytes of a key: as many as a random one of 16 bytes has in hexadecimal digits, and most of a file.
_LEAST_KEY, _MOST_KEY = 32, 4096
#: Seconds: the wrapper ends what it has started by itself.
_CLEANUP = 1e6

TEXT = Message(
    "In a launch script, in each worker: tests the workers, runs CMD, and after a failure names its cause. The "
    "workers find each other by the folder --dir on shared storage; from each of them 'atlctl ps', 'exec', 'logs', "
    "'errors', 'stacks' and 'stop' then work without rights on a cluster and without sshd."
)
EXAMPLES = Message(
    """\
atlctl run --dir /shared/runs -- bash launch_ddp.sh train.py
atlctl run --dir /shared/runs --hold 3h -- torchrun train.py  # keep the workers after a failure
atlctl run --notify team --dir /shared/runs -- bash train.sh  # send the cause of a failure to a chat
atlctl run --items none -- python3 train.py                   # without the test before it"""
)


def _block(value: str) -> frozenset[str]:
    """The value of --block. Raises ValueError."""
    from atlctl.run.own import GPU, MISSING, NETWORK
    from atlctl.smoke.run import items

    known = [GPU, MISSING, NETWORK, *(step.name for step, _ in items())]
    words = frozenset(word for word in value.split(",") if word)
    if words == {"none"}:
        return frozenset()
    if words - {*known}:
        raise ValueError(Message("one of {values}", values=joined((*known, "none"), LIST)))
    return words


def command(
    cmd: options.Command,
    dir_: Annotated[
        str | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help=Message("a folder on storage that all workers share: logs, and how they meet (ATLCTL_RUN_DIR)"),
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help=Message("the job's name (default: from the environment)")),
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            "--items",
            metavar="CHECKS",
            help=Message("the checks before CMD, as in smoke; none: no check (ATLCTL_CHECK_ITEMS)"),
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="DURATION", help=Message("how long the checks may take, as in smoke")),
    ] = None,
    block: Annotated[
        frozenset[str] | None,
        typer.Option(
            "--block",
            metavar="FAULTS",
            parser=_block,
            help=Message(
                "faults that keep CMD from starting: gpu (a lost one), missing (workers), network, a check, none "
                "(default: gpu; ATLCTL_CHECK_BLOCK)"
            ),
        ),
    ] = None,
    wait: Annotated[
        float, options.duration("--wait", zero=True, help=Message("how long workers wait for each other"))
    ] = 120.0,
    settle: Annotated[
        float,
        options.duration("--settle", zero=True, help=Message("after a failure: time for the others to end")),
    ] = 30.0,
    hold: Annotated[
        float, options.duration("--hold", zero=True, help=Message("keep the workers for this time after a failure"))
    ] = 0.0,
    on_failure: Annotated[
        str,
        options.choice(
            "--on-failure",
            values=("keep", "stop"),
            help=Message("commands of workers that did not fail: keep or end them (default: keep)"),
        ),
    ] = "keep",
    notify: Annotated[
        str | None,
        typer.Option(
            "--notify",
            metavar="NAME",
            help=Message("send the cause of a failure there, as 'atlctl notify NAME' does"),
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            metavar="PORT",
            help=Message("with a key (ATLCTL_JOB_KEY_FILE) instead of a folder: the port of all workers"),
        ),
    ] = None,
    no_serve: Annotated[
        bool, typer.Option("--no-serve", help=Message("do not let the other workers reach this one"))
    ] = False,
) -> int:
    for module in _NOT_NEEDED:
        sys.modules.setdefault(module, None)  # type: ignore[arg-type]  # the import fails
    from atlctl.run.meeting import PORT
    from atlctl.run.own import Settings

    environ = os.environ
    settings = Settings(
        root=dir_ or environ.get("ATLCTL_RUN_DIR") or None,
        key=_key(),
        items=items or environ.get("ATLCTL_CHECK_ITEMS") or None,
        budget=budget,
        block=_of_environment("ATLCTL_CHECK_BLOCK") if block is None else block,
        wait=wait,
        settle=settle,
        hold=hold,
        notify=notify,
        serve=not no_serve,
        port=port or PORT,
        stops_others=on_failure == "stop",
    )
    return run_async(lambda: _run(settings, name, cmd), cleanup=_CLEANUP)


async def _run(settings: Settings, name: str | None, cmd: list[str]) -> int:
    from atlctl.run.place import place

    def told(text: str, tone: Tone = Tone.NOTE) -> None:
        said = Message("atlctl: {text}", text=text)
        say.line(Toned(said, tone, said.filled(text="")), 2)

    post = place(os.environ, name)

    def shout(text: str) -> None:
        told(text, Tone.WARN)

    if post.local:
        from atlctl.run.siblings import SiblingWrapper

        return await SiblingWrapper(post, cmd, settings.wait, told, shout).run()
    if settings.notify is not None:
        try:
            load_config(os.environ).notified(settings.notify)
        except UsageError as error:
            shout(error.message)
    from atlctl.run.wrapper import Wrapper

    return await Wrapper(settings, post, cmd, told, shout).run()


def _key() -> bytes | None:
    """The job's key of the environment. Raises UsageError for one that is too short, or cannot be read."""
    path = os.environ.get("ATLCTL_JOB_KEY_FILE")
    if path:
        try:
            key = read_bytes(path, _MOST_KEY, links=True).strip()
        except FileNotFoundError:
            raise UsageError(Message("ATLCTL_JOB_KEY_FILE: {path} is not there", path=path)) from None
        except AtlctlError as error:
            raise UsageError(Message("ATLCTL_JOB_KEY_FILE: {why}", why=error.message)) from error
    else:
        key = os.environ.get("ATLCTL_JOB_KEY", "").strip().encode()
    if key and len(key) < _LEAST_KEY:
        raise UsageError(
            Message(
                "the job's key has {count} characters, at least {least} are needed", count=len(key), least=_LEAST_KEY
            ),
            Message("make one: {command}", command="head -c 32 /dev/urandom | base64 > key"),
        )
    return key or None


def _of_environment(name: str) -> frozenset[str]:
    """The faults that a variable names, by default those of `Settings`. Raises UsageError."""
    from atlctl.run.own import DEFAULT_BLOCK

    try:
        return _block(os.environ[name]) if os.environ.get(name) else DEFAULT_BLOCK
    except ValueError as error:
        raise UsageError(Message("{path}: {why}", path=name, why=error.args[0])) from None
