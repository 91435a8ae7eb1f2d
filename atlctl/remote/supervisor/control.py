"""Control socket: requests and answers as JSON lines, descriptors sent with the requests.

Commands end with the connection that requested them. Invalid requests are refused and never end the supervisor.
"""

from __future__ import annotations

import array
import contextlib
import json
import math
import os
import select
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import processes
from .loop import Loop

#: Maximum bytes of a request. The kernel accepts command lines of 6 MiB.
MAX_MESSAGE = 16 * 1024 * 1024


class Exec(NamedTuple):
    """Run `argv` in `worker`, on the descriptors sent with the request. `token` marks all processes of a run."""

    worker: str
    argv: list[str]
    token: str
    tty: bool
    term: str


class End(NamedTuple):
    """End the command of this number: SIGTERM, and SIGKILL after `grace` seconds."""

    grace: float


class Stop(NamedTuple):
    """End these workers: SIGTERM, and SIGKILL after `grace` seconds."""

    workers: list[str]
    grace: float


class Message(NamedTuple):
    """A request for the job `uid`, sent with `descriptors`. `request` is None if its kind is unknown."""

    number: int
    uid: str
    descriptors: int
    request: Exec | End | Stop | None


def parse(line: bytes) -> Message | None:
    """The message in a line; None if it is invalid."""
    try:
        raw = json.loads(line)
        return Message(_whole(raw["id"]), _text(raw["uid"]), _whole(raw["fds"]), _request(raw))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _request(raw: dict[str, Any]) -> Exec | End | Stop | None:
    if raw["op"] == "exec":
        argv = [_text(word) for word in raw["argv"]]
        if not argv:
            raise ValueError("no command")
        return Exec(_text(raw["worker"]), argv, _text(raw["token"]), bool(raw["tty"]), _text(raw["term"]))
    if raw["op"] == "end":
        return End(_seconds(raw["grace"]))
    if raw["op"] == "stop":
        return Stop([_text(name) for name in raw["workers"]], _seconds(raw["grace"]))
    return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("no whole number")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise TypeError("no span of time")
    return float(value)


#: Seconds until the next accept if there are no free descriptors.
ACCEPT_AGAIN_SECONDS = 0.2
#: Maximum bytes of answers to buffer for a client that does not read.
MAX_UNHEARD = 4 * 1024 * 1024


class Execution:
    """A command in a worker, requested by one connection."""

    def __init__(self, number: int, worker: str, child: subprocess.Popen[bytes], token: str) -> None:
        self.number = number
        self.worker = worker
        self.child = child
        self.pid = child.pid
        found = processes.stat(child.pid)
        self.start = found.start if found else 0
        self.token = token
        self.exited = False
        #: Time of its SIGKILL, on the monotonic clock; None if its end was not requested.
        self.kill_at: float | None = None


class Connection:
    """A client. Requests are handled in order; descriptors belong to the request they were sent with."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        handle: Callable[[Connection, Message, list[int]], None],
        gone: Callable[[Connection], None],
    ) -> None:
        self.executions: dict[int, Execution] = {}
        self._loop = loop
        self._sock = sock
        self._handle = handle
        self._gone = gone
        self._incoming = b""
        self._outgoing = bytearray()
        self._blocked = False
        self._descriptors: deque[int] = deque()
        self.closed = False
        sock.setblocking(False)
        loop.read(sock.fileno(), self._ready)

    def _ready(self) -> None:
        self._flush()
        if self.closed:
            return
        try:
            data, descriptors, flags = _receive(self._sock, 256 * 1024, 64)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors, flags = b"", [], 0
        self._descriptors.extend(descriptors)
        if not data or flags & socket.MSG_CTRUNC:
            self.close()
            return
        *lines, self._incoming = (self._incoming + data).split(b"\n")
        for line in lines:
            if not self._take(line):
                self.close()
                return
        if len(self._incoming) > MAX_MESSAGE:
            self.close()

    def _take(self, line: bytes) -> bool:
        message = parse(line)
        if message is None or message.descriptors > len(self._descriptors):
            return False
        taken = [self._descriptors.popleft() for _ in range(message.descriptors)]
        try:
            self._handle(self, message, taken)
        finally:
            for descriptor in taken:
                os.close(descriptor)
        return True

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message; ignored if the client has gone."""
        if self.closed or len(self._outgoing) > MAX_UNHEARD:
            return
        self._outgoing += json.dumps(message).encode() + b"\n"
        if not self._blocked:
            self._flush()

    def _flush(self) -> None:
        if not self._outgoing:
            return
        try:
            del self._outgoing[: self._sock.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()  # the end of the connection shows when it is read
        if self._blocked != bool(self._outgoing):
            self._blocked = bool(self._outgoing)
            self._loop.write_also(self._sock.fileno(), self._ready, self._blocked)

    def rest(self) -> bool:
        """Send as much pending data as the client accepts now. True if some is left."""
        if self.closed:
            return False
        self._flush()
        return bool(self._outgoing)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """Drop the client; the owner ends its commands."""
        if self.closed:
            return
        self.closed = True
        self._loop.forget(self._sock.fileno())
        self._sock.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._gone(self)


def part(connections: Iterable[Connection], seconds: float) -> None:
    """Send pending data to slow readers: answers to many workers do not fit into a socket buffer."""
    deadline = time.monotonic() + seconds
    while (slow := [one for one in connections if one.rest()]) and (left := deadline - time.monotonic()) > 0:
        poll = select.poll()
        for one in slow:
            poll.register(one.fileno(), select.POLLOUT)
        poll.poll(1000 * left)


def _receive(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int], int]:
    """Bytes, up to `most` descriptors, and flags; Python 3.8 has no `socket.recv_fds`."""
    found = array.array("i")
    data, extra, flags, _ = sock.recvmsg(size, socket.CMSG_LEN(most * found.itemsize))
    for level, kind, content in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return data, list(found), flags


class Listener:
    def __init__(self, loop: Loop, folder: int, accept: Callable[[socket.socket], None]) -> None:
        """`folder`: a descriptor of the job's folder, because socket addresses must be short."""
        self._accept = accept
        self._loop = loop
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        address = f"/proc/self/fd/{folder}/control.sock"
        with contextlib.suppress(FileNotFoundError):
            os.unlink("control.sock", dir_fd=folder)
        mask = os.umask(0o177)
        try:
            self._sock.bind(address)
        finally:
            os.umask(mask)
        self._sock.listen(4096)
        self._sock.setblocking(False)
        loop.read(self._sock.fileno(), self._ready)

    def _ready(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has gone
        except OSError:
            # No free descriptors. The client stays in the queue, and would wake the loop endlessly.
            self._loop.forget(self._sock.fileno())
            self._loop.later(ACCEPT_AGAIN_SECONDS, lambda: self._loop.read(self._sock.fileno(), self._ready))
            return
        if processes.peer_is_me(sock):
            self._accept(sock)
        else:
            sock.close()
