"""Facts of this worker. A stuck mount, RDMA device or name server causes only a timeout."""

from __future__ import annotations

import errno
import os
import platform
import re
import resource
import socket
import sys
import threading
import time
from functools import partial

from atlctl.remote import cgroups, counters, proc
from atlctl.remote.ranks import Finder, launches, master_port, masters, read_each
from atlctl.remote.sentences import Sentence

from . import children, wire

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .wire import Say

#: Environment variables with settings for communication.
_SETTINGS = re.compile(r"(NCCL|GLOO|UCX|CUDA|TORCH|TP|OMP|FI|RDMAV)_[A-Z0-9_]+")
#: Environment variables of the platform or torchrun with ranks and addresses.
_PLACE = re.compile(
    r"(PET|TORCHELASTIC|VC|DLROVER|LWS|OMPI_COMM_WORLD|SLURM)_[A-Z0-9_]+|RANK|WORLD_SIZE|MASTER_(ADDR|PORT)|LOCAL_RANK"
    r"|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_RANK|NODE_(RANK|NUM|ID|TYPE)|NNODES|NPROC_PER_NODE|ELASTIC_JOB_NAME"
    r"|JOB_COMPLETION_INDEX"
)
#: Variables that may contain a secret are never reported.
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|_AUTH$")
_VALUE = 300
#: Timeouts in seconds: the host's name, RDMA devices, processes, versions.
_NAME_SECONDS, _CARD_SECONDS, _PROCESS_SECONDS, _VERSION_SECONDS = 1.0, 4.0, 4.0, 4.0
#: Paths where the container runtime mounts files, secrets and devices.
_PLUMBING = ("/proc", "/sys", "/dev", "/run", "/etc", "/var/run", "/var/lib/kubelet", "/usr", "/boot")
_INFINIBAND = "/sys/class/infiniband"
#: Maximum entries read from a port's GID table.
_GIDS = 256
#: An unused entry of the GID table.
_NO_GID = re.compile(r"(fe80:0000:0000:0000:|0000:0000:0000:0000:)0000:0000:0000:0000")
_TORCH = re.compile(r"^__version__[^=\n]*=\s*['\"]([^'\"\n]{1,80})['\"]", re.MULTILINE)
_CUDA = re.compile(r"^cuda[^=\n]*=\s*['\"]([^'\"\n]{1,40})['\"]", re.MULTILINE)
_INSTALLED = re.compile(
    r"(torch|nvidia[_-]nccl|nvidia[_-]cudnn)(?:[_-]cu[0-9]+)?-(.{1,80}?)(?:-py3.*)?\.(?:dist|egg)-info"
)
#: Maximum number of reported ranks.
_TOLD = 64


def facts(say: Say, request: dict[str, Any]) -> None:
    """The command `facts`. `processes`: look for ranks of a training. `hosts`: host names of other workers, which are
    resolved. `clock`: report only the time. `pace`: the factor for time limits.

    The time is a separate first event: the client uses the times of its request and of this event.
    """
    say(ev="clock", wall=time.time())
    if request.get("clock"):
        say(ev="facts", end=True)
        return
    pace = float(request.get("pace", 1.0))
    name = _Later(lambda: _addresses(socket.gethostname()))
    others = {host: _Later(partial(_addresses, host)) for host in request.get("hosts", ())}
    cards = _Later(partial(_cards, pace)) if proc.names(_INFINIBAND) else None
    ranks = _Later(partial(_ranks, pace)) if request.get("processes") else None
    found = collect(pace=pace, longer=bool(request.get("longer")))
    master = next((host for _, host in masters(found["place"])), "")
    meeting = _Later(lambda: _addresses(master)) if master else None
    found["addresses"] = [address for _, address in proc.addresses()]
    found["counters"] = counters.interfaces()
    if ranks is not None:
        found["ranks"], found["ranks_problem"] = ranks.result(pace * _PROCESS_SECONDS + 2, [])
    if cards is not None:
        found["rdma"], found["rdma_problem"] = cards.result(pace * _CARD_SECONDS + 2, [])
    found["name"], found["name_problem"] = name.result(pace * _NAME_SECONDS, [])
    known = {host: other.result(pace * _NAME_SECONDS, [])[0] for host, other in others.items()}
    found["hosts"] = [{"name": host, "addresses": addresses} for host, addresses in known.items()]
    if meeting is not None:
        addresses, problem = meeting.result(pace * _NAME_SECONDS, [])
        port = master_port(found["place"])
        found["master"] = {"name": master, "addresses": addresses, "problem": problem, "port": port}
        if port is not None and _taken(port):
            training = any(ranks.result(pace * _PROCESS_SECONDS + 2, []) if ranks is not None else _ranks(pace))
            found["master"]["holder"] = "" if training else _holder(port)
    say(ev="facts", end=True, **found)


