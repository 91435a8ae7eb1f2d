"""Which file systems of this machine outlive the container that this runs in, by `/proc/self/mountinfo`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

_FILE = "/proc/self/mountinfo"
_LIMIT = 4 << 20
_ESCAPE = re.compile(r"\\([0-7]{3})")
#: File systems that other machines see.
_SHARED = frozenset(
    (
        *("nfs", "nfs4", "ceph", "lustre", "gpfs", "virtiofs", "9p", "beegfs", "glusterfs", "cifs", "smb3", "ocfs2"),
        *("gfs2", "afs", "wekafs", "pvfs2", "orangefs", "panfs", "cpfs"),
    )
)
#: In user space, and not shared: what lxcfs shows of the container, layers of an image, a desktop's.
_OWN_FUSE = frozenset(("fuse.lxcfs", "fuse.fuse-overlayfs", "fuse.gvfsd-fuse", "fuse.portal"))
#: Gone with the container.
_PASSING = frozenset(("overlay", "aufs", "tmpfs", "ramfs", "devtmpfs", "fuse.fuse-overlayfs"))
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/run/secrets", "/var/run/secrets", "/usr", "/lib")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line: `root` is the folder of the file system that is seen at `point`."""

    point: str
    root: str
    kind: str
    writable: bool

    @property
    def shared(self) -> bool:
        """Other machines see it, too."""
        return self.kind in _SHARED or (self.kind.startswith("fuse.") and self.kind not in _OWN_FUSE)

    @property
    def passing(self) -> bool:
        """It goes with the container, or with the pod (an emptyDir)."""
        return self.kind in _PASSING or "/kubernetes.io~empty-dir/" in self.root


def parse(text: str) -> list[Mount]:
    """The mounts of a mountinfo file, in their order; lines that are none are left out."""
    found = []
    for line in text.splitlines():
        head, dash, tail = line.partition(" - ")
        fields, behind = head.split(" "), tail.split(" ")
        if dash and len(fields) >= 6 and len(behind) >= 3:
            options = {*fields[5].split(","), *behind[2].split(",")}
            found.append(Mount(_plain(fields[4]), _plain(fields[3]), behind[0], "ro" not in options))
    return found


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def mounts(path: str = _FILE) -> list[Mount]:
    """The mounts that this process sees, none where they cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return parse(file.read(_LIMIT))
    except OSError:
        return []


def mount_of(path: str, known: Sequence[Mount]) -> Mount | None:
    """The mount that `path` lies on; the path itself need not exist."""
    real = os.path.realpath(path)
    best: Mount | None = None
    for mount in known:  # of two at one point the later one hides the other
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def shared_folder(known: Sequence[Mount], here: str) -> str | None:
    """A folder on a file system that outlives this container: `here` where it does, else a shared mount's own."""
    own = mount_of(here, known)
    if own is not None and own.shared and _usable(own, here):
        return here
    for mount in known:
        if mount.shared and _usable(mount, mount.point) and mount_of(mount.point, known) == mount:
            return mount.point
    return None


def _usable(mount: Mount, folder: str) -> bool:
    system = any(mount.point == place or mount.point.startswith(place + "/") for place in _SYSTEM)
    return mount.writable and not system and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
