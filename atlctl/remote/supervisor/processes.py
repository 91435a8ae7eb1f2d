"""Processes as /proc shows them: identities that survive pid reuse, what is below a process, whose each one is."""

from __future__ import annotations

import functools
import os
import signal
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal

from atlctl.remote import proc
from atlctl.remote.proc import Stat, below, children_of

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: Bytes of an environment: the kernel takes 6 MiB of words and variables.
ENVIRON_LIMIT = 8 << 20


def prctl(option: int, value: int) -> None:
    """Call prctl(2); raises OSError."""
    import ctypes  # a supervisor's alone; clients read this file at each start

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def peer_is_me(sock: socket.socket) -> bool:
    """Whether the other end of a connected Unix socket runs as this user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", raw)[1] == os.geteuid())


def stat(pid: int | str) -> Stat | None:
    """The process, None where there is none (any more)."""
    return proc.stat(f"/proc/{pid}")


def alive(pid: int, start: int) -> bool:
    """True while exactly this process runs (a zombie does not)."""
    found = stat(pid)
    return found is not None and found.start == start and found.state not in "ZX"


def everything() -> dict[int, Stat]:
    """All processes in sight, zombies left out."""
    return {pid: entry for pid, entry in proc.everything().items() if entry.state not in "ZX"}


def environment(pid: int) -> dict[bytes, bytes]:
    """The environment a process was started with; empty where it cannot be read."""
    return proc.environment(proc.read(f"/proc/{pid}/environ", ENVIRON_LIMIT))


def send(pids: Iterable[int], number: int) -> None:
    """Signal each process, parents before what they have started: a shell whose child ends would go on to its next
    command. One that has ended meanwhile is no error."""
    for pid in sorted(pids):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def send_group(group: int, number: int) -> None:
    """Signal a process group; one that has ended meanwhile is no error."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


@functools.lru_cache(maxsize=None)  # noqa: UP033  `cache` is younger than Python 3.8
def place() -> dict[str, str]:
    """Where pids mean something: this boot of this machine, in this pid namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return {"host": os.uname().nodename, "boot_id": boot, "pid_namespace": os.readlink("/proc/self/ns/pid")}


def identity(pid: int) -> dict[str, int | str]:
    """What recognises a process later: pid, start time, boot, machine and pid namespace."""
    found = stat(pid)
    return {"pid": pid, "start": found.start if found else 0, **place()}


def presence(identity: dict[str, Any]) -> tuple[Literal["alive", "gone", "elsewhere"], str]:
    """Whether a recorded process lives, and where it is when that cannot be seen from here."""
    here = place()
    if identity["boot_id"] != here["boot_id"]:
        # Another machine whose disk this is, or this one before it was started anew.
        return ("gone", "") if identity["host"] == here["host"] else ("elsewhere", str(identity["host"]))
    if identity["pid_namespace"] != here["pid_namespace"]:
        return "elsewhere", "another container on this machine"
    return ("alive" if alive(identity["pid"], identity["start"]) else "gone"), ""


def end_all_below(root: int, seconds: float) -> None:
    """SIGKILL every descendant of `root` (this process, a subreaper) and reap until none is left."""
    import time

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        send(below(children_of(everything()), (root,)), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(0.01)


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
        self._table = everything()
        self._children = children_of(self._table)
        self._in_session: dict[int, set[int]] = defaultdict(set)
        self._in_group: dict[int, set[int]] = defaultdict(set)
        self._of_worker: dict[str, set[int]] = defaultdict(set)
        self._of_run: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        found = below(self._children, (supervisor,))
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
        return found.union(below(self._children, found))

    def of_worker(self, name: str, root: int, start: int) -> set[int]:
        """Everything of a worker, commands executed in it included."""
        return self._family(root, start, self._of_worker[name])

    def executed_in(self, name: str) -> set[int]:
        """What runs of `exec` and `shell` started in a worker."""
        found: set[int] = set().union(*self._of_run[name].values())
        return found.union(below(self._children, found))

    def on_their_own(self, name: str, root: int, start: int) -> set[int]:
        """What a worker has left outside of its group without a living parent: nobody hands signals on to it."""
        family = self.of_worker(name, root, start) - self.executed_in(name)
        return {pid for pid in family if self._table[pid].parent == self._supervisor and self._table[pid].group != root}

    def of_run(self, name: str, run: str, root: int, start: int) -> set[int]:
        """Everything of one command executed in a worker."""
        return self._family(root, start, self._of_run[name][run])


def _environment(pid: int, start: int, bare: set[tuple[int, int]]) -> dict[bytes, bytes]:
    env = environment(pid)
    if not env and (pid, start) not in bare:
        for _ in range(LOOKS):
            time.sleep(PAUSE)
            env = environment(pid)
            if env or not alive(pid, start):
                return env
        bare.add((pid, start))
    return env
