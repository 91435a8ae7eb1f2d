"""Measure whole commands: CPU, wall time and peak memory of a child and all it waited for."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Cost(NamedTuple):
    """CPU (user and system) and wall time in seconds, with what it waited for; its own peak resident memory in MB."""

    cpu: float
    wall: float
    peak: float


def cost(argv: Sequence[str], **options: Any) -> Cost:
    """Run `argv` to its end and return what it took. Raises AssertionError where it fails."""
    return _cost(argv, _Peak, options)


def tree_cost(argv: Sequence[str], **options: Any) -> Cost:
    """`cost`, but the peak is that of the sum over it and all processes below it, looked at once a second.

    What processes share is counted for each, as all tools do that add up resident memory.
    """
    return _cost(argv, _TreePeak, options)


def _cost(argv: Sequence[str], sampler: Callable[[int], _Peak], options: dict[str, Any]) -> Cost:
    start = time.monotonic()
    process = subprocess.Popen(argv, **options)
    peak = sampler(process.pid)
    peak.start()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    peak.join()
    assert process.returncode == 0, f"{argv[:4]} exited with {process.returncode}"
    return Cost(usage.ru_utime + usage.ru_stime, wall, peak.megabytes)


class _Peak(threading.Thread):
    """Reads VmHWM while the process lives. ru_maxrss will not do: it starts from the size of whoever forked."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.megabytes = 0.0

    def run(self) -> None:
        while True:
            try:
                with open(f"/proc/{self._pid}/status", encoding="ascii", errors="replace") as file:
                    lines = [line for line in file if line.startswith("VmHWM:")]
            except OSError:
                return
            if not lines:
                return  # a zombie has no memory any more
            self.megabytes = int(lines[0].split()[1]) * 1024 / 1e6
            time.sleep(0.01)


class _TreePeak(_Peak):
    """Of a process that starts no others it is the exact peak."""

    def run(self) -> None:
        alone = _Peak(self._pid)
        alone.start()
        while alone.is_alive():
            alone.join(1.0)
            self.megabytes = max(self.megabytes, _resident_below(self._pid))
        self.megabytes = max(self.megabytes, alone.megabytes)


def _resident_below(pid: int) -> float:
    """MB of a process and all below it."""
    pages: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        pages[int(name)] = int(fields[21])
        children.setdefault(int(fields[1]), []).append(int(name))
    below = [pid]
    for one in below:
        below += children.get(one, [])
    return sum(pages.get(one, 0) for one in below) * _PAGE / 1e6


def best(runs: int, argv: Sequence[str], **options: Any) -> Cost:
    """The run that took the least CPU."""
    return min((cost(argv, **options) for _ in range(runs)), key=lambda found: found.cpu)


def report(title: str, rows: Sequence[tuple[str, Cost]], note: str = "") -> None:
    """A small table on stdout, every row with its ratios to the first, which is the peer or the floor."""
    base = rows[0][1]
    print(f"\n{title}")
    print(f"  {'':34}{'CPU s':>9}{'ratio':>8}{'wall s':>9}{'ratio':>8}{'peak MB':>9}")
    for name, found in rows:
        ratios = found.cpu / max(base.cpu, 1e-9), found.wall / max(base.wall, 1e-9)
        print(f"  {name:34}{found.cpu:9.3f}{ratios[0]:8.2f}{found.wall:9.3f}{ratios[1]:8.2f}{found.peak:9.1f}")
    if note:
        print(f"  {note}")
