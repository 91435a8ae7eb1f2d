"""Reads cgroups: available memory, CPU limits, frozen state.

Supports all three layouts: version 2 (unified) at /sys/fs/cgroup, version 1 with a folder per controller, and both
(hybrid), with version 2 at /sys/fs/cgroup/unified. `root` is a prefix for /proc and /sys (for tests).
"""

from __future__ import annotations

import re

from atlctl.remote.proc import text

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from typing import Any

_MOUNT = "/sys/fs/cgroup"
#: Limits from this size on mean no limit.
_NO_LIMIT = 1 << 60


def of(folder: str) -> dict[str, str]:
    """The cgroups of the process with this folder in /proc: path by controllers (version 1) or by "" (version 2)."""
    parts = [line.split(":", 2) for line in text(folder + "/cgroup").splitlines()]
    return {part[1]: part[2] for part in parts if len(part) == 3}


def within(groups: dict[str, str], own: dict[str, str]) -> bool:
    """Whether `groups` (see `of`) are `own` or below them. `/..` is outside the namespace: another container."""
    return all(
        not path.startswith("/..") and (path + "/").startswith(own.get(kind, "/").rstrip("/") + "/")
        for kind, path in groups.items()
    )


def _folders(controller: str, root: str, folder: str = "/proc/self") -> list[tuple[int, str]]:
    """Version and folder of a process's cgroup, then of each parent. Not all exist: in a container the path may be that
    of the host, while the mount has the container's cgroup as its root."""
    places = []
    for kind, path in {**of(root + folder), "-": "/"}.items():
        parts = [part for part in path.split("/") if part and part != ".."]
        above = ["/".join(["", *parts[:depth]]) for depth in range(len(parts), -1, -1)]
        if kind in ("", "-"):
            places += [(2, root + mount + group) for mount in (_MOUNT, _MOUNT + "/unified") for group in above]
        if controller in kind.split(",") or kind == "-":
            places += [(1, f"{root}{_MOUNT}/{controller}{group}") for group in above]
    return list(dict.fromkeys(places))


def memory(root: str = "") -> dict[str, Any]:
    """Available memory until the OOM killer acts: the minimum over this process's cgroup, its parents and the machine.

    `room`: bytes (None: unknown); `of`: the limiting cgroup or machine; `group_kill`: whether the whole cgroup is
    killed. Clean file cache counts as available, because the kernel frees it first.
    """
    places = []
    for line in text(root + "/proc/meminfo").splitlines():
        words = line.split()
        if line.startswith("MemAvailable:") and len(words) > 1 and words[1].isdigit():
            places.append((int(words[1]) * 1024, "machine", False))
    for version, folder in _folders("memory", root):
        limit, used, prefix = (
            ("memory.max", "memory.current", "")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        )
        most, taken = text(f"{folder}/{limit}"), text(f"{folder}/{used}")
        if not most.isdigit() or not taken.isdigit() or int(most) >= _NO_LIMIT:
            continue
        pairs = [line.split() for line in text(folder + "/memory.stat").splitlines()]
        stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
        cache = stat.get(prefix + "inactive_file", 0) + stat.get(prefix + "active_file", 0)
        dirty = sum(stat.get(name, 0) for name in ("file_dirty", "file_writeback", "total_dirty", "total_writeback"))
        group_kill = text(folder + "/memory.oom.group") == "1"
        places.append((int(most) - int(taken) + max(0, cache - dirty), "cgroup", group_kill))
    if not places:
        return {"room": None, "of": None, "group_kill": False}
    room, whose, group_kill = min(places)
    return {"room": max(0, room), "of": whose, "group_kill": group_kill}


def cpu_quota(root: str = "", pid: object = "self") -> float | None:
    """The CPU limit: the smallest one of the cgroup of a process and its parents, in CPUs; None without a limit."""
    found = []
    for version, folder in _folders("cpu", root, f"/proc/{pid}"):
        if version == 2:
            words = text(folder + "/cpu.max", 100).split()
        else:
            words = [text(f"{folder}/cpu.cfs_{name}_us", 100) for name in ("quota", "period")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def throttled(root: str = "", pid: object = "self") -> int | None:
    """Microseconds for which the cgroup of a process was throttled; None if unknown."""
    for version, folder in _folders("cpu", root, f"/proc/{pid}"):
        name, unit = ("throttled_usec", 1) if version == 2 else ("throttled_time", 1000)
        found = re.search(rf"^{name} (\d+)", text(folder + "/cpu.stat"), re.MULTILINE)
        if found:
            return int(found.group(1)) // unit
    return None


def pressure(root: str = "") -> dict[str, dict[str, int]]:
    """Microseconds for which `some` or all (`full`) tasks of this process's cgroup waited for `cpu`, `memory` and `io`;
    of the machine if the cgroup does not count them."""
    own = next((folder for version, folder in _folders("", root) if text(folder + "/cpu.pressure")), None)
    found = {}
    for what in ("cpu", "memory", "io"):
        path = f"{root}/proc/pressure/{what}" if own is None else f"{own}/{what}.pressure"
        counted = re.findall(r"^(some|full) .{0,80}total=(\d{1,19})$", text(path, 1000), re.MULTILINE)
        if counted:
            found[what] = {kind: int(total) for kind, total in counted}
    return found


def frozen(pid: int, root: str = "") -> bool:
    """Whether the cgroup of a process, or a parent, is frozen."""
    return any(
        ("frozen 1" in text(folder + "/cgroup.events")) if version == 2 else text(folder + "/freezer.state") == "FROZEN"
        for version, folder in _folders("freezer", root, f"/proc/{pid}")
    )
