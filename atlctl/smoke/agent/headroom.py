"""How much memory may still be taken before the kernel kills: a probe must never be what kills the training."""

from __future__ import annotations

from . import files

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .wire import Say

#: A limit as large as this is none.
_NO_LIMIT = 1 << 60


def headroom(say: Say, request: dict[str, Any]) -> None:
    """The command: `room` in bytes (None where nothing tells), `of` whom, and whether the whole group is killed."""
    del request
    say(ev="headroom", end=True, **memory())


def memory(root: str = "") -> dict[str, Any]:
    """The least that is left to this process's group, to each group above it and to the machine. File cache that is
    clean counts as free, since the kernel gives it up before it kills."""
    places = []
    for line in files.text(root + "/proc/meminfo").splitlines():
        words = line.split()
        if line.startswith("MemAvailable:") and len(words) > 1 and words[1].isdigit():
            places.append((int(words[1]) * 1024, "machine", False))
    for entry in files.text(root + "/proc/self/cgroup").splitlines():
        _, _, rest = entry.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
                places += _groups(root + mount, path, ("memory.max", "memory.current", ""))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            places += _groups(root + "/sys/fs/cgroup/memory", path, names)
    if not places:
        return {"room": None, "of": None, "group_kill": False}
    room, of, group_kill = min(places)
    return {"room": max(0, room), "of": of, "group_kill": group_kill}


def _groups(mount: str, path: str, names: tuple[str, str, str]) -> Iterator[tuple[int, str, bool]]:
    # In a container the path may be that of the machine, while the mount shows the container's own group as its root.
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts), -1, -1):
        folder = "/".join([mount, *parts[:depth]])
        limit, used = files.text(folder + "/" + names[0]), files.text(folder + "/" + names[1])
        if not limit.isdigit() or not used.isdigit() or int(limit) >= _NO_LIMIT:
            continue
        pairs = [line.split() for line in files.text(folder + "/memory.stat").splitlines()]
        stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
        cache = stat.get(names[2] + "inactive_file", 0) + stat.get(names[2] + "active_file", 0)
        dirty = sum(stat.get(name, 0) for name in ("file_dirty", "file_writeback", "total_dirty", "total_writeback"))
        group_kill = files.text(folder + "/memory.oom.group") == "1"
        yield int(limit) - int(used) + max(0, cache - dirty), "cgroup", group_kill
