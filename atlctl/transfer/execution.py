"""Executors that copy: around any other, they answer the worker's greeting and see to the bytes.

For the fan-out a copy is a command like any other. What a command's exit alone does not tell stands in its `Copy`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from atlctl.backends.base import (
    Event,
    ExecRequest,
    Execution,
    Executor,
    Exited,
    Output,
)
from atlctl.fanout.around import Around
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Worker
from atlctl.transfer.extract import Tally
from atlctl.transfer.receive import Receiver
from atlctl.transfer.scripts import MAX_GREETING
from atlctl.transfer.tarwrite import Source, SourceError, archive, plain

#: Bytes of a worker's stderr that are kept: its first lines say what went wrong.
_STDERR = 4096
#: Bytes taken before the event loop has its turn: a worker that never stops must not hold up Ctrl-C.
_TURN = 1 << 20
#: Seconds from SIGTERM to SIGKILL where a copy is given up, and for what is under way here.
_GRACE = 1.0

#: What GNU tar says (and exits with 1) where a file is no copy of one moment, and nothing else is wrong.
_CHANGED = (b": file changed as we read it", b": File removed before we read it")

_log = logging.getLogger(__name__)


class Copy:
    """One worker's copy, while it goes on and afterwards. `problem`: why it does not count, empty where it does.

    `path`: where it lies, as far as that is known. `said`: the first line of the command's stderr. `changed`: whole,
    but for files that were written to meanwhile, as logs of a living job are; the command's exit code is 1 then.
    """

    def __init__(self, path: str, tally: Tally) -> None:
        self.path = path
        self.tally = tally
        self.problem = ""
        self.changed = False
        self.stderr = bytearray()

    @property
    def said(self) -> str:
        for line in bytes(self.stderr).splitlines():
            if line.strip():
                return line.decode("utf-8", "backslashreplace").strip()[:300]
        return ""


def _only_changed(stderr: bytes) -> bool:
    """All that tar had to say is that files were written to, or taken away, while it read them."""
    lines = stderr.splitlines()
    return bool(lines) and len(stderr) < _STDERR and all(line.endswith(_CHANGED) for line in lines)


class _Around(Around):
    """What both directions share: an execution around another one."""

    def __init__(self, inner: Execution, copy: Copy) -> None:
        super().__init__(inner)
        self._copy = copy

    async def __aiter__(self) -> AsyncIterator[Event]:
        events = aiter(self._inner)
        try:
            async for event in events:
                if not isinstance(event, Output):
                    if isinstance(event, Exited):
                        await self._exited(event)
                    yield event
                elif event.stream == "stdout":
                    await self._output(event.data)
                else:
                    self._copy.stderr += event.data[: _STDERR - len(self._copy.stderr)]
        finally:
            await self._over()
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    @abstractmethod
    async def _output(self, data: bytes) -> None:
        """What the script printed on stdout."""

    @abstractmethod
    async def _exited(self, event: Exited) -> None:
        """The script has ended."""

    async def _over(self) -> None:
        """However it ended: give back what is held."""


class _Down(_Around):
    """From a worker to this machine."""

    def __init__(self, inner: Execution, copy: Copy, receiver: Receiver) -> None:
        super().__init__(inner, copy)
        self._receiver = receiver
        self._since_turn = 0
        self._ending: asyncio.Task[bool] | None = None

    async def _output(self, data: bytes) -> None:
        self._receiver.feed(data)
        self._copy.path = self._receiver.path
        self._since_turn += len(data)
        if self._since_turn >= _TURN:
            self._since_turn = 0
            await asyncio.sleep(0)
        if self._receiver.problem and self._ending is None:
            self._copy.problem = self._receiver.problem
            # What it would go on to send is of no use. The iterator is read meanwhile, for its last event.
            self._ending = asyncio.create_task(self._inner.end(_GRACE))

    async def _exited(self, event: Exited) -> None:
        changed = event.exit_code == 1 and _only_changed(bytes(self._copy.stderr))
        if event.exit_code == 0 or changed:
            self._receiver.finish()
            self._copy.path = self._receiver.path
            self._copy.problem = self._receiver.problem
            self._copy.changed = changed and not self._copy.problem

    async def _over(self) -> None:
        self._receiver.close()
        if self._ending is not None:
            await asyncio.wait([self._ending], timeout=_GRACE)


class _Up(_Around):
    """From this machine to a worker: nothing is sent before the worker says in which form it takes it."""

    def __init__(self, inner: Execution, copy: Copy, source: Source) -> None:
        super().__init__(inner, copy)
        self._source = source
        self._greeting = bytearray()
        self._feeding: asyncio.Task[None] | None = None

    async def _output(self, data: bytes) -> None:
        if self._feeding is not None:
            return
        self._greeting += data[:MAX_GREETING]
        line, newline, _ = bytes(self._greeting).partition(b"\n")
        if newline or len(self._greeting) > MAX_GREETING:
            self._feeding = asyncio.create_task(self._feed(line.split()[1:]))

    async def _feed(self, form: list[bytes]) -> None:
        try:
            if form == [b"tar"]:
                await self._pass(archive(self._source))
            elif form == [b"cat"] and self._source.kind == "file":
                await self._pass(plain(self._source))
            else:
                self._copy.problem = "the worker did not say how it takes it"
        except SourceError as error:
            self._copy.problem = error.message
        except (AtlctlError, OSError) as error:
            _log.debug("the worker's stdin is gone: %r", error)  # its last event tells how it ended
        finally:
            with contextlib.suppress(AtlctlError, OSError):
                await self._inner.close_stdin()

    async def _pass(self, pieces: Iterator[bytes]) -> None:
        tally = self._copy.tally
        while piece := await asyncio.to_thread(next, pieces, b""):
            if not await self._inner.write(piece):
                return
            tally.bytes += len(piece)

    async def _exited(self, event: Exited) -> None:
        if event.exit_code != 0 or self._copy.problem:
            return
        if self._feeding is None:
            self._copy.problem = "the worker took nothing"
            return
        # The worker's script has seen the end of the stream: what may be left to write is its filling.
        self._feeding.cancel()
        self._copy.tally.files, self._copy.tally.bytes = self._source.files, self._source.bytes

    async def _over(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.wait([self._feeding], timeout=_GRACE)


class DownExecutor:
    """Runs requests of `send_request` through `inner`. `receivers` and `copies`: one for each worker's name."""

    def __init__(self, inner: Executor, copies: dict[str, Copy], receivers: dict[str, Receiver]) -> None:
        self._inner = inner
        self._copies = copies
        self._receivers = receivers

    def run(self, worker: Worker, request: ExecRequest) -> Execution:
        return _Down(self._inner.run(worker, request), self._copies[worker.name], self._receivers[worker.name])

    async def aclose(self) -> None:
        await self._inner.aclose()


class UpExecutor:
    """Runs requests of `take_request` through `inner`, and sends `source` to each."""

    def __init__(self, inner: Executor, copies: dict[str, Copy], source: Source) -> None:
        self._inner = inner
        self._copies = copies
        self._source = source

    def run(self, worker: Worker, request: ExecRequest) -> Execution:
        return _Up(self._inner.run(worker, request), self._copies[worker.name], self._source)

    async def aclose(self) -> None:
        await self._inner.aclose()
