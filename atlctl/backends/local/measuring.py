"""What the processes of local workers take: CPU time and memory, in one look at /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from atlctl.backends.local.supervisor.processes import below
from atlctl.jobs.model import Worker
from atlctl.jobs.usage import Processes


class _Spent(NamedTuple):
    parent: int
    session: int
    ticks: int
    pages: int


def measure(workers: Sequence[Worker]) -> Mapping[str, Processes]:
    """See `atlctl.backends.base.Measuring`. A worker's processes: its first one, those below it and its session."""
    table = {pid: spent for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if (spent := _spent(pid))}
    children: dict[int, list[int]] = {}
    sessions: dict[int, list[int]] = {}
    for pid, spent in table.items():
        children.setdefault(spent.parent, []).append(pid)
        sessions.setdefault(spent.session, []).append(pid)
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    found = {}
    for worker in workers:
        roots = {worker.pid, *sessions.get(worker.pid, ())} if worker.pid else set()
        own = [table[pid] for pid in below(children, roots) | roots if pid in table]
        if own:
            ticks, pages = sum(one.ticks for one in own), sum(one.pages for one in own)
            found[worker.name] = Processes(ticks / tick, pages * page)
    return found


def _spent(pid: int) -> _Spent | None:
    """None where it has gone. The time of children that have ended counts: they were the worker's, too."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name, in parentheses, may hold anything.
            rest = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return _Spent(int(rest[1]), int(rest[3]), sum(map(int, rest[11:15])), int(rest[21])) if len(rest) > 21 else None
