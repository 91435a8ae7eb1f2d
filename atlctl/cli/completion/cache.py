"""The cache of names: its place, reading it, and when it should be refreshed.

    CACHE/atlctl/names/KIND-HASH.json    the names of one place, see `Scope`
    CACHE/atlctl/names/.refresh          exists while a refresh runs

CACHE is `$XDG_CACHE_HOME`, else `~/.cache`. Files are 0600, folders 0700. Read on TAB, so no slow imports. The files
may be another user's: anything malformed is ignored. Written by `keep`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

from atlctl.backends.kubernetes.kubeconfig import in_cluster, kubeconfig_paths
from atlctl.jobs.configfiles import config_files
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.statedir import check_private, ensure_dir, read_bytes, xdg_base

#: Seconds for which a list of names is new enough, and how long is waited after a refresh that failed.
FRESH, RETRY = 15.0, 60.0
#: Seconds that a refresh may take at most; then it is killed.
LIMIT = 30
#: Names that were not seen for so many seconds are not offered any more.
KEPT = 24 * 3600.0
#: Bytes of a file here.
MAX_FILE = 1 << 20
SCHEMA = 1
LOCK = ".refresh"

_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
ALLOWED = _LETTERS | frozenset("._/:@=-")
_LONGEST = 512


def safe(names: list[str]) -> list[str]:
    """Names that mean nothing special to any shell, terminal or option parser, without doubles."""
    return list(dict.fromkeys(filter(is_safe, names)))


def is_safe(name: object) -> bool:
    """Whether `name` is a text `[A-Za-z0-9][A-Za-z0-9._/:@=-]*` of moderate length."""
    return isinstance(name, str) and name[:1] in _LETTERS and ALLOWED.issuperset(name) and 0 < len(name) <= _LONGEST


class Scope:
    """Whose names: a kind (`jobs`, `contexts`, `namespaces`, `lists`) and the options that lead there again.

    `files` are what decides about it (kubeconfigs, configuration files): where one of them was changed, nothing
    that was known before counts.
    """

    def __init__(self, kind: str, asked: dict[str, str], files: list[str]) -> None:
        self.kind = kind
        self.asked = asked
        self.files = files

    @property
    def key(self) -> list[str]:
        """The identity of a scope. The option by which a file was named does not count."""
        asked = [f"{name}={value}" for name, value in sorted(self.asked.items()) if name != "kubeconfig"]
        return [self.kind, *asked, *self.files]

    def stamp(self) -> list[list[int]]:
        """The state of the files."""
        return [_state(path) for path in self.files]

    def path(self) -> str:
        """The file of this scope."""
        value = 0xCBF29CE484222325  # FNV-1a; the file repeats the key, so a collision is a miss
        for byte in "\0".join(self.key).encode("utf-8", "surrogateescape"):
            value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        return os.path.join(folder(), f"{self.kind}-{value:016x}.json")


def _state(path: str) -> list[int]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return [0, 0, 0]
    return [found.st_mtime_ns, found.st_size, found.st_ino]


def cluster_scope(kind: str, kubeconfig: str = "", context: str = "", namespace: str = "") -> Scope | None:
    """The cluster selected by these options; None if none is configured."""
    files = [os.path.abspath(path) for path in kubeconfig_paths(kubeconfig)]
    if not files and (kubeconfig or not in_cluster()):
        return None
    asked = {"kubeconfig": files[0] if kubeconfig else "", "context": context, "namespace": namespace}
    return Scope(kind, {name: value for name, value in asked.items() if value}, files)


def contexts_scope(kubeconfig: str = "") -> Scope | None:
    """The contexts of a kubeconfig."""
    scope = cluster_scope("contexts", kubeconfig)
    return scope if scope is not None and scope.files else None


def lists_scope() -> Scope | None:
    """The lists of hosts of the configuration; None if there is no configuration."""
    try:
        files = config_files(os.environ, os.getcwd())
    except OSError:
        return None  # the folder was removed under the shell
    return Scope("lists", {}, files) if files else None


def folder() -> str:
    """The folder of the cache. Nothing is created or checked."""
    return os.path.join(xdg_base("XDG_CACHE_HOME", ".cache"), "atlctl", "names")


def load(scope: Scope) -> dict[str, Any]:
    """The cache entry of the scope: `listed` and `tried` (times), `names` by name; empty if there is none.

    The form is validated, the names are not: see `known`.
    """
    try:
        check_private(folder(), os.path.dirname(folder()))
        found = os.lstat(scope.path())
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return {}
        entry = json.loads(read_bytes(scope.path(), MAX_FILE))
    except (AtlctlError, OSError, ValueError, RecursionError):
        return {}
    if not isinstance(entry, dict) or entry.get("schema") != SCHEMA or entry.get("scope") != scope.key:
        return {}
    if entry.get("stamp") != scope.stamp() or not isinstance(entry.get("names"), dict):
        return {}
    return entry


def known(entry: dict[str, Any]) -> dict[str, Any]:
    """The names of an entry that may be shown, each with `workers`, `roles` (lists of such names) and `active`."""
    names = {}
    for name, about in entry.get("names", {}).items():
        if is_safe(name) and isinstance(about, dict) and within(about.get("seen"), KEPT):
            lists = {part: about[part] if isinstance(about.get(part), list) else [] for part in ("workers", "roles")}
            names[name] = {**lists, "active": about.get("active") is True, "seen": about["seen"]}
    return names


def due(entry: dict[str, Any]) -> bool:
    """Whether its names should be looked up anew."""
    return not within(entry.get("listed"), FRESH) and not within(entry.get("tried"), RETRY)


def within(moment: object, seconds: float) -> bool:
    """Whether `moment`, seconds since the epoch, is at most `seconds` ago. A time to come is none to rely on."""
    return isinstance(moment, int | float) and 0 <= time.time() - moment < seconds


def refresh(scopes: list[Scope]) -> None:
    """Start a background process that looks these names up, unless one runs already or none can be started.

    It has its own session, no terminal and none of the descriptors of this process, so no shell waits for it.
    """
    if not scopes or not sys.executable or not _claimed():
        return
    request = json.dumps([{"kind": scope.kind, **scope.asked} for scope in scopes])
    # -P: do not import from the working folder.
    words = [sys.executable, "-P", "-m", "atlctl.cli.completion.refresh", request]
    try:
        child = os.fork()
    except OSError:
        return
    if child == 0:
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.closerange(3, 1024)
            os.execv(words[0], words)  # noqa: S606 - this very interpreter
        finally:
            os._exit(127)


def _claimed() -> bool:
    """Whether the lock is this process's now. One that was left behind counts for as long as a refresh may take."""
    lock = os.path.join(folder(), LOCK)
    with suppress(AtlctlError, OSError):
        ensure_dir(folder(), os.path.dirname(folder()))
        for _ in range(2):
            try:
                os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                if within(os.lstat(lock).st_mtime, LIMIT + 5.0):
                    return False
                os.unlink(lock)
            else:
                return True
    return False
