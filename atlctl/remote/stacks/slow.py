"""The probe of `slow`: the stack probe with a longer window, in which it samples the main threads many times a second
and reads the kernel's counters. It stops no process."""

from __future__ import annotations

import re
import threading
import time

from atlctl.remote import cgroups, counters
from atlctl.remote.proc import mount_of, mounts, names, read, read_all, stat, text

from .main import probe, syscall

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from typing import Any

    from atlctl.remote.ranks import Finder

    from .dumping import Dumps
    from .ras import Ras

    Found = dict[str, Any]

#: Samples in a second; of child processes once in so many samples.
_RATE, _CHILD_EACH = 20, 5
#: Names of torch's threads that run the collectives of gloo; how many of a process are sampled: each group has two.
_GLOO, _GLOO_MOST = b"pt_gloo", 64
_CHILDREN, _KINDS, _LINKS, _OTHERS = 16, 40, 256, 5
#: Lines of code that collect garbage, or wait until a GPU has done all that was launched; bytes of a line and of a
#: file.
_LINES = {
    "collects": re.compile(rb"\bgc\.collect\("),
    "syncs": re.compile(rb"""\.(item|cpu|tolist|numpy|nonzero|synchronize)\(|\.to\(\s*(device=)?["']cpu["']"""),
}
_LINE, _CODE = 2000, 1 << 20


def main(*words: str) -> None:
    """`words`: those of the stack probe."""
    probe(words, watch)


def watch(ranks: list[Found], finder: Finder, dumps: Dumps | None, ras: Ras | None, window: float) -> Found:
    """Adds `watched` to each of `ranks`, and returns `watched` of the worker. Takes `window` seconds and some more."""
    before = _Counted(ranks)
    lags: list[Found | None] = []
    beside = []
    if dumps is not None:
        beside.append(threading.Thread(target=dumps.watch, args=(ranks, finder.environs, window), daemon=True))
    if ras is not None:
        beside.append(threading.Thread(target=lambda: lags.append(ras.lags(window)), daemon=True))
    for thread in beside:
        thread.start()
    threads = {rank["pid"]: _gloo_threads(rank["pid"]) for rank in ranks}
    children = {rank["pid"]: finder.below(rank["pid"])[:_CHILDREN] for rank in ranks}
    mains: dict[int, dict[Any, int]] = {rank["pid"]: {} for rank in ranks}
    lower: dict[int, dict[Any, int]] = {rank["pid"]: {} for rank in ranks}
    gpus = counters.GpuLooks()
    begun, number = time.monotonic(), 0
    while True:
        for pid, found in mains.items():
            _count(found, _sample(pid, threads[pid]))
            if number % _CHILD_EACH == 0:
                for child in children[pid]:
                    _count(lower[pid], _state(child, child))
        gpus.poll()
        number += 1
        left = begun + number / _RATE - time.monotonic()
        if time.monotonic() >= begun + window:
            break
        # A machine that is short of CPUs is sampled less often, not later.
        number = max(number, int((time.monotonic() - begun) * _RATE)) if left < 0 else number
        time.sleep(max(0.0, left))
    gpus.poll(last=True)
    after = _Counted(ranks)
    for thread in beside:
        thread.join()
    table = mounts()
    for rank in ranks:
        pid = rank["pid"]
        rank["watched"] = {
            "samples": _kinds(mains[pid], table),
            "children": _kinds(lower[pid], table),
            "counters": _grown(before.processes[pid], after.processes[pid]),
            "cpu_quota": cgroups.cpu_quota("", pid),
            "links": counters.grown(before.networks[pid][0], after.networks[pid][0])[:_LINKS],
            "addresses": after.networks[pid][1],
            "interfaces": {
                name: _grown(before.interfaces[pid].get(name, {}), now) for name, now in after.interfaces[pid].items()
            },
            "gpu": counters.gpu_of(finder.environs.get(pid, {}), _whole(rank["environ"].get("local_rank"))),
            "lines": _lines(pid, rank["stack"]),
        }
    own = {pid for rank in ranks for pid in (rank["pid"], *finder.below(rank["pid"]))}
    return {
        "watched": {
            "seconds": after.at - before.at,
            "machine": _grown(before.machine, after.machine),
            "gpus": gpus.looks,
            "gpu_problem": gpus.problem,
            "others": _others(before.ticks, own),
            "lags": lags[0] if lags else None,
        }
    }