def collect(
    root: str = "", environ: Mapping[str, str] | None = None, pace: float = 1.0, longer: bool = False
) -> dict[str, Any]:
    """All facts that are available without waiting; `longer`: with half a second for the shares of CPU time. `root` is
    a prefix for /proc, /sys and /dev."""
    environ = _environment(root) if environ is None else environ
    table = proc.mounts(root)
    busy = _busy(root, 0.5 if longer else 0.0)
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "kernel": proc.text(root + "/proc/sys/kernel/osrelease", 200) or platform.release(),
        "machine": platform.machine(),
        "boot": proc.boot(root),
        "cpus": cpus(root),
        "load": load(root),
        "memory": dict(cgroups.memory(root), total=_total(root)),
        "shm": _shm(root, table),
        "memlock": _limit(resource.RLIMIT_MEMLOCK),
        "nofile": _limit(resource.RLIMIT_NOFILE),
        "driver": driver(root),
        "devices": len([name for name in proc.names(root + "/dev") if re.fullmatch(r"nvidia[0-9]+", name)]),
        "verbs": len([name for name in proc.names(root + "/dev/infiniband") if name.startswith("uverbs")]),
        "rdma": [],
        "interfaces": interfaces(root),
        "settings": _chosen(_SETTINGS, {**_configured(root), **environ}),
        "place": _chosen(_PLACE, environ),
        "mounts": worth_testing(table)[:64],
        "uid": os.getuid(),
    }
    found.update(_versions(table, pace))
    found["cpus"].update(busy())
    return found


def links(say: Say, request: dict[str, Any]) -> None:
    """The command `links`: counters of network interfaces now, see `counters.interfaces`."""
    del request
    say(ev="links", end=True, counters=counters.interfaces())


def headroom(say: Say, request: dict[str, Any]) -> None:
    """The command `headroom`: free memory, see `cgroups.memory`."""
    del request
    say(ev="headroom", end=True, **cgroups.memory())


def cpus(root: str = "") -> dict[str, Any]:
    """CPUs of the machine (`count`), usable by this process (`allowed`), and the cgroup's limit (`quota`)."""
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
    """Name, state, MTU and speed (None: unknown) of each interface."""
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


def _busy(root: str, least: float) -> Callable[[], dict[str, float | None]]:
    """A function that returns the shares of the machine's CPU time between now and its call, which waits until `least`
    seconds have passed: `busy`, and `stolen` by other guests of its hypervisor."""

    def look() -> tuple[int, int, int]:
        words = proc.text(root + "/proc/stat", 4096).splitlines()[:1]
        ticks = [int(word) for word in words[0].split()[1:9] if word.isdigit()] if words else []
        return (sum(ticks), sum(ticks[3:5]), sum(ticks[7:])) if len(ticks) > 4 else (0, 0, 0)

    begun = time.monotonic()
    all_before, idle_before, stolen_before = look()

    def shares() -> dict[str, float | None]:
        # A tick is 10 ms: with fewer ticks than this, the share is too inexact.
        end = max(time.monotonic() + 0.15, begun + 2 * least)
        while True:
            all_now, idle_now, stolen_now = look()
            now = time.monotonic()
            if (all_now - all_before >= 10 and now - begun >= least) or now > end:
                break
            time.sleep(0.03)
        passed = all_now - all_before
        if passed < 10:
            return {"busy": None, "stolen": None}
        return {
            "busy": round(1 - (idle_now - idle_before) / passed, 2),
            "stolen": round((stolen_now - stolen_before) / passed, 2),
        }

    return shares


def _versions(table: list[dict[str, Any]], pace: float) -> dict[str, Any]:
    """The versions of torch and its libraries. If the Python is on a shared mount, a child reads them."""
    lies_on = [proc.mount_of(os.path.abspath(entry), table) for entry in sys.path]
    if not any(mount is not None and proc.is_shared(mount["fs"]) for mount in lies_on):
        return installed(sys.path)
    limit = pace * _VERSION_SECONDS
    found, problem = children.call(sys.modules[__name__], "tell_versions", {"path": sys.path}, limit)
    return found if found is not None else {"torch": None, "versions_problem": problem}


def _shm(root: str, table: list[dict[str, Any]]) -> dict[str, int] | None:
    mount = proc.mount_of("/dev/shm", table)  # noqa: S108 - only its size is read
    if mount is None or mount["fs"] != "tmpfs":
        return None
    try:
        room = os.statvfs(root + "/dev/shm")  # noqa: S108
    except OSError:
        return None
    return {"size": room.f_blocks * room.f_frsize, "free": room.f_bavail * room.f_frsize}


def _limit(kind: int) -> int:
    """A limit of this process; -1: no limit."""
    return resource.getrlimit(kind)[0]


def _total(root: str) -> int | None:
    match = re.search(r"^MemTotal:\s+([0-9]+) kB", proc.text(root + "/proc/meminfo"), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _environment(root: str) -> Mapping[str, str]:
    """Environment variables. A process started by ssh lacks the platform's; the container's first process has them."""
    if any(_PLACE.fullmatch(name) for name in os.environ):
        return os.environ
    words = proc.text(root + "/proc/1/environ", 256 << 10).split("\0")
    first = dict(word.split("=", 1) for word in words if "=" in word)
    return dict(first, **os.environ)


def _chosen(pattern: re.Pattern[str], environ: Mapping[str, str]) -> dict[str, str]:
    chosen = {n: v[:_VALUE] for n, v in environ.items() if pattern.fullmatch(n) and not _SECRET.search(n)}
    return dict(sorted(chosen.items())[:256])


def _configured(root: str) -> dict[str, str]:
    """NCCL's settings for the whole machine. Its file in a home folder is not read: that folder may hang."""
    lines = [line.partition("=") for line in proc.text(root + "/etc/nccl.conf", 1 << 14).splitlines()]
    return {name.strip(): value.strip() for name, found, value in lines if found and name.startswith("NCCL_")}


def _addresses(host: str) -> tuple[list[str], str]:
    try:
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}), ""
    except OSError as error:
        return [], str(error.strerror or error)[:200]


