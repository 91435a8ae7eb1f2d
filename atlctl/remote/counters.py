"""Counters of the kernel that show why a process is slow: CPU time that it did not get, pressure, TCP connections,
interfaces, GPUs.

Each is read twice and the difference counts. A missing or forbidden counter is None or absent.
"""

from __future__ import annotations

import contextlib
import re
import struct
import time

from atlctl.remote import cgroups
from atlctl.remote.gpus import FIELDS, FORMAT, REASONS, rows, slowed
from atlctl.remote.proc import addresses, decoded, link, names, read, text

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Found = dict[str, Any]
    T = TypeVar("T")

#: Fields of /proc/stat's first line, in clock ticks.
_CPU = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
#: The position of some fields in a line of /proc/net/dev.
_DEVICE = {
    "rx_packets": 1, "rx_errors": 2, "rx_dropped": 3, "tx_packets": 9, "tx_errors": 10, "tx_dropped": 11,
}  # fmt: skip
#: Counters of an InfiniBand or RoCE port, by folder: of the port, and of the retransmissions of its connections.
_PORT = {
    "counters": ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards"),
    "hw_counters": ("packet_seq_err", "local_ack_timeout_err"),
}
_INTERFACES, _PORTS = 64, 32

# Messages of the kernel's socket diagnosis.
_SOCK_DIAG, _DUMP, _INFO, _ESTABLISHED = 20, 0x301, 2, 1
_HEAD, _MESSAGE = struct.Struct("=IHHII"), struct.Struct(">BBBBHH16s16s")
_INODE, _ATTRIBUTES = 68, 72
#: Offsets and kinds of fields in the kernel's `tcp_info`; it only grows at its end. Times in microseconds.
_TCP = {
    "retransmitted": ("I", 100), "acked": ("Q", 120), "sent_segments": ("I", 156), "busy": ("Q", 168),
}  # fmt: skip
_ANSWER, _DIAG_SECONDS = 64 << 20, 2.0
_NEWNET = 0x40000000

#: Fields of nvidia-smi in addition to those of `gpus`, and seconds between two queries and for one.
GPU_FIELDS = (*FIELDS, "clocks.sm", "ecc.errors.corrected.volatile.total")
_BETWEEN, _QUERY = 1.5, 5.0


def machine(root: str = "") -> Found:
    """CPU ticks of the machine by kind, and the pressure of this process's cgroup."""
    line = read(root + "/proc/stat", 4096).split(b"\n", 1)[0].split()[1:9]
    ticks = [int(word) for word in line if word.isdigit()]
    return {
        "ticks": dict(zip(_CPU, ticks)) if len(ticks) == len(_CPU) else None,  # noqa: B905 - younger than Python 3.8
        "pressure": cgroups.pressure(root),
    }


def process(pid: int, root: str = "") -> Found:
    """Page faults that needed a disk; bytes and calls of all writes; time throttled."""
    words = read(f"{root}/proc/{pid}/stat").rpartition(b")")[2].split()
    found: Found = {
        "major_faults": int(words[9]) if len(words) > 9 and words[9].isdigit() else None,
        "throttled_us": cgroups.throttled(root, pid),
    }
    counted = re.findall(r"^(wchar|syscw): (\d{1,19})$", text(f"{root}/proc/{pid}/io"), re.MULTILINE)
    for name, value in counted:
        found[name] = int(value)
    return found


