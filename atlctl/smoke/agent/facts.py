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

from . import apart, files, headroom, installed, mounts, processes, rdma

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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


def facts(say: Say, request: dict[str, Any]) -> None:
    """The command. `processes`: look for ranks of a training. `clock`: nothing but the time.

    The time goes first and by itself: the client knows when it asked and when it heard.
    """
    say(ev="clock", wall=time.time())
    if request.get("clock"):
        say(ev="facts", end=True)
        return
    name = _Later(_own_name)
    cards = _Later(_cards) if rdma.devices() else None
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
    table = mounts.table(root)
    busy = _busy(root)
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "kernel": files.text(root + "/proc/sys/kernel/osrelease", 200) or platform.release(),
        "machine": platform.machine(),
        "cpus": cpus(root),
        "load": load(root),
        "memory": dict(headroom.memory(root), total=_total(root)),
        "shm": _shm(root, table),
        "memlock": _memlock(),
        "driver": driver(root),
        "devices": len([name for name in files.names(root + "/dev") if re.fullmatch(r"nvidia[0-9]+", name)]),
        "verbs": len([name for name in files.names(root + "/dev/infiniband") if name.startswith("uverbs")]),
        "rdma": [],
        "interfaces": interfaces(root),
        "settings": _chosen(_SETTINGS, environ),
        "place": _chosen(_PLACE, environ),
        "mounts": mounts.worth_testing(table)[:64],
        "uid": os.getuid(),
    }
    found.update(_versions(table))
    found["cpus"]["busy"] = busy()
    return found


def cpus(root: str = "") -> dict[str, Any]:
    """How many there are, how many this process may use, and how many its group is given (`quota`)."""
    quota = None
    for folder in ["/sys/fs/cgroup" + _group(root), "/sys/fs/cgroup"]:
        words = files.text(root + folder + "/cpu.max", 100).split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quota = int(words[0]) / int(words[1])
            break
    given, period = (files.text(root + "/sys/fs/cgroup/cpu/cpu.cfs_" + n, 100) for n in ("quota_us", "period_us"))
    if quota is None and given.isdigit() and period.isdigit() and int(period):
        quota = int(given) / int(period)
    return {"count": os.cpu_count(), "allowed": len(os.sched_getaffinity(0)), "quota": quota and round(quota, 2)}


def load(root: str = "") -> float | None:
    words = files.text(root + "/proc/loadavg", 200).split()
    try:
        return float(words[0])
    except (ValueError, IndexError):
        return None


def driver(root: str = "") -> str | None:
    told = files.text(root + "/proc/driver/nvidia/version", 4096)
    match = re.search(r"Kernel Module (?:for \S{1,60})?\s{0,20}([0-9]{1,6}\.[0-9.]{1,40})", told)
    return match.group(1) if match else None


def interfaces(root: str = "") -> list[dict[str, Any]]:
    """Name, state, MTU and speed of each; a speed that is not known is None."""
    found = []
    for name in files.names(root + "/sys/class/net")[:64]:
        folder = f"{root}/sys/class/net/{name}"
        mtu = files.text(folder + "/mtu", 20)
        speed = files.text(folder + "/speed", 20) if name != "lo" else ""
        found.append(
            {
                "name": name,
                "state": files.text(folder + "/operstate", 20),
                "mtu": int(mtu) if mtu.isdigit() else None,
                "speed": int(speed) if speed.isdigit() else None,
            }
        )
    return found


def _busy(root: str) -> Callable[[], float | None]:
    """The share of the machine's CPUs that is in use, from now to the call."""

    def look() -> tuple[int, int]:
        words = files.text(root + "/proc/stat", 4096).splitlines()[:1]
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
    lies_on = [mounts.of(os.path.abspath(entry), table) for entry in sys.path]
    if not any(mount is not None and mounts.shared(mount["fs"]) for mount in lies_on):
        return installed.look(sys.path)
    found, problem = apart.call(installed, "main", {"path": sys.path}, _VERSION_SECONDS)
    return found if found is not None else {"torch": None, "versions_problem": problem}


def _shm(root: str, table: list[dict[str, Any]]) -> dict[str, int] | None:
    mount = mounts.of("/dev/shm", table)  # noqa: S108 - its size is told, nothing is written
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
    match = re.search(r"^MemTotal:\s+([0-9]+) kB", files.text(root + "/proc/meminfo"), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _group(root: str) -> str:
    for line in files.text(root + "/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return ""


def _environment(root: str) -> Mapping[str, str]:
    """This process's own. One that came by ssh has not what the platform gave the container: its first process does."""
    if any(_PLACE.fullmatch(name) for name in os.environ):
        return os.environ
    words = files.text(root + "/proc/1/environ", 256 << 10).split("\0")
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
    found, problem = apart.call(rdma, "main", {"root": ""}, _CARD_SECONDS)
    return (found or {}).get("ports", []), problem


def _ranks() -> tuple[list[dict[str, Any]], str]:
    found, problem = apart.call(processes, "main", {"root": ""}, _PROCESS_SECONDS)
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
        return self._found or (otherwise, f"no answer in {seconds:g} s")
