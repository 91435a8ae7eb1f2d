"""Finds the rank processes of this worker by the environment variables that launchers set. All programs on workers use
it; `ranks.sh` does the same if only a shell is available."""

from __future__ import annotations

import os

from atlctl.remote import cgroups
from atlctl.remote.proc import below, children_of, decoded, environment, everything, link, read, read_all

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import Any

    #: Reads up to a number of bytes of each file; returns the contents and, for other files, the errors.
    ReadAll = Callable[[list[str], int], tuple[dict[str, bytes], dict[str, str]]]

_ENVIRON_LIMIT, _COMMAND_LIMIT = 256 << 10, 1000
_KEPT = (
    "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT",
)  # fmt: skip
#: Environment variables of all processes of a local worker.
_MARKS = (b"ATLCTL_STATE_DIR", b"ATLCTL_JOB", b"ATLCTL_WORKER")
_LAUNCHED = (b"WORLD_SIZE", b"MASTER_ADDR", b"TORCHELASTIC_RUN_ID")
_MODULES = (b"torch.distributed.run", b"torch.distributed.launch")
#: Programs of launchers that import torch themselves.
_PROGRAMS = {b"torchrun", b"accelerate", b"deepspeed", b"horovodrun", b"composer", b"colossalai"}
#: Variables of other launchers: a process's number on its host, how many processes are there, its number in the job,
#: and how many are in it.
OTHER_LAUNCHERS = (
    ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK", "PMI_SIZE"),
)
_MAPS = 8 << 20

