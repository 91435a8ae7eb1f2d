"""Answers of the test API server that have no end: the server keeps answering others."""

from __future__ import annotations

import socket
import ssl
import struct
from urllib.parse import urlsplit

import pytest

from tests.apiserver.handle import Server
from tests.unit.apiserver.client import PODS, pod

#: Closing such a socket sends a reset.
AT_ONCE = struct.pack("ii", 1, 0)


@pytest.mark.parametrize(("kind", "path"), [("list", PODS), ("log", f"{PODS}/p/log")])
def test_a_client_that_leaves_an_endless_answer_holds_up_no_other(kind: str, path: str) -> None:
    """TLS of asyncio does not see that the connection below it is gone until the event loop has run."""
    with Server() as server:
        server.put(pod("p"), fake=True)
        server.fault("endless", kind=kind)
        context = ssl.create_default_context(cafile=server.ca)
        address = urlsplit(server.url)

        def ask(asked: str) -> ssl.SSLSocket:
            plain = socket.create_connection((address.hostname, address.port), timeout=20)
            connection = context.wrap_socket(plain, server_hostname=address.hostname)
            connection.sendall(f"GET {asked} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-admin\r\n\r\n".encode())
            return connection

        for size in (1, 1_000_000, 10_000_000):
            with ask(path) as endless:
                while size > 0:
                    size -= len(endless.recv(1 << 20))
                endless.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            with ask("/version") as other:
                assert other.recv(1 << 20).startswith(b"HTTP/1.1 200 ")
