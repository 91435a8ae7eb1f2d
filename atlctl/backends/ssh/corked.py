"""Connections that send what is written at one time at once.

asyncssh hands every packet to the kernel by itself, and puts an empty one before each: two calls to the kernel for one
message, each of which wakes the other side. On a fan-out those calls are what costs most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Direct:
    """A way to a host, in the form that asyncssh takes for `tunnel`: straight, with its writes collected."""

    def __init__(self, family: int, local: Any) -> None:
        """`family` of addresses, and the `local` address, as the configuration has them."""
        self._family, self._local = family, local

    async def create_connection(
        self, factory: Callable[[], Any], remote_host: str, remote_port: int
    ) -> tuple[asyncio.BaseTransport, Any]:
        """Raises OSError."""
        protocol = factory()
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: _Introduction(protocol), remote_host, remote_port, family=self._family, local_addr=self._local
        )
        return transport, protocol

    def close(self) -> None:
        """There is nothing between here and the host."""


class _Introduction(asyncio.Protocol):
    """Makes a protocol and its transport known to each other, and leaves."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(_Corked(transport))


class _Corked(asyncio.Transport):
    """What is written until the event loop comes round goes out together."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._held: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(bytes(data))

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held:
            self._transport.write(b"".join(held))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._held.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
