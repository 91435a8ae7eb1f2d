"""TCP tests between workers: a server for the others, simultaneous calls to all of them, and transfers one by one.

Server and calls are selector loops, because a thread for each of many peers is expensive. Connections without the run's
token are closed; the server ends with the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import os
import resource
import select
import selectors
import socket
import struct
import threading
import time

from atlctl.remote import proc
from atlctl.remote.sentences import Sentence

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .wire import Say

#: The first message of a caller: digest of the token, index of the called worker, request type. Then the reply.
HELLO = struct.Struct("!32sIc")
REPLY = struct.Struct("!cI")
ECHO, SINK, HERE = b"E", b"S", b"K"
#: Maximum number of connections, and of those without a hello; timeout in seconds for the hello.
_GUESTS, _STRANGERS, _MANNERS = 4096, 256, 10.0
#: Bytes to buffer for one echo before reading pauses.
_HELD = 1 << 18
#: Size of a read in bytes.
_READ = 1 << 18
#: Maximum number of simultaneous calls; also limited to a quarter of the allowed open files.
_CALLS = 512
#: Requested limit of open files: one for each connection in and out.
_FILES = 16384
_IP_RECVERR, _IPV6_RECVERR = (socket.IPPROTO_IP, 11), (socket.IPPROTO_IPV6, 25)
_TCP_NOTSENT_LOWAT, _SO_MAX_PACING_RATE = 25, 47
#: The speed in Mbit/s of a link that is unknown, and the highest pace in bytes per second that the socket takes.
_UNKNOWN, _FASTEST = 1000, 2_000_000_000

_lock = threading.Lock()
_servers: list[Server] = []


def listen(say: Say, request: dict[str, Any]) -> None:
    """Start the server, and report its port, this worker's addresses, and for each of `targets` the source address of
    packets to it. A second call reports the same server."""
    with _lock:
        if not _servers:
            _more_files()
            _servers.append(Server(digest(str(request["token"])), int(request["index"])))
            threading.Thread(target=_servers[0].serve, daemon=True).start()
    routes = {target: _route(target) for target in request.get("targets", ())}
    say(
        ev="listen",
        port=_servers[0].port,
        addresses=proc.addresses(),
        default=_route("192.0.2.1") or _route("2001:db8::1"),
        routes=routes,
        machine=proc.boot(),
        stack=_stack(),
        end=True,
    )


def _more_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < want:
        resource.setrlimit(resource.RLIMIT_NOFILE, (want, hard))


# Addresses of this worker


def _route(target: str) -> str | None:
    """The source address of packets to `target`, without sending one. None if there is no route."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((target, 9))
            return str(asked.getsockname()[0])
    except OSError:
        return None


