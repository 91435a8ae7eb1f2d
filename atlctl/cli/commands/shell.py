"""`atlctl shell`: an interactive shell in one worker."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, undisturbed
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, ExitCode, Unreachable, UsageError
from atlctl.jobs.naming import fold_names
from atlctl.jobs.selection import Selection

if TYPE_CHECKING:
    from atlctl.backends.base import Execution, TerminalSize

#: The best shell the worker has; as login shells are not, so that the worker's own environment stays as it is.
_SHELL = 'for s in "$SHELL" bash zsh; do command -v "$s" >/dev/null 2>&1 && exec "$s"; done; exec sh'
GRACE_SECONDS = 1.0
_SEE = Message("see: {command}", command="atlctl ps")
_LOST = Message("{worker}: lost: {why}")


EXAMPLES = Message(
    """\
atlctl shell worker-3
atlctl shell -j train-7 0"""
)


async def command(
    wanted: Annotated[
        str | None, typer.Argument(metavar="WORKER", help=Message("name, index, pod or host of the worker"))
    ] = None,
    named: options.JobOption = None,
    container: options.Container = None,
) -> int:
    from atlctl.backends.base import ExecRequest, Script, as_argv
    from atlctl.cli.target import backend, choose, find_job, say_guessed

    context().container = container
    if not context().streams.interactive:
        raise UsageError(
            Message("a shell needs a terminal on standard input and output"),
            Message("for a script: atlctl exec -w WORKER -i -- sh < script.sh"),
        )
    source = backend(None, named)
    job = await find_job(source, None, named, reads_only=False)
    chosen = Selection(workers=(wanted,)) if wanted is not None else Selection(all=True)
    workers = await choose(source, job, chosen)
    if len(workers) != 1:
        names = fold_names(worker.name for worker in workers)
        hint = Message("name one: atlctl shell -j {job} {worker}; workers: {workers}")
        raise UsageError(
            Message("a shell opens in one worker, and this means {count}", count=len(workers)),
            hint.filled(job=job.name, worker=workers[0].name, workers=names),
        )
    say_guessed(workers)
    executor = source.executor(job)
    try:
        execution = executor.run(workers[0], ExecRequest(as_argv(Script(_SHELL)), stdin=True, tty=_size()))
        with _raw_terminal():
            return await _talk(execution, workers[0].name)
    finally:
        await executor.aclose()


async def _talk(execution: Execution, name: str) -> int:
    from atlctl.backends.base import Exited, FailedToStart, Lost, Output, Started

    loop = asyncio.get_running_loop()
    typing: asyncio.Task[None] | None = None
    waiting = ExitStack()
    waiting.enter_context(say.doing(Message("connecting to {worker}", worker=name)))
    try:
        async for event in execution:
            match event:
                case Started():
                    waiting.close()
                    waiting.enter_context(undisturbed())
                    loop.add_signal_handler(signal.SIGWINCH, lambda: execution.resize(_size()))
                    typing = asyncio.create_task(_pass_keys(execution))
                case Output(data=data):
                    # Raw on purpose: this is the worker's own terminal, full-screen programs and all.
                    context().writer.put("stdout", data)
                    await context().writer.drain()
                case Exited(exit_code=code, signal=number):
                    return 128 + number if number is not None else (code or 0)
                case FailedToStart(exit_code=code, reason=reason):
                    if code == ExitCode.UNREACHABLE:
                        raise Unreachable(Message("{names}: {text}", names=name, text=reason), _SEE)
                    raise AtlctlError(Message("{worker}: no shell could be started: {why}", worker=name, why=reason))
                case Lost(reason=reason):
                    raise Unreachable(_LOST.filled(worker=name, why=reason), _SEE)
        raise Unreachable(_LOST.filled(worker=name, why=Message("no word on how the shell ended")), _SEE)
    except asyncio.CancelledError:
        await execution.end(GRACE_SECONDS)
        raise
    finally:
        if typing is not None:
            typing.cancel()
            loop.remove_signal_handler(signal.SIGWINCH)
        await execution.aclose()
        waiting.close()


async def _pass_keys(execution: Execution) -> None:
    while True:
        await _key_typed()
        try:
            data = os.read(0, 65536)
        except OSError:  # EIO: the terminal hung up, and SIGHUP is on its way
            return
        if not data or not await execution.write(data):
            return


async def _key_typed() -> None:
    """Until a read of the terminal does not block. Watched anew each time: one event is handled once."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not typed.done():
            typed.set_result(None)

    loop.add_reader(0, wake)
    try:
        await typed
    finally:
        loop.remove_reader(0)


def _size() -> TerminalSize:
    from atlctl.backends.base import TerminalSize

    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        columns, rows = 80, 24
    return TerminalSize(columns, rows)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Every key goes to the worker; the mode before comes back however this ends."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        context().writer.flush(1.0)
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        say.note(Message("the shell has ended"))
