"""An executor with scripted hosts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from atlctl.backends.base import Event, ExecRequest, Exited, Output, Started, TerminalSize
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.records import Placed, Record
from atlctl.jobs.model import Worker

RECORD = Record(
    name="job",
    uid="one",
    created=1.5,
    argv=("train", "a b"),
    hostfile=None,
    chdir=None,
    master_addr="h1",
    master_port=29500,
    workers=(
        Placed("w1", Host("h1", "ml", 2222, 8, (0, 3)), "/state/ssh-workers/job/w1"),
        Placed("w2", Host("h2"), "/state/ssh-workers/job/w2"),
    ),
)


def out(data: bytes, code: int = 0) -> list[Event]:
    """The events of a command that prints `data`."""
    return [Started(guarded=True), Output("stdout", data), Exited(exit_code=code)]


class FakeExecution:
    """A number in the events is a pause in seconds."""

    def __init__(self, events: Sequence[Event | float]) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self._events:
            if isinstance(event, float):
                await asyncio.sleep(event)
            else:
                yield event

    async def write(self, data: bytes) -> bool:
        return True

    async def close_stdin(self) -> None: ...

    def resize(self, size: TerminalSize) -> None: ...

    async def end(self, grace: float) -> bool:
        return True

    async def aclose(self) -> None: ...


class FakeExecutor:
    def __init__(self, *answers: Sequence[Event | float], **by_name: Sequence[Event | float]) -> None:
        """`answers`: used in order, for any host; or one for each host name."""
        self.requests: list[tuple[str, ExecRequest]] = []
        self._answers, self._by_name = list(answers), by_name

    def run(self, worker: Worker, request: ExecRequest) -> FakeExecution:
        self.requests.append((worker.name, request))
        return FakeExecution(self._by_name[worker.name] if self._by_name else self._answers.pop(0))

    async def aclose(self) -> None: ...
