"""An executor whose workers are real processes on this machine, with a test's PATH and faults."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from atlctl.backends.base import Event, ExecRequest, Exited, FailedToStart, Lost, Output, Started, TerminalSize
from atlctl.jobs.model import State, Worker

WORKER = Worker("worker-0", 0, State.RUNNING)
BASE = ("sh", "cat", "wc", "mkdir", "mv", "rm", "chmod")


def tools(folder: Path, *names: str) -> str:
    """A PATH with these programs only."""
    folder.mkdir(exist_ok=True)
    for name in names:
        found = shutil.which(name)
        assert found is not None, name
        folder.joinpath(name).symlink_to(found)
    return str(folder)


@dataclass
class Shells:
    """`cut`: bytes of stdout after which nothing more arrives. `ending`: the event instead of the real end.

    `replace`: received on stdout instead of the real output. `start`: the only event. `deaf`: only the shell gets the
    signals of an end, as if its child lost the signal during its fork.
    """

    path: str = os.defpath
    cut: int | None = None
    ending: Event | None = None
    replace: bytes | None = None
    start: Event | None = None
    deaf: bool = False
    chunk: int = 65536
    requests: list[ExecRequest] = field(default_factory=list)
    living: list[asyncio.subprocess.Process] = field(default_factory=list)

    def run(self, worker: Worker, request: ExecRequest) -> ShellExecution:
        self.requests.append(request)
        return ShellExecution(self, request)

    async def aclose(self) -> None:
        return None


class ShellExecution:
    def __init__(self, shells: Shells, request: ExecRequest) -> None:
        self.shells, self.request = shells, request
        self.process: asyncio.subprocess.Process | None = None
        #: The process may be running before asyncio returns it.
        self.settled = asyncio.Event()
        self.settled.set()

    async def __aiter__(self) -> AsyncIterator[Event]:
        shells = self.shells
        if shells.start is not None:
            yield shells.start
            return
        self.settled.clear()
        missing = ""
        try:
            self.process = process = await asyncio.create_subprocess_exec(
                *self.request.argv.words,
                stdin=asyncio.subprocess.PIPE if self.request.stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": shells.path, "LC_ALL": "C"},
                start_new_session=True,
            )
        except FileNotFoundError as error:
            missing = str(error)
        finally:
            self.settled.set()
        if missing:
            yield FailedToStart(127, missing)
            return
        shells.living.append(process)
        yield Started(guarded=True)
        assert process.stdout is not None
        assert process.stderr is not None
        seen = 0
        if shells.replace is not None:
            yield Output("stdout", shells.replace)
        while data := await process.stdout.read(shells.chunk):
            kept = data if shells.cut is None else data[: max(0, shells.cut - seen)]
            seen += len(data)
            if kept and shells.replace is None:
                yield Output("stdout", kept)
        if said := await process.stderr.read():
            yield Output("stderr", said)
        code = await process.wait()
        if shells.ending is not None:
            yield shells.ending
        elif code < 0:
            yield Exited(signal=-code)
        else:
            yield Exited(exit_code=code)

    async def write(self, data: bytes) -> bool:
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            await self.process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    async def close_stdin(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def resize(self, size: TerminalSize) -> None:
        raise AssertionError("nobody resizes here")

    async def end(self, grace: float) -> bool:
        await self.settled.wait()
        if self.process is not None and self.process.returncode is None:
            (os.kill if self.shells.deaf else os.killpg)(self.process.pid, signal.SIGTERM)
            await self.process.wait()
        return True

    async def aclose(self) -> None:
        await self.end(0)


LOST = Lost("the connection broke")
