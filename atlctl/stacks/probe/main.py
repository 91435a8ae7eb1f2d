"""The probe: two looks some seconds apart, then the stacks."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from .dumping import Dumps, inflated
from .finding import Finder
from .procfs import look_at, read, thread
from .reading import read_all
from .room import HEADROOM, memory, throttled

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

    Found = dict[str, Any]

_CHILDREN, _MOVED, _MAPS = 32, 5, 8 << 20


def main() -> None:
    """Arguments: seconds of the window, seconds for all, bytes of a compressed py-spy on standard input (0: none)."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _leave)
    window, seconds, size = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    deadline = time.monotonic() + seconds
    brought = sys.stdin.buffer.read(size) if size else None
    room = memory()
    finder = Finder()
    ranks = finder.ranks()
    before = {rank["pid"]: _look(finder, rank["pid"]) for rank in ranks}
    begun, held = time.monotonic(), throttled()
    time.sleep(window)
    after = {rank["pid"]: _look(finder, rank["pid"]) for rank in ranks}
    passed = time.monotonic() - begun
    now = throttled()
    for rank in ranks:
        rank.update(_change(before[rank["pid"]], after[rank["pid"]]))
        rank.update({"stack": None, "recorder": None, "problems": []})
    _tell_torch(ranks)
    problem = _dump(ranks, finder, room, brought, deadline)
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
        "ranks": [dict(rank, started=_started(rank["start"])) for rank in ranks],
    }
    sys.stdout.write(json.dumps(report, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _tell_torch(ranks: list[Found]) -> None:
    """Adds `torch`: whether the process has loaded torch's libraries; None where its memory map cannot be read."""
    paths = {f"/proc/{rank['pid']}/maps": rank for rank in ranks}
    maps, _ = read_all(list(paths), _MAPS)
    for path, rank in paths.items():
        rank["torch"] = b"/libtorch" in maps[path] if maps.get(path) else None


def _dump(ranks: list[Found], finder: Finder, room: Found, brought: bytes | None, deadline: float) -> str | None:
    """Why there are no Python stacks, for all ranks alike; None where they were tried."""
    if room["headroom"] is not None and room["headroom"] < HEADROOM:
        free, needed = room["headroom"] >> 20, HEADROOM >> 20
        return f"only {free} MiB of memory are free, and {needed} are needed for stacks: /proc alone was read"
    living = [rank for rank in ranks if rank["looks"]]
    if not living:
        return None
    dumps = Dumps(None if brought is None else inflated(brought), deadline)
    try:
        dumps.ask(living, finder.environs)
    finally:
        dumps.close()
    return dumps.problem


def _look(finder: Finder, pid: int) -> Found:
    found = look_at(pid)
    below = finder.below(pid)[:_CHILDREN]
    found["children"] = {child: thread(child, child) for child in below} if found else {}
    return found


def _change(first: Found, last: Found) -> Found:
    """Two looks as one: numbers that count as what they grew by. `looks` is empty where the process has ended."""
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
    """Seconds since the epoch of a start time in ticks since boot."""
    for line in read("/proc/stat", 1 << 20).splitlines():
        if line.startswith(b"btime "):
            return int(line.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    return None
