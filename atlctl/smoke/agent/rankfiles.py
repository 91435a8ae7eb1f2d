"""What the kernel and NCCL tell of a rank process; and that it dies with its parent."""

from __future__ import annotations

import os
import re
import signal
import tempfile

from . import schedstat

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG = 1
#: Bytes of NCCL's log that are looked at, and warnings of it that are passed on.
_LOG, _WARNINGS = 4 << 20, 5
_USING = re.compile(r"NCCL INFO (?:Using network |NET/(?=\w+ : Using ))([\w-]+)")
_VIA = re.compile(r" via ((?:NET/[\w-]+|[A-Za-z0-9]+))")
_TICKS = os.sysconf("SC_CLK_TCK")


def die_with(parent: int) -> None:
    """This process gets SIGKILL when `parent` ends, however that ends. Without it, the end of its pipe has to do."""
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(0)  # it had ended before


def how(status: int) -> dict[str, Any]:
    """The end of a process that had been started, from what `waitpid` says."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return {"started": True, "code": None if number else os.WEXITSTATUS(status), "signal": number}


def state(pid: int) -> dict[str, Any]:
    """Its state as in ps, seconds of CPU that it had, and seconds that it waited for one (None: not told)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return {"state": "?", "cpu": None, "starved": None}
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS
    return {"state": fields[0].decode(), "cpu": cpu, "starved": schedstat.waited(pid)}


def anonymous() -> int | None:
    """A file without a name, for NCCL's log: nothing is left of it, whatever happens."""
    try:
        if hasattr(os, "memfd_create"):
            return os.memfd_create("nccl")
        return os.dup(tempfile.TemporaryFile().fileno())
    except OSError:
        return None


def transports(log: int) -> dict[str, Any]:
    """Which network NCCL chose, how often each way between two ranks, and its last warnings."""
    text = os.pread(log, _LOG, 0).decode("utf-8", "replace")
    via: dict[str, int] = {}
    nets: list[str] = []
    warnings: list[str] = []
    for line in text.splitlines():
        if "NCCL WARN" in line:
            warnings.append(line[:300])
        found = _VIA.search(line)
        if found:
            via[found.group(1)] = via.get(found.group(1), 0) + 1
        found = _USING.search(line)
        if found and found.group(1) not in nets and len(nets) < 16:
            nets.append(found.group(1))
    return {"nets": nets, "via": via, "warnings": warnings[-_WARNINGS:], "said": bool(text)}
