"""The stack probe: samples each rank twice, some seconds apart, and then reads the stacks."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import zlib

from atlctl.remote import cgroups
from atlctl.remote.proc import addresses, names, read, stat, text
from atlctl.remote.ranks import Finder
from atlctl.remote.sentences import Sentence, plain

from .dumping import Dumps
from .ras import Ras

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Found = dict[str, Any]

#: Flags of the client: ask NCCL's RAS service (one worker answers for all), take stacks with py-spy, let torch write
#: its flight recorders.
RAS, SPY, DUMP = 1, 2, 4
_CHILDREN, _MOVED = 32, 5
#: Minimum bytes of free memory for more than reading /proc. A py-spy takes about 10 MiB, four run at once, RAS's answer
#: on 8,192 ranks takes 34, and the training may allocate more meanwhile.
HEADROOM = 128 << 20
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
#: System calls whose first argument is a file descriptor.
_ON_FILE = frozenset({
    "read", "write", "readv", "writev", "pread64", "preadv", "pwrite64", "ioctl", "fcntl", "flock", "fsync",
    "fdatasync", "fstat", "getdents64", "recvfrom", "recvmsg", "accept", "accept4", "connect",
})  # fmt: skip


def main(*words: str) -> None:
    """`words`: seconds of the window, seconds in total, bytes of a compressed py-spy on standard input (0: none).

    In front of them is a digit, the sum of `RAS`, `SPY` and `DUMP`.
    """
    probe(words)


def probe(
    words: tuple[str, ...],
    watch: Callable[[list[Found], Finder, Dumps | None, Ras | None, float], Found] | None = None,
) -> None:
    """Print the report. `watch` is called for the time of the window instead of taking stacks at its end; it adds to
    the ranks, and returns more fields of the report."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _leave)
    window, seconds, size = float(words[0]), float(words[1]), int(words[2])
    deadline = time.monotonic() + seconds
    asked = int(sys.stdin.buffer.read(1))
    brought = sys.stdin.buffer.read(size) if size else None
    room = _headroom()
    finder = Finder()
    ranks = finder.ranks()
    environs = {rank["pid"]: finder.environs.get(rank["pid"], {}) for rank in ranks}
    ras = Ras(environs, deadline) if asked & RAS and not _short(room) else None
    if ras is not None and watch is None:
        ras.begin()
    dumps, problem, more = None, _lack(room), {}
    if problem is None and ranks:
        dumps = Dumps(None if brought is None else zlib.decompress(brought), deadline, bool(asked & SPY))
        problem = dumps.problem
    try:
        before = {rank["pid"]: _look(finder, rank["pid"]) for rank in ranks}
        begun, held = time.monotonic(), cgroups.throttled()
        for rank in ranks:
            rank.update({"stack": None, "recorder": None, "problems": [], "spy": None, "inner": _inner(rank["pid"])})
        if watch is None:
            time.sleep(window)
        elif ranks:
            more = watch(ranks, finder, dumps, ras, window)
        after = {rank["pid"]: _look(finder, rank["pid"]) for rank in ranks}
        passed = time.monotonic() - begun
        now = cgroups.throttled()
        for rank in ranks:
            rank.update(_change(before[rank["pid"]], after[rank["pid"]]))
        launched = ras.facts() if ras is not None and watch is None else None
        loaded = finder.with_torch([rank["pid"] for rank in ranks])
        for rank in ranks:
            rank["torch"] = loaded.get(rank["pid"])
        if dumps is not None and watch is None:
            dumps.ask([rank for rank in ranks if rank["looks"]], finder.environs, write=bool(asked & DUMP))
    finally:
        if dumps is not None:
            dumps.close()
    report = {
        "atlctl_stacks": 1,
        "seconds": round(passed, 3),
        "ticks_per_second": os.sysconf("SC_CLK_TCK"),
        "cpus": len(os.sched_getaffinity(0)),
        "now": time.time(),
        "memory": room,
        "throttled_us": None if held is None or now is None else now - held,
        "hidden": finder.hidden,
        "launchers": 0 if ranks else finder.launchers(),
        "problem": problem,
        "ras": launched,
        "addresses": [address for _, address in addresses()],
        "ranks": [dict(rank, started=_started(rank["start"])) for rank in ranks],
        **more,
    }
    sys.stdout.write(json.dumps(plain(report), separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _inner(pid: int) -> int:
    """The pid as the process knows it: another one where the worker sees the processes of its containers."""
    found = re.search(r"^NSpid:.*\s(\d+)$", text(f"/proc/{pid}/status"), re.MULTILINE)
    return int(found.group(1)) if found else pid


def _headroom() -> Found:
    memory = cgroups.memory()
    return {"headroom": memory["room"], "of": memory["of"], "needed": HEADROOM}


def _short(room: Found) -> bool:
    return room["headroom"] is not None and room["headroom"] < HEADROOM


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _lack(room: Found) -> str | None:
    """The reason why no stacks are read, or None."""
    if not _short(room):
        return None
    return Sentence(
        "only {free} MiB of memory are free, and {needed} are needed for stacks: /proc alone was read",
        free=room["headroom"] >> 20,
        needed=HEADROOM >> 20,
    )


def _look(finder: Finder, pid: int) -> Found:
    found = look_at(pid)
    below = finder.below(pid)[:_CHILDREN]
    found["children"] = {child: _thread(child, child) for child in below} if found else {}
    return found


def look_at(pid: int) -> dict[str, Any]:
    """A sample of a process: its counters, its main thread, and wait locations of its other threads."""
    folder = f"/proc/{pid}"
    process, main = stat(folder), _thread(pid, pid)
    if process is None or main is None:
        return {}
    threads = [name for name in names(folder + "/task") if name != str(pid)]
    others = [found for found in (_thread(pid, int(name)) for name in threads[:_MAX_THREADS]) if found]
    return {"start": process.start, "ticks": process.ticks, "main": main, "others": others,
            "threads": len(threads) + 1, "frozen": cgroups.frozen(pid)}  # fmt: skip


def _thread(pid: int, tid: int) -> dict[str, Any] | None:
    folder = f"/proc/{pid}/task/{tid}"
    found = stat(folder)
    if found is None:
        return None
    schedule = read(folder + "/schedstat").split()
    status = text(folder + "/status")
    switches = re.findall(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
    tracer = re.search(r"^TracerPid:\s+(\d+)", status, re.MULTILINE)
    call, timed, target = syscall(pid, folder)
    return {
        "tid": tid, "name": found.comm, "state": found.state, "ticks": found.ticks,
        "run_ns": int(schedule[0]) if len(schedule) > 1 else None,
        "wait_ns": int(schedule[1]) if len(schedule) > 1 else None,
        "switches": sum(map(int, switches)) if switches else None,
        "tracer": int(tracer.group(1)) if tracer else 0,
        "wchan": text(folder + "/wchan", 100).strip("0") or None,
        "syscall": call, "timed": timed, "target": target,
    }  # fmt: skip


def syscall(pid: int, folder: str) -> tuple[str | None, bool | None, str | None]:
    """The system call of a thread, whether a futex wait has a timeout, and the file behind a descriptor."""
    words = read(folder + "/syscall").split()
    if not words or words == [b"running"]:
        return ("running" if words else None), None, None
    number = int(words[0])
    name = _SYSCALLS.get(number, str(number))
    if number < 0 or len(words) < 5:
        return "none", None, None
    timed = words[4] != b"0x0" if name == "futex" else None
    if name in ("select", "pselect6") and words[1] == b"0x0":
        name = "nanosleep"  # a wait for no file: how Python sleeps before 3.11
    if name not in _ON_FILE:
        return name, timed, None
    try:
        return name, timed, os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}")[:300]
    except (OSError, OverflowError):
        return name, timed, None


def _change(first: Found, last: Found) -> Found:
    """The difference of two samples. `looks` is empty if the process has ended."""
    if not first.get("main") or not last.get("main") or first["start"] != last["start"]:
        return {"looks": []}
    older = {other["tid"]: other["ticks"] for other in first["others"]}
    moved = [
        {"name": other["name"], "tid": other["tid"], "ticks": other["ticks"] - older.get(other["tid"], 0)}
        for other in last["others"]
    ]
    waits: dict[Any, int] = {}
    for other in last["others"]:
        key = (other["name"], other["state"], other["syscall"], other["timed"], other["wchan"])
        waits[key] = waits.get(key, 0) + 1
    return {
        "looks": [_main(first["main"]), _main(last["main"])],
        "ticks": last["ticks"] - first["ticks"],
        "main_ticks": last["main"]["ticks"] - first["main"]["ticks"],
        "run_ns": _grown(first, last, "run_ns"),
        "wait_ns": _grown(first, last, "wait_ns"),
        "switches": _grown(first, last, "switches"),
        "tracer": last["main"]["tracer"],
        "frozen": last["frozen"],
        "threads": last["threads"],
        "moved": sorted((item for item in moved if item["ticks"]), key=lambda item: -item["ticks"])[:_MOVED],
        "waits": [[*key, count] for key, count in sorted(waits.items(), key=lambda item: -item[1])[:40]],
        "children": [
            dict(_main(child), pid=pid, name=child["name"], ticks=child["ticks"] - _ticks(first["children"].get(pid)))
            for pid, child in last["children"].items()
            if child is not None
        ],
    }


def _ticks(child: Found | None) -> int:
    return child["ticks"] if child else 0


def _main(found: Found) -> Found:
    return {name: found[name] for name in ("name", "state", "wchan", "syscall", "timed", "target")}


def _grown(first: Found, last: Found, name: str) -> int | None:
    old, new = first["main"][name], last["main"][name]
    return None if old is None or new is None else new - old


def _started(ticks: int) -> float | None:
    """Start time in seconds since the epoch, from ticks since boot."""
    for line in read("/proc/stat", 1 << 20).splitlines():
        if line.startswith(b"btime "):
            return int(line.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    return None
