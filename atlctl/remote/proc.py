"""Reads /proc: small files, processes, mounts, and files that may block the reader.

A missing or forbidden file reads as empty. `root` is a prefix for /proc (for tests). For a hung process, `stat`,
`status` and `cgroup` can be read; `environ` and `cmdline` require its memory lock, which may be held forever:
`read_all` reads them in a child.
"""

from __future__ import annotations

import collections
import os
import re
import select
import signal
import sys
import time

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, NamedTuple

    class Stat(NamedTuple):
        """Fields of /proc/PID/stat. `start`, `ticks` (CPU time) and `ended` (CPU time of ended children) in clock
        ticks; `pages`: resident memory."""

        pid: int
        comm: str
        state: str
        parent: int
        group: int
        session: int
        start: int
        ticks: int = 0
        ended: int = 0
        pages: int = 0

else:
    Stat = collections.namedtuple(  # noqa: PYI024
        "Stat", "pid comm state parent group session start ticks ended pages", defaults=(0, 0, 0)
    )

#: Seconds to read one file; number of blocked files to wait for; seconds for a child that gets no CPU.
_FILE_SECONDS, _MAX_HANGING, _STARVED_SECONDS = 0.5, 6, 5.0
#: File systems shared between machines. Most others have the prefix `fuse.`.
_SHARED = frozenset({
    "nfs", "nfs4", "lustre", "gpfs", "ceph", "cephfs", "glusterfs", "beegfs", "cifs", "smb3", "smbfs", "pvfs2", "afs",
    "ocfs2", "gfs2", "wekafs", "panfs", "cpfs", "yrfs", "9p", "virtiofs", "fuse", "fuseblk",
})  # fmt: skip
#: FUSE file systems of a single machine.
_OWN = ("fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "fuse.fuse-overlayfs", "fuse.sshfs-local", "fuse.snapfuse")


# Small files


def read(path: str, limit: int = 65536) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def text(path: str, limit: int = 65536) -> str:
    return decoded(read(path, limit)).strip()


def boot(root: str = "") -> str:
    """The same on workers that share a kernel; empty if unknown."""
    return text(root + "/proc/sys/kernel/random/boot_id", 64)


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def names(folder: str) -> list[str]:
    """The sorted entries of a folder."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def link(path: str) -> str:
    """The target of a link; empty if it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


# Processes


def stat(folder: str) -> Stat | None:
    """The process or thread with this folder in /proc; None if it does not exist."""
    raw = read(folder + "/stat")
    # The command name is in parentheses and may contain parentheses and spaces.
    opening, closing = raw.find(b"("), raw.rfind(b")")
    rest = raw[closing + 2 :].split()
    if opening < 0 or closing < opening or len(rest) < 22:
        return None
    comm, state = decoded(raw[opening + 1 : closing]), rest[0].decode("ascii", "replace")
    parent, group, session, own, kernel, theirs, their_kernel, start, pages = (
        int(rest[at]) for at in (1, 2, 3, 11, 12, 13, 14, 19, 21)
    )
    return Stat(
        int(raw[:opening]), comm, state, parent, group, session, start, own + kernel, theirs + their_kernel, pages
    )


def everything(root: str = "") -> dict[int, Stat]:
    """All visible processes, including zombies."""
    found = {}
    for name in os.listdir(root + "/proc"):
        entry = stat(root + "/proc/" + name) if name.isdigit() else None
        if entry is not None:
            found[int(name)] = entry
    return found


def children_of(table: dict[int, Stat]) -> dict[int, list[int]]:
    """Children by parent PID."""
    children: dict[int, list[int]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    return children


def below(children: dict[int, list[int]], roots: Collection[int]) -> list[int]:
    """All descendants of `roots`, nearest first, without the roots."""
    found: dict[int, None] = {}
    todo = collections.deque(roots)
    while todo:
        for child in children.get(todo.popleft(), ()):
            if child not in found and child not in roots:
                found[child] = None
                todo.append(child)
    return list(found)


def environment(raw: bytes) -> dict[bytes, bytes]:
    """Variables in the content of an `environ` file."""
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def waited(task: object) -> float | None:
    """Seconds for which a runnable thread waited for a CPU; None if the kernel does not count them.

    `task`: `thread-self`, or a PID for its main thread.
    """
    try:
        return int(read(f"/proc/{task}/schedstat").split()[1]) / 1e9
    except (ValueError, IndexError):
        return None


def waited_since(task: object, before: float | None) -> float:
    """Seconds since `waited` returned `before`; 0 if the kernel does not count them."""
    now = waited(task)
    return 0.0 if now is None or before is None else now - before


# Network


def addresses() -> list[list[str]]:
    """Name and address of all interfaces that are up, including loopback."""
    import array
    import fcntl
    import socket
    import struct

    found = []
    size, room = 40 if struct.calcsize("P") == 8 else 32, 1 << 15
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        buffer = array.array("B", bytes(room))
        filled = fcntl.ioctl(asked.fileno(), 0x8912, struct.pack("iP", room, buffer.buffer_info()[0]))  # SIOCGIFCONF
        data = buffer.tobytes()[: struct.unpack_from("i", filled)[0]]
    for at in range(0, len(data), size):
        name = data[at : at + 16].split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
        found.append([name, socket.inet_ntoa(data[at + 20 : at + 24])])
    for line in text("/proc/net/if_inet6").splitlines():
        digits, _, _, scope, _, name = line.split()
        if scope in ("00", "10"):  # global and loopback; link-local addresses need an interface name
            found.append([name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))])
    return found


