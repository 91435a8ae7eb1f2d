"""What is mounted where, from the kernel's own list: nothing here touches a mount, so that a dead one stops nobody."""

from __future__ import annotations

import re

from . import files

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

#: File systems that several machines see at once. `fuse.` names most of the others.
SHARED = frozenset({
    "nfs", "nfs4", "lustre", "gpfs", "ceph", "cephfs", "glusterfs", "beegfs", "cifs", "smb3", "smbfs", "pvfs2", "afs",
    "ocfs2", "gfs2", "wekafs", "panfs", "cpfs", "yrfs", "9p", "virtiofs", "fuse", "fuseblk",
})  # fmt: skip
#: Of FUSE, what belongs to one machine.
_OWN = ("fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "fuse.fuse-overlayfs", "fuse.sshfs-local", "fuse.snapfuse")
#: Where a container's own plumbing is mounted: single files, secrets, devices.
_PLUMBING = ("/proc", "/sys", "/dev", "/run", "/etc", "/var/run", "/var/lib/kubelet", "/usr", "/boot")


def table(root: str = "") -> list[dict[str, Any]]:
    """Every mount, later ones over earlier ones of the same place: `path`, `fs`, `source`, `read_only`, `device`."""
    found: dict[str, dict[str, Any]] = {}
    for line in files.text(root + "/proc/self/mountinfo", 4 << 20).splitlines():
        head, _, tail = line.partition(" - ")
        words, rest = head.split(" "), tail.split(" ")
        if len(words) < 6 or len(rest) < 2:
            continue
        path = _plain(words[4])
        options = set(words[5].split(",")) | set(rest[2].split(",") if len(rest) > 2 else ())
        found.pop(path, None)
        found[path] = {
            "path": path, "fs": rest[0], "source": _plain(rest[1])[:300], "read_only": "ro" in options,
            "device": words[2], "part": _plain(words[3])[:300],
        }  # fmt: skip
    return list(found.values())


def shared(fs: str) -> bool:
    return fs in SHARED or (fs.startswith("fuse.") and fs not in _OWN)


def worth_testing(mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those on file systems that others see, without the root itself and a container's plumbing."""
    return [
        mount
        for mount in mounts
        if shared(mount["fs"])
        and mount["path"] != "/"
        and not any(mount["path"] == place or mount["path"].startswith(place + "/") for place in _PLUMBING)
    ]


def of(path: str, mounts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The mount in which `path` lies, by its name alone."""
    holds = [m for m in mounts if m["path"] == "/" or path == m["path"] or path.startswith(m["path"] + "/")]
    return max(holds, key=lambda mount: len(mount["path"])) if holds else None


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), word)
