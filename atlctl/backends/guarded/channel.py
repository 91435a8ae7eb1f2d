"""What a guarded execution needs of a transport: streams to commands in one place, and words for what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from atlctl.backends.base import Exited, FailedToStart, Lost, Output, TerminalSize
from atlctl.jobs.errors import AtlctlError


@dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended, in the transport's words alone."""

    outcome: Exited | FailedToStart | Lost


class Channel(Protocol):
    """One command's stream."""

    async def receive(self) -> Output | Ended | None:
        """The next message; None when the stream is over, or the connection is gone."""

    async def send(self, data: bytes) -> bool:
        """Input for the command. Waits while the stream is full; False where nobody takes it."""

    async def close_stdin(self) -> None:
        """The end of input, where the transport has one."""

    async def resize(self, size: TerminalSize) -> None: ...

    async def close(self) -> None:
        """Ends the stream, within a second, whatever state it is in."""


class Place(Protocol):
    """Where commands run. `name` stands in messages."""

    name: str

    def command(
        self, words: Sequence[bytes], text: str | None, before: Sequence[str] = (), *, stdin: bool, tty: bool = False
    ) -> str:
        """What `open` takes for `words`; run by the shell text `text`, whose arguments `before` and they are then."""

    def impossible(self, words: tuple[str, ...], command: str) -> FailedToStart | None:
        """Why nothing is opened for these words, None where it can be."""

    async def reach(self) -> None:
        """What must be there before anything can be sent. Given up on, nothing was sent. Raises AtlctlError."""

    async def open(self, command: str, *, half_close: bool = False, size: TerminalSize | None = None) -> Channel:
        """Raises AtlctlError. `half_close`: the end of input must be tellable. `size`: of a terminal."""

    def refused(self, error: AtlctlError, *, half_close: bool = False) -> FailedToStart | Lost:
        """What an error of `open` means for the command, which never ran; or may have, where no answer came."""
