"""Whether somebody trains on this worker: ranks, by their environment. To read that of a stuck process may block, hence
this runs in a child (`apart`)."""

from __future__ import annotations

import os
import re

from . import files, streams

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

_NAMES = (
    b"RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|HOSTNAME|TORCHELASTIC_RUN_ID|ATLCTL_STATE_DIR|ATLCTL_JOB|ATLCTL_WORKER"
)
_PATTERN = re.compile(b"(?:^|\0)(" + _NAMES + b")=([^\0]*)")
#: In the environment of every process of a local worker.
_MARKS = (b"ATLCTL_STATE_DIR", b"ATLCTL_JOB", b"ATLCTL_WORKER")
_TOLD = 64


def main(argument: dict[str, Any]) -> None:
    streams.tell(1, {"ranks": ranks(argument["root"])})


def ranks(root: str = "") -> list[dict[str, Any]]:
    """Living processes with a rank of their own: `pid`, `rank`, `comm`, `state`. The platform's RANK alone is none:
    it is in every process of a worker."""
    own, group = _environ(root + "/proc/self"), _groups(root + "/proc/self")
    network = _network(root + "/proc/self")
    found: list[dict[str, Any]] = []
    for name in files.names(root + "/proc"):
        folder = f"{root}/proc/{name}"
        if not name.isdigit():
            continue
        head, _, tail = files.text(folder + "/stat", 4096).rpartition(")")
        state = tail.split()[:1]
        if not state or state[0] in "ZX":
            continue
        environ = _environ(folder)
        rank, local = environ.get(b"RANK", b""), environ.get(b"LOCAL_RANK", b"")
        if not rank.isdigit() or not local.isdigit() or not (b"WORLD_SIZE" in environ or b"MASTER_ADDR" in environ):
            continue
        if network != _network(folder) or not _ours(environ, own) or not _within(_groups(folder), group):
            continue
        if len(found) < _TOLD:
            found.append({"pid": int(name), "rank": int(rank[:8]), "comm": head.partition("(")[2], "state": state[0]})
    return found


def _ours(environ: dict[bytes, bytes], own: dict[bytes, bytes]) -> bool:
    """A local worker's by its marks; a container's by its host name, since a machine may show all its containers."""
    if all(name in own for name in _MARKS):
        return all(environ.get(name) == own[name] for name in _MARKS)
    return b"HOSTNAME" not in own or environ.get(b"HOSTNAME", own[b"HOSTNAME"]) == own[b"HOSTNAME"]


def _within(groups: dict[str, str], own: dict[str, str]) -> bool:
    for kind, path in groups.items():
        group = own.get(kind, "/")
        if path.startswith("/..") or not (path == group or path.startswith(group.rstrip("/") + "/")):
            return False
    return True


def _network(folder: str) -> str:
    """Its network namespace: a worker has one, and another one is another worker's."""
    try:
        return os.readlink(folder + "/ns/net")
    except OSError:
        return ""


def _environ(folder: str) -> dict[bytes, bytes]:
    return dict(_PATTERN.findall(files.read(folder + "/environ", 256 << 10)))


def _groups(folder: str) -> dict[str, str]:
    parts = [line.split(":", 2) for line in files.text(folder + "/cgroup").splitlines()]
    return {part[1]: part[2] for part in parts if len(part) == 3}
