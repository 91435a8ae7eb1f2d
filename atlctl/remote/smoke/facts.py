"""What this worker is made of. Nothing here waits for a mount, a card or a name server longer than its time."""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
import sys
import threading
import time

from atlctl.remote import cgroups, proc
from atlctl.remote.ranks import Finder, read_each
from atlctl.remote.sentences import Sentence

from . import children, wire

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .wire import Say

#: Variables that decide how a training talks.
_SETTINGS = re.compile(r"(NCCL|GLOO|UCX|CUDA|TORCH|TP|OMP|FI|RDMAV)_[A-Z0-9_]+")
#: What the platform, or torchrun, tells a process about its place.
_PLACE = re.compile(
    r"(PET|TORCHELASTIC|VC|DLROVER|LWS|OMPI_COMM_WORLD|SLURM)_[A-Z0-9_]+|RANK|WORLD_SIZE|MASTER_(ADDR|PORT)|LOCAL_RANK"
    r"|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_RANK|NODE_(RANK|NUM|ID|TYPE)|NNODES|NPROC_PER_NODE|ELASTIC_JOB_NAME"
    r"|JOB_COMPLETION_INDEX"
)
#: A name that may hold a secret is never told.
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|_AUTH$")
_VALUE = 300
#: Seconds for the host's own name, for a card, and for looking through the processes.
_NAME_SECONDS, _CARD_SECONDS, _PROCESS_SECONDS, _VERSION_SECONDS = 1.0, 4.0, 4.0, 4.0
#: Where a container's own plumbing is mounted: single files, secrets, devices.
_PLUMBING = ("/proc", "/sys", "/dev", "/run", "/etc", "/var/run", "/var/lib/kubelet", "/usr", "/boot")
_INFINIBAND = "/sys/class/infiniband"
#: Entries of one port's table of addresses that are looked at.
_GIDS = 256
#: What stands in a place of the table that is not used.
_NO_GID = re.compile(r"(fe80:0000:0000:0000:|0000:0000:0000:0000:)0000:0000:0000:0000")
_TORCH = re.compile(r"^__version__[^=\n]*=\s*['\"]([^'\"\n]{1,80})['\"]", re.MULTILINE)
_CUDA = re.compile(r"^cuda[^=\n]*=\s*['\"]([^'\"\n]{1,40})['\"]", re.MULTILINE)
_INSTALLED = re.compile(
    r"(torch|nvidia[_-]nccl|nvidia[_-]cudnn)(?:[_-]cu[0-9]+)?-(.{1,80}?)(?:-py3.*)?\.(?:dist|egg)-info"
)
#: Ranks that are reported.
_TOLD = 64


def facts(say: Say, request: dict[str, Any]) -> None:
    """The command. `processes`: look for ranks of a training. `clock`: nothing but the time.

    The time goes first and by itself: the client knows when it asked and when it heard.
    """
    say(ev="clock", wall=time.time())
    if request.get("clock"):
        say(ev="facts", end=True)
        return
    name = _Later(_own_name)
    cards = _Later(_cards) if proc.names(_INFINIBAND) else None
    ranks = _Later(_ranks) if request.get("processes") else None
    found = collect()
    if ranks is not None:
        found["ranks"], found["ranks_problem"] = ranks.result(_PROCESS_SECONDS + 2, [])
    if cards is not None:
        found["rdma"], found["rdma_problem"] = cards.result(_CARD_SECONDS + 2, [])
    found["name"], found["name_problem"] = name.result(_NAME_SECONDS, [])
    say(ev="facts", end=True, **found)


def collect(root: str = "", environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """All that is known without waiting. `root` stands before /proc, /sys and /dev."""
    environ = _environment(root) if environ is None else environ
    table = proc.mounts(root)
    busy = _busy(root)
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "kernel": proc.text(root + "/proc/sys/kernel/osrelease", 200) or platform.release(),
        "machine": platform.machine(),
        "cpus": cpus(root),
        "load": load(root),
        "memory": dict(cgroups.memory(root), total=_total(root)),
        "shm": _shm(root, table),
        "memlock": _memlock(),
        "driver": driver(root),
        "devices": len([name for name in proc.names(root + "/dev") if re.fullmatch(r"nvidia[0-9]+", name)]),
        "verbs": len([name for name in proc.names(root + "/dev/infiniband") if name.startswith("uverbs")]),
        "rdma": [],
        "interfaces": interfaces(root),
        "settings": _chosen(_SETTINGS, environ),
        "place": _chosen(_PLACE, environ),
        "mounts": worth_testing(table)[:64],
        "uid": os.getuid(),
    }
    found.update(_versions(table))
    found["cpus"]["busy"] = busy()
    return found