def interfaces(pid: object = "self", root: str = "") -> dict[str, dict[str, int]]:
    """Counters of the interfaces that a process sees, without loopback, and of InfiniBand ports (`mlx5_0/1`)."""
    found: dict[str, dict[str, int]] = {}
    for line in text(f"{root}/proc/{pid}/net/dev", 1 << 20).splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if name.strip() != "lo" and len(words) > 11 and all(word.isdigit() for word in words[:12]):
            own = found[name.strip()[:40]] = {key: int(words[at]) for key, at in _DEVICE.items()}
            changes = text(f"{root}/proc/{pid}/root/sys/class/net/{name.strip()}/carrier_changes", 40)
            own.update({"carrier_changes": int(changes)} if changes.isdigit() else {})
        if len(found) >= _INTERFACES:
            break
    place = root + "/sys/class/infiniband"
    ports = [f"{device}/ports/{port}" for device in names(place) for port in names(f"{place}/{device}/ports")]
    for port in ports[:_PORTS]:
        paths = [f"{folder}/{name}" for folder, counted in _PORT.items() for name in counted]
        values = {path.partition("/")[2]: text(f"{place}/{port}/{path}", 40) for path in paths}
        found[port.replace("/ports", "")] = {key: int(value) for key, value in values.items() if value.isdigit()}
    return found


# TCP connections


def network(pid: int) -> tuple[list[Found], list[str]]:
    """The established TCP connections of a process with the kernel's counters, and the addresses of its network
    namespace. Of another namespace than this process's, only if this process may enter it."""

    def asked() -> tuple[list[Found], list[str]]:
        found = []
        for family in (2, 10):
            found += [item for item in _ask(family) if item["inode"] in own]
        return found, [address for _, address in addresses()]

    own = {int(name[8:-1]) for name in (link(f"/proc/{pid}/fd/{fd}") for fd in names(f"/proc/{pid}/fd"))
           if name.startswith("socket:[")}  # fmt: skip
    there = f"/proc/{pid}/ns/net"
    try:
        return asked() if link(there) in ("", link("/proc/self/ns/net")) else _inside(there, asked)
    except (OSError, ValueError):
        return [], []


def _inside(namespace: str, asked: Callable[[], T]) -> T:
    """The result of `asked` in another network namespace, in a thread, because the thread stays there."""
    import ctypes
    import threading

    found: list[T] = []

    def run() -> None:
        with contextlib.suppress(OSError, ValueError), open(namespace, "rb") as file:
            if ctypes.CDLL(None).setns(file.fileno(), _NEWNET) == 0:
                found.append(asked())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(2 * _DIAG_SECONDS)
    if not found:
        raise OSError(namespace)
    return found[0]


def _ask(family: int) -> list[Found]:
    """All established connections of this network namespace."""
    import socket

    deadline = time.monotonic() + _DIAG_SECONDS
    request = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, 1 << _ESTABLISHED)
    found: list[Found] = []
    size = 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as asked:  # 4: NETLINK_SOCK_DIAG
        asked.settimeout(_DIAG_SECONDS)
        asked.send(_HEAD.pack(_HEAD.size + len(request), _SOCK_DIAG, _DUMP, 1, 0) + request)
        while size < _ANSWER and time.monotonic() < deadline:
            data = asked.recv(1 << 18)
            size += len(data)
            more, ended = connections(data)
            found += more
            if ended or not data:
                break
    return found


def connections(data: bytes) -> tuple[list[Found], bool]:
    """The connections in an answer of the kernel, and whether it is the last one. Never raises."""
    found: list[Found] = []
    at = 0
    while at + _HEAD.size <= len(data):
        size, kind, _, _, _ = _HEAD.unpack_from(data, at)
        if size < _HEAD.size or at + size > len(data):
            return found, True
        if kind != _SOCK_DIAG:
            return found, True  # NLMSG_DONE or NLMSG_ERROR
        item = _connection(data[at + _HEAD.size : at + size])
        if item is not None:
            found.append(item)
        at += (size + 3) & ~3
    return found, False


