"""The server of a wrapper: SSH into its worker for the holder of the job's key, and answers of the wrapper itself.

Everyone in the job's network can connect. Until the login a connection is a stranger's: bounded in time, number and
bytes, with cheap key exchanges only. After it the client has the rights of the wrapper's own user in the worker.

A command that outlasts its channel is ended: at once its input ends and its terminal hangs up, by which a guarded
command ends with all that it started (see guard.py); the rest of its process group gets signals later.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal as signals
import socket
import subprocess
import termios
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import IO, Any

import asyncssh

from atlctl.backends.hosts import asking, wrappers
from atlctl.backends.hosts.connect import CIPHERS, Corked
from atlctl.backends.hosts.jobkeys import JobAccess
from atlctl.i18n import Message
from atlctl.run.own import Refused
from atlctl.run.place import BACKLOG

#: The key exchanges: a stranger may ask for each of them, and others cost a hundred times as much.
_EXCHANGES = ("curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256")
#: For a login: seconds, bytes (one takes 3 KB), and how many may be under way. One more takes the place of the first if
#: that has had the seconds, and is turned away if not: real ones are quick, and come in crowds.
LOGIN_SECONDS, _LOGIN_BYTES, _LOGINS, _LOGIN_QUICK_SECONDS = 10.0, 64 * 1024, 100, 2.0
#: Seconds between signs of life of a silent client, and how many may be missed.
_ALIVE_SECONDS, _ALIVE_COUNT = 30.0, 3
#: Bytes of one read or write. Bytes of input that may be under way to one command. Bytes that wait here, of input of a
#: command or output of a connection: above the first number their source pauses, below the second it goes on.
_PIECE, _WINDOW, _HIGH, _LOW = 64 * 1024, 128 * 1024, 64 * 1024, 16 * 1024
#: Seconds for a guard to end its command, and then for the process group until SIGKILL. And both when the server ends.
_GRACES, _LAST_GRACES = (5.0, 5.0), (2.0, 3.0)
#: Seconds for a killed command to be gone; between two looks at it on a kernel without pidfds.
_KILLED_SECONDS, _POLL_SECONDS = 1.0, 0.05
#: Seconds for output of a terminal to arrive that its processes wrote before the last signal of their end, and between
#: two looks at a client that does not read or is not read.
_LINGER_SECONDS, _LOOK_SECONDS = 0.2, 1.0
#: Seconds for clients to read the last output when the server ends.
_CLOSE_SECONDS = 1.0
#: The exit code for a command that cannot be started, or whose own was taken by another part of the program.
_CANNOT_START, _UNKNOWN = 126, 255
_SHELL = "/bin/sh"
#: Columns or rows of a terminal.
_MOST_CELLS = 0xFFFF
_log = logging.getLogger(__name__)

Answer = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class Server:
    """Serves one worker of a job."""

    def __init__(self, access: JobAccess, index: int, environ: Mapping[str, str], cwd: str, answer: Answer) -> None:
        """`environ`, `cwd`: of commands. `answer` is given questions with their details, and may raise Refused."""
        self.environ, self.cwd, self.answer = environ, cwd, answer
        self._access, self._index = access, index
        self._listener: asyncssh.SSHAcceptor | None = None
        self._links: dict[asyncssh.SSHServerConnection, _Link] = {}
        #: Connections before their login, in the order in which they came.
        self._strangers: dict[_Link, None] = {}
        #: Commands that run, by their PIDs.
        self.running: dict[int, _Served] = {}
        #: Answers in the making, and commands whose channel has gone.
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket) -> None:
        """Serve those who come to `listener`, which is closed with the server. Raises OSError."""
        address, port, *_ = listener.getsockname()
        self._listener = await asyncssh.listen(
            address,
            port,
            tunnel=_Entrance(self, listener),
            config=None,
            server_factory=lambda: _Door(self, self._access.client_key()),
            server_host_keys=[self._access.host_key(self._index)],
            server_version="atlctl",
            kex_algs=_EXCHANGES,
            encryption_algs=CIPHERS,
            compression_algs=("none",),
            login_timeout=LOGIN_SECONDS,
            keepalive_interval=_ALIVE_SECONDS,
            keepalive_count_max=_ALIVE_COUNT,
            password_auth=False,
            kbdint_auth=False,
            host_based_auth=False,
            gss_host=None,
            x509_trusted_certs=None,
            agent_forwarding=False,
            line_editor=False,
            encoding=None,
            window=_WINDOW,
        )

    async def aclose(self) -> None:
        """End the listener, connections, and commands with their process groups, the latter within the last graces."""
        if self._listener is not None:
            self._listener.close()
        links = list(self._links.values())
        for link in links:
            link.close()
        await asyncio.gather(*(session.end(*_LAST_GRACES) for session in list(self.running.values())))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                for link in links:
                    await link.gone.wait()
        for link in links:
            link.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def later(self, work: Coroutine[None, None, None]) -> None:
        """Do `work` beside everything else."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Connections

    def room(self) -> bool:
        """Whether one more stranger may come; if so, there is room."""
        if len(self._strangers) < _LOGINS:
            return True
        first = next(iter(self._strangers))
        if asyncio.get_running_loop().time() - first.since < _LOGIN_QUICK_SECONDS:
            return False
        self.let_in(first)
        first.abort()
        return True

    def came(self, link: _Link, connection: asyncssh.SSHServerConnection) -> None:
        self._links[connection] = link
        self._strangers[link] = None

    def let_in(self, link: _Link) -> None:
        self._strangers.pop(link, None)

    def left(self, link: _Link, connection: asyncssh.SSHServerConnection) -> None:
        self._strangers.pop(link, None)
        self._links.pop(connection, None)

    def link(self, connection: asyncssh.SSHServerConnection) -> _Link:
        return self._links[connection]