def _taken(port: int) -> bool:
    """Whether a process listens on the port. The port is not listened on: a training may start at this moment."""
    with socket.socket() as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            asked.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _holder(port: int) -> str | Sentence:
    """The process that listens on the port; empty if it is torchrun, which waits for the other workers."""
    links = {link for link, _, own in proc.listeners() if own == port}
    for pid, entry in proc.everything().items():
        if links & proc.opened(pid):
            path = f"/proc/{pid}/cmdline"
            if launches(proc.read_all([path], 1000)[0].get(path, b"")):
                return ""
            return Sentence("{name} (process {pid})", name=entry.comm, pid=pid)
    return Sentence("a process that this worker does not see")


def _cards(pace: float) -> tuple[list[dict[str, Any]], str]:
    found, problem = children.call(sys.modules[__name__], "tell_ports", {"root": ""}, pace * _CARD_SECONDS)
    return (found or {}).get("ports", []), problem


def _ranks(pace: float) -> tuple[list[dict[str, Any]], str]:
    found, problem = children.call(sys.modules[__name__], "tell_ranks", {"root": ""}, pace * _PROCESS_SECONDS)
    return (found or {}).get("ranks", []), problem


class _Later:
    """A slow function that runs in a thread meanwhile."""

    def __init__(self, work: Callable[[], tuple[list[Any], str]]) -> None:
        self._found: tuple[list[Any], str] | None = None
        self._begun = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], tuple[list[Any], str]]) -> None:
        try:
            self._found = work()
        except OSError as error:
            self._found = [], f"{type(error).__name__}: {error}"[:200]

    def result(self, seconds: float, otherwise: list[Any]) -> tuple[list[Any], str]:
        """The result, at most `seconds` after the begin."""
        self._thread.join(max(0.0, self._begun + seconds - time.monotonic()))
        return self._found or (otherwise, Sentence("no answer in {seconds} s", seconds=f"{seconds:g}"))


def worth_testing(mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mounts of shared file systems, except `/` and those of the container runtime."""
    return [
        mount
        for mount in mounts
        if proc.is_shared(mount["fs"])
        and mount["path"] != "/"
        and not any(mount["path"] == place or mount["path"].startswith(place + "/") for place in _PLUMBING)
    ]


# Functions that may block in the kernel, run by a child (`children.call`)


def tell_ranks(argument: dict[str, Any]) -> None:
    """The ranks on this worker. Reading the environment of a stuck process may block."""
    wire.tell(1, {"ranks": ranks(argument["root"])})


def ranks(root: str = "") -> list[dict[str, Any]]:
    """Live processes that are ranks: `pid`, `rank`, `comm`, `state`."""
    finder = Finder(read_each, root)
    return [
        {"pid": pid, "rank": rank, "comm": finder.table[pid].comm, "state": finder.table[pid].state}
        for pid, rank in finder.processes().items()
    ][:_TOLD]


def tell_ports(argument: dict[str, Any]) -> None:
    """The RDMA devices listed by the kernel. Reading the state of a stuck device blocks."""
    wire.tell(1, {"ports": ports(argument["root"])})


def ports(root: str = "") -> list[dict[str, Any]]:
    """Each port: `device`, `port`, `state`, `rate`, `layer`, the number of `gids`."""
    found = []
    for device in proc.names(root + _INFINIBAND):
        ports = f"{root}{_INFINIBAND}/{device}/ports"
        for port in proc.names(ports):
            folder = f"{ports}/{port}"
            gids = proc.names(folder + "/gids")[:_GIDS]
            found.append(
                {
                    "device": device,
                    "port": port,
                    "state": proc.text(folder + "/state", 64).rpartition(":")[2].strip(),
                    "rate": proc.text(folder + "/rate", 64),
                    "layer": proc.text(folder + "/link_layer", 64),
                    "gids": sum(_used(proc.text(f"{folder}/gids/{gid}", 64)) for gid in gids),
                }
            )
    return found


def _used(gid: str) -> bool:
    return bool(gid) and not _NO_GID.fullmatch(gid)


def tell_versions(argument: dict[str, Any]) -> None:
    """The installed versions of torch, CUDA and NCCL, from files: importing torch takes seconds and memory."""
    wire.tell(1, installed(argument["path"]))


def installed(path: Sequence[str]) -> dict[str, Any]:
    """Versions of `torch`, `cuda`, `nccl`, `cudnn` for a Python's `sys.path`; None: not installed or unknown."""
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