def headroom(say: Say, request: dict[str, Any]) -> None:
    """The command: `room` in bytes (None: not known), `of` whom, and whether the whole group is killed."""
    del request
    say(ev="headroom", end=True, **cgroups.memory())


def cpus(root: str = "") -> dict[str, Any]:
    """How many there are, how many this process may use, and how many its group is given (`quota`)."""
    quota = cgroups.cpu_quota(root)
    return {"count": os.cpu_count(), "allowed": len(os.sched_getaffinity(0)), "quota": quota and round(quota, 2)}


def load(root: str = "") -> float | None:
    words = proc.text(root + "/proc/loadavg", 200).split()
    try:
        return float(words[0])
    except (ValueError, IndexError):
        return None


def driver(root: str = "") -> str | None:
    told = proc.text(root + "/proc/driver/nvidia/version", 4096)
    match = re.search(r"Kernel Module (?:for \S{1,60})?\s{0,20}([0-9]{1,6}\.[0-9.]{1,40})", told)
    return match.group(1) if match else None


def interfaces(root: str = "") -> list[dict[str, Any]]:
    """Name, state, MTU and speed of each; a speed that is not known is None."""
    found = []
    for name in proc.names(root + "/sys/class/net")[:64]:
        folder = f"{root}/sys/class/net/{name}"
        mtu = proc.text(folder + "/mtu", 20)
        speed = proc.text(folder + "/speed", 20) if name != "lo" else ""
        found.append(
            {
                "name": name,
                "state": proc.text(folder + "/operstate", 20),
                "mtu": int(mtu) if mtu.isdigit() else None,
                "speed": int(speed) if speed.isdigit() else None,
            }
        )
    return found


def _busy(root: str) -> Callable[[], float | None]:
    """The share of the machine's CPUs that is in use, from now to the call."""

    def look() -> tuple[int, int]:
        words = proc.text(root + "/proc/stat", 4096).splitlines()[:1]
        ticks = [int(word) for word in words[0].split()[1:9] if word.isdigit()] if words else []
        return (sum(ticks), sum(ticks[3:5])) if len(ticks) > 4 else (0, 0)

    all_before, idle_before = look()

    def share() -> float | None:
        # Ticks are hundredths of a second: less than this many tell nothing.
        end = time.monotonic() + 0.15
        while True:
            all_now, idle_now = look()
            if all_now - all_before >= 10 or time.monotonic() > end:
                break
            time.sleep(0.03)
        passed = all_now - all_before
        return round(1 - (idle_now - idle_before) / passed, 2) if passed >= 10 else None

    return share


def _versions(table: list[dict[str, Any]]) -> dict[str, Any]:
    """Of torch and its libraries. A Python that lies on a mount which others see is looked at by a child."""
    lies_on = [proc.mount_of(os.path.abspath(entry), table) for entry in sys.path]
    if not any(mount is not None and proc.is_shared(mount["fs"]) for mount in lies_on):
        return installed(sys.path)
    found, problem = children.call(sys.modules[__name__], "tell_versions", {"path": sys.path}, _VERSION_SECONDS)
    return found if found is not None else {"torch": None, "versions_problem": problem}


def _shm(root: str, table: list[dict[str, Any]]) -> dict[str, int] | None:
    mount = proc.mount_of("/dev/shm", table)  # noqa: S108 - its size is told, nothing is written
    if mount is None or mount["fs"] != "tmpfs":
        return None
    try:
        room = os.statvfs(root + "/dev/shm")  # noqa: S108
    except OSError:
        return None
    return {"size": room.f_blocks * room.f_frsize, "free": room.f_bavail * room.f_frsize}


def _memlock() -> int:
    """Bytes that may be locked; -1: no limit."""
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]


def _total(root: str) -> int | None:
    match = re.search(r"^MemTotal:\s+([0-9]+) kB", proc.text(root + "/proc/meminfo"), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _environment(root: str) -> Mapping[str, str]:
    """This process's own. One that came by ssh has not what the platform gave the container: its first process does."""
    if any(_PLACE.fullmatch(name) for name in os.environ):
        return os.environ
    words = proc.text(root + "/proc/1/environ", 256 << 10).split("\0")
    first = dict(word.split("=", 1) for word in words if "=" in word)
    return dict(first, **os.environ)


def _chosen(pattern: re.Pattern[str], environ: Mapping[str, str]) -> dict[str, str]:
    chosen = {n: v[:_VALUE] for n, v in environ.items() if pattern.fullmatch(n) and not _SECRET.search(n)}
    return dict(sorted(chosen.items())[:256])


def _own_name() -> tuple[list[str], str]:
    """The addresses that this host's own name stands for."""
    try:
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)}), ""
    except OSError as error:
        return [], f"{type(error).__name__}: {error}"[:200]