class _Counted:
    """All counters at one moment."""

    def __init__(self, ranks: list[Found]) -> None:
        pids = [rank["pid"] for rank in ranks]
        self.at = time.monotonic()
        self.machine = counters.machine()
        self.processes = {pid: counters.process(pid) for pid in pids}
        self.networks = {pid: counters.network(pid) for pid in pids}
        self.interfaces = {pid: counters.interfaces(pid) for pid in pids}
        self.ticks = _ticks()


def _ticks() -> dict[tuple[int, int], tuple[str, int]]:
    """Name and CPU time of all visible processes, by pid and start."""
    found = {}
    for name in names("/proc"):
        entry = stat("/proc/" + name) if name.isdigit() else None
        if entry is not None:
            found[entry.pid, entry.start] = (entry.comm, entry.ticks)
    return found


def _others(before: dict[tuple[int, int], tuple[str, int]], own: set[int]) -> list[list[Any]]:
    """Processes other than the ranks and this one that used the most CPU time: pid, name, ticks."""
    import os

    used: list[list[Any]] = []
    for key, (name, ticks) in _ticks().items():
        spent = ticks - before.get(key, ("", 0))[1]
        if spent > 0 and key[0] not in own and key[0] != os.getpid() and name != "py-spy":
            used.append([key[0], name, spent])
    return sorted(used, key=lambda item: -item[2])[:_OTHERS]


def _gloo_threads(pid: int) -> list[int]:
    folder = f"/proc/{pid}/task/"
    return [int(tid) for tid in names(folder) if read(f"{folder}{tid}/comm", 20).startswith(_GLOO)][:_GLOO_MOST]


def _sample(pid: int, gloo: list[int]) -> Any:
    """The main thread, and whether it waits while a thread of gloo is in a collective: that waits with a time limit, or
    runs. None without such a thread, or if no call can be read."""
    main = _state(pid, pid)
    if main is None:
        return None
    waits, busy = main[2] == "futex", None
    for tid in gloo:
        call, timed, _ = syscall(pid, f"/proc/{pid}/task/{tid}")
        if call is not None:
            busy = waits and (call != "futex" or bool(timed))
            if busy or not waits:
                break
    return (*main, busy)


def _state(pid: int, tid: int) -> tuple[Any, ...] | None:
    folder = f"/proc/{pid}/task/{tid}"
    found = stat(folder)
    if found is None:
        return None
    call, timed, target = syscall(pid, folder)
    wchan = text(folder + "/wchan", 100).strip("0") or None
    return found.comm if pid == tid else "", found.state, call, timed, wchan, target


def _count(found: dict[Any, int], key: Any) -> None:
    if key is not None:
        found[key] = found.get(key, 0) + 1


def _kinds(found: dict[Any, int], table: list[Found]) -> list[list[Any]]:
    """The most frequent samples, with the mount of each file, and their numbers."""
    told = []
    for key, count in sorted(found.items(), key=lambda item: -item[1])[:_KINDS]:
        target = key[5] or ""
        place = mount_of(target, table) if target.startswith("/") else None
        told.append([*key[:6], key[6] if len(key) > 6 else None, place and f"{place['path']} ({place['fs']})", count])
    return told


def _grown(before: Found, after: Found) -> Found:
    """The differences of all counters in both."""
    found: Found = {}
    for name, now in after.items():
        old = before.get(name)
        if isinstance(now, dict):
            found[name] = _grown(old, now) if isinstance(old, dict) else {}
        elif now is not None and old is not None:
            found[name] = now - old
    return found


def _whole(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 8 else None


def _lines(pid: int, stack: Found | None) -> Found:
    """By kind of `_LINES`, paths and numbers of such innermost lines in the samples of py-spy."""
    found: Found = {kind: [] for kind in _LINES}
    matches = [re.search(r"\(([^();]{1,500}):(\d{1,7})\)$", frames) for frames, _ in (stack or {}).get("counted", ())]
    places = list(dict.fromkeys((match[1], int(match[2])) for match in matches if match))
    root = f"/proc/{pid}/root"
    texts, _ = read_all(list(dict.fromkeys(root + path for path, _ in places)), _CODE)
    for path, number in places:
        line = _line(texts.get(root + path, b""), number)
        for kind, looked in _LINES.items():
            if looked.search(line):
                found[kind].append([path, number])
    return found


def _line(code: bytes, number: int) -> bytes:
    lines = code.split(b"\n", number)
    return lines[number - 1][:_LINE] if 0 < number <= len(lines) else b""