def _stack() -> str:
    """The same on workers of a machine that share a network stack, so that loopback connects them."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return socket.gethostname()


# Calls to all other workers


class _Call:
    """A call: connect, hello, a few small echoes, a large one. `stage`: the step that it waits for."""

    def __init__(self, index: int, where: tuple[str, int], hello: bytes, small: int, large: bytes) -> None:
        self.index, self.small, self.large = index, small, large
        self.stage = "connect"
        self.out, self.got = memoryview(hello), bytearray()
        self.events = selectors.EVENT_WRITE
        self.rtt = self.sent = 0.0
        self.again = 0
        self.result: dict[str, Any] | None = None
        self.begun = self.moved = time.monotonic()
        self.sock = socket.socket(socket.AF_INET6 if ":" in where[0] else socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self.sock.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            self.fail(OSError(code, os.strerror(code)))

    def step(self, events: int) -> None:
        """Continue as far as possible without blocking. Raises OSError; sets `result` at the end."""
        if self.stage == "connect":
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self.stage = "hello"
            self.again = _tcp(self.sock)["again"]
        if events & selectors.EVENT_READ:
            data = self.sock.recv(_READ)
            if not data:
                self._end(self.stage, Sentence("hung up"))
                return
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
            if len(self.got) < REPLY.size:
                return None
            here, index = REPLY.unpack_from(self.got)
            if here != HERE or index != self.index:
                return self._end("stranger", Sentence("worker number {index} answers there", index=index))
            self.got.clear()
            self.stage = "small"
            return self._small()
        wanted = b"\x5a" * 64 if self.stage == "small" else self.large
        if len(self.got) < len(wanted):
            return None
        if self.got != wanted:
            return self._end("data", Sentence("bytes came back altered"))
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
        """Set a failed result. `kind`: the failed step (`connect`, `hello`, `small`, `large`), or `refused`."""
        kind = "refused" if isinstance(error, ConnectionRefusedError) else self.stage
        if error is not None:
            return self._end(kind, error.strerror or str(error))
        return self._end(kind, _nothing(time.monotonic() - self.moved))

    def told(self) -> dict[str, Any]:
        measured = {"rtt_ms": round(self.rtt * 1e3, 3)} if self.rtt else {}
        return dict(self.result or {}, again=self.again, **measured)


def _nothing(seconds: float) -> Sentence:
    return Sentence("nothing came for {seconds} s", seconds=f"{seconds:.1f}")


def mesh(say: Say, request: dict[str, Any]) -> None:
    """The command `mesh`: call all `peers` (index -> address and port) at the same time and report the results.

    A call is aborted after `patience` seconds without progress, or `cap` seconds in total.
    """
    large, shown = os.urandom(int(request.get("large", 65536))), digest(str(request["token"]))
    small, peers, own = int(request.get("small", 3)), request["peers"], int(request["index"])

    def call(index: int) -> _Call:
        host, port = peers[str(index)]
        return _Call(index, (host, port), HELLO.pack(shown, index, ECHO), small, large)

    begun = time.monotonic()
    # Each worker starts with the next index, so that they do not all call the same worker first.
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


def connect(say: Say, request: dict[str, Any]) -> None:
    """The command `connect`: open `times` connections to each of `peers`, `at_once` at a time. Reports for each peer
    how many needed a SYN retransmission (`again`) or failed within `patience` seconds (`failed`)."""
    told = {index: {"again": 0, "failed": 0} for index in request["peers"]}
    times, at_once = int(request["times"]), int(request["at_once"])
    for done in range(0, times, at_once):
        for index, sock in _opened(request["peers"], min(at_once, times - done), float(request["patience"])):
            if sock is None:
                told[index]["failed"] += 1
            else:
                told[index]["again"] += _tcp(sock)["again"] > 0
                sock.close()
    say(ev="connect", peers=told, end=True)


def _opened(peers: dict[str, Any], each: int, patience: float) -> list[tuple[str, socket.socket | None]]:
    """Connect to all peers at the same time; None for each failed connection."""
    found: list[tuple[str, socket.socket | None]] = []
    with selectors.DefaultSelector() as selector:
        for index, (host, port) in peers.items():
            for _ in range(each):
                sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
                sock.setblocking(False)
                sock.connect_ex((host, port))
                selector.register(sock, selectors.EVENT_WRITE, (index, sock))
        end = time.monotonic() + patience
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                index, sock = key.data
                selector.unregister(sock)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    sock.close()
                    found.append((index, None))
                else:
                    found.append((index, sock))
        for key in selector.get_map().values():
            key.data[1].close()
            found.append((key.data[0], None))
    return found


def meet(say: Say, request: dict[str, Any]) -> None:
    """The command `meet`: whether `port` at one of `addresses` can be reached, within `patience` seconds for each. The
    host's own refusal is a proof that it can."""
    for address in request["addresses"]:
        error, v6 = "", ":" in address
        with socket.socket(socket.AF_INET6 if v6 else socket.AF_INET) as sock:
            sock.setsockopt(*(_IPV6_RECVERR if v6 else _IP_RECVERR), 1)
            sock.settimeout(float(request["patience"]))
            try:
                sock.connect((address, int(request["port"])))
            except ConnectionRefusedError:
                error = Sentence("a firewall refuses connections") if _by_firewall(sock) else ""
            except OSError as failed:
                error = failed.strerror or _nothing(float(request["patience"]))
        if not error:
            break
    say(ev="meet", error=error, end=True)


def _by_firewall(sock: socket.socket) -> bool:
    """Whether an ICMP message refused the connection: a host without a listener resets it. Unknown to old kernels."""
    sock.setblocking(False)  # with a timeout, Python asks again until it is over
    with contextlib.suppress(OSError):
        return bool(sock.recvmsg(0, 512, socket.MSG_ERRQUEUE)[1])
    return False


# Throughput


def send(say: Say, request: dict[str, Any]) -> None:
    """The command `send`: send to each of `turns` (index, address, port), each in its slot of `slot` seconds: for
    `seconds`, the first share `singly` of them one segment at a time, at up to `pace` bytes per second and `share` of
    the link. Reports the acknowledged bytes and the retransmissions."""
    begun = time.monotonic()
    results = []
    for number, turn in enumerate(request["turns"]):
        time.sleep(max(0.0, begun + number * float(request["slot"]) - time.monotonic()))
        if turn is None:
            continue
        try:
            result = _transfer(turn, request)
        except OSError as error:
            result = {"error": error.strerror or str(error) or type(error).__name__}
        results.append(dict(result, to=turn[0]))
    say(ev="send", turns=results, end=True)


