"""Commands that never start: waiting writers get an error, and invalid commands are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from atlctl.backends.base import (
    Argv,
    Event,
    ExecRequest,
    Exited,
    FailedToStart,
    Lost,
    Output,
    Started,
    Stream,
    TerminalSize,
)
from atlctl.backends.guarded.execution import Channel, Ended, GuardedExecutor
from atlctl.jobs.errors import AtlctlError, Unreachable
from atlctl.jobs.model import State, Worker

WORKER = Worker("w", 0, State.RUNNING)


class Unreached:
    """A place that refuses all connections."""

    name = "w"

    def command(
        self, words: Sequence[bytes], text: str | None, before: Sequence[str] = (), *, stdin: bool, tty: bool = False
    ) -> str:
        return f"{words} {text} {before} {stdin} {tty}"

    def impossible(self, words: tuple[str, ...], command: str) -> FailedToStart | None:
        return None

    async def reach(self) -> None:
        pass

    def unreached(self) -> FailedToStart:
        return FailedToStart(125, "")

    async def open(self, command: str, *, half_close: bool = False, size: TerminalSize | None = None) -> Channel:
        raise Unreachable(f"refused: {len(command)} {half_close} {size}")

    def refused(self, error: AtlctlError, *, half_close: bool = False) -> FailedToStart | Lost:
        return FailedToStart(255, error.message)


@pytest.mark.parametrize("place", [Unreached(), FailedToStart(255, "refused: it has no place")])
def test_a_write_to_a_command_that_never_begins_ends(place: Unreached | FailedToStart) -> None:
    async def main() -> tuple[bool, list[Event]]:
        execution = GuardedExecutor(lambda _: place).run(WORKER, ExecRequest(Argv(("cat",)), stdin=True))
        writing = asyncio.create_task(execution.write(b"x"))
        events = [event async for event in execution]
        await execution.close_stdin()
        return await writing, events

    taken, events = asyncio.run(asyncio.wait_for(main(), 100))
    assert not taken
    assert [isinstance(event, FailedToStart) and "refused" in event.reason for event in events] == [True]


class Scripted(Unreached):
    """A place whose guard, when asked to end the command, reports the exit and the proven end in one message."""

    def __init__(self) -> None:
        self.mark = ""
        self.messages: asyncio.Queue[Output | Ended | None] = asyncio.Queue()

    def command(
        self, words: Sequence[bytes], text: str | None, before: Sequence[str] = (), *, stdin: bool, tty: bool = False
    ) -> str:
        self.mark = before[0]
        return ""

    async def open(self, command: str, *, half_close: bool = False, size: TerminalSize | None = None) -> Channel:
        for stream in ("stderr", "stdout"):
            self.say(stream, "S 7 100")
        return self

    def say(self, stream: Stream, *words: str) -> None:
        self.messages.put_nowait(Output(stream, "".join(f"{self.mark} {word}\n" for word in words).encode()))

    async def receive(self) -> Output | Ended | None:
        return await self.messages.get()

    async def send(self, data: bytes) -> bool:
        loop = asyncio.get_running_loop()
        if data == b"q\n":
            self.messages.put_nowait(None)
        else:
            loop.call_later(0.1, self.messages.put_nowait, Output("stdout", b"output"))
            loop.call_later(0.2, self.say, "stderr", "X 7", "G")
        return True

    async def close_stdin(self) -> None:
        pass

    async def resize(self, size: TerminalSize) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("reader_first", [True, False])
def test_the_proof_of_an_end_is_seen_whoever_reads_it(reader_first: bool) -> None:
    async def main() -> tuple[bool, list[Event]]:
        execution = GuardedExecutor(lambda _: Scripted()).run(WORKER, ExecRequest(Argv(("sleep", "1"))))
        events = aiter(execution)
        started = await anext(events)
        delays = (0.0, 0.05) if reader_first else (0.05, 0.0)

        async def read() -> Event:
            await asyncio.sleep(delays[0])
            return await anext(events)

        async def end() -> bool:
            await asyncio.sleep(delays[1])
            return await execution.end(3.0)

        last, proven = await asyncio.gather(read(), end())
        return proven, [started, last]

    proven, seen = asyncio.run(asyncio.wait_for(main(), 100))
    assert proven
    assert [type(event) for event in seen] == [Started, Exited]


@pytest.mark.parametrize(("words", "says"), [((), "no command"), (("a", "b\0"), "NUL")])
def test_what_is_no_command_anywhere(words: tuple[str, ...], says: str) -> None:
    async def main() -> list[Event]:
        execution = GuardedExecutor(lambda _: Unreached()).run(WORKER, ExecRequest(Argv(words)))
        return [event async for event in execution]

    (event,) = asyncio.run(main())
    assert isinstance(event, FailedToStart)
    assert (event.exit_code, says in event.reason) == (125, True)


class Watched(Scripted):
    """A place whose watcher has seen the command's shell go; its last words come later, on the other connection."""

    def __init__(self, *last: tuple[Stream, str]) -> None:
        super().__init__()
        self._last, self._watching = last, False

    async def open(self, command: str, *, half_close: bool = False, size: TerminalSize | None = None) -> Channel:
        if not self._watching:
            self._watching = True
            await super().open(command, half_close=half_close, size=size)
            asyncio.get_running_loop().call_later(1.0, self._end)
            return self
        watcher = Scripted()
        watcher.mark = self.mark
        watcher.say("stderr", "R", "D")
        return watcher

    def _end(self) -> None:
        for stream, word in self._last:
            if word == "output":
                self.messages.put_nowait(Output(stream, b"output"))
            else:
                self.say(stream, word)

    async def send(self, data: bytes) -> bool:
        return True

    async def close(self) -> None:
        self.messages.put_nowait(None)


@pytest.mark.parametrize("ended", [True, False])
def test_a_command_that_ends_when_its_watcher_is_asked_is_not_lost(
    ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlctl.backends.guarded.execution.LAST_WORDS_SECONDS", 2.0)
    words: list[tuple[Stream, str]] = [("stdout", "output"), ("stderr", "X 7"), ("stdout", "E")]

    async def main() -> list[Event]:
        place = Watched(*words if ended else ())
        execution = GuardedExecutor(lambda _: place).run(WORKER, ExecRequest(Argv(("cat",)), stdin=True))
        return [event async for event in execution]

    *_, last = events = asyncio.run(asyncio.wait_for(main(), 100))
    if ended:
        assert Output("stdout", b"output") in events
        assert isinstance(last, Exited)
        assert last.exit_code == 7
    else:
        assert isinstance(last, Lost)
        assert "was killed" in last.reason