def _cards() -> tuple[list[dict[str, Any]], str]:
    found, problem = children.call(sys.modules[__name__], "tell_ports", {"root": ""}, _CARD_SECONDS)
    return (found or {}).get("ports", []), problem


def _ranks() -> tuple[list[dict[str, Any]], str]:
    found, problem = children.call(sys.modules[__name__], "tell_ranks", {"root": ""}, _PROCESS_SECONDS)
    return (found or {}).get("ranks", []), problem


class _Later:
    """Something that may take long, meanwhile."""

    def __init__(self, work: Callable[[], tuple[list[Any], str]]) -> None:
        self._found: tuple[list[Any], str] | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], tuple[list[Any], str]]) -> None:
        try:
            self._found = work()
        except OSError as error:
            self._found = [], f"{type(error).__name__}: {error}"[:200]

    def result(self, seconds: float, otherwise: list[Any]) -> tuple[list[Any], str]:
        self._thread.join(seconds)
        return self._found or (otherwise, Sentence("no answer in {seconds} s", seconds=f"{seconds:g}"))


def worth_testing(mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those on file systems that others see, without the root itself and a container's plumbing."""
    return [
        mount
        for mount in mounts
        if proc.is_shared(mount["fs"])
        and mount["path"] != "/"
        and not any(mount["path"] == place or mount["path"].startswith(place + "/") for place in _PLUMBING)
    ]


# What may block where no signal reaches, and is looked at by a child (`children.call`)


def tell_ranks(argument: dict[str, Any]) -> None:
    """Whether somebody trains on this worker. To read the environment of a stuck process may block."""
    wire.tell(1, {"ranks": ranks(argument["root"])})


def ranks(root: str = "") -> list[dict[str, Any]]:
    """Living processes with a rank of their own: `pid`, `rank`, `comm`, `state`."""
    finder = Finder(read_each, root)
    return [
        {"pid": pid, "rank": rank, "comm": finder.table[pid].comm, "state": finder.table[pid].state}
        for pid, rank in finder.processes().items()
    ][:_TOLD]


def tell_ports(argument: dict[str, Any]) -> None:
    """RDMA devices as the kernel shows them. A card that is stuck holds whoever asks for its state."""
    wire.tell(1, {"ports": ports(argument["root"])})


def ports(root: str = "") -> list[dict[str, Any]]:
    """Each port: `device`, `port`, `state`, `rate`, `layer`, how many `gids` it has and of which types."""
    found = []
    for device in proc.names(root + _INFINIBAND):
        top = f"{root}{_INFINIBAND}/{device}"
        for port in proc.names(top + "/ports"):
            folder = f"{top}/ports/{port}"
            used = [n for n in proc.names(folder + "/gids")[:_GIDS] if _used(proc.text(f"{folder}/gids/{n}", 64))]
            types = {proc.text(f"{folder}/gid_attrs/types/{n}", 64) for n in used}
            found.append(
                {
                    "device": device,
                    "port": port,
                    "state": proc.text(folder + "/state", 64).rpartition(":")[2].strip(),
                    "physical": proc.text(folder + "/phys_state", 64).rpartition(":")[2].strip(),
                    "rate": proc.text(folder + "/rate", 64),
                    "layer": proc.text(folder + "/link_layer", 64),
                    "gids": len(used),
                    "types": sorted(types - {""}),
                    "firmware": proc.text(top + "/fw_ver", 64),
                }
            )
    return found


def _used(gid: str) -> bool:
    return bool(gid) and not _NO_GID.fullmatch(gid)


def tell_versions(argument: dict[str, Any]) -> None:
    """Which torch, CUDA and NCCL are installed, by the files beside them: importing torch costs seconds and memory."""
    wire.tell(1, installed(argument["path"]))


def installed(path: Sequence[str]) -> dict[str, Any]:
    """`torch`, `cuda`, `nccl`, `cudnn` of the Python whose `sys.path` this is; None: not there, or not told."""
    found: dict[str, Any] = dict.fromkeys(("torch", "cuda", "nccl", "cudnn"))
    for entry in path:
        written = proc.text(entry + "/torch/version.py", 4096) if entry and not found["torch"] else ""
        for name, pattern in (("torch", _TORCH), ("cuda", _CUDA)):
            match = pattern.search(written)
            found[name] = match.group(1) if match else found[name]
        for name in proc.names(entry) if entry else []:
            match = _INSTALLED.fullmatch(name)
            if match:
                what = re.sub(r"nvidia[_-]", "", match.group(1))
                found[what] = found[what] or match.group(2)
    return found
