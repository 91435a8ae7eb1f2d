"""The one writer thread: nothing else in the process writes stdout and stderr.

A reader that stops must neither freeze the event loop nor keep stderr from being shown: `put` only appends, and pipes
and terminals are written through a non-blocking description of the writer's own, as O_NONBLOCK on the inherited one
would change the shell's terminal too.

The thread also draws the status line (`show`), so that it neither mixes with output nor stops while the loop is busy.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from atlctl.backends.base import Stream
from atlctl.render.lines import Piece, Spill
from atlctl.render.streams import DEFAULT_WIDTH

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)

#: `drain` waits while more than this many bytes are pending.
PENDING_LIMIT = 8 << 20
_BATCH_BYTES = 1 << 20
_BATCH_BUFFERS = min(1024, os.sysconf("SC_IOV_MAX"))
_SPILL_CHUNK = 256 << 10
#: The assumed overhead of an item in bytes, so that a flood of tiny ones is bounded, too.
_ITEM_COST = 64

#: Erases the status line, which never takes more than one.
ERASE = b"\r\x1b[K"
#: Seconds until the status line first appears, without output until it does again, and between two draws of it.
FIRST, QUIET, TICK = 0.3, 0.5, 0.15
#: Output that comes less often than this (seconds) does not hide the line: it is drawn again at once.
_STEADY = 0.25
#: Seconds that a terminal which is not read gets to take the line away.
_HIDING = 0.5


class _Target:
    """One file or terminal that is written. stdout and stderr share it if they are the same (`2>&1`)."""

    __slots__ = ("at_line_start", "blocked", "dead", "fds", "owner", "pipe", "private_fd", "queue", "terminal")

    def __init__(self) -> None:
        #: (stream, what is left to write, its cost)
        self.queue: deque[tuple[Stream, Piece, int]] = deque()
        self.fds: dict[Stream, int] = {}
        self.private_fd: int | None = None
        self.blocked = False
        self.dead = False
        self.at_line_start = True
        self.owner: str | None = None
        self.pipe = self.terminal = False

    def fd(self, stream: Stream) -> int:
        return self.fds[stream] if self.private_fd is None else self.private_fd

    def open_private(self) -> None:
        """Reopens a pipe or terminal without blocking, where the system allows it; files must share their offset."""
        fd = next(iter(self.fds.values()))
        try:
            mode = os.fstat(fd).st_mode
            self.pipe, self.terminal = stat.S_ISFIFO(mode), stat.S_ISCHR(mode) and os.isatty(fd)
            if self.pipe or self.terminal:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self.private_fd = os.open(f"/proc/self/fd/{fd}", flags)
        except OSError:
            return
        if self.private_fd is not None and self.pipe:
            with contextlib.suppress(OSError):  # The user's share of pipe memory may be used up.
                fcntl.fcntl(self.private_fd, fcntl.F_SETPIPE_SZ, _BATCH_BYTES)


class Writer:
    """Writes in the order of `put`, in large batches. Safe to use from any thread, with or without an event loop.

    `broken`: the reader of stdout is gone (EPIPE); later output for it is dropped. `error`: the first other failure to
    write (a full disk). `on_broken` is called once, from the writer's thread, for either.
    """

    def __init__(
        self,
        stdout_fd: int = 1,
        stderr_fd: int = 2,
        limit: int = PENDING_LIMIT,
        on_broken: Callable[[], None] | None = None,
    ) -> None:
        self.broken = False
        self.error: OSError | None = None
        self._on_broken = on_broken
        self._limit = limit
        self._changed = threading.Condition()
        self._pending = 0
        self._sleeping = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        out = _Target()
        err = out if _same_file(stdout_fd, stderr_fd) else _Target()
        out.fds["stdout"] = stdout_fd
        err.fds["stderr"] = stderr_fd
        self._targets: dict[Stream, _Target] = {"stdout": out, "stderr": err}
        self._distinct = (out,) if out is err else (out, err)
        #: The status line's text, by the columns of the terminal. `_holds` counts the callers that hide it.
        self._line: Callable[[int], bytes] | None = None
        self._holds = 0
        self._drawn = False
        self._piped = False
        self._next_draw = self._settled = 0.0

    @property
    def pending_bytes(self) -> int:
        """The bytes put but not written yet, with a small overhead for each item."""
        return self._pending

    def put(self, stream: Stream, data: Piece | Sequence[Piece], owner: str | None = None) -> None:
        """Appends `data`; never waits. Several pieces stay together. The writer closes each `Spill` it was given.

        If the previous bytes came from another `owner` and did not end in a newline, one is inserted.
        """
        pieces = (data,) if isinstance(data, bytes | memoryview | Spill) else data
        target = self._targets[stream]
        with self._changed:
            if self._closing:
                raise RuntimeError("the writer is closed")
            if target.dead:
                _close_spills(pieces)
                return
            for piece in pieces:
                size = piece.unread if isinstance(piece, Spill) else len(piece)
                if not size:
                    continue
                if target.owner != owner:
                    if not target.at_line_start:
                        target.queue.append((stream, b"\n", 1))
                        self._pending += 1
                    target.owner = owner
                target.queue.append((stream, piece, size + _ITEM_COST))
                self._pending += size + _ITEM_COST
                # A spill never ends in a newline: it is a line that waits for one.
                target.at_line_start = not isinstance(piece, Spill) and piece[-1] == 0x0A
            if self._thread is None:
                self._start()
            # A blocked target is watched anyway; waking the thread for it would be in vain.
            if self._sleeping and not target.blocked:
                self._wake()

    async def drain(self) -> None:
        """Wait until no more than `limit` bytes are pending. Cheap if that is the case."""
        while self._pending > self._limit:
            import asyncio

            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            with self._changed:
                if self._pending <= self._limit:
                    return
                self._waiting.append((loop, waiter))
            await waiter

    def flush(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds until nothing is pending. Blocks the caller; False when time was too short."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending == 0, timeout)

    def close(self, timeout: float) -> bool:
        """Like `flush`, and ends the thread. Bytes not written by then are dropped. Safe to call twice."""
        deadline = time.monotonic() + timeout
        done = self.flush(timeout)
        with self._changed:
            self._closing = True
            thread = self._thread
            if self._sleeping:
                self._wake()
        if thread is not None:
            thread.join(max(0.1, deadline - time.monotonic()))
        return done

    def show(self, line: Callable[[int], bytes] | None) -> None:
        """From now on `line(columns)` is the status line on stderr, a terminal: drawn when nothing was written for a
        while, and erased before anything is. It is called in the writer's thread; its text must be safe to show, one
        line, and narrower than `columns`, and may be empty. None: no line any more; it is gone when this returns."""
        with self._changed:
            if self._closing or self._piped:
                return
            self._line = line
            self._next_draw = time.monotonic() + FIRST
            if line is not None and self._thread is None:
                self._start()
            elif self._sleeping:
                self._wake()
        if line is None:
            self._until_hidden()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Without the status line, for what writes to the terminal past this writer. The cursor is then at the start of
        a line."""
        with self._changed:
            self._holds += 1
        self._until_hidden()
        try:
            yield
        finally:
            with self._changed:
                self._holds -= 1
                self._next_draw = time.monotonic() + QUIET
                for target in self._distinct:
                    target.at_line_start = target.at_line_start or target.terminal
                if self._sleeping:
                    self._wake()

    @property
    def drawn(self) -> bool:
        """Whether the status line is on the terminal."""
        return self._drawn

    def _until_hidden(self) -> None:
        """Does without the lock, as a signal's handler may hold it below this."""
        until = time.monotonic() + _HIDING
        while self._drawn and time.monotonic() < until and self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(OSError):  # full, or the thread has just ended
                os.write(self._wake_write, b"\0")
            time.sleep(0.002)

    def _start(self) -> None:
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="atlctl-writer", daemon=True)
        self._thread.start()

    def _wake(self) -> None:
        self._sleeping = False
        os.write(self._wake_write, b"\0")

    # From here on: the writer's thread.

    def _run(self) -> None:
        for target in self._distinct:
            target.open_private()
        try:
            while True:
                with self._changed:
                    if self._closing:
                        return
                    ready = [target for target in self._distinct if target.queue and not target.blocked]
                    self._sleeping = not ready
                for target in ready:
                    self._write_some(target)
                pause = self._draw()
                if not ready or any(target.blocked for target in self._distinct):
                    self._poll(pause if not ready else 0)
        finally:
            with contextlib.suppress(BlockingIOError):
                self._erase()
            for target in self._distinct:
                _close_spills([item for _, item, _ in target.queue])
                if target.private_fd is not None:
                    os.close(target.private_fd)
            with self._changed:
                self._sleeping = False
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _draw(self) -> float | None:
        """Draw or erase the status line if it is due. Returns the seconds until the next time, None for never."""
        line, target, now = self._line, self._targets["stderr"], time.monotonic()
        if line is None or self._holds or target.dead:
            with contextlib.suppress(BlockingIOError):
                self._erase()
            return TICK if self._drawn else None
        if now < self._next_draw:
            return self._next_draw - now
        if target.blocked or not self._clear_to_draw():
            # Pending output is written first; an incomplete line ends some time.
            self._next_draw = now + TICK
            return TICK
        self._next_draw = now + TICK
        try:
            columns = os.get_terminal_size(target.fd("stderr")).columns
            if text := line(columns or DEFAULT_WIDTH):
                os.write(target.fd("stderr"), ERASE + text)
                self._drawn = True
            else:
                self._erase()
        except OSError:
            pass  # a terminal that is not read now, or is gone: writing output will show it
        except Exception:  # noqa: BLE001 - whatever computes the line, output goes on
            _log.debug("the status line failed", exc_info=True)
            self._line = None
        return TICK

    def _clear_to_draw(self) -> bool:
        """Nothing waits to be written, no line on the terminal is begun, and the terminal is this process's."""
        with self._changed:
            if any(target.queue or (target.terminal and not target.at_line_start) for target in self._distinct):
                return False
        try:
            return os.tcgetpgrp(self._targets["stderr"].fd("stderr")) == os.getpgrp()
        except OSError:
            return True  # not the terminal that controls this process

    def _erase(self) -> None:
        """Takes the status line away. Raises BlockingIOError if the terminal takes nothing now."""
        if self._drawn:
            target = self._targets["stderr"]
            try:
                if not target.dead:
                    os.write(target.fd("stderr"), ERASE)
            except BlockingIOError:
                raise
            except OSError:
                pass
            self._drawn = False

    def _poll(self, seconds: float | None) -> None:
        """Until there is something to write, or room for what could not be written, or the time is up."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        blocked = {target.fd(target.queue[0][0]): target for target in self._distinct if target.blocked}
        for fd in blocked:
            poll.register(fd, select.POLLOUT)
        for fd, _ in poll.poll(None if seconds is None else 1000 * seconds):
            if fd == self._wake_read:
                os.read(fd, 64)
            else:
                blocked[fd].blocked = False

    def _make_way(self, target: _Target) -> None:
        """Takes the status line away before `target` is written, and sets when it may come back."""
        if target.pipe and "stdout" in target.fds:
            self._line, self._piped = None, True  # the reader of the pipe may use the same terminal from now on
        elif not target.terminal:
            return
        was, now = self._drawn, time.monotonic()
        self._erase()
        if was and now - self._settled >= _STEADY:
            self._next_draw = self._settled = now
        else:
            self._next_draw = now + QUIET

    def _write_some(self, target: _Target) -> None:
        try:
            if self._line is not None or self._drawn:
                self._make_way(target)
            stream, buffers = self._batch(target)
            if buffers:
                self._written(target, os.writev(target.fd(stream), buffers))
        except BlockingIOError:
            target.blocked = True
        except OSError as error:
            self._fail(target, error)

    def _batch(self, target: _Target) -> tuple[Stream, list[bytes | memoryview]]:
        """The next bytes for one stream. A spill at the head of the queue is read piece by piece."""
        stream, head, cost = target.queue[0]
        if isinstance(head, Spill):
            chunk = head.read(_SPILL_CHUNK)
            if not chunk:
                head.close()
                target.queue.popleft()
                self._settle([cost])
                return stream, []
            target.queue[0] = (stream, head, cost - len(chunk))
            target.queue.appendleft((stream, chunk, len(chunk)))
            return stream, [chunk]
        buffers: list[bytes | memoryview] = []
        size = 0
        # By index: another thread may append meanwhile, which would break an iterator.
        for index in range(min(len(target.queue), _BATCH_BUFFERS)):
            item_stream, item, _ = target.queue[index]
            if item_stream != stream or isinstance(item, Spill) or size >= _BATCH_BYTES:
                break
            buffers.append(item)
            size += len(item)
        return stream, buffers

    def _written(self, target: _Target, count: int) -> None:
        costs = []
        while count:
            stream, item, cost = target.queue[0]
            assert not isinstance(item, Spill)
            if count < len(item):
                target.queue[0] = (stream, memoryview(item)[count:], cost)
                break
            count -= len(item)
            costs.append(cost)
            target.queue.popleft()
        self._settle(costs)

    def _settle(self, costs: Sequence[int]) -> None:
        """Subtract the cost of items that were written or dropped."""
        with self._changed:
            self._pending -= sum(costs)
            if not self._pending:
                self._changed.notify_all()
            if self._pending > self._limit or not self._waiting:
                return
            waiting, self._waiting = self._waiting, []
        for loop, waiter in waiting:
            try:
                loop.call_soon_threadsafe(_resolve, waiter)
            except RuntimeError:
                continue  # That loop is closed: no task waits any more.

    def _fail(self, target: _Target, error: OSError) -> None:
        """Nothing can be written there any more. A closed stderr is ignored."""
        first = not self.broken and self.error is None
        gone = isinstance(error, BrokenPipeError)
        if not gone:
            self.error = self.error or error
        elif "stdout" in target.fds:
            self.broken = True
        with self._changed:
            target.dead = True
            dropped = list(target.queue)
            target.queue.clear()
        _close_spills([item for _, item, _ in dropped])
        self._settle([cost for _, _, cost in dropped])
        if first and (self.broken or self.error is not None) and self._on_broken is not None:
            self._on_broken()


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _close_spills(items: Sequence[object]) -> None:
    for item in items:
        if isinstance(item, Spill):
            item.close()


def _same_file(first: int, second: int) -> bool:
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:
        return False
