"""One look at the job's processes: which worker and which run of `exec` each belongs to."""

from __future__ import annotations

import time
from collections import defaultdict

from . import processes

#: Every process of a worker carries these, every process of one run of `exec` the third as well: so it is
#: found also after its parent has ended and it has left the session.
JOB_MARK = b"ATLCTL_JOB"
WORKER_MARK = b"ATLCTL_WORKER"
EXEC_MARK = b"ATLCTL_EXEC"
#: In the middle of an exec a process has no environment for a moment. Looks at one that has none, and seconds between.
LOOKS, PAUSE = 3, 0.001


class Snapshot:
    """The descendants of the supervisor at one moment. Whoever is not in it had ended by then."""

    def __init__(self, supervisor: int, job: str, bare: set[tuple[int, int]]) -> None:
        """`bare`: pid and start of processes without environment; kept by the caller from one snapshot to the next."""
        self._supervisor = supervisor
        begun = time.monotonic()
        self._table = processes.everything()
        self._children = processes.children_of(self._table)
        self._in_session: dict[int, set[int]] = defaultdict(set)
        self._in_group: dict[int, set[int]] = defaultdict(set)
        self._of_worker: dict[str, set[int]] = defaultdict(set)
        self._of_run: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        found = processes.below(self._children, (supervisor,))
        bare.intersection_update((pid, self._table[pid].start) for pid in found)
        for pid in found:
            entry = self._table[pid]
            self._in_session[entry.session].add(pid)
            self._in_group[entry.group].add(pid)
            env = _environment(pid, entry.start, bare)
            if env.get(JOB_MARK) != job.encode():
                continue  # a job that was started inside of this one has workers of its own
            worker = env.get(WORKER_MARK, b"").decode("utf-8", "surrogateescape")
            run = env.get(EXEC_MARK, b"").decode("utf-8", "surrogateescape")
            if worker:
                self._of_worker[worker].add(pid)
                if run:
                    self._of_run[worker][run].add(pid)
        #: When it was whole, on the monotonic clock, and how long it took, seconds.
        self.taken = time.monotonic()
        self.cost = self.taken - begun

    def _family(self, root: int, start: int, marked: set[int]) -> set[int]:
        found = set(marked)
        entry = self._table.get(root)
        # A number is not given out again while a session or group of that number lives.
        if entry is None or entry.start == start:
            found |= self._in_session[root] | self._in_group[root]
            if entry is not None:
                found.add(root)
        return found | processes.below(self._children, found)

    def of_worker(self, name: str, root: int, start: int) -> set[int]:
        """Everything of a worker, commands executed in it included."""
        return self._family(root, start, self._of_worker[name])

    def executed_in(self, name: str) -> set[int]:
        """What runs of `exec` and `shell` started in a worker."""
        found: set[int] = set().union(*self._of_run[name].values())
        return found | processes.below(self._children, found)

    def on_their_own(self, name: str, root: int, start: int) -> set[int]:
        """What a worker has left outside of its group without a living parent: nobody hands signals on to it."""
        family = self.of_worker(name, root, start) - self.executed_in(name)
        return {pid for pid in family if self._table[pid].parent == self._supervisor and self._table[pid].group != root}

    def of_run(self, name: str, run: str, root: int, start: int) -> set[int]:
        """Everything of one command executed in a worker."""
        return self._family(root, start, self._of_run[name][run])


def _environment(pid: int, start: int, bare: set[tuple[int, int]]) -> dict[bytes, bytes]:
    env = processes.environment(pid)
    if not env and (pid, start) not in bare:
        for _ in range(LOOKS):
            time.sleep(PAUSE)
            env = processes.environment(pid)
            if env or not processes.alive(pid, start):
                return env
        bare.add((pid, start))
    return env
