"""How much of memory and CPU is left to the worker's control group."""

from __future__ import annotations

import os
import re

from .procfs import groups, read, text

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

#: Bytes of headroom below which nothing but /proc is looked at. A py-spy takes
#: some 10 MiB, four run at once, and the training goes on to take memory meanwhile.
HEADROOM = 128 << 20


def memory() -> dict[str, Any]:
    """Bytes that may still be taken before something is killed for memory: the least of this group's, of every group
    above it and of the machine. File cache that is clean counts as free."""
    lines = read("/proc/meminfo").splitlines()
    places = [("machine", int(line.split()[1]) * 1024) for line in lines if line.startswith(b"MemAvailable:")]
    for entry in text(read("/proc/self/cgroup")).splitlines():
        _, controllers, path = entry.split(":", 2)
        if not controllers:
            places += _headrooms("/sys/fs/cgroup", path, ("memory.max", "memory.current", ""))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            places += _headrooms("/sys/fs/cgroup/memory", path, names)
    if not places:
        return {"headroom": None, "of": None, "needed": HEADROOM}
    of, room = min(places, key=lambda place: place[1])
    return {"headroom": max(0, room), "of": of, "needed": HEADROOM}


def _headrooms(mount: str, path: str, names: tuple[str, str, str]) -> Iterable[tuple[str, int]]:
    # In a container the path may be that of the machine, while the mount shows the container's own group as its root.
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts), -1, -1):
        folder = "/".join([mount, *parts[:depth]])
        limit, used = read(folder + "/" + names[0]).strip(), read(folder + "/" + names[1]).strip()
        if not limit.isdigit() or not used.isdigit() or int(limit) >= 1 << 60:
            continue
        stat = dict(line.split() for line in read(folder + "/memory.stat").splitlines() if len(line.split()) == 2)
        cache = [int(stat.get((names[2] + name).encode(), 0)) for name in ("inactive_file", "active_file")]
        dirty = [
            int(stat.get((names[2] + n).encode(), 0)) for n in ("file_dirty", "file_writeback", "dirty", "writeback")
        ]
        yield "cgroup", int(limit) - int(used) + max(0, sum(cache) - sum(dirty))


def throttled() -> int | None:
    """Microseconds for which this control group was denied its CPUs; None where that is not told."""
    for path in ["/sys/fs/cgroup" + groups(os.getpid()).get("", "/"), "/sys/fs/cgroup"]:
        found = re.search(rb"^throttled_usec (\d+)", read(path + "/cpu.stat"), re.MULTILINE)
        if found:
            return int(found.group(1))
    return None
