"""TCP between the workers: a server for the others, calls to all of them at once, and speed to one after another.

Server and calls are loops over a selector, since a thread for each of many peers costs more than what it does. Who
does not show the token of the run is hung up on; the server ends with the process.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import resource
import selectors
import socket
import struct
import threading
import time

from . import serving

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .wire import Say

#: Bytes of one read.
_READ = 1 << 18
#: Calls under way at once; a share of the open files that are allowed.
_CALLS = 512
#: Files that are asked for: one for each connection in and out.
_FILES = 16384

_lock = threading.Lock()
_servers: list[serving.Server] = []


def listen(say: Say, request: dict[str, Any]) -> None:
    """Serve the others from now on, and tell where: the port, the addresses of this worker, and for each of `targets`
    the address from which a packet to it would leave. A second call tells the same of the same server."""
    with _lock:
        if not _servers:
            _more_files()
            _servers.append(serving.Server(serving.digest(str(request["token"])), int(request["index"])))
            threading.Thread(target=_servers[0].serve, daemon=True).start()
    routes = {target: _route(target) for target in request.get("targets", ())}
    say(
        ev="listen",
        port=_servers[0].port,
        addresses=_addresses(),
        default=_route("192.0.2.1") or _route("2001:db8::1"),
        routes=routes,
        machine=_machine(),
        stack=_stack(),
        end=True,
    )


def _more_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < want:
        resource.setrlimit(resource.RLIMIT_NOFILE, (want, hard))


# Where this worker is


def _addresses() -> list[list[str]]:
    """Interface and address of every one that is up, loopback too."""
    found = []
    size, room = 40 if struct.calcsize("P") == 8 else 32, 1 << 15
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        names = array.array("B", bytes(room))
        filled = fcntl.ioctl(asked.fileno(), 0x8912, struct.pack("iP", room, names.buffer_info()[0]))  # SIOCGIFCONF
        data = names.tobytes()[: struct.unpack_from("i", filled)[0]]
    for at in range(0, len(data), size):
        name = data[at : at + 16].split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
        found.append([name, socket.inet_ntoa(data[at + 20 : at + 24])])
    try:
        with open("/proc/net/if_inet6") as file:
            for line in file:
                digits, _, _, scope, _, name = line.split()
                if scope in ("00", "10"):  # global and loopback; a link's own addresses need an interface beside them
                    found.append([name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))])
    except (OSError, ValueError):
        return found  # no IPv6 here
    return found


def _route(target: str) -> str | None:
    """The address from which a packet to `target` would leave; nothing is sent. None where there is no way."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((target, 9))
            return str(asked.getsockname()[0])
    except OSError:
        return None


def _machine() -> str:
    """Equal where two workers share one kernel; empty where it is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _stack() -> str:
    """Equal where two workers of one machine share one network stack: loopback joins them."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return socket.gethostname()


# Calls to all of the others