#: Variables with the address of the first worker; torchrun's own come first.
MASTERS = ("PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "MASTER_ADDR")


def rank_of(environ: Mapping[bytes, bytes]) -> int | None:
    """The global rank of a process with these environment variables; None if it is not a training rank.

    Every launcher sets both ranks and one of `_LAUNCHED`. `RANK` alone is set by the platform: it counts workers and is
    in all processes of a worker.
    """
    rank, local = environ.get(b"RANK", b""), environ.get(b"LOCAL_RANK", b"")
    known = rank.isdigit() and local.isdigit() and len(rank) < 8
    return int(rank) if known and any(name in environ for name in _LAUNCHED) else None


def unlaunched_rank(environ: Mapping[bytes, bytes]) -> dict[str, str] | None:
    """A launcher's variables for a process that another launcher has started, or the platform, whose `RANK` is the rank
    if the worker has one training process. None without any of them."""
    if b"ATLCTL_EXEC" in environ:  # a command of `atlctl exec`
        return None
    for names in (*OTHER_LAUNCHERS, ("", "", "RANK", "WORLD_SIZE")):
        local, beside, rank, world = (environ.get(name.encode(), b"") for name in names)
        if _numbered(rank, world):
            local, beside = (local, beside) if names[0] else (b"0", b"1")
            found = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": beside}
            return {name: value.decode() for name, value in found.items() if value.isdigit()}
    return None


def _numbered(number: bytes, count: bytes) -> bool:
    return number.isdigit() and count.isdigit() and len(count) < 8 and int(number[:8]) < int(count)


def masters(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Those of `MASTERS` that are set, each with its host."""
    found = {name: environ.get(name, "") for name in MASTERS}
    endpoint = found["PET_RDZV_ENDPOINT"]
    found["PET_RDZV_ENDPOINT"] = endpoint.rpartition(":")[0] or endpoint
    return [(name, host.strip("[]")) for name, host in found.items() if host]


def master_port(environ: Mapping[str, str]) -> int | None:
    """The port that belongs to the first of `masters`."""
    name = next((name for name, _ in masters(environ)), "")
    port = environ.get(name.replace("ADDR", "PORT"), "").rpartition(":")[2]
    return int(port) if port.isdecimal() and 0 < int(port[:8]) < 1 << 16 else None


def read_each(paths: list[str], limit: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """Like `proc.read_all`, but in this process, which may block."""
    return {path: read(path, limit) for path in paths}, {}


class Finder:
    """The rank processes of this worker among all visible processes."""

    def __init__(self, reading: ReadAll = read_all, root: str = "") -> None:
        self._read_all, self._proc = reading, root + "/proc/"
        table = everything(root)
        # In a container 2 is any process, as the kernel's threads are not visible.
        kernel = 2 if 2 in table and table[2].comm == "kthreadd" else -1
        self.table = {
            pid: entry for pid, entry in table.items() if kernel not in (pid, entry.parent) and pid != os.getpid()
        }
        self._children = children_of(self.table)
        paths = [f"{self._proc}{pid}/environ" for pid, entry in self.table.items() if entry.state not in "ZX"]
        raw, failed = reading(paths, _ENVIRON_LIMIT)
        self.environs = {_pid(path): environment(data) for path, data in raw.items()}
        self.unread = {_pid(path): why for path, why in failed.items() if "No such" not in why}
        #: Number of other users' Python processes that cannot be read.
        self.hidden = sum("ermi" in why and "python" in self.table[pid].comm for pid, why in self.unread.items())
        self._own = environment(read(self._proc + "self/environ", _ENVIRON_LIMIT))
        self._group = cgroups.of(self._proc + "self")
        self._network = link(self._proc + "self/ns/net")

    def ours(self, pid: int) -> bool:
        """Whether a process belongs to this worker: by the variables of a local worker, else by cgroup, network
        namespace and host name.

        Some machines show the processes of all containers to each one. A process may have changed or dropped its host
        name, so its ancestors are checked, too.
        """
        environ = self.environs.get(pid, {})
        if all(name in self._own for name in _MARKS):
            return all(environ.get(name) == self._own[name] for name in _MARKS)
        if not cgroups.within(cgroups.of(f"{self._proc}{pid}"), self._group):
            return False
        if link(f"{self._proc}{pid}/ns/net") != self._network:
            return False
        host = self._own.get(b"HOSTNAME")
        while host is not None and pid in self.table:
            if self.environs.get(pid, {}).get(b"HOSTNAME") == host:
                return True
            pid = self.table[pid].parent
        return host is None

    def processes(self) -> dict[int, int | None]:
        """Ranks of the live processes of this worker that have one, including children of ranks. Without any: the
        ranks of `_unlaunched`."""
        found = {pid: rank_of(environ) for pid, environ in self.environs.items()}
        named: dict[int, int | None] = {pid: r for pid, r in found.items() if r is not None and self.ours(pid)}
        return named or self._unlaunched()

    def _unlaunched(self) -> dict[int, int | None]:
        """Processes with torch that another launcher, or the platform, has given a rank, if it is only one process; and
        those of `torch.multiprocessing.spawn`, whose ranks are not in their environment. Not their children."""
        asked = [pid for pid, env in self.environs.items() if b"ATLCTL_EXEC" not in env and not self._is_loader(pid)]
        commands = self._commands(asked)
        loaded = self.with_torch([pid for pid, line in commands.items() if not launches(line, _PROGRAMS)])
        torch = {pid for pid, has in loaded.items() if has}
        spawned = {pid for pid in torch if b"spawn_main" in commands[pid] and self.table[pid].parent in torch}
        inner = {child for pid in torch for child in self.below(pid)} | {self.table[pid].parent for pid in spawned}
        ranks = {pid: int(own["RANK"]) for pid in torch - inner if (own := unlaunched_rank(self.environs[pid]))}
        alone = {pid: rank for pid, rank in ranks.items() if [*ranks.values()].count(rank) == 1}
        return {**alone, **dict.fromkeys(spawned)}

    def with_torch(self, pids: Iterable[int]) -> dict[int, bool]:
        """Whether each process has loaded torch's libraries. Without those whose memory map cannot be read."""
        maps, _ = self._read_all([f"{self._proc}{pid}/maps" for pid in pids], _MAPS)
        return {_pid(path): b"/libtorch" in text for path, text in maps.items() if text}

    def _commands(self, pids: Iterable[int]) -> dict[int, bytes]:
        """The command lines of those that are Python processes of this worker."""
        asked = [f"{self._proc}{pid}/cmdline" for pid in pids if self._is_python(pid) and self.ours(pid)]
        return {_pid(path): line for path, line in self._read_all(asked, _COMMAND_LIMIT)[0].items()}

    def _is_loader(self, pid: int) -> bool:
        return self.table[pid].comm == "pt_data_worker"

    def ranks(self) -> list[dict[str, Any]]:
        """One process per rank, with its descendants. The youngest of several with the same rank. Then those whose rank
        is unknown."""
        processes = self.processes()
        named = {pid: rank for pid, rank in processes.items() if rank is not None}
        tops = [pid for pid, rank in named.items() if named.get(self.table[pid].parent) != rank]
        # A DataLoader process that outlived its rank does not count as a rank.
        tops = [pid for pid in tops if not self._is_loader(pid)]
        chosen: dict[int, int] = {}
        for pid in sorted(tops, key=lambda pid: (self.table[pid].start, pid)):
            chosen[named[pid]] = self._trainer(pid, named)
        agents = {self.table[pid].parent for pid in tops}
        found = [self._rank(rank, pid) for rank, pid in sorted(chosen.items())]
        unread = [pid for pid in self.unread if self.table[pid].parent in agents - {1}]
        return found + [self._rank(None, pid) for pid in sorted([*unread, *(set(processes) - set(named))])]

    def launchers(self) -> int:
        """The number of torchrun agents. Without ranks they wait for agents of other workers."""
        return sum(map(launches, self._commands(self.environs).values()))

    def below(self, pid: int) -> list[int]:
        """All descendants, nearest first."""
        return below(self._children, (pid,))

    def _trainer(self, pid: int, named: dict[int, int]) -> int:
        """The trainer below launchers that carry the rank, too, such as numactl or a shell."""
        while not self._is_python(pid):
            under = [child for child in self._children.get(pid, ()) if named.get(child) == named[pid]]
            if len(under) != 1:
                break
            pid = under[0]
        return pid

    def _rank(self, rank: int | None, pid: int) -> dict[str, Any]:
        environ = self.environs.get(pid, {})
        command, _ = self._read_all([f"{self._proc}{pid}/cmdline"] if environ else [], _COMMAND_LIMIT)
        known = {name: decoded(environ[name.encode()])[:100] for name in _KEPT if name.encode() in environ}
        if "LOCAL_RANK" not in known:
            known.update(unlaunched_rank(environ) or {})
        # Of a process without a rank they are the platform's.
        kept = {name.lower(): value for name, value in known.items() if name in _KEPT and rank is not None}
        entry = self.table[pid]
        return {"rank": rank, "pid": pid, "start": entry.start, "parent": entry.parent, "environ": kept,
                "comm": entry.comm, "command": decoded(b" ".join(b"".join(command.values()).split(b"\0"))).strip(),
                "unread": self.unread.get(pid)}  # fmt: skip

    def _is_python(self, pid: int) -> bool:
        return os.path.basename(link(f"{self._proc}{pid}/exe")).startswith(("python", "pypy"))


def _pid(path: str) -> int:
    return int(path.split("/")[-2])


def launches(command: bytes, names: Collection[bytes] = (b"torchrun",)) -> bool:
    """Whether this is `python torchrun ...` or `python -m torch.distributed.run ...`, possibly with options of
    Python. `names`: of the launchers."""
    words = command.split(b"\0")[1:6]
    return any(os.path.basename(word) in names or word in _MODULES for word in words)
