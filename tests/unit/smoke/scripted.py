"""Workers without processes: each is an async function that reads commands and writes anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from atlctl.backends.base import Event, ExecRequest, Exited, Output, Started, TerminalSize
from atlctl.jobs.model import State, Worker


def worker(index: int, state: State = State.RUNNING) -> Worker:
    return Worker(f"worker-{index}", index, state)


class Stream:
    """The streams of a made-up agent, which skips the bytes of the programs that are sent to it."""

    def __init__(self, skipped: int) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.ended = False
        self._held = b""
        self._skip = skipped

    def put(self, data: bytes, stream: Any = "stdout") -> None:
        self.events.put_nowait(Output(stream, data))

    def say(self, **fields: Any) -> None:
        self.put(b"\x1e" + json.dumps(fields).encode() + b"\n")

    def hello(self) -> None:
        self.say(ev="hello", pid=1, host="host", python="3.11.0", executable="/usr/bin/python3")

    async def ask(self) -> dict[str, Any]:
        """The next command, or the configuration."""
        return await self.sent.get()

    def take(self, data: bytes) -> None:
        cut = min(self._skip, len(data))
        self._skip -= cut
        self._held += data[cut:]
        *lines, self._held = self._held.split(b"\n")
        for line in lines:
            self.sent.put_nowait(json.loads(line))


Script = Callable[[Stream], Awaitable[None]]


class Scripted:
    """An executor for scripts. Workers without a script answer every command with `ok`."""

    def __init__(self, scripts: Mapping[str, Script | Event] | None = None) -> None:
        self._scripts = dict(scripts or {})
        self.started: list[str] = []
        self.streams: dict[str, list[Stream]] = {}

    def run(self, worker: Worker, request: ExecRequest) -> Scene:
        self.started.append(worker.name)
        words = request.argv.words
        skipped = sum(int(word) for word in words[: words.index("--")] if word.isdigit())
        scene = Scene(self._scripts.get(worker.name, polite), skipped)
        self.streams.setdefault(worker.name, []).append(scene.stream)
        return scene

    async def aclose(self) -> None:
        """Nothing to release."""


async def polite(stream: Stream) -> None:
    await stream.ask()
    stream.hello()
    while (command := await stream.ask())["cmd"] != "bye":
        stream.say(ev="told", re=command["id"], end=True, ok=True)


async def mute(stream: Stream) -> None:
    await asyncio.Event().wait()


class Scene:
    def __init__(self, script: Script | Event, skipped: int) -> None:
        self.stream = Stream(skipped)
        self._script = script

    async def __aiter__(self) -> AsyncIterator[Event]:
        if not callable(self._script):
            yield self._script
            return
        yield Started(guarded=True)
        acting = asyncio.ensure_future(self._act(self._script))
        try:
            while True:
                event = await self.stream.events.get()
                yield event
                if not isinstance(event, Output):
                    return
        finally:
            acting.cancel()

    async def _act(self, script: Script) -> None:
        await script(self.stream)
        self.stream.events.put_nowait(Exited(exit_code=0))

    async def write(self, data: bytes) -> bool:
        self.stream.take(data)
        return True

    async def close_stdin(self) -> None:
        """Ignored."""

    def resize(self, size: TerminalSize) -> None:
        raise NotImplementedError(size)

    async def end(self, grace: float) -> bool:
        self.stream.ended = True
        self.stream.events.put_nowait(Exited(signal=15))
        return True

    async def aclose(self) -> None:
        """Nothing to release."""
