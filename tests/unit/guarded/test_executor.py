"""Commands that never begin: who waits to write to them is told, and what is no command is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from atlctl.backends.base import Argv, Event, ExecRequest, FailedToStart, Lost, TerminalSize
from atlctl.backends.guarded.channel import Channel
from atlctl.backends.guarded.executor import GuardedExecutor
from atlctl.jobs.errors import AtlctlError, Unreachable
from atlctl.jobs.model import State, Worker

WORKER = Worker("w", 0, State.RUNNING)


class Unreached:
    """A place that lets nobody in."""

    name = "w"

    def command(
        self, words: Sequence[bytes], text: str | None, before: Sequence[str] = (), *, stdin: bool, tty: bool = False
    ) -> str:
        return f"{words} {text} {before} {stdin} {tty}"

    def impossible(self, words: tuple[str, ...], command: str) -> FailedToStart | None:
        return None

    async def reach(self) -> None:
        pass

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

    taken, events = asyncio.run(asyncio.wait_for(main(), 5))
    assert not taken
    assert [isinstance(event, FailedToStart) and "refused" in event.reason for event in events] == [True]


@pytest.mark.parametrize(("words", "says"), [((), "no command"), (("a", "b\0"), "NUL")])
def test_what_is_no_command_anywhere(words: tuple[str, ...], says: str) -> None:
    async def main() -> list[Event]:
        execution = GuardedExecutor(lambda _: Unreached()).run(WORKER, ExecRequest(Argv(words)))
        return [event async for event in execution]

    (event,) = asyncio.run(main())
    assert isinstance(event, FailedToStart)
    assert (event.exit_code, says in event.reason) == (125, True)