class _Entrance:
    """Accepts connections, in the form that asyncssh takes for `tunnel`."""

    def __init__(self, server: Server, listener: socket.socket) -> None:
        self._server, self._socket = server, listener

    async def create_server(
        self,
        factory: Callable[[str, int], Any],
        listen_host: str,  # noqa: ARG002
        listen_port: int,  # noqa: ARG002
    ) -> asyncio.AbstractServer:
        """Raises OSError."""
        return await asyncio.get_running_loop().create_server(
            lambda: _Link(self._server, lambda: factory("", 0)), sock=self._socket, backlog=BACKLOG
        )

    def close(self) -> None:
        """asyncssh closes the listener itself."""


class _Link(asyncio.Protocol):
    """The way between a client and asyncssh, which by itself does not bound a stranger's bytes, and writes on and on to
    a client that does not read."""

    def __init__(self, server: Server, factory: Callable[[], asyncssh.SSHServerConnection]) -> None:
        self.since = asyncio.get_running_loop().time()
        #: Whether it has logged in; whether the client does not read.
        self.known = self.full = False
        self.sessions: set[_Served] = set()
        self._server, self._factory = server, factory
        self._connection: asyncssh.SSHServerConnection | None = None
        self._heard = 0
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = Corked(transport)
        if not self._server.room():
            self.abort()
            return
        transport.set_write_buffer_limits(_HIGH, _LOW)
        self._connection = self._factory()
        self._server.came(self, self._connection)
        self._connection.connection_made(self._transport)

    def data_received(self, data: bytes) -> None:
        self._heard += len(data)
        if self._connection is None:
            return
        if self.known or self._heard <= _LOGIN_BYTES:
            self._connection.data_received(data)
        else:
            self.abort()

    def pause_writing(self) -> None:
        self.full = True
        for session in self.sessions:
            session.watch()

    def resume_writing(self) -> None:
        self.full = False
        for session in self.sessions:
            session.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        if self._connection is not None:
            self._server.left(self, self._connection)
            self._connection.connection_lost(exc)

    def close(self) -> None:
        """End the connection when all is sent."""
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


class _Door(asyncssh.SSHServer):
    """Lets in one key, to sessions alone: asyncssh refuses whatever is not named here."""

    def __init__(self, server: Server, key: asyncssh.SSHKey) -> None:
        self._server, self._key = server, key

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._link = self._server.link(conn)

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
        return key.public_data == self._key.public_data

    def auth_completed(self) -> None:
        self._link.known = True
        self._server.let_in(self._link)

    def session_requested(self) -> _Served:
        return _Served(self._server, self._link)


