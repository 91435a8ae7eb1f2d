"""Workers on this machine: each command is a process, with a prefix (`ip netns exec NAME`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Literal

from atlctl.backends.base import Event, ExecRequest, Exited, FailedToStart, Output, Started, TerminalSize
from atlctl.jobs.model import State, Worker


def workers(count: int, name: str = "worker") -> list[Worker]:
    return [Worker(f"{name}-{index}", index, State.RUNNING) for index in range(count)]


class PlainHosts:
    """An executor. `prefix`: words before a worker's command; `env`: additional environment variables."""

    def __init__(
        self,
        prefix: Callable[[Worker], Sequence[str]] = lambda _: (),
        env: Callable[[Worker], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self._prefix = prefix
        self._env = env

    def run(self, worker: Worker, request: ExecRequest) -> PlainExecution:
        words = (*self._prefix(worker), *request.argv.words)
        return PlainExecution(words, {**os.environ, **self._env(worker)})

    async def aclose(self) -> None:
        """Nothing to release."""


class PlainExecution:
    """A process with its own session."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._words = words
        self._env = env
        self._process: asyncio.subprocess.Process | None = None

    async def __aiter__(self) -> AsyncIterator[Event]:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words, stdin=pipe, stdout=pipe, stderr=pipe, env=self._env, start_new_session=True
            )
        except OSError as error:
            yield FailedToStart(127, str(error))
            return
        self._process = process
        yield Started(guarded=True)
        events: asyncio.Queue[Output | None] = asyncio.Queue(64)

        async def read(stream: asyncio.StreamReader | None, name: Literal["stdout", "stderr"]) -> None:
            assert stream is not None
            while data := await stream.read(1 << 16):
                await events.put(Output(name, data))
            await events.put(None)

        readers = [
            asyncio.create_task(read(process.stdout, "stdout")),
            asyncio.create_task(read(process.stderr, "stderr")),
        ]
        try:
            left = 2
            while left:
                event = await events.get()
                if event is None:
                    left -= 1
                else:
                    yield event
            code = await process.wait()
            yield Exited(signal=-code) if code < 0 else Exited(exit_code=code)
        finally:
            for reader in readers:
                reader.cancel()

    async def write(self, data: bytes) -> bool:
        stdin = self._process.stdin if self._process is not None else None
        if stdin is None or stdin.is_closing():
            return False
        try:
            stdin.write(data)
            await stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    async def close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def resize(self, size: TerminalSize) -> None:
        raise NotImplementedError(size)

    async def end(self, grace: float) -> bool:
        """SIGTERM to the session's first process group, SIGKILL after `grace` seconds."""
        process = self._process
        if process is None:
            return True
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), grace)
                return True
        return process.returncode is not None

    async def aclose(self) -> None:
        await self.end(0.1)
