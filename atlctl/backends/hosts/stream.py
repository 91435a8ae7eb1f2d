"""Commands on hosts: a session of a connection as a channel, a host as a place, an executor for the hosts of a job."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import asyncssh

from atlctl.backends.base import Argv, Exited, FailedToStart, Lost, Output, TerminalSize, quoted
from atlctl.backends.guarded import guard
from atlctl.backends.guarded.execution import Channel, Ended, GuardedExecutor
from atlctl.backends.hosts.connect import WINDOW, Connections, NameUnknown
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.keys import LoginRefused
from atlctl.i18n import Message, joined
from atlctl.jobs.errors import AtlctlError, NotAllowed, Unreachable, no_answer
from atlctl.jobs.model import Worker

#: Limits of unread bytes: above the first the sender is paused, below the second it continues.
HIGH, LOW = 256 * 1024, 64 * 1024
#: Seconds for a host to open a session and to take its command.
OPEN_SECONDS = 15.0
#: Bytes of one command: it is one word of the login shell's, for which the kernel takes 128 KiB less one.
COMMAND_LIMIT = 128 * 1024 - 64


class _Session(asyncssh.SSHClientSession[bytes]):
    """Keeps what comes until it is received."""

    def __init__(self) -> None:
        self.channel: asyncssh.SSHClientChannel[bytes] | None = None
        self.messages: deque[Output | Ended] = deque()
        self.over = False
        #: The host has sent the end of the output; the connection was lost before it did.
        self.ended = self.cut = False
        self.size = 0
        self.came = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self.channel = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        stderr = datatype == asyncssh.EXTENDED_DATA_STDERR
        self.messages.append(Output("stderr" if stderr else "stdout", data))
        self.size += len(data)
        if self.size > HIGH and self.channel is not None:
            self.channel.pause_reading()
        self.came.set()

    def eof_received(self) -> bool:
        self.ended = True
        return True  # input goes on to be sent

    def exit_status_received(self, status: int) -> None:
        self._ended(Exited(exit_code=status))  # a byte: asyncssh takes the last one of what the host names

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:  # noqa: ARG002
        # The signal of the wrapper; the wrapper itself reports that of the command.
        self._ended(Exited(exit_code=128 + _number(signal)))

    def _ended(self, outcome: Exited) -> None:
        self.messages.append(Ended(outcome))
        self.came.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        self.cut = exc is not None and not self.ended
        self.came.set()
        self.writable.set()


def _number(name: str) -> int:
    found = getattr(signal, f"SIG{name}", None)
    return int(found) if isinstance(found, signal.Signals) else int(signal.SIGKILL)


class SessionChannel:
    """See `atlctl.backends.guarded.execution.Channel`."""

    def __init__(
        self, session: _Session, channel: asyncssh.SSHClientChannel[bytes], closed: Callable[[], object]
    ) -> None:
        """`closed` is called once."""
        self._session, self._channel = session, channel
        self._closed: Callable[[], object] | None = closed
        self._status: Ended | None = None

    async def receive(self) -> Output | Ended | None:
        session = self._session
        while True:
            while session.messages:
                message = session.messages.popleft()
                if isinstance(message, Ended):
                    # Output may still come behind it, up to the end of the channel.
                    self._status = message
                    continue
                before, session.size = session.size, session.size - len(message.data)
                if before > LOW >= session.size and not session.over:
                    self._channel.resume_reading()
                return message
            if session.over:
                status, self._status = self._status, None
                return None if session.cut else status
            session.came.clear()
            await session.came.wait()

    async def send(self, data: bytes) -> bool:
        session = self._session
        await session.writable.wait()
        if session.over:
            return False
        try:
            self._channel.write(data)
        except (OSError, asyncssh.Error):
            return False
        await session.writable.wait()
        return not session.over

    async def close_stdin(self) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            self._channel.write_eof()

    async def resize(self, size: TerminalSize) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            self._channel.change_terminal_size(size.columns, size.rows)

    async def close(self) -> None:
        self._channel.abort()
        if self._closed is not None:
            closed, self._closed = self._closed, None
            closed()


@dataclass(frozen=True, slots=True)
class Within:
    """The environment of a command in the worker: variables and the folder (default: the login's home)."""

    env: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None

    @property
    def words(self) -> str:
        """The prefix of a command line, for any login shell."""
        env = ["env", *(f"{name}={value}" for name, value in self.env.items())] if self.env else []
        if self.folder is None:
            return quoted(Argv(("exec", *env))).text
        # No shell takes it for an option then.
        folder = self.folder if self.folder.startswith("/") else f"./{self.folder}"
        return f"{quoted(Argv(('cd', folder))).text} && {quoted(Argv(('exec', *env))).text}"


class _Unanswered(Unreachable):
    """The connection was lost when the command had been sent and not been answered: it may run."""


class HostPlace:
    """One host. See `atlctl.backends.guarded.execution.Place`."""

    def __init__(self, connections: Connections, host: Host, within: Within | None = None) -> None:
        self._connections, self._host = connections, host
        self._begin = (within or Within()).words
        #: Not used yet.
        self._reached: asyncssh.SSHClientConnection | None = None
        self.name = host.name

    def command(
        self,
        words: Sequence[bytes],
        text: str | None,
        before: Sequence[str] = (),
        *,
        stdin: bool,  # noqa: ARG002
        tty: bool = False,  # noqa: ARG002
    ) -> str:
        """The login shell's command line. It is a form that csh, fish and restricted shells take like `sh` does: one
        line, in which `exec` and whatever they would change is encoded."""
        line = f"{self._begin} {guard.line(text, before, words)}"
        return line if text is None else quoted(Argv(guard.encoded(line))).text

    def impossible(self, words: tuple[str, ...], command: str) -> FailedToStart | None:
        try:
            size = len(command.encode())
        except UnicodeEncodeError:
            return FailedToStart(125, Message("{word}: arguments of this command must be UTF-8", word=words[0]))
        if size > COMMAND_LIMIT:
            limit = COMMAND_LIMIT >> 10
            return FailedToStart(
                125,
                Message(
                    "{word}: the command is longer than {limit} KiB; send it as input (-i)", word=words[0], limit=limit
                ),
            )
        return None

    async def reach(self) -> None:
        if self._reached is None:
            self._reached = await self._connections.get(self._host)

    async def open(self, command: str, *, half_close: bool = False, size: TerminalSize | None = None) -> Channel:  # noqa: ARG002
        connection, self._reached = self._reached, None
        connection = connection or await self._connections.get(self._host)
        session = _Session()
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                channel, _ = await connection.create_session(
                    lambda: session,
                    command,
                    encoding=None,
                    window=WINDOW,
                    request_pty=size is not None,
                    term_type=os.environ.get("TERM") or "xterm" if size is not None else None,
                    term_size=(size.columns, size.rows) if size is not None else None,
                )
        except BaseException as error:
            self._connections.rest(self._host)
            if not isinstance(error, OSError | asyncssh.Error):
                raise
            # asyncssh sends the command in the moment in which the session is open. A host that refuses one or the
            # other says so by this error; others are the connection's.
            sent = session.channel is not None and not isinstance(error, asyncssh.ChannelOpenError)
            kind = _Unanswered if sent else Unreachable
            why = no_answer(OPEN_SECONDS) if isinstance(error, TimeoutError) else str(error)[:200]
            raise kind(Message("{name}: cannot open a session: {why}", name=self.name, why=why)) from error
        made = cast("asyncssh.SSHClientChannel[bytes]", channel)
        return SessionChannel(session, made, lambda: self._connections.rest(self._host))

    def unreached(self) -> FailedToStart:
        return FailedToStart(125, self._connections.stage(self._host))

    def refused(self, error: AtlctlError, *, half_close: bool = False) -> FailedToStart | Lost:  # noqa: ARG002
        if isinstance(error, _Unanswered):
            return Lost(Message("connection lost before the command's start was confirmed"))
        named = isinstance(error, LoginRefused | NameUnknown) and error.host == self.name
        reason = joined(filter(None, (error.message, error.hint)))
        return FailedToStart(255, reason, named, not_allowed=isinstance(error, NotAllowed))


class SshExecutor(GuardedExecutor):
    """A host is connected to when the first command is run there."""

    def __init__(
        self, connections: Connections, hosts: Mapping[str, Host], within: Mapping[str, Within] | None = None
    ) -> None:
        """`hosts`, and what commands there are given, by the names of their workers."""

        def place(worker: Worker) -> HostPlace | FailedToStart:
            host = hosts.get(worker.name)
            if host is None:
                return FailedToStart(255, Message("it has no host"))
            if not worker.state.active:
                state = worker.state.label
                return FailedToStart(
                    255, Message("not running ({state}); on its host: atlctl exec --hostfile FILE", state=state)
                )
            return HostPlace(connections, host, (within or {}).get(worker.name))

        super().__init__(place)