def listening(pid: int) -> list[tuple[str, int]]:
    """Addresses and ports on which this process listens with TCP; its own sockets only."""
    own = opened(pid)
    return [(address, port) for link, address, port in listeners(pid) if link in own]


def opened(pid: int) -> set[str]:
    """The open files of a process, as links of its descriptors."""
    return {link(f"/proc/{pid}/fd/{name}") for name in names(f"/proc/{pid}/fd")}


def listeners(pid: int | str = "self") -> list[tuple[str, str, int]]:
    """TCP sockets that listen in the network namespace of this process: link of the descriptor, address, port."""
    import socket

    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in decoded(read(f"/proc/{pid}/net/{table}", 16 << 20)).splitlines()[1:]:
            words = line.split() if " 0A " in line else []
            if len(words) > 9 and words[3] == "0A":
                digits, _, port = words[1].partition(":")
                # Each group of 32 bits is in the byte order of the machine.
                whole = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
                packed = b"".join(word.to_bytes(4, sys.byteorder) for word in whole)
                found.append((f"socket:[{words[9]}]", socket.inet_ntop(family, packed), int(port, 16)))
    return found


# Mounts. Nothing here accesses a mount, because a dead one would block.


def mounts(root: str = "") -> list[dict[str, Any]]:
    """All mounts, without those hidden by a later mount on the same path: `path`, `fs`, `source`, `read_only`,
    `device`."""
    found: dict[str, dict[str, Any]] = {}
    for line in text(root + "/proc/self/mountinfo", 4 << 20).splitlines():
        head, _, tail = line.partition(" - ")
        words, rest = head.split(" "), tail.split(" ")
        if len(words) < 6 or len(rest) < 2:
            continue
        path = _plain(words[4])
        options = set(words[5].split(",")) | set(rest[2].split(",") if len(rest) > 2 else ())
        found.pop(path, None)
        found[path] = {
            "path": path, "fs": rest[0], "source": _plain(rest[1])[:300], "read_only": "ro" in options,
            "device": words[2], "part": _plain(words[3])[:300],
        }  # fmt: skip
    return list(found.values())


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), word)


def mount_of(path: str, table: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The mount that contains `path`, judged by name only."""
    holds = [m for m in table if m["path"] == "/" or path == m["path"] or path.startswith(m["path"] + "/")]
    return max(holds, key=lambda mount: len(mount["path"])) if holds else None


def is_shared(fs: str) -> bool:
    """Whether file systems of this type are shared between machines."""
    return fs in _SHARED or (fs.startswith("fuse.") and fs not in _OWN)


# Files that may block the reader


def read_all(paths: list[str], limit: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """The first `limit` bytes of each file, and errors for files that could not be read.

    A child reads them, and is abandoned if it hangs. Not for multithreaded processes, because a fork copies only one
    thread.
    """
    found: dict[str, bytes] = {}
    failed: dict[str, str] = {}
    at = hanging = 0
    while at < len(paths) and hanging < _MAX_HANGING:
        child = _Reader(paths[at:], limit)
        try:
            while at < len(paths):
                answer = child.receive()
                if answer is None:
                    failed[paths[at]] = f"no answer in {_FILE_SECONDS:g} s"
                elif answer[:1] == b"+":
                    found[paths[at]] = answer[1:]
                else:
                    failed[paths[at]] = decoded(answer[1:])
                at += 1
                if answer is None:
                    hanging += 1
                    break
        finally:
            child.end()
    failed.update(dict.fromkeys(paths[at:], "not tried: too many others hang"))
    return found, failed


class _Reader:
    """Reads files one by one in a child, which sends each after its length."""

    def __init__(self, paths: list[str], limit: int) -> None:
        self._pipe, theirs = os.pipe()
        self._data = b""
        self._pid = os.fork()
        if self._pid == 0:
            _serve(paths, theirs, limit)
        os.close(theirs)

    def receive(self) -> bytes | None:
        """The next answer; None if it does not arrive in time."""
        begun = time.monotonic()
        while True:
            size = int(self._data[:8]) + 8 if len(self._data) >= 8 else 8
            if len(self._data) >= size > 8:
                answer, self._data = self._data[8:size], self._data[size:]
                return answer
            passed = time.monotonic() - begun
            if not select.select([self._pipe], [], [], max(0.01, _FILE_SECONDS - passed))[0]:
                if passed < _FILE_SECONDS or (passed < _STARVED_SECONDS and self._runs()):
                    continue
                return None
            piece = os.read(self._pipe, 1 << 16)
            if not piece:
                return None
            self._data += piece

    def _runs(self) -> bool:
        """Whether the child is not blocked in a file but gets no CPU."""
        found = stat(f"/proc/{self._pid}")
        return found is not None and found.state == "R"

    def end(self) -> None:
        os.close(self._pipe)
        os.kill(self._pid, signal.SIGKILL)
        for _ in range(20):
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                return
            time.sleep(0.005)


def _serve(paths: list[str], pipe: int, limit: int) -> None:
    """Main function of the child. Does not keep the parent's streams."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        for path in paths:
            try:
                with open(path, "rb") as file:
                    answer = b"+" + file.read(limit)
            except OSError as error:
                answer = b"-" + os.strerror(error.errno or 0).encode()
            message = b"%8d" % len(answer) + answer
            while message:
                message = message[os.write(pipe, message) :]
    finally:
        os._exit(0)
