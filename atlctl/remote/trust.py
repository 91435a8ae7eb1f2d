"""Decides which programs of other processes are safe to run. Also part of the smoke test's boot.

Any user may run a program called `python`, and a Python imports files next to it before the first line of its code.
Therefore two conditions:

- A process of this user runs it: all its user IDs equal this process's, read before and after checking its program. (A
  process may change its user, and its PID may be reused, between two checks.)
- Only owners can write to the file and to the folders above it. Owners other than this user and root are trusted,
  because this user runs their program already (shared storage often maps root to another user), but not if one of the
  folders is world-writable (/tmp): there a freed name can be taken. Write permissions of root's group and of the
  owner's private group, which has the owner's number, count as the owner's.
"""

from __future__ import annotations

import os

_KIND, _LINK, _FOLDER, _FILE, _STICKY = 0o170000, 0o120000, 0o040000, 0o100000, 0o1000


def ids(at: str) -> bytes:
    """The user IDs of the process with the folder `at` in /proc. Raises OSError."""
    with open(at + "/status", "rb") as file:
        return next((line for line in file if line.startswith(b"Uid:")), b"")


def runs(at: str, program: str) -> bool:
    """Whether the process with the folder `at` in /proc runs `program` as this user. Raises OSError."""
    me = ids("/proc/self")
    return ids(at) == me and os.path.samefile(program, at + "/exe") and ids(at) == me


def safe(path: str, strict: bool = False) -> bool:
    """Whether only owners can change the target of the absolute `path`, through any links. Raises OSError.

    `strict`: do not trust owners other than this user and root.
    """
    here, places, links, todo = "/", {"/"}, 0, path.split("/")[::-1]
    while todo:
        up, here = here, os.path.normpath(os.path.join(here, todo.pop()))
        places.add(here)
        if os.path.islink(here):
            links += 1
            if links > 40:
                return False
            target = os.readlink(here)
            todo += target.split("/")[::-1]
            here = "/" if target.startswith("/") else up
    foreign = False
    for place in places:
        found = os.lstat(place)
        foreign = foreign or found.st_uid not in (0, os.geteuid())
        if found.st_mode & _KIND == _LINK:
            continue
        if found.st_mode & _KIND not in (_FOLDER, _FILE):
            return False
        private = found.st_gid in (0, found.st_uid) and "system.posix_acl_access" not in os.listxattr(place)
        if found.st_mode & 0o020 and not private:
            return False
        if found.st_mode & 0o002:
            if not found.st_mode & _STICKY:
                return False
            strict = True
    return not (strict and foreign)


def others() -> list[str]:
    """Pythons run by processes of this user, under the conditions above.

    Each is the path that started the process, because it leads to its virtual environment. Relative paths with foreign
    owners are excluded: the process may have changed its working folder. Processes of this worker come first, and of
    these the ones that torchrun started.
    """
    found, own = [], {name: os.fsencode(os.environ.get(name, "")) for name in ("ATLCTL_JOB", "ATLCTL_WORKER")}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        at = "/proc/" + pid
        try:
            if not os.path.basename(os.readlink(at + "/exe")).startswith("python"):
                continue
            with open(at + "/cmdline", "rb") as file:
                name = os.fsdecode(file.read(4096).split(b"\0")[0])
            with open(at + "/environ", "rb") as file:
                env = dict(word.partition(b"=")[::2] for word in file.read(1 << 17).split(b"\0"))
            if "/" in name:
                path = os.path.join(os.readlink(at + "/cwd"), name)
            else:
                paths = [os.path.join(d, name) for d in os.fsdecode(env.get(b"PATH", b"")).split(":")]
                path = next(filter(os.path.exists, paths), "")
            if os.path.isabs(path) and runs(at, path) and safe(path, "/" in name and path != name):
                alien = any(env.get(os.fsencode(name), b"") != value for name, value in own.items())
                found.append((alien, b"LOCAL_RANK" not in env, path))
        except OSError:
            continue
    return list(dict.fromkeys(path for _, _, path in sorted(found)))
