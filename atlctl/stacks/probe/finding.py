"""Which processes of a worker are its ranks."""

from __future__ import annotations

import os
import re

from .dumping import DUMP_FILES, SOCKET
from .procfs import groups, read, stat, text
from .reading import read_all

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

    from .procfs import Stat

_ENVIRON_LIMIT, _COMMAND_LIMIT = 256 << 10, 1000
_KEPT = (
    "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT",
)  # fmt: skip
#: In the environment of every process of a local worker.
_MARKS = (b"ATLCTL_STATE_DIR", b"ATLCTL_JOB", b"ATLCTL_WORKER")
_NAMES = (b"RANK", b"HOSTNAME", *_MARKS, SOCKET, *DUMP_FILES, *(name.encode() for name in _KEPT))
_MODULES = (b"torch.distributed.run", b"torch.distributed.launch")
_PATTERN = re.compile(b"(?:^|\0)(" + b"|".join(_NAMES) + b")=([^\0]*)")


def _environment(raw: bytes) -> dict[bytes, bytes]:
    """The variables that are looked at here."""
    return dict(_PATTERN.findall(raw))


class Finder:
    """The rank processes of this worker among all that /proc shows."""

    def __init__(self) -> None:
        self.table: dict[int, Stat] = {}
        for name in os.listdir("/proc"):
            found = stat("/proc/" + name) if name.isdigit() else None
            if found is not None and 2 not in (int(name), found["parent"]) and int(name) != os.getpid():
                self.table[int(name)] = found
        paths = [f"/proc/{pid}/environ" for pid, entry in self.table.items() if entry["state"] not in "ZX"]
        raw, failed = read_all(paths, _ENVIRON_LIMIT)
        self.environs = {int(path.split("/")[2]): _environment(data) for path, data in raw.items()}
        self.unread = {int(path.split("/")[2]): why for path, why in failed.items() if "No such" not in why}
        #: How many Python processes of others may not be looked into.
        self.hidden = sum("ermi" in why and "python" in self.table[pid]["comm"] for pid, why in self.unread.items())
        self._own = _environment(read("/proc/self/environ", _ENVIRON_LIMIT))
        self._group = groups(os.getpid())

    def ours(self, pid: int) -> bool:
        """A process of this worker: by the marks of a local one, else by control group and host name.

        Machines may show the processes of all their containers to one of them, and a process may have changed its own
        host name, hence the ancestors.
        """
        environ = self.environs.get(pid, {})
        if all(name in self._own for name in _MARKS):
            return all(environ.get(name) == self._own[name] for name in _MARKS)
        if not all(_within(path, self._group.get(kind, "/")) for kind, path in groups(pid).items()):
            return False
        host = self._own.get(b"HOSTNAME")
        while host is not None and pid in self.table:
            if self.environs.get(pid, {}).get(b"HOSTNAME") == host:
                return True
            pid = self.table[pid]["parent"]
        return host is None

    def ranks(self) -> list[dict[str, Any]]:
        """One process for each rank, with those below it. Of two for one rank it is the younger."""
        named: dict[int, int] = {}
        for pid, environ in self.environs.items():
            rank, local = environ.get(b"RANK", b""), environ.get(b"LOCAL_RANK", b"")
            if rank.isdigit() and local.isdigit() and len(rank) < 8 and self.ours(pid):
                named[pid] = int(rank)
        tops = [pid for pid, rank in named.items() if named.get(self.table[pid]["parent"]) != rank]
        # A DataLoader's process that outlived its rank is no rank.
        tops = [pid for pid in tops if self.table[pid]["comm"] != "pt_data_worker"]
        chosen: dict[int, int] = {}
        for pid in sorted(tops, key=lambda pid: (self.table[pid]["start"], pid)):
            chosen[named[pid]] = self._trainer(pid, named)
        agents = {self.table[pid]["parent"] for pid in tops}
        found = [self._rank(rank, pid) for rank, pid in sorted(chosen.items())]
        return found + [
            self._rank(None, pid) for pid in sorted(self.unread) if self.table[pid]["parent"] in agents - {1}
        ]

    def launchers(self) -> int:
        """How many torchrun agents there are: without ranks they wait for the agents of other workers."""
        asked = [pid for pid in self.environs if is_python(pid) and self.ours(pid)]
        lines, _ = read_all([f"/proc/{pid}/cmdline" for pid in asked], _COMMAND_LIMIT)
        return sum(map(_launches, lines.values()))

    def _trainer(self, pid: int, named: dict[int, int]) -> int:
        """A launcher between torchrun and the trainer carries the rank too: numactl, a shell."""
        while not is_python(pid):
            below = [child for child in self.children(pid) if named.get(child) == named[pid]]
            if len(below) != 1:
                break
            pid = below[0]
        return pid

    def children(self, pid: int) -> list[int]:
        return [child for child, entry in self.table.items() if entry["parent"] == pid]

    def below(self, pid: int) -> list[int]:
        """All descendants, nearest first."""
        found = self.children(pid)
        for child in found:
            found.extend(self.children(child))
        return found

    def _rank(self, rank: int | None, pid: int) -> dict[str, Any]:
        environ = self.environs.get(pid, {})
        command, _ = read_all([f"/proc/{pid}/cmdline"] if environ else [], _COMMAND_LIMIT)
        kept = {name.lower(): text(environ[name.encode()])[:100] for name in _KEPT if name.encode() in environ}
        entry = self.table[pid]
        return {"rank": rank, "pid": pid, "start": entry["start"], "parent": entry["parent"], "environ": kept,
                "comm": entry["comm"], "command": text(b" ".join(b"".join(command.values()).split(b"\0"))).strip(),
                "unread": self.unread.get(pid)}  # fmt: skip


def _launches(command: bytes) -> bool:
    """`python torchrun ...`, `python -m torch.distributed.run ...`, with options of Python before."""
    words = command.split(b"\0")[1:6]
    return any(os.path.basename(word) == b"torchrun" or word in _MODULES for word in words)


def is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith(("python", "pypy"))
    except OSError:
        return False


def _within(path: str, group: str) -> bool:
    if path.startswith("/.."):  # above the namespace of control groups: another container's
        return False
    return path == group or path.startswith(group.rstrip("/") + "/")
