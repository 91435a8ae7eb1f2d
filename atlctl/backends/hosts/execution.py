"""One command in a local worker, and the client's end of the control socket.

The supervisor starts the command on pipes of ours: its bytes pass through no other process. One connection serves a
command line, for all workers of the job. Whatever it had started is ended by the supervisor when the connection ends,
however that comes about: that is the lifeline of local commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import select
import socket
import struct
import termios
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from atlctl.backends.base import (
    NOT_CONNECTED,
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
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, Unreachable
from atlctl.jobs.model import Job, Worker
from atlctl.remote.supervisor.control import MAX_MESSAGE
from atlctl.remote.supervisor.processes import peer_is_me

READ_SIZE = 256 * 1024
#: The default capacity of a pipe, and how many pipes of a client are enlarged to READ_SIZE once they were full: a fifth
#: less CPU for much output. Beyond 64 MiB of pipes of one user, the kernel makes new ones small.
PIPE_SIZE, MOST_WIDENED = 64 * 1024, 64
#: After the command's exit, seconds without output until pipes that a child of it keeps open are given up on.
LINGER_SECONDS = 0.3
#: The supervisor's own limit for an end is the grace and 5 s; then its answer is due.
END_MARGIN_SECONDS = 6.0


class LocalExecution:
    """See `atlctl.backends.base.Execution`."""

    def __init__(
        self,
        client: ControlClient,
        worker: Worker,
        request: ExecRequest,
        token: str,
        refusal: str | None,
        has_ended: Callable[[], bool],
    ) -> None:
        """`refusal`: the reason not to start it, None to start it. `token`: the same for all commands of a run.

        `has_ended` returns whether the end of the worker is recorded.
        """
        self._client = client
        self._refusal = refusal
        self._has_ended = has_ended
        self._started = False
        self._worker = worker
        self._request = request
        self._token = token
        self._number = 0
        self._streams: dict[int, Stream] = {}
        self._stdin: int | None = None
        self._stdin_room: asyncio.Future[None] | None = None
        #: Input of a terminal since its last newline: there an end of input only ends the line.
        self._line_begun = False
        self._news: list[dict[str, Any] | None] = []
        self._wake: asyncio.Future[None] | None = None
        self._ended: asyncio.Event = asyncio.Event()
        self._proven = False
        self._asked_to_end = False
        self._exit: Event | None = None
        self._discarding = False
        #: Bytes that may still be the command's own after its exit: the capacity of its pipes.
        self._owed: dict[int, int] = {}

    def _hear(self, message: dict[str, Any] | None) -> None:
        if message is not None and message["event"] == "ended":
            self._proven = bool(message["proven"])
            self._ended.set()
            return
        if message is None:
            self._ended.set()
        self._news.append(message)
        self._nudge()

    def _nudge(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def __aiter__(self) -> AsyncIterator[Event]:
        if self._refusal is not None:
            yield FailedToStart(255, self._refusal)
            return
        try:
            await self._client.connect()
            if self._asked_to_end:
                yield FailedToStart(125, NOT_CONNECTED)
                return
            await self._begin()
        except AtlctlError as error:
            if isinstance(error, Unreachable):
                yield FailedToStart(255, Message("not running") if self._has_ended() else error.message)
            else:
                yield FailedToStart(125, error.message, not_allowed=isinstance(error, NotAllowed))
            return
        quiet_since = 0.0
        while True:
            for message in self._take_news():
                event = self._event(message)
                if isinstance(event, Started):
                    self._started = True
                    yield event
                elif event is not None:
                    self._exit = event
                    self._owed = {descriptor: _capacity(descriptor) for descriptor in self._streams}
                    quiet_since = time.monotonic()
            if isinstance(self._exit, FailedToStart) or (self._exit is not None and self._discarding):
                break
            came: list[Output] = []
            if self._started and not self._discarding:
                # stderr is read first: bytes that were written to stdout before it are then there, and given first.
                for descriptor, stream in reversed(list(self._streams.items())):
                    came += [Output(stream, data)] if (data := self._read(descriptor)) else []
            for output in reversed(came):
                yield output
            if came:
                quiet_since = time.monotonic()
                continue
            if self._exit is not None and (not self._streams or time.monotonic() - quiet_since > LINGER_SECONDS):
                break
            if not self._news:
                await self._wait(LINGER_SECONDS if self._exit is not None else None)
        assert self._exit is not None
        if isinstance(self._exit, Exited) and self._streams:
            # A child of it still holds the pipes; its output is not the command's.
            self._exit = replace(self._exit, truncated=True)
        yield self._exit

    def _take_news(self) -> list[dict[str, Any] | None]:
        news, self._news = self._news, []
        return news

    def _event(self, message: dict[str, Any] | None) -> Event | None:
        if self._exit is not None:
            return None
        if message is None:
            if not self._started and self._has_ended():
                return FailedToStart(255, Message("not running"))
            return Lost(Message("the job's supervisor has exited"))
        match message["event"]:
            case "started":
                return Started(guarded=True)
            case "exited":
                return Exited(message.get("exit_code"), message.get("signal"))
            case "failed":
                return FailedToStart(int(message["exit_code"]), message["reason"])
            case "wrong-job":
                return FailedToStart(255, Message("the job was replaced by another of the same name"))
            case other:
                return Lost(Message("the supervisor answered {answer!r}", answer=other))

    async def _begin(self) -> None:
        ours, theirs = self._terminal() if self._request.tty else self._pipes()
        self._streams = ours
        try:
            self._number = self._client.listen(self._hear)
            message = {
                "op": "exec",
                "worker": self._worker.name,
                "argv": [as_utf8(word) for word in self._request.argv.words],
                "token": self._token,
                "tty": self._request.tty is not None,
                "term": as_utf8(os.environ.get("TERM", "")),
            }
            await self._client.send(self._number, message, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def _pipes(self) -> tuple[dict[int, Stream], list[int]]:
        ours: dict[int, Stream] = {}
        theirs: list[int] = []
        try:
            if self._request.stdin:
                reader, self._stdin = os.pipe2(os.O_CLOEXEC)
                theirs.append(reader)
                os.set_blocking(self._stdin, False)
            else:
                theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            streams: tuple[Stream, Stream] = ("stdout", "stderr")
            for stream in streams:
                reader, writer = os.pipe2(os.O_CLOEXEC)
                ours[reader] = stream
                theirs.append(writer)
                os.set_blocking(reader, False)
        except OSError as error:
            for descriptor in (*ours, *theirs):
                os.close(descriptor)
            raise _no_pipe(error) from error
        return ours, theirs

    def _terminal(self) -> tuple[dict[int, Stream], list[int]]:
        try:
            master, slave = os.openpty()
        except OSError as error:
            raise _no_pipe(error) from error
        os.set_blocking(master, False)
        if self._request.tty is not None:
            _set_size(master, self._request.tty)
        try:
            self._stdin = os.dup(master)
        except OSError as error:
            os.close(master)
            os.close(slave)
            raise _no_pipe(error) from error
        return {master: "stdout"}, [slave]

    def _read(self, descriptor: int) -> bytes:
        size = READ_SIZE
        if self._exit is not None:
            size = min(size, self._owed[descriptor])
            if size == 0 and not _hung_up(descriptor):
                return b""
        try:
            data = os.read(descriptor, size)
        except BlockingIOError:
            return b""
        except OSError:  # EIO: the terminal's other end is closed
            data = b""
        if not data:
            os.close(descriptor)
            del self._streams[descriptor]
        if self._exit is not None:
            self._owed[descriptor] -= len(data)
        elif len(data) == PIPE_SIZE:
            self._client.widen(descriptor)
        return data

    async def _wait(self, seconds: float | None) -> None:
        """Until there is something to read or to hear, or `seconds` have passed."""
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        watched = [d for d in self._streams if self._owed.get(d, 1)] if self._started and not self._discarding else []
        for descriptor in watched:
            loop.add_reader(descriptor, self._nudge)
        timer = loop.call_later(seconds, self._nudge) if seconds is not None else None
        try:
            await self._wake
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()
            for descriptor in [] if self._discarding else watched:
                loop.remove_reader(descriptor)

    async def write(self, data: bytes) -> bool:
        view = memoryview(data)
        while view:
            if self._stdin is None:
                return False
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await self._stdin_writable(self._stdin)
            except OSError:
                self._shut_stdin()
                return False
        if data:
            self._line_begun = not data.endswith(b"\n")
        return True

    async def _stdin_writable(self, descriptor: int) -> None:
        """Wait until the command's stdin takes bytes, or is closed here."""
        loop = asyncio.get_running_loop()
        self._stdin_room = room = loop.create_future()
        loop.add_writer(descriptor, _settle, room)
        try:
            await room
        finally:
            self._stdin_room = None
            if self._stdin == descriptor:
                loop.remove_writer(descriptor)

    async def close_stdin(self) -> None:
        if self._request.tty is not None:
            # A terminal has no end that could be closed. The first of two only ends a line that was begun.
            await self.write(b"\x04\x04" if self._line_begun else b"\x04")
        self._shut_stdin()

    def _shut_stdin(self) -> None:
        descriptor, self._stdin = self._stdin, None
        if descriptor is None:
            return
        if self._stdin_room is not None:
            asyncio.get_running_loop().remove_writer(descriptor)
            _settle(self._stdin_room)
        os.close(descriptor)

    def resize(self, size: TerminalSize) -> None:
        if self._request.tty is not None:
            for master in self._streams:
                _set_size(master, size)

    async def end(self, grace: float) -> bool:
        first, self._asked_to_end = not self._asked_to_end, True
        if self._number == 0:
            return True
        if first:
            try:
                await self._client.send(self._number, {"op": "end", "grace": grace})
            except AtlctlError:
                self._ended.set()
        self._discard()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), grace + END_MARGIN_SECONDS)
        return self._proven

    def _discard(self) -> None:
        """Read on into nothing, so that a command that reports its end is not held up by a full pipe."""
        if self._discarding:
            return
        self._discarding = True
        loop = asyncio.get_running_loop()

        def drop(descriptor: int) -> None:
            try:
                data = os.read(descriptor, READ_SIZE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close(descriptor)

        for descriptor in self._streams:
            loop.add_reader(descriptor, drop, descriptor)

    def _close(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        del self._streams[descriptor]

    async def aclose(self) -> None:
        self._client.forget(self._number)
        for descriptor in list(self._streams):
            self._close(descriptor)
        self._shut_stdin()


def _settle(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


def _no_pipe(error: OSError) -> AtlctlError:
    return AtlctlError(
        Message("cannot open a pipe to the command: {why}", why=error.strerror), Message("raise the limit: ulimit -n")
    )


def _hung_up(descriptor: int) -> bool:
    """True if nothing more can come: the pipe is empty, and no process holds its other end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return [event for _, event in poll.poll(0)] == [select.POLLHUP]


def _capacity(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    except OSError:
        return READ_SIZE  # a terminal


def _set_size(descriptor: int, size: TerminalSize) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("4H", size.rows, size.columns, 0, 0))


Listener = Callable[[dict[str, Any] | None], None]


class ControlClient:
    """Sends requests in order and hands each answer to the listener of its number.

    A listener gets None when the connection is lost.
    """

    def __init__(self, job: Job, folder: str) -> None:
        self._job = job
        self._folder = folder
        self._sock: socket.socket | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        #: The rest of a request whose beginning was sent. It goes out whatever becomes of who asked for it.
        self._unsent = memoryview(b"")
        self._room: asyncio.Future[None] | None = None
        self._listeners: dict[int, Listener] = {}
        self._count = 0
        self._widened = 0

    async def connect(self) -> None:
        """Connect once; later calls share it. Raises Unreachable where no supervisor listens."""
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())
        # One worker's cancellation must not cost the others their connection.
        await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            # By way of a descriptor, since socket addresses are shorter than paths may be.
            folder = os.open(self._folder, os.O_PATH | os.O_CLOEXEC)
            try:
                await asyncio.get_running_loop().sock_connect(sock, f"/proc/self/fd/{folder}/control.sock")
            finally:
                os.close(folder)
            if not peer_is_me(sock):
                raise PermissionError  # it would hear the words and the input of every command
        except OSError as error:
            sock.close()
            if isinstance(error, PermissionError):
                hint = Message("check the owner of {folder}, or set ATLCTL_STATE_DIR to a folder that you own")
                raise NotAllowed(
                    Message("the supervisor of job {job} runs as another user", job=self._job.name),
                    hint.filled(folder=self._folder),
                ) from error
            raise Unreachable(
                Message("cannot reach the supervisor of job {job}: {why}", job=self._job.name, why=error.strerror),
                Message("see its current state: atlctl ps {job}", job=self._job.name),
            ) from error
        self._sock = sock
        self._reader = asyncio.create_task(self._read(sock))

    def listen(self, listener: Listener) -> int:
        """A new request number whose answers go to `listener`."""
        self._count += 1
        self._listeners[self._count] = listener
        return self._count

    def widen(self, pipe: int) -> None:
        """Let a pipe that was full hold more, if not too many do."""
        if self._widened < MOST_WIDENED and _capacity(pipe) == PIPE_SIZE:
            self._widened += 1
            with contextlib.suppress(OSError):  # beyond what this user may have
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, READ_SIZE)

    def forget(self, number: int) -> None:
        self._listeners.pop(number, None)

    async def send(self, number: int, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one request with descriptors beside it. Raises Unreachable when the connection has ended, and
        AtlctlError for a request that is too long to be one."""
        body = {"id": number, "uid": self._job.uid, "fds": len(descriptors), **message}
        # Bytes that are not UTF-8 are sent as escaped surrogates; `json.loads` restores them.
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        if len(data) > MAX_MESSAGE:
            raise AtlctlError(Message("the command line is too long"))
        async with self._sending:
            # One that is cancelled here has sent nothing: the others' requests stay whole.
            while self._unsent or not self._begin(data, descriptors):
                await self._writable()
        while self._unsent and self._sock is not None:
            await self._writable()

    def _begin(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """Send as much as the socket accepts, with all descriptors; False if it accepts nothing now."""
        if self._sock is None:
            raise self._lost()
        try:
            sent = socket.send_fds(self._sock, [data], list(descriptors))
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(Message(": {why}", why=error.strerror)) from error
        self._unsent = memoryview(data)[sent:]
        return True

    def _lost(self, why: str = "") -> Unreachable:
        return Unreachable(Message("connection to the supervisor of job {job} lost{why}", job=self._job.name, why=why))

    async def _writable(self) -> None:
        """Wait until the socket took more of the unsent bytes, takes new ones, or is lost."""
        if self._room is None:
            if self._sock is None:
                raise self._lost()
            loop = asyncio.get_running_loop()
            self._room = loop.create_future()
            loop.add_writer(self._sock.fileno(), self._flush)
        await asyncio.shield(self._room)

    def _flush(self) -> None:
        assert self._sock is not None
        try:
            if self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")  # the end of the connection shows when it is read
        self._wake_senders()
        if self._unsent:
            self._room = asyncio.get_running_loop().create_future()
        elif self._sock is not None:
            asyncio.get_running_loop().remove_writer(self._sock.fileno())

    def _wake_senders(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    async def _read(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        buffer = b""
        try:
            while True:
                try:
                    data = await loop.sock_recv(sock, 1 << 18)
                except OSError:
                    return
                if not data:
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for message in map(json.loads, lines):
                    if (listener := self._listeners.get(message.get("id"))) is not None:
                        listener(message)
        finally:
            loop.remove_writer(sock.fileno())
            self._sock = None
            sock.close()
            self._wake_senders()
            for listener in list(self._listeners.values()):
                listener(None)

    async def aclose(self) -> None:
        """End the connection, and with it what still runs of it."""
        if self._connecting is not None:
            with contextlib.suppress(AtlctlError, asyncio.CancelledError):
                await self._connecting
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader


def as_utf8(word: str) -> str:
    """The text that is, in UTF-8 with escaped surrogates, the bytes that `word` is in this locale: supervisors read and
    write UTF-8."""
    return os.fsencode(word).decode("utf-8", "surrogateescape")
