"""What /proc tells of a process without ever hanging."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

    Stat = dict[str, Any]

_MAX_THREADS = 512
_X86 = {
    0: "read", 1: "write", 7: "poll", 17: "pread64", 19: "readv", 23: "select", 24: "sched_yield", 16: "ioctl",
    34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 45: "recvfrom", 47: "recvmsg", 61: "wait4", 2: "open",
    72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 202: "futex", 208: "io_getevents", 4: "stat", 5: "fstat",
    230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 262: "newfstatat", 270: "pselect6",
    271: "ppoll", 281: "epoll_pwait", 288: "accept4", 332: "statx", 426: "io_uring_enter", 18: "pwrite64",
    20: "writev", 217: "getdents64", 128: "rt_sigtimedwait", 40: "sendfile", 295: "preadv", 6: "lstat",
}  # fmt: skip
_ARM = {
    63: "read", 64: "write", 67: "pread64", 65: "readv", 29: "ioctl", 72: "pselect6", 73: "ppoll", 124: "sched_yield",
    101: "nanosleep", 115: "clock_nanosleep", 203: "connect", 202: "accept", 207: "recvfrom", 212: "recvmsg",
    260: "wait4", 95: "waitid", 25: "fcntl", 32: "flock", 82: "fsync", 83: "fdatasync", 98: "futex", 4: "io_getevents",
    22: "epoll_pwait", 56: "openat", 79: "newfstatat", 80: "fstat", 242: "accept4", 291: "statx", 68: "pwrite64",
    426: "io_uring_enter", 66: "writev", 61: "getdents64", 137: "rt_sigtimedwait", 71: "sendfile", 69: "preadv",
}  # fmt: skip
_SYSCALLS = {"x86_64": _X86, "aarch64": _ARM}.get(os.uname().machine, {})
#: Calls whose first argument is a descriptor.
_ON_FILE = frozenset({
    "read", "write", "readv", "writev", "pread64", "preadv", "pwrite64", "ioctl", "fcntl", "flock", "fsync",
    "fdatasync", "fstat", "getdents64", "recvfrom", "recvmsg", "accept", "accept4", "connect",
})  # fmt: skip


def read(path: str, limit: int = 65536) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def stat(path: str) -> Stat | None:
    """The fields of a stat file that matter; None where the process is gone."""
    raw = read(path + "/stat")
    opening, closing = raw.find(b"("), raw.rfind(b")")
    if opening < 0 or closing < opening:
        return None
    rest = raw[closing + 2 :].split()
    return {
        "comm": text(raw[opening + 1 : closing]),
        "state": rest[0].decode("ascii", "replace"),
        "parent": int(rest[1]),
        "ticks": int(rest[11]) + int(rest[12]),
        "start": int(rest[19]),
    }


def text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def look_at(pid: int) -> dict[str, Any]:
    """One look at a process: its own numbers, its main thread, and where its other threads wait."""
    folder = f"/proc/{pid}"
    process, main = stat(folder), thread(pid, pid)
    if process is None or main is None:
        return {}
    names = [name for name in _list(folder + "/task") if name != str(pid)]
    others = [found for found in (thread(pid, int(name)) for name in names[:_MAX_THREADS]) if found]
    return {"start": process["start"], "ticks": process["ticks"], "main": main, "others": others,
            "threads": len(names) + 1, "frozen": _frozen(pid)}  # fmt: skip


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def thread(pid: int, tid: int) -> dict[str, Any] | None:
    folder = f"/proc/{pid}/task/{tid}"
    found = stat(folder)
    if found is None:
        return None
    schedule = read(folder + "/schedstat").split()
    status = text(read(folder + "/status"))
    switches = re.findall(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
    tracer = re.search(r"^TracerPid:\s+(\d+)", status, re.MULTILINE)
    call, timed, target = _syscall(pid, folder)
    return {
        "tid": tid, "name": found["comm"], "state": found["state"], "ticks": found["ticks"],
        "run_ns": int(schedule[0]) if len(schedule) > 1 else None,
        "wait_ns": int(schedule[1]) if len(schedule) > 1 else None,
        "switches": sum(map(int, switches)) if switches else None,
        "tracer": int(tracer.group(1)) if tracer else 0,
        "wchan": text(read(folder + "/wchan", 100)).strip("0\n") or None,
        "syscall": call, "timed": timed, "target": target,
    }  # fmt: skip


def _syscall(pid: int, folder: str) -> tuple[str | None, bool | None, str | None]:
    """The system call a thread is in, whether a futex has a time limit, and what a descriptor stands for."""
    words = read(folder + "/syscall").split()
    if not words or words == [b"running"]:
        return ("running" if words else None), None, None
    number = int(words[0])
    name = _SYSCALLS.get(number, str(number))
    if number < 0 or len(words) < 5:
        return "none", None, None
    timed = words[4] != b"0x0" if name == "futex" else None
    if name not in _ON_FILE:
        return name, timed, None
    try:
        return name, timed, os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}")[:300]
    except (OSError, OverflowError):
        return name, timed, None


def _frozen(pid: int) -> bool:
    for kind, path in groups(pid).items():
        if not kind and b"frozen 1" in read("/sys/fs/cgroup" + path + "/cgroup.events"):
            return True
        if kind == "freezer" and b"FROZEN" in read("/sys/fs/cgroup/freezer" + path + "/freezer.state"):
            return True
    return False


def groups(pid: int) -> dict[str, str]:
    lines = (line.split(":", 2) for line in text(read(f"/proc/{pid}/cgroup")).splitlines())
    return {parts[1]: parts[2] for parts in lines if len(parts) == 3}
