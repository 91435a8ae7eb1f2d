"""Processes as /proc shows them: identities that survive pid reuse, and everything below a process."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import socket
import struct
from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Call prctl(2); raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def peer_is_me(sock: socket.socket) -> bool:
    """Whether the other end of a connected Unix socket runs as this user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", raw)[1] == os.geteuid())


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that matter here. `start` is in clock ticks since boot."""

    pid: int
    comm: str
    state: str
    parent: int
    group: int
    session: int
    start: int


def stat(pid: int | str) -> Stat | None:
    """The process, None where there is none (any more)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            raw = file.read()
    except OSError:
        return None
    # The command name stands in parentheses and may itself hold parentheses and spaces.
    opening, closing = raw.find(b"("), raw.rfind(b")")
    if opening < 0 or closing < opening:
        return None
    rest = raw[closing + 2 :].split()
    return Stat(
        int(raw[:opening]),
        raw[opening + 1 : closing].decode("utf-8", "replace"),
        rest[0].decode("ascii"),
        int(rest[1]),
        int(rest[2]),
        int(rest[3]),
        int(rest[19]),
    )


def alive(pid: int, start: int) -> bool:
    """True while exactly this process runs (a zombie does not)."""
    found = stat(pid)
    return found is not None and found.start == start and found.state not in "ZX"


def everything() -> dict[int, Stat]:
    """All processes in sight, zombies left out."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            entry = stat(name)
            if entry is not None and entry.state not in "ZX":
                found[entry.pid] = entry
    return found


def children_of(table: dict[int, Stat]) -> dict[int, list[int]]:
    """Who has which children in `table`."""
    children: dict[int, list[int]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    return children


def below(children: dict[int, list[int]], roots: Collection[int]) -> set[int]:
    """All descendants of `roots`, the roots themselves left out."""
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found - set(roots)


def environment(pid: int) -> dict[bytes, bytes]:
    """The environment a process was started with; empty where it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def send(pids: Iterable[int], number: int) -> None:
    """Signal each process, parents before what they have started: a shell whose child ends would go on to its next
    command. One that has ended meanwhile is no error."""
    for pid in sorted(pids):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def send_group(group: int, number: int) -> None:
    """Signal a process group; one that has ended meanwhile is no error."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


@functools.lru_cache(maxsize=None)  # noqa: UP033  `cache` is younger than Python 3.8
def place() -> dict[str, str]:
    """Where pids mean something: this boot of this machine, in this pid namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return {"host": os.uname().nodename, "boot_id": boot, "pid_namespace": os.readlink("/proc/self/ns/pid")}


def identity(pid: int) -> dict[str, int | str]:
    """What recognises a process later: pid, start time, boot, machine and pid namespace."""
    found = stat(pid)
    return {"pid": pid, "start": found.start if found else 0, **place()}


def presence(identity: dict[str, Any]) -> tuple[Literal["alive", "gone", "elsewhere"], str]:
    """Whether a recorded process lives, and where it is when that cannot be seen from here."""
    here = place()
    if identity["boot_id"] != here["boot_id"]:
        # Another machine whose disk this is, or this one before it was started anew.
        return ("gone", "") if identity["host"] == here["host"] else ("elsewhere", str(identity["host"]))
    if identity["pid_namespace"] != here["pid_namespace"]:
        return "elsewhere", "another container on this machine"
    return ("alive" if alive(identity["pid"], identity["start"]) else "gone"), ""


def end_all_below(root: int, seconds: float) -> None:
    """SIGKILL every descendant of `root` (this process, a subreaper) and reap until none is left."""
    import time

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        send(below(children_of(everything()), (root,)), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(0.01)
