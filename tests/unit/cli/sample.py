"""A small app with the same parser and runtime, to test them without the real commands.

Run as a program: `python -m tests.unit.cli.sample ARGS...`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import typer
from typer.main import get_command

from atlctl.cli import app as real_app
from atlctl.cli import runtime
from atlctl.cli.parser import Group, Lazy, new_app, parse_and_run
from atlctl.i18n import Message
from atlctl.jobs.errors import NothingMatched

#: The arguments of the last command.
seen: dict[str, Any] = {}


class _Inner(Group):
    path = "local"
    summary, examples = "a group", "atlctl local run"
    table: Mapping[str, Lazy] = {"run": Lazy("run", options_first=True, module=f"{__package__}.sample_exec")}


class _Sample(Group):
    summary, examples = "a program", Message("atlctl ps")
    table: Mapping[str, Lazy] = {
        "ps": Lazy(aliases=("workers",), module=f"{__package__}.sample_ps"),
        "exec": Lazy("exec", options_first=True, module=f"{__package__}.sample_exec"),
        "completion": Lazy(module=f"{__package__}.sample_act"),
        "local": Lazy(group=lambda: _inner()),
        "demo": Lazy(module="tests.unit.cli.no_such_module"),
    }


def _inner() -> typer.Typer:
    return inner


app = new_app(cls=_Sample)
inner = new_app(cls=_Inner, name="local")
app.callback()(real_app._root)
inner.callback()(real_app._root)


def run(*argv: str) -> int:
    """Parse and run in this process; returns the exit code. Errors are written to descriptors 1 and 2."""
    seen.clear()
    command = get_command(app)
    return runtime.guard(argv, lambda: parse_and_run(command, argv), peek=lambda: real_app.peek(argv))


def parse(*argv: str) -> dict[str, Any]:
    """The arguments that a command gets. Raises UsageError."""
    seen.clear()
    runtime._current = runtime.Context()
    parse_and_run(get_command(app), argv)
    return dict(seen)


def act(what: str) -> int:
    """Possible ends of a command, for tests of the runtime in a separate process."""
    ctx = runtime.context()
    if what == "fail":
        raise NothingMatched("no job is called 'x\x1b[2J'", "see: atlctl jobs")
    if what == "crash":
        raise ValueError("token=abc\nsecond line")
    if what == "flood":
        return runtime.run_async(_flood)
    if what == "tty":
        return runtime.run_async(_spoil_terminal)
    if what == "ask":
        return runtime.run_async(_ask)
    if what == "full":
        ctx.writer.put("stdout", b"x" * 100_000)
        return 0

    def second() -> None:
        os.write(2, b"second\n")

    ctx.on_second = second
    return runtime.run_async(lambda: _wait(what), cleanup=1.5 if what == "stuck" else 30)


async def _flood() -> int:
    writer = runtime.context().writer
    try:
        while True:
            writer.put("stdout", b"y\n" * 1000)
            await writer.drain()
            await asyncio.sleep(0)
    finally:
        os.write(2, b"cleaned\n")


async def _ask() -> int:
    os.write(2, b"ready\n")
    with runtime.asking():
        os.read(0, 1)
    return 0


async def _spoil_terminal() -> int:
    import tty

    tty.setraw(0)
    await _wait("tty")
    return 0


async def _wait(what: str) -> int:
    os.write(2, b"ready\n")
    try:
        if what == "block":
            time.sleep(30)  # noqa: ASYNC251 - a coroutine that blocks its loop is the case
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        os.write(2, b"cleaning\n")
        if what in ("slow", "stuck"):
            await asyncio.sleep(30)
        return 0
    return 0


if __name__ == "__main__":
    from tests.unit.cli import sample

    sys.exit(sample.run(*sys.argv[1:]))