class _Call:
    """One conversation: connect, hello, a few small echoes, a large one. `stage` is what it waits for."""

    def __init__(self, index: int, where: tuple[str, int], hello: bytes, small: int, large: bytes) -> None:
        self.index, self.small, self.large = index, small, large
        self.stage = "connect"
        self.out, self.got = memoryview(hello), bytearray()
        self.events = selectors.EVENT_WRITE
        self.connect = self.rtt = self.sent = 0.0
        self.result: dict[str, Any] | None = None
        self.begun = self.moved = time.monotonic()
        self.sock = socket.socket(socket.AF_INET6 if ":" in where[0] else socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self.sock.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            self.fail(OSError(code, os.strerror(code)))

    def step(self, events: int) -> None:
        """Go on as far as it goes without waiting. Raises OSError; `result` is set at the end."""
        if self.stage == "connect":
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self.connect, self.stage = time.monotonic() - self.begun, "hello"
        if events & selectors.EVENT_READ:
            data = self.sock.recv(_READ)
            if not data:
                raise ConnectionResetError("hung up")
            self.got += data
            self.moved = time.monotonic()
            self._hear()
        if self.out:
            with contextlib.suppress(BlockingIOError):
                self.out = self.out[self.sock.send(self.out) :]
                self.moved = time.monotonic()
        self.events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.out else 0)

    def _hear(self) -> None:
        if self.stage == "hello":
            if len(self.got) < serving.REPLY.size:
                return None
            here, index = serving.REPLY.unpack_from(self.got)
            if here != serving.HERE or index != self.index:
                return self._end("stranger", f"worker number {index} answers there")
            self.got.clear()
            self.stage = "small"
            return self._small()
        wanted = b"\x5a" * 64 if self.stage == "small" else self.large
        if len(self.got) < len(wanted):
            return None
        if self.got != wanted:
            return self._end("data", "bytes came back altered")
        self.got.clear()
        if self.stage == "large":
            return self._end("", "")
        took = time.monotonic() - self.sent
        self.rtt = min(self.rtt or took, took)
        self.small -= 1
        if self.small:
            return self._small()
        self.stage, self.out = "large", memoryview(self.large)
        return None

    def _small(self) -> None:
        self.sent, self.out = time.monotonic(), memoryview(b"\x5a" * 64)

    def _end(self, kind: str, error: str) -> None:
        self.result = {"ok": not kind, "kind": kind, "error": error}

    def fail(self, error: OSError | None) -> None:
        """`kind` is what did not come: `connect`, `hello`, `small`, `large`, or `refused`."""
        kind = "refused" if isinstance(error, ConnectionRefusedError) else self.stage
        waited = f"nothing came for {time.monotonic() - self.moved:.1f} s"
        self._end(kind, waited if error is None else error.strerror or str(error))

    def told(self) -> dict[str, Any]:
        times = {"connect_ms": round(self.connect * 1e3, 3), "rtt_ms": round(self.rtt * 1e3, 3)}
        return dict(self.result or {}, **{name: value for name, value in times.items() if value})


def mesh(say: Say, request: dict[str, Any]) -> None:
    """Call all of `peers` (index -> address and port) at once, and tell how each call went.

    A call is given up after `patience` seconds in which nothing of it came, or `cap` in all.
    """
    large, digest = os.urandom(int(request.get("large", 65536))), serving.digest(str(request["token"]))
    small, peers, own = int(request.get("small", 3)), request["peers"], int(request["index"])

    def call(index: int) -> _Call:
        host, port = peers[str(index)]
        return _Call(index, (host, port), serving.HELLO.pack(digest, index, serving.ECHO), small, large)

    begun = time.monotonic()
    # Everybody begins with the one behind himself, so that not all call the same one at once.
    order = sorted(map(int, peers), key=lambda index: (index < own, index))
    told = _hold(order, call, float(request["patience"]), float(request["cap"]))
    say(ev="mesh", peers=told, seconds=round(time.monotonic() - begun, 3), end=True)


def _hold(order: list[int], begin: Callable[[int], _Call], patience: float, cap: float) -> dict[int, dict[str, Any]]:
    told: dict[int, dict[str, Any]] = {}
    live: set[_Call] = set()
    room = max(8, min(_CALLS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
    swept = 0.0
    with selectors.DefaultSelector() as selector:

        def done(call: _Call) -> None:
            told[call.index] = call.told()
            live.discard(call)
            selector.unregister(call.sock)
            call.sock.close()

        while order or live:
            while order and len(live) < room:
                call = begin(order.pop(0))
                live.add(call)
                selector.register(call.sock, call.events, call)
            for key, events in selector.select(0.1):
                call = key.data
                try:
                    if call.result is None:
                        call.step(events)
                except OSError as error:
                    call.fail(error)
                if call.result is not None:
                    done(call)
                elif call.events != key.events:
                    selector.modify(call.sock, call.events, call)
            now = time.monotonic()
            if now > swept + 0.05:
                swept = now
                for call in [call for call in live if now - call.moved > patience or now - call.begun > cap]:
                    call.fail(None)
                    done(call)
    return told
