"""Clients that leave the test API server in the middle of an answer, or before it."""

from __future__ import annotations

import socket
import ssl
import struct
from urllib.parse import urlsplit

import pytest

from tests.apiserver.handle import Server
from tests.support.proc import wait_until
from tests.unit.apiserver.client import PODS, pod

#: Closing such a socket sends a reset.
AT_ONCE = struct.pack("ii", 1, 0)
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
    + "A" * 22
    + "==\r\n"
)


def ask(server: Server, path: str, more: str = "") -> ssl.SSLSocket:
    address = urlsplit(server.url)
    context = ssl.create_default_context(cafile=server.ca)
    plain = socket.create_connection((address.hostname, address.port), timeout=20)
    connection = context.wrap_socket(plain, server_hostname=address.hostname)
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-admin\r\n{more}\r\n"
    connection.sendall(head.encode())
    return connection


@pytest.mark.parametrize(("kind", "path"), [("list", PODS), ("log", f"{PODS}/p/log")])
def test_a_client_that_leaves_an_endless_answer_holds_up_no_other(kind: str, path: str) -> None:
    """TLS of asyncio does not see that the connection below it is gone until the event loop has run."""
    with Server() as server:
        server.put(pod("p"), fake=True)
        server.fault("endless", kind=kind)
        for size in (1, 1_000_000, 10_000_000):
            with ask(server, path) as endless:
                while size > 0:
                    size -= len(endless.recv(1 << 20))
                endless.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            with ask(server, "/version") as other:
                assert other.recv(1 << 20).startswith(b"HTTP/1.1 200 ")
        assert server.errors() == ""


def test_a_client_that_leaves_before_the_answer_is_no_error_of_the_server() -> None:
    with Server() as server:
        server.put(pod("p"), fake=True)
        server.fault("delay", kind="any", seconds=0.5)
        for path, more in (
            (f"{PODS}/p/exec?container=main&stdout=true&command=true", UPGRADE),
            (f"{PODS}/p/log", ""),
            (f"{PODS}?watch=true", ""),
        ):
            server.forget_requests()
            with ask(server, path, more) as left:
                assert wait_until(lambda: [one for one in server.requests() if one["fault"] == "delay"])
                left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            assert wait_until(lambda: server.requests()[0]["status"])
        assert server.errors() == ""
