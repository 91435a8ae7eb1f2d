"""Process identities that survive PID reuse, descendants, and the worker of each process, from /proc."""

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
#: Maximum bytes of an environment: the kernel allows 6 MiB of arguments and variables.
ENVIRON_LIMIT = 8 << 20


def prctl(option: int, value: int) -> None:
    """Call prctl(2); raises OSError."""
    import ctypes  # only a supervisor needs it; clients import this module at each start

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def peer_is_me(sock: socket.socket) -> bool:
    """Whether the peer of a Unix socket runs as this user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", raw)[1] == os.geteuid())


def stat(pid: int | str) -> Stat | None:
    """The process; None if it does not exist."""
    return proc.stat(f"/proc/{pid}")


def alive(pid: int, start: int) -> bool:
    """Whether exactly this process is running (not a zombie)."""
    found = stat(pid)
    return found is not None and found.start == start and found.state not in "ZX"


def everything() -> dict[int, Stat]:
    """All visible processes, without zombies."""
    return {pid: entry for pid, entry in proc.everything().items() if entry.state not in "ZX"}


def environment(pid: int) -> dict[bytes, bytes]:
    """The initial environment of a process; empty if it cannot be read."""
    return proc.environment(proc.read(f"/proc/{pid}/environ", ENVIRON_LIMIT))


def send(pids: Iterable[int], number: int) -> None:
    """Signal each process, parents first: a shell whose child ends would continue with its next command. Ignores
    processes that have ended."""
    for pid in sorted(pids):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def send_group(group: int, number: int) -> None:
    """Signal a process group, if it still exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


@functools.lru_cache(maxsize=None)  # noqa: UP033  `cache` is younger than Python 3.8
def place() -> dict[str, str]:
    """The scope of a PID: boot, machine and PID namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return {"host": os.uname().nodename, "boot_id": boot, "pid_namespace": os.readlink("/proc/self/ns/pid")}


def identity(pid: int) -> dict[str, int | str]:
    """Identifies a process later: PID, start time, boot, machine and PID namespace."""
    found = stat(pid)
    return {"pid": pid, "start": found.start if found else 0, **place()}


def presence(identity: dict[str, Any]) -> tuple[Literal["alive", "gone", "elsewhere"], str]:
    """Whether a recorded process is alive; if that is not visible from here, also its machine."""
    here = place()
    if identity["boot_id"] != here["boot_id"]:
        # A disk of another machine, or this machine before its restart.
        return ("gone", "") if identity["host"] == here["host"] else ("elsewhere", str(identity["host"]))
    if identity["pid_namespace"] != here["pid_namespace"]:
        return "elsewhere", "another container on this machine"
    return ("alive" if alive(identity["pid"], identity["start"]) else "gone"), ""


def end_all_below(root: int, seconds: float) -> None:
    """SIGKILL and reap all descendants of `root` (this process, a subreaper)."""
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


#: All processes of a worker have these variables, those of an `exec` run the third, too: a process is found even after
#: its parent has ended and it has left the session.
JOB_MARK = b"ATLCTL_JOB"
WORKER_MARK = b"ATLCTL_WORKER"
EXEC_MARK = b"ATLCTL_EXEC"
#: During an exec a process has no environment for a moment. Number of retries, and seconds between them.
LOOKS, PAUSE = 3, 0.001


class Snapshot:
    """The supervisor's descendants at one moment. All other processes had ended by then."""

    def __init__(self, supervisor: int, job: str, bare: set[tuple[int, int]]) -> None:
        """`bare`: PID and start of processes without environment; kept by the caller between snapshots."""
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
                continue  # a job started inside this one has separate workers
            worker = env.get(WORKER_MARK, b"").decode("utf-8", "surrogateescape")
            run = env.get(EXEC_MARK, b"").decode("utf-8", "surrogateescape")
            if worker:
                self._of_worker[worker].add(pid)
                if run:
                    self._of_run[worker][run].add(pid)
        #: Time of completion on the monotonic clock, and duration in seconds.
        self.taken = time.monotonic()
        self.cost = self.taken - begun

    def _family(self, root: int, start: int, marked: set[int]) -> set[int]:
        found = set(marked)
        entry = self._table.get(root)
        # A PID is not reused while a session or group with that number exists.
        if entry is None or entry.start == start:
            found |= self._in_session[root] | self._in_group[root]
            if entry is not None:
                found.add(root)
        return found.union(below(self._children, found))

    def of_worker(self, name: str, root: int, start: int) -> set[int]:
        """All processes of a worker, including commands executed in it."""
        return self._family(root, start, self._of_worker[name])

    def executed_in(self, name: str) -> set[int]:
        """Processes started by `exec` and `shell` in a worker."""
        found: set[int] = set().union(*self._of_run[name].values())
        return found.union(below(self._children, found))

    def on_their_own(self, name: str, root: int, start: int) -> set[int]:
        """Processes of a worker outside its group without a live parent: no parent forwards signals to them."""
        family = self.of_worker(name, root, start) - self.executed_in(name)
        return {pid for pid in family if self._table[pid].parent == self._supervisor and self._table[pid].group != root}

    def of_run(self, name: str, run: str, root: int, start: int) -> set[int]:
        """All processes of a command executed in a worker."""
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
