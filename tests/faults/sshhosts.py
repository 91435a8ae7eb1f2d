"""Misbehaving hosts: names in ~/.ssh/config that lead to a real sshd, to a proxy, or to servers that are not sshd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import asyncssh

from tests.integration.local import objects
from tests.support import isolation, proc
from tests.support.cli import Result, popen_cli, run_cli
from tests.support.sshd import Sshd, make_key

#: Closing a socket with this option resets the connection.
RESET = struct.pack("ii", 1, 0)
#: Login shells by the server's address: how they handle the command. sshd runs it through the user's real shell.
ORDINARY, FISH, NOLOGIN, FALSE, GREETING, NOSHELL, CSH, RESTRICTED, READING, EATING, *SPARE = (
    f"127.0.6.{number}" for number in range(1, 16)
)
SHELLS = {
    FISH: 'exec fish -c "$SSH_ORIGINAL_COMMAND"',
    CSH: 'exec tcsh -c "$SSH_ORIGINAL_COMMAND"',
    RESTRICTED: 'exec rbash -c "$SSH_ORIGINAL_COMMAND"',
    READING: 'read -r line; read -r line; exec sh -c "$SSH_ORIGINAL_COMMAND"',
    EATING: 'cat >/dev/null; exec sh -c "$SSH_ORIGINAL_COMMAND"',
    NOLOGIN: "exec /usr/sbin/nologin",
    FALSE: "exec /bin/false",
    GREETING: 'printf "Welcome\\nL 99\\n{}\\n"; echo "quota exceeded" >&2; exec sh -c "$SSH_ORIGINAL_COMMAND"',
    NOSHELL: "true",
}
#: Text of a host that tries to control the terminal or to forge lines.
HOSTILE = "\x1b]0;pwn\x07\x1b[31m\nok: all (99)\r\u202e\u2028\x9b"
_MARK = re.compile(r"@atlctl-[0-9a-f]{16}")


class Serving:
    """One sshd for the tests of a module, its accepted key, and an event loop in a thread for asyncssh servers."""

    def __init__(self, folder: Path) -> None:
        self.key = make_key(folder / "key")
        self.mark = uuid.uuid4().hex
        self.sshd = Sshd(folder / "server", [self.key], [ORDINARY, *SHELLS, *SPARE])
        with self.sshd.config.open("a") as config:
            config.write(f"SetEnv HOME={folder} {proc.MARK}={self.mark}\n")
            for address, command in SHELLS.items():
                config.write(f"Match LocalAddress {address}\n  ForceCommand {command}\n")
        self.sshd.stop()
        self.sshd.start()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def call(self, work: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(20)

    def asyncssh(
        self, handler: Callable[..., Any] | None, factory: Callable[[], asyncssh.SSHServer]
    ) -> tuple[int, Callable[[], None]]:
        """Start an asyncssh server with the sshd's key; returns the port and a function that closes it."""
        options = {"encoding": None, "kex_algs": ["curve25519-sha256"], "login_timeout": 1000}
        keys = [str(self.sshd.host_key)]
        made = asyncssh.create_server(
            factory, "127.0.0.1", 0, server_host_keys=keys, process_factory=handler, **options
        )
        server = self.call(made)

        def close() -> None:
            self._loop.call_soon_threadsafe(server.close)

        return server.get_port(), close

    def running(self, text: str = "") -> list[proc.Process]:
        """The processes on the hosts."""
        return [process for process in proc.marked(self.mark) if text in process.command]

    def close(self) -> None:
        self.sshd.close()

        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.call(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        assert proc.leftovers(self.mark, 5) == []


class Letting(asyncssh.SSHServer):
    """Accepts every login."""

    def begin_auth(self, username: str) -> bool:
        return False


class Leaving(asyncssh.SSHServer):
    """Disconnects with a message."""

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def begin_auth(self, username: str) -> bool:
        self._connection.disconnect(asyncssh.DISC_BY_APPLICATION, HOSTILE)
        return True


class Vanishing(Letting):
    """Closes the connection after a command request without confirming it."""

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
        return _Vanished(self._connection)


class _Vanished(asyncssh.SSHServerSession[bytes]):
    def __init__(self, connection: asyncssh.SSHServerConnection) -> None:
        self._connection = connection

    def exec_requested(self, command: str) -> bool:
        self._connection.abort()
        return True


def reset(one: socket.socket) -> None:
    """Make closing this socket reset the connection."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def mark_of(process: asyncssh.SSHServerProcess[bytes]) -> bytes:
    """The mark given to the client's wrapper."""
    found = _MARK.search(process.command or "")
    assert found is not None
    return found[0].encode()


def say(process: asyncssh.SSHServerProcess[bytes], word: str) -> None:
    """Write a message in the wrapper's format."""
    process.stderr.write(mark_of(process) + b" " + word.encode() + b"\n")


def closes(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Starts a command and closes without an exit status."""
    say(process, "S 1 1")
    process.stdout.write(b"half a line")
    process.close()


class Fleet:
    """The client's side: host names that lead to the servers that a test wants."""

    def __init__(self, serving: Serving, home: Path, resources: ExitStack) -> None:
        self.serving = serving
        self.home = home
        self.env: dict[str, str | None] = dict.fromkeys(isolation.foreign(list(os.environ)))
        self.env |= isolation.environment(home)
        self._resources = resources
        home.joinpath("run").mkdir(mode=0o700, exist_ok=True)
        self.ssh = home / ".ssh"
        self.ssh.mkdir(mode=0o700)
        shutil.copy(serving.key, self.ssh / "id_ed25519")
        self.known = self.ssh / "known_hosts"
        self.known.touch()
        self._names: list[str] = []
        (self.ssh / "config").write_text("GlobalKnownHostsFile /nonexistent\n")

    @property
    def host_key(self) -> str:
        return " ".join(self.serving.sshd.host_key.with_suffix(".pub").read_text().split()[:2])

    def host(self, name: str, address: str = ORDINARY, port: int | None = None, *lines: str, known: bool = True) -> str:
        """Add a host. `lines`: for its section in the configuration."""
        port = port or self.serving.sshd.port
        with (self.ssh / "config").open("a") as config:
            config.write("\n".join([f"Host {name}", f"HostName {address}", f"Port {port}", *lines, ""]))
        if known:
            self.trust(address, port, self.host_key)
        self._names.append(name)
        return name

    def trust(self, address: str, port: int, key: str, before: str = "") -> None:
        with self.known.open("a") as file:
            file.write(f"{before}[{address}]:{port} {key}\n")

    def file(self, *names: str) -> str:
        """A hostfile of these hosts (default: all)."""
        path = self.home / "hosts"
        path.write_text("".join(f"{name}\n" for name in names or self._names))
        return str(path)

    def cli(self, *words: str, **options: Any) -> Result:
        return run_cli(*words, **{"timeout": 60, "env": self.env, **options})

    def exec(self, *words: str, **options: Any) -> Result:
        """Run `exec` on all hosts."""
        return self.cli("exec", "--hostfile", self.file(), "--all", *words, **options)

    def outcomes(self, *words: str, **options: Any) -> tuple[dict[str, dict[str, Any]], int]:
        """The outcome of each host, which must be unique, and the exit code."""
        run = self.exec("-o", "json", *words, **options)
        return outcomes(run.stdout), run.code

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start `exec` on all hosts, for tests that signal it or use its streams."""
        words = ("exec", "--hostfile", self.file(), "--all", *words)
        streams = {"stdin": subprocess.DEVNULL, "stdout": -1, "stderr": -1, "bufsize": 0}
        return popen_cli(*words, **{"env": self.env, **streams, **options})

    # Ports without an SSH server

    def refusing(self) -> int:
        """A port without a listener."""
        found = self._resources.enter_context(socket.socket())
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

    def filtered(self) -> int:
        """A port that no longer accepts connections: its backlog is full."""
        full = self._resources.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = int(full.getsockname()[1])
        for _ in range(4):
            one = self._resources.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        return port

    def silent(self) -> int:
        """A port that accepts connections but never sends anything."""
        return int(self._resources.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1])

    def talking(self, talk: Callable[[socket.socket], None]) -> int:
        """A port that passes every connection to `talk` and then closes it."""
        return self._resources.enter_context(_accepting(talk))

    def asyncssh(
        self, handler: Callable[..., Any] | None = None, factory: Callable[[], asyncssh.SSHServer] = Letting
    ) -> int:
        """Start an asyncssh server. `handler` gets the process of each command; without it, `factory` decides."""
        port, close = self.serving.asyncssh(handler, factory)
        self._resources.callback(close)
        return port

    def proxy(self, address: str = ORDINARY) -> Proxy:
        return self._resources.enter_context(Proxy((address, self.serving.sshd.port)))


@contextmanager
def fleet(serving: Serving, home: Path) -> Iterator[Fleet]:
    with ExitStack() as resources:
        yield Fleet(serving, home, resources)
    assert proc.wait_until(lambda: not serving.running()), serving.running()


def outcomes(stdout: bytes) -> dict[str, dict[str, Any]]:
    """The outcome of each host, which must be unique; the summary, which must be the last line, is under ""."""
    lines = objects(stdout)
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["type"] == "outcome":
            assert line["worker"] not in found, line
            found[line["worker"]] = line
    assert lines[-1]["type"] == "summary"
    return {**found, "": lines[-1]}


@contextmanager
def _accepting(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                one = server.accept()[0]
                one.settimeout(20)
                with one, contextlib.suppress(OSError):
                    talk(one)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield int(server.getsockname()[1])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(30)


class Proxy:
    """Forwards bytes between client and server until a call of `reset` or `stall`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._flowing = threading.Event()
        self._flowing.set()
        self._over = False
        self._limit: int | None = None
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._server.accept()[0]
                server = socket.create_connection(self._target)
                self._ends += [client, server]
                for pair in ((client, server), (server, client)):
                    thread = threading.Thread(target=self._hand_on, args=pair)
                    self._threads.append(thread)
                    thread.start()

    def _hand_on(self, source: socket.socket, sink: socket.socket) -> None:
        size = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flowing.wait()
                size += len(data)
                if self._limit is not None and size > self._limit:
                    sink.sendall(data[: self._limit - size])
                    self.reset()
                    return
                sink.sendall(data)
        with contextlib.suppress(OSError):
            if not self._over:
                sink.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Reset the connections to both sides."""
        self._end(RESET)

    def cut_after(self, size: int) -> None:
        """Reset every connection after this number of bytes in one direction."""
        self._limit = size

    def stall(self) -> None:
        """Stop forwarding without closing, like a broken network."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def _end(self, linger: bytes | None = None) -> None:
        self._over = True
        ends, self._ends = self._ends, []
        for end in ends:
            if linger is not None:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            with contextlib.suppress(OSError):
                # A reading thread would keep a closed socket open.
                end.shutdown(socket.SHUT_RD)
            end.close()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._flowing.set()
        self._end()
        for thread in self._threads:
            thread.join(10)
