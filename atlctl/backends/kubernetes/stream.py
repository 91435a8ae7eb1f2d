"""An exec's WebSocket as a channel."""

from __future__ import annotations

from atlctl.backends.base import Output, TerminalSize
from atlctl.backends.guarded.channel import Ended
from atlctl.backends.kubernetes import frames
from atlctl.backends.kubernetes.api import NoServer, Socket


class SocketChannel:
    """See `atlctl.backends.guarded.channel.Channel`."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    async def receive(self) -> Output | Ended | None:
        while True:
            message = await self._socket.receive()
            if message is None:
                return None
            if (said := frames.decode(message)) is not None:
                return said

    async def send(self, data: bytes) -> bool:
        try:
            for message in frames.stdin(data):
                await self._socket.send(message)
        except NoServer:
            return False
        return True

    async def close_stdin(self) -> None:
        if (message := frames.close_stdin(self._socket.protocol)) is not None:
            await self._say(message)

    async def resize(self, size: TerminalSize) -> None:
        await self._say(frames.resize(size))

    async def _say(self, message: bytes) -> None:
        try:
            await self._socket.send(message)
        except NoServer:
            return  # what is received next says so

    async def close(self) -> None:
        await self._socket.close()