class _Served(asyncssh.SSHServerSession[bytes]):
    """A command, a shell or a question."""

    def __init__(self, server: Server, link: _Link) -> None:
        self._server, self._link = server, link
        self._loop = asyncio.get_running_loop()
        self._channel: asyncssh.SSHServerChannel[bytes]
        self._argv: Sequence[str] = ()
        self._question: str | None = None
        #: The two sides of a terminal, the second for the command, and its type.
        self._terminal: tuple[IO[bytes], IO[bytes]] | None = None
        self._term = ""
        #: Input that was not written yet; whether it is the last; whether the client must wait with more.
        self._input = bytearray()
        self._input_ended = self._input_paused = False
        self._stdin: IO[bytes] | None = None
        #: The command's open outputs, with asyncssh's word for each; those of them that are read.
        self._outputs: dict[IO[bytes], int | None] = {}
        self._read_from: set[IO[bytes]] = set()
        #: Whether the channel takes no more for now; whether it has gone.
        self._full = self._gone = False
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd: int | None = None
        self._code: int | None = None
        self._over = asyncio.Event()

    # The channel

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan
        self._link.sessions.add(self)

    def pty_requested(
        self,
        term_type: str,
        term_size: tuple[int, int, int, int],
        term_modes: Mapping[int, int],  # noqa: ARG002
    ) -> bool:
        try:
            ours, theirs = os.openpty()
        except OSError:
            return False
        self._terminal = os.fdopen(ours, "r+b", 0), os.fdopen(theirs, "r+b", 0)
        self._term = term_type
        self.terminal_size_changed(*term_size)
        return True

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:  # noqa: ARG002
        if self._terminal is not None and not self._terminal[0].closed:
            size = min(height, _MOST_CELLS), min(width, _MOST_CELLS)
            with contextlib.suppress(OSError):
                termios.tcsetwinsize(self._terminal[0], size)

    def shell_requested(self) -> bool:
        self._argv = [self._server.environ.get("SHELL") or _SHELL]
        return True

    def exec_requested(self, command: str) -> bool:
        program, _, question = command.partition(" ")
        if program == wrappers.COMMAND:
            self._question = question
        else:
            self._argv = [_SHELL, "-c", command]
        return True

    def session_started(self) -> None:
        if self._question is None:
            self._start()

    def signal_received(self, signal: str) -> None:
        number = getattr(signals, f"SIG{signal}", None)
        if isinstance(number, signals.Signals):
            self._signal(number)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._gone = True
        self._link.sessions.discard(self)
        self._let_go()
        if self._running:
            self._server.later(self.end(*_GRACES))

    # The command

    def _start(self) -> None:
        pipe, environ = subprocess.PIPE, self._server.environ
        try:
            if self._terminal is None:
                process = subprocess.Popen(
                    self._argv,
                    bufsize=0,
                    cwd=self._server.cwd,
                    env=environ,
                    stdin=pipe,
                    stdout=pipe,
                    stderr=pipe,
                    start_new_session=True,
                )
                assert process.stdin is not None
                assert process.stdout is not None
                assert process.stderr is not None
                self._stdin = process.stdin
                self._outputs = {process.stdout: None, process.stderr: asyncssh.EXTENDED_DATA_STDERR}
            else:
                ours, theirs = self._terminal
                with theirs:
                    process = subprocess.Popen(
                        self._argv,
                        cwd=self._server.cwd,
                        env={**environ, "TERM": self._term},
                        stdin=theirs,
                        stdout=theirs,
                        stderr=theirs,
                        start_new_session=True,
                        preexec_fn=_take_terminal,
                    )
                self._stdin = os.fdopen(os.dup(ours.fileno()), "wb", 0)
                self._outputs = {ours: None}
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._channel.write_stderr(f"{error}\n".encode())
            self._code = _CANNOT_START
            self._finish()
            return
        self._process = process
        self._server.running[process.pid] = self
        for stream in (self._stdin, *self._outputs):
            os.set_blocking(stream.fileno(), False)
        self.watch()
        with contextlib.suppress(OSError):  # before Linux 5.3
            self._pidfd = os.pidfd_open(process.pid)
            self._loop.add_reader(self._pidfd, self._reap)
        if self._pidfd is None:
            self._reap()

    def _reap(self) -> None:
        if not self._running:
            return
        assert self._process is not None
        try:
            pid, status = os.waitpid(self._process.pid, os.WNOHANG)
        except ChildProcessError:
            self._exited(_UNKNOWN)
            return
        if pid:
            self._exited(os.waitstatus_to_exitcode(status))
        elif self._pidfd is None:
            self._loop.call_later(_POLL_SECONDS, self._reap)

    @property
    def _running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def _exited(self, code: int) -> None:
        """The command has ended, with a code as of Popen."""
        assert self._process is not None
        del self._server.running[self._process.pid]
        self._process.returncode = self._code = code
        self._over.set()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._close_stdin()
        if self._terminal is not None and self._outputs:
            self._loop.call_later(_LINGER_SECONDS, self._hang_up)
        self._finish()

    def _signal(self, number: int) -> None:
        """To the process group: its number is taken as long as its first process was not waited for."""
        if self._running:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    async def end(self, gentle: float, forced: float) -> None:
        """End the command: seconds after its input its process group is asked to go, and more seconds later killed."""
        self._let_go()
        for seconds, numbers in (
            (gentle, (signals.SIGHUP, signals.SIGTERM, signals.SIGCONT)),
            (forced, (signals.SIGKILL,)),
            (_KILLED_SECONDS, ()),
        ):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._over.wait()
                    return
            for number in numbers:
                self._signal(number)

    def _let_go(self) -> None:
        """Close everything that the command reads and writes."""
        self._close_stdin()
        for stream in list(self._outputs):
            self._close_output(stream)
        for stream in self._terminal or ():
            stream.close()

    # Its input. asyncio's own writer would be handed the rest and the end at once by a channel that goes on, and then
    # close a pipe that is full.

    def data_received(self, data: bytes, datatype: int | None) -> None:  # noqa: ARG002
        if self._question is not None:
            self._input += data
            if len(self._input) > asking.MAX_ANSWER:
                self._channel.abort()
        elif self._stdin is not None:
            if not self._input:
                self._loop.add_writer(self._stdin, self._write)
            self._input += data
            if len(self._input) > _HIGH and not self._input_paused:
                self._input_paused = True
                self._channel.pause_reading()
                self._loop.call_later(_LOOK_SECONDS, self._look)

    def eof_received(self) -> bool:
        self._input_ended = True
        if self._question is not None:
            self._server.later(self._answer(self._question))
        elif not self._input and self._terminal is None:
            self._close_stdin()
        return True  # output goes on

    def _write(self) -> None:
        assert self._stdin is not None
        try:
            written = self._stdin.write(self._input[:_PIECE])
        except OSError:
            self._close_stdin()
            return
        del self._input[: written or 0]
        if not self._input:
            self._loop.remove_writer(self._stdin)
            if self._input_ended and self._terminal is None:
                self._close_stdin()
        if len(self._input) <= _LOW:
            self._take_input()

    def _take_input(self) -> None:
        """Go on, if the client had to wait. This may call `data_received` and `eof_received`."""
        if self._input_paused and not self._gone:
            self._input_paused = False
            self._channel.resume_reading()

    def _look(self) -> None:
        """A client that closes a channel is heard only behind its input, which the command may never read."""
        if self._input_paused and not self._gone:
            if self._channel.is_closing():
                self._close_stdin()
            else:
                self._loop.call_later(_LOOK_SECONDS, self._look)

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            self._loop.remove_writer(self._stdin)
            self._stdin.close()
            self._stdin = None
            self._input.clear()
            self._take_input()

    # Its output

    def pause_writing(self) -> None:
        self._full = True
        self.watch()

    def resume_writing(self) -> None:
        self._full = False
        self.watch()
        self._finish()

    def watch(self) -> None:
        """Read from the outputs as long as the channel and its connection take more."""
        wanted = set() if self._full or self._link.full else set(self._outputs)
        for stream in self._read_from - wanted:
            self._loop.remove_reader(stream)
        for stream in wanted - self._read_from:
            self._loop.add_reader(stream, self._read, stream)
        self._read_from = wanted

    def _read(self, stream: IO[bytes]) -> None:
        try:
            data = stream.read(_PIECE)
            if data:
                self._channel.write(data, self._outputs[stream])
        except OSError:  # the last process has left the terminal, or the client the channel
            data = b""
        if data is not None and not data:
            self._close_output(stream)
            self._finish()

    def _close_output(self, stream: IO[bytes]) -> None:
        del self._outputs[stream]
        self.watch()
        stream.close()

    def _hang_up(self) -> None:
        """The command has ended. Its children do not keep the terminal."""
        for stream in list(self._outputs):
            if self._full or self._link.full:
                self._loop.call_later(_LINGER_SECONDS, self._hang_up)
                return
            self._read(stream)
            if stream in self._outputs:
                self._close_output(stream)
        self._finish()

    def _finish(self) -> None:
        """Report the end, when there is one and all output was sent."""
        if self._code is None or self._outputs or self._gone:
            return
        if self._channel.get_write_buffer_size():
            self._channel.set_write_buffer_limits(0)  # so that it says when it is empty
            return
        name = None
        if self._code < 0:
            with contextlib.suppress(ValueError):
                name = signals.Signals(-self._code).name.removeprefix("SIG")
        if name is not None:
            self._channel.exit_with_signal(name)
        else:
            self._channel.exit(self._code if self._code >= 0 else 128 - self._code)

    # Questions

    async def _answer(self, question: str) -> None:
        details = asking.parsed(bytes(self._input))
        code = 0
        try:
            if details is None:
                raise Refused(Message("the question is malformed"))
            said = await self._server.answer(question, details)
        except Refused as refused:
            said, code = {"event": "failed", "message": refused.message}, asking.REFUSED
        except Exception as error:  # noqa: BLE001  # of the rest of the wrapper: this answer is lost, and no other
            _log.exception("no answer to %r", question)
            said, code = {"event": "failed", "message": repr(error)}, asking.REFUSED
        with contextlib.suppress(OSError):
            self._channel.write(asking.encoded(said))
        self._code = code
        self._finish()


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
