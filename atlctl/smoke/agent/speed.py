"""How fast bytes get to one other worker after another, and how many of them the kernel had to send again."""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
import struct
import time

from . import schedstat, serving

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

    from .wire import Say

_TCP_NOTSENT_LOWAT, _SO_MAX_PACING_RATE = 25, 47


def send(say: Say, request: dict[str, Any]) -> None:
    """Send to each of `turns` (index, address, port) in order, each in a slot of `slot` seconds of its own: for
    `seconds`, the first share `singly` of them one segment at a time, at no more than `pace` bytes a second. Tells what
    got there and what was sent again."""
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
        if request.get("pace"):
            sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, int(request["pace"]))
        sock.sendall(serving.HELLO.pack(serving.digest(str(request["token"])), int(index), serving.SINK))
        if sock.recv(serving.REPLY.size, socket.MSG_WAITALL) != serving.REPLY.pack(serving.HERE, int(index)):
            raise ConnectionRefusedError("another worker answers there")
        sock.setblocking(False)
        # What is still under way when the time is up is of no use, and must not stand in the way of the next one.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return _push(sock, float(request["seconds"]), float(request["singly"]))


def _push(sock: socket.socket, seconds: float, singly: float) -> dict[str, Any]:
    """Send for so long. For the first share `singly` of it the kernel may not put segments together: what loses one in
    a hundred would lose one heap in a hundred, and there are few heaps. It costs CPU time, and so speed."""
    data = memoryview(bytes(1 << 20))
    piece = data[: max(500, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))]
    ready = select.poll()
    ready.register(sock, select.POLLOUT)
    before, waited, cpu = _tcp(sock), schedstat.waited("thread-self"), time.thread_time()
    begun = now = time.monotonic()
    # The first part, while the connection finds its speed, does not count.
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
        "rtt_us": after["rtt_us"],
        "rttmin_us": after["rttmin_us"],
        "receiver_share": round((after["receiver_us"] - before["receiver_us"]) / max(1.0, (now - begun) * 1e6), 3),
        "cpu_share": round((time.thread_time() - cpu) / max(now - begun, 1e-6), 3),
        "waited_share": round(schedstat.since("thread-self", waited) / max(now - begun, 1e-6), 3),
    }


def _unacknowledged(sock: socket.socket) -> int:
    """Bytes under way; 0 where the kernel does not say."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), 0x5411, b"\0" * 4))[0])  # SIOCOUTQ
    except OSError:
        return 0


def _tcp(sock: socket.socket) -> dict[str, int]:
    """The kernel's TCP_INFO, as much as there is of it: what it does not say is 0. `needless`: sent again although it
    had arrived. `receiver_us`: time in which the receiver took no more."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        info = b""

    def word(at: int, form: str = "=I") -> int:
        return int(struct.unpack_from(form, info, at)[0]) if len(info) >= at + struct.calcsize(form) else 0

    return {
        "rtt_us": word(68),
        "again": word(100),
        "rttmin_us": word(148),
        "segments": word(156) or word(136),
        "receiver_us": word(176, "=Q"),
        "needless": word(216),
    }
