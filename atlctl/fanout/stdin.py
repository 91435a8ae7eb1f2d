"""Standard input for many commands at once."""

from __future__ import annotations

import asyncio
import errno
import logging
import os

from atlctl.backends.base import Execution
from atlctl.jobs.errors import AtlctlError

_CHUNK = 64 * 1024
_log = logging.getLogger(__name__)


class StdinFeed:
    """Broadcasts a descriptor, this process's stdin unless told otherwise, to executions.

    Receivers are added before `run`, so all get every byte: the engine adds each when it begins and starts the
    feed when all have started or ended. The next chunk is read only when every living receiver took the last one:
    the slowest sets the pace, memory holds one chunk. A receiver that stops reading is dropped.
    """

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        #: Receivers and their write in progress.
        self._receivers: dict[Execution, asyncio.Task[None] | None] = {}

    def add(self, execution: Execution) -> None:
        """Feed `execution`. Before `run` only."""
        self._receivers[execution] = None

    def drop(self, execution: Execution) -> None:
        """`execution` has ended: wait for it no longer."""
        writing = self._receivers.pop(execution, None)
        if writing is not None:
            writing.cancel()

    async def run(self) -> None:
        """Feed until the end of input, then close every receiver's stdin; ends early when no receiver is left.

        Raises AtlctlError where the input cannot be read: a cut input must not look like a whole one.
        """
        try:
            while self._receivers:
                chunk = await self._read()
                if not chunk:
                    await self._each(None)
                    return
                await self._each(chunk)
        finally:
            for execution in list(self._receivers):
                self.drop(execution)

    async def _each(self, chunk: bytes | None) -> None:
        """Write `chunk` to all receivers, or close them; returns when the last one took it or was dropped."""
        for execution in self._receivers:
            self._receivers[execution] = asyncio.create_task(self._hand(execution, chunk))
        # Tasks of receivers dropped meanwhile are cancelled, which ends the wait for them too.
        writes = [task for task in self._receivers.values() if task is not None]
        if writes:
            await asyncio.wait(writes)

    async def _hand(self, execution: Execution, chunk: bytes | None) -> None:
        reads = True
        try:
            if chunk is None:
                await execution.close_stdin()
            else:
                reads = await execution.write(chunk)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises, the others must be fed on
            _log.debug("a command's stdin is gone: %r", error, exc_info=True)
            reads = False
        if execution in self._receivers:
            self._receivers[execution] = None
            if not reads:
                del self._receivers[execution]

    async def _read(self) -> bytes:
        while True:
            await self._readable()
            try:
                return os.read(self._fd, _CHUNK)
            except BlockingIOError:
                continue  # another reader of the same non-blocking pipe was faster
            except OSError as error:
                if error.errno == errno.EIO and os.isatty(self._fd):
                    return b""  # the terminal hung up
                raise _unreadable(error) from error

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(self._fd, _wake, ready)
        except PermissionError:
            return  # epoll takes no regular files and no /dev/null: they never block
        except (OSError, ValueError) as error:
            raise _unreadable(error) from error
        try:
            await ready
        finally:
            # Removed between chunks: while receivers are busy, waiting input must not spin the loop.
            loop.remove_reader(self._fd)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _unreadable(error: Exception) -> AtlctlError:
    text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return AtlctlError(f"standard input cannot be read: {text}", "leave out -i, or redirect it: -i < FILE")
