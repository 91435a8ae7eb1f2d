"""What the others call: takes bytes and sends them back, or takes them and no more, from whoever shows the run's token.

One loop over a selector, in a thread that ends with the process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import selectors
import socket
import struct
import time

#: What a caller says first: the digest of the token, the index of the worker it wants, what it wants. The answer to it.
HELLO = struct.Struct("!32sIc")
REPLY = struct.Struct("!cI")
ECHO, SINK, HERE = b"E", b"S", b"K"
#: Connections served at once, those of them that have not said hello yet, and seconds that they have for it.
_GUESTS, _STRANGERS, _MANNERS = 4096, 256, 10.0
#: Bytes that are held for one echo before no more are read, and bytes of one read.
_HELD, _READ = 1 << 18, 1 << 18


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class _Guest:
    """One connection to the server."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.since = time.monotonic()
        self.wants = b""
        self.held = bytearray()
        self.events = selectors.EVENT_READ


class Server:
    def __init__(self, digest: bytes, index: int) -> None:
        self._digest, self._index = digest, index
        self._listener = _open()
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._guests: dict[int, _Guest] = {}
        self._strangers: dict[int, _Guest] = {}
        self._buffer = bytearray(1 << 20)

    def serve(self) -> None:
        """For as long as the process lives."""
        while True:
            for key, events in self._selector.select(1.0):
                if key.data is None:
                    self._accept()
                    continue
                try:
                    self._attend(key.data, events)
                except BlockingIOError:
                    continue
                except OSError:
                    self._dismiss(key.data)
            late = time.monotonic() - _MANNERS
            for guest in [guest for guest in self._strangers.values() if guest.since < late]:
                self._dismiss(guest)

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    time.sleep(0.01)
                    return
                continue
            if len(self._guests) >= _GUESTS:
                sock.close()
                continue
            if len(self._strangers) >= _STRANGERS:
                self._dismiss(next(iter(self._strangers.values())))
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guest = _Guest(sock)
            self._guests[sock.fileno()] = self._strangers[sock.fileno()] = guest
            self._selector.register(sock, guest.events, guest)

    def _attend(self, guest: _Guest, events: int) -> None:
        if guest.wants == SINK:
            for _ in range(4):
                if not guest.sock.recv_into(self._buffer):
                    return self._dismiss(guest)
            return None
        if events & selectors.EVENT_READ:
            data = guest.sock.recv(_READ)
            if not data:
                return self._dismiss(guest)
            guest.held += data
        if not guest.wants and not self._greet(guest):
            return None
        if guest.held:
            with contextlib.suppress(BlockingIOError):
                del guest.held[: guest.sock.send(guest.held)]
        self._watch(guest)
        return None

    def _greet(self, guest: _Guest) -> bool:
        """Whether it may stay and its wish is known."""
        if len(guest.held) < HELLO.size:
            return False
        digest, index, wants = HELLO.unpack_from(guest.held)
        if not hmac.compare_digest(digest, self._digest) or wants not in (ECHO, SINK):
            self._dismiss(guest)
            return False
        guest.wants = wants
        self._strangers.pop(guest.sock.fileno(), None)
        del guest.held[: HELLO.size]
        guest.sock.send(REPLY.pack(HERE, self._index))
        if index != self._index:
            self._dismiss(guest)
            return False
        if wants == SINK:
            guest.held.clear()
        return True

    def _watch(self, guest: _Guest) -> None:
        """Reading stops while too much is held for one that does not take its echo."""
        events = (selectors.EVENT_READ if len(guest.held) < _HELD else 0) | (selectors.EVENT_WRITE if guest.held else 0)
        if events != guest.events:
            guest.events = events
            self._selector.modify(guest.sock, events, guest)

    def _dismiss(self, guest: _Guest) -> None:
        number = guest.sock.fileno()
        if self._guests.pop(number, None) is not None:
            self._strangers.pop(number, None)
            self._selector.unregister(guest.sock)
            guest.sock.close()


def _open() -> socket.socket:
    """On every address, of both families where there are two."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
        except OSError:
            return socket.create_server(("", 0), backlog=4096)
    return socket.create_server(("", 0), backlog=4096)
