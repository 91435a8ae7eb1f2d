"""The client's end of a supervisor's control socket: one connection a command, for all workers of the job.

Whatever this connection had started is ended by the supervisor when the connection ends, however that
comes about: that is the lifeline of local commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from atlctl.backends.local.supervisor.processes import peer_is_me
from atlctl.backends.local.supervisor.requests import MAX_MESSAGE
from atlctl.jobs.errors import AtlctlError, NotAllowed, Unreachable
from atlctl.jobs.model import Job

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
                raise NotAllowed(
                    f"the supervisor of job {self._job.name} runs as another user",
                    f"see whose {self._folder} is, or set ATLCTL_STATE_DIR to a folder of your own",
                ) from error
            raise Unreachable(
                f"job {self._job.name}: its supervisor cannot be reached: {error.strerror}",
                f"see what is left of it: atlctl ps {self._job.name}",
            ) from error
        self._sock = sock
        self._reader = asyncio.create_task(self._read(sock))

    def listen(self, listener: Listener) -> int:
        """A new request number whose answers go to `listener`."""
        self._count += 1
        self._listeners[self._count] = listener
        return self._count

    def forget(self, number: int) -> None:
        self._listeners.pop(number, None)

    async def send(self, number: int, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one request with descriptors beside it. Raises Unreachable when the connection has ended, and
        AtlctlError for a request that is too long to be one."""
        body = {"id": number, "uid": self._job.uid, "fds": len(descriptors), **message}
        # Bytes that are no UTF-8 travel as escaped surrogates; `json.loads` reads them back.
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        if len(data) > MAX_MESSAGE:
            raise AtlctlError("the command line is too long")
        async with self._sending:
            # One that is cancelled here has sent nothing: the others' requests stay whole.
            while self._unsent or not self._begin(data, descriptors):
                await self._writable()
        while self._unsent and self._sock is not None:
            await self._writable()

    def _begin(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """Send what the socket takes, with all descriptors; False where it takes nothing now."""
        if self._sock is None:
            raise self._lost()
        try:
            sent = socket.send_fds(self._sock, [data], list(descriptors))
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(f": {error.strerror}") from error
        self._unsent = memoryview(data)[sent:]
        return True

    def _lost(self, why: str = "") -> Unreachable:
        return Unreachable(f"job {self._job.name}: the connection to its supervisor was lost{why}")

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
                for line in lines:
                    message = json.loads(line)
                    listener = self._listeners.get(message.get("id"))
                    if listener is not None:
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
