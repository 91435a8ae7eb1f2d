"""Starts a command in a container that something else has started, as the next attempt of the training there.

The dialogue is that of `starting`. Command, variables and folder are those of the attempt before if this module has
started it, else those that `sh/stop.sh` has noted of the command that it ended. Without a note the command is unknown,
and variables and folder are those of the container's first process. The output goes to that of the first process, and
so to the container's log.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from atlctl.remote import cgroups, proc
from atlctl.remote.ranks import Finder

from . import folders, processes
from .asked import answer
from .starting import Told, begin_apart, check, take_steps
from .telling import Refused
from .workers import open_screen

#: Maximum bytes of a noted command line or environment.
_LIMIT = 8 << 20


def main(_: str, details: str) -> None:
    """Entry point, as in `starting`. Never returns."""
    answer(lambda wanted: take_steps(wanted, _InPlace), details)


def _first_process() -> int:
    """The container's first process: the oldest of its cgroup, as some containers see processes of others."""
    group = cgroups.of("/proc/self")
    own = [
        (entry.start, pid)
        for pid, entry in proc.everything().items()
        if cgroups.within(cgroups.of(f"/proc/{pid}"), group)
    ]
    return min(own)[1]


def _trains() -> bool:
    finder = Finder()
    # Descendants of a rank that have not loaded torch yet have this one, too.
    marked = [pid for pid, environ in finder.environs.items() if b"TORCHELASTIC_RUN_ID" in environ]
    return bool(any(map(finder.ours, marked)) or finder.launchers() or finder.processes())


class _InPlace(Told):
    """The next attempt in this container. `undo` reverts it until `keep`."""

    _argv: list[str] | None = None
    _screen: str | None = None

    def prepare(self) -> dict[str, Any]:
        first = _first_process()
        container = processes.identity(first)
        if self._wanted["container"] not in (None, container):
            raise Refused("replaced", "its container has been started anew")
        if _trains():
            raise Refused("running", "a training runs in it")
        self._take_folder()
        attempt, source = self._find(first)
        self._argv = self._wanted["again"] or self._argv
        if self._argv is not None:
            check(self._argv, self._place, self._env)
        self._screen = _screen_of(first)
        self._fill_folder()
        log = None if self._screen else f"{self.folder}/workers/{self._wanted['own']}/log/0.log"
        found_out = {"argv": self._argv, "chdir": self._place, "attempt": attempt, "from": source, "log": log}
        return {**found_out, "container": container}

    def _find(self, first: int) -> tuple[int, str]:
        """Find command, variables and folder; returns the number of this attempt, and their source."""
        spec, env = (folders.read_json(f"{self._aside}/{name}.json") for name in ("spec", "env"))
        if spec and env:
            self._argv, self._env, self._place = spec["argv"], env, spec["workers"][0]["chdir"]
            return int(spec["attempt"]) + 1, "attempt"
        noted = f"{self._state}/stopped/{self._wanted['own']}"
        argv, environ, place = (proc.read(f"{noted}/{name}", _LIMIT) for name in ("cmdline", "environ", "cwd"))
        source = "stopped"
        if not (argv and environ and place):
            environ, place = proc.read(f"/proc/{first}/environ", _LIMIT), os.fsencode(proc.link(f"/proc/{first}/cwd"))
            argv, source = b"", "container"
            if not environ:
                raise Refused("failed", "the environment of its first process cannot be read")
        self._argv = [os.fsdecode(word) for word in argv.split(b"\0")[:-1]] or None
        self._env = {os.fsdecode(name): os.fsdecode(text) for name, text in proc.environment(environ).items()}
        self._place = os.fsdecode(place).rstrip("\n")
        return 2, source

    def go(self, order: dict[str, Any]) -> None:
        worker = {"name": self._wanted["own"], "folder": self._wanted["own"], "env": {}, "chdir": self._place}
        spec = {**self._wanted, "argv": self._argv, "attempt": order["attempt"], "screen": self._screen}
        begin = functools.partial(begin_apart, self.folder)
        self._start.go({**spec, "workers": [worker]}, self._env, None, begin)


def _screen_of(first: int) -> str | None:
    """The folder of the first process's descriptors, if its output can be opened."""
    try:
        for descriptor in open_screen(f"/proc/{first}/fd"):
            os.close(descriptor)
    except OSError:
        return None
    return f"/proc/{first}/fd"