def _connection(body: bytes) -> Found | None:
    import socket

    if len(body) < _ATTRIBUTES:
        return None
    family, _, _, _, port, peer_port, source, target = _MESSAGE.unpack_from(body)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    length = 4 if family == socket.AF_INET else 16
    host, peer = (re.sub(r"^::ffff:(?=\d+\.)", "", socket.inet_ntop(family, raw[:length])) for raw in (source, target))
    found = {"host": host, "port": port, "peer": peer, "peer_port": peer_port}
    found["inode"] = struct.unpack_from("=I", body, _INODE)[0]
    at = _ATTRIBUTES
    while at + 4 <= len(body):
        size, kind = struct.unpack_from("=HH", body, at)
        if size < 4:
            break
        if kind == _INFO:
            info = body[at + 4 : at + size]
            for name, (form, offset) in _TCP.items():
                if offset + struct.calcsize("=" + form) <= len(info):
                    found[name] = struct.unpack_from("=" + form, info, offset)[0]
        at += (size + 3) & ~3
    return found


def grown(before: list[Found], after: list[Found]) -> list[Found]:
    """The counters of connections that existed both times, as differences."""
    older = {_ends(item): item for item in before}
    found = []
    for item in after:
        old = older.get(_ends(item))
        if old is not None:
            counted = [name for name in _TCP if name in item and name in old]
            found.append(dict(item, **{name: item[name] - old[name] for name in counted}))
    return found


def _ends(item: Found) -> tuple[object, ...]:
    return item["inode"], item["host"], item["port"], item["peer"], item["peer_port"]


# GPUs


class GpuLooks:
    """Queries of nvidia-smi, one after another, in the background: `poll` starts and collects them. `looks` has the
    GPUs of each, `problem` the reason if there are none."""

    def __init__(self) -> None:
        from shutil import which

        self.looks: list[list[Found]] = []
        self.problem = ""
        self._program = which("nvidia-smi")
        self._reasons = list(REASONS)
        self._running: Any = None
        self._output: Any = None
        self._begun = 0.0

    def poll(self, last: bool = False) -> None:
        """`last`: wait for a running query, and start no other one."""
        import subprocess
        import tempfile

        now = time.monotonic()
        if self._running is not None:
            if last:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._running.wait(max(0.1, self._begun + _QUERY - now))
            if self._running.poll() is not None:
                self._collect()
            elif now - self._begun > _QUERY:
                self._running.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # in the driver it may not end
                    self._running.wait(0.5)
                self._output.close()
                self._running, self._program = None, None
                self.problem = "nvidia-smi does not answer"
        if self._program is None or self._running is not None or last or now < self._begun + _BETWEEN:
            return
        self._output, self._begun = tempfile.TemporaryFile(), now  # noqa: SIM115 - closed when it is read
        query = ",".join((*GPU_FIELDS, *self._reasons[:1]))
        try:
            self._running = subprocess.Popen(
                [self._program, f"--query-gpu={query}", FORMAT], stdin=subprocess.DEVNULL, stdout=self._output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            self._program, self.problem = None, str(error.strerror)

    def _collect(self) -> None:
        self._output.seek(0)
        data, code = self._output.read(1 << 18), self._running.returncode
        self._output.close()
        self._running = None
        fields = (*GPU_FIELDS, *self._reasons[:1])
        found, odd, _ = rows(fields, data, GPU_FIELDS)
        if found:
            reasons = self._reasons[0] if self._reasons else ""
            self.looks.append([dict(gpu, slowed=slowed(gpu.get(reasons))) for gpu in found])
        elif code == 2 and self._reasons:  # it does not know the field
            del self._reasons[0]
            self._begun = 0.0
        else:
            self._program, self.problem = None, odd[0] if odd else f"nvidia-smi: exit {code}"


def gpu_of(environ: dict[bytes, bytes], local_rank: int | None) -> str | None:
    """The index or the UUID of a rank's GPU in nvidia-smi, if it uses the one of its local rank."""
    if local_rank is None:
        return None
    visible = environ.get(b"CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(local_rank)
    shown = decoded(visible).split(",")
    # A launcher that gives each rank one GPU shows it this one alone.
    return (shown[local_rank] if local_rank < len(shown) else shown[0] if len(shown) == 1 else "").strip() or None