def _transfer(turn: list[Any], request: dict[str, Any]) -> dict[str, Any]:
    index, host, port = turn
    patience = float(request["patience"])
    with socket.create_connection((host, port), patience) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, 1 << 18)
        paces = [int(request["pace"])] if request.get("pace") else []
        if request.get("share"):
            paces.append(int(float(request["share"]) * link_speed(sock.getsockname()[0])))
        if paces:
            sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, min(*paces, _FASTEST))
        sock.sendall(HELLO.pack(digest(str(request["token"])), int(index), SINK))
        if sock.recv(REPLY.size, socket.MSG_WAITALL) != REPLY.pack(HERE, int(index)):
            raise ConnectionRefusedError("another worker answers there")
        sock.setblocking(False)
        # Data in flight at the end is discarded; it must not slow the next transfer.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return _push(sock, float(request["seconds"]), float(request["singly"]))


def link_speed(address: str, root: str = "") -> float:
    """Bytes per second of the interface with this address, as its driver reports it. Virtual interfaces make up a speed
    or have none: those count as 1 Gbit/s."""
    name = next((name for name, own in proc.addresses() if own == address), "-")
    folder = f"{root}/sys/class/net/{name}"
    speed = proc.text(folder + "/speed", 20) if os.path.exists(folder + "/device") else ""
    return (int(speed) if speed.isdigit() else _UNKNOWN) * 1e6 / 8


def _push(sock: socket.socket, seconds: float, singly: float) -> dict[str, Any]:
    """Send for `seconds`. During the first share `singly` the kernel may not merge segments: with merged ones, there
    are too few units to measure a small loss rate. This costs CPU time and speed."""
    data = memoryview(bytes(1 << 20))
    piece = data[: max(500, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))]
    ready = select.poll()
    ready.register(sock, select.POLLOUT)
    before, waited, cpu = _tcp(sock), proc.waited("thread-self"), time.thread_time()
    begun = now = time.monotonic()
    # The first part, in which the connection finds its speed, does not count.
    single, counts = begun + singly * seconds, begun + (singly if 0 < singly < 1 else 1 / 3) * seconds
    sent, alone, counted = 0, 0, (begun, 0)
    while now < begun + seconds:
        try:
            if now < single:
                sent += sock.send(piece, socket.MSG_EOR)
                alone = sent
            else:
                sent += sock.send(data)
        except BlockingIOError:
            ready.poll(max(1, int((begun + seconds - now) * 1000)))
        now = time.monotonic()
        if now >= counts and counted[0] == begun:
            counted = now, sent - _unacknowledged(sock)
    arrived, took = sent - _unacknowledged(sock), max(now - counted[0], 1e-6)
    after = _tcp(sock)
    return {
        "bytes": arrived,
        "seconds": round(now - begun, 4),
        "bytes_per_s": round((arrived - counted[1]) / took),
        "segments": after["segments"] - before["segments"],
        "singly": min(alone, arrived) // len(piece),
        "again": after["again"] - before["again"],
        "needless": after["needless"] - before["needless"],
        "receiver_share": round((after["receiver_us"] - before["receiver_us"]) / max(1.0, (now - begun) * 1e6), 3),
        "cpu_share": round((time.thread_time() - cpu) / max(now - begun, 1e-6), 3),
        "waited_share": round(proc.waited_since("thread-self", waited) / max(now - begun, 1e-6), 3),
    }


def _unacknowledged(sock: socket.socket) -> int:
    """Unacknowledged bytes; 0 if the kernel does not report them."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), 0x5411, b"\0" * 4))[0])  # SIOCOUTQ
    except OSError:
        return 0


def _tcp(sock: socket.socket) -> dict[str, int]:
    """Values of the kernel's TCP_INFO; missing ones are 0. `needless`: retransmitted although received. `receiver_us`:
    time in which the receive window was full."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        info = b""

    def word(at: int, form: str = "=I") -> int:
        return int(struct.unpack_from(form, info, at)[0]) if len(info) >= at + struct.calcsize(form) else 0

    return {
        "again": word(100),
        "segments": word(156) or word(136),
        "receiver_us": word(176, "=Q"),
        "needless": word(216),
    }


# The server


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
        self._listener = _listener()
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._guests: dict[int, _Guest] = {}
        self._strangers: dict[int, _Guest] = {}
        self._buffer = bytearray(1 << 20)

    def serve(self) -> None:
        """Serve until the process ends."""
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
        """Read the hello; whether it is complete and valid."""
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
        """Pause reading while a peer does not read its echo."""
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


def _listener() -> socket.socket:
    """A listening socket on all addresses, IPv4 and (if available) IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
        except OSError:
            return socket.create_server(("", 0), backlog=4096)
    return socket.create_server(("", 0), backlog=4096)
