"""Starts a job's workers on this machine, in step with other hosts: a line of JSON in, a line of JSON out.

  specification       ready      everything is prepared, nothing runs; with `again` the next attempt of a job
  go                  started    it runs, and will be ended unless it is kept
  keep                kept       it stays, even without the client
  undo, or nothing    undone     everything is removed (`left`: something does not end)

If the client disappears, the start is undone: at the end of standard input, or on SIGTERM from the guard.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NoReturn

from . import boot, folders, processes
from .asked import answer
from .boot import KEEP
from .logs import attempts
from .telling import Refused, explained, say

#: Maximum bytes of a client's line: a command line and an environment. The kernel allows 6 MiB for each.
MAX_STEP = 32 * 1024 * 1024
#: Maximum seconds until the client's next step.
PATIENCE_SECONDS = 300


class _Gone(BaseException):
    """The client has gone or is not responding."""


def main(_: str, details: str) -> None:
    """Entry point. `details` is JSON. Never returns."""
    answer(start, details)


def start(wanted: dict[str, Any]) -> None:
    """Run the whole dialogue. Raises Refused, with everything undone."""
    take_steps(wanted, lambda wanted: _NextTold(wanted) if "again" in wanted else Told(wanted))


def take_steps(wanted: dict[str, Any], made: Callable[[dict[str, Any]], Told | _NextTold]) -> None:
    """The dialogue; `made` gives the start of a specification. Raises as `start`."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, _leave)
    try:
        wanted = {**wanted, **_hear()}
    except _Gone:
        return
    begun = made(wanted)
    try:
        say({"event": "ready", **begun.prepare()})
        order = _hear()
        if order["do"] == "go":
            begun.go(order)
            say({"event": "started"})
            order = _hear()
        if order["do"] == "keep":
            begun.keep()
            say({"event": "kept"})
            return
    except _Gone:
        begun.undo()
        return
    except OSError as error:
        begun.undo()
        raise explained(error, begun.folder) from error
    except boot.Failed as failed:
        begun.undo()
        raise Refused("failed", str(failed)) from None
    except BaseException:
        begun.undo()
        raise
    say({"event": "undone" if begun.undo() else "left"})


def _leave(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    raise _Gone


def _hear() -> dict[str, Any]:
    signal.alarm(PATIENCE_SECONDS)
    line = sys.stdin.buffer.readline(MAX_STEP)
    signal.alarm(0)
    if not line.endswith(b"\n"):
        raise _Gone
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def environment(wanted: dict[str, Any], inherited: Mapping[str, str], state: str) -> dict[str, str]:
    """Environment variables of all workers of a job, except the port."""
    leaking = re.compile(wanted["leaking"])
    env = {key: value for key, value in inherited.items() if not leaking.fullmatch(key)}
    for key in ("PWD", "OLDPWD"):
        env.pop(key, None)
    env["MASTER_ADDR"] = wanted["master_addr"]
    env.update(wanted["env"])
    env.update(wanted["contract"])
    env["ATLCTL_STATE_DIR"] = state
    return env


class Start:
    """A supervisor with its workers. `go` starts them, `keep` lets them stay, `end` ends them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._link: socket.socket | None = None
        self._boot = (0, 0)

    def go(self, wanted: dict[str, Any], env: dict[str, str], port: int | None, begin: Callable[[int], int]) -> None:
        """Write the specification, start the supervisor and the workers. `port`: None for that of `env`. `begin` takes
        its end of a socket and returns the PID. Raises Refused if the workers cannot be started, OSError,
        boot.Failed."""
        spec = {
            **{key: wanted[key] for key in ("name", "uid", "created", "argv", "workers", "failure_markers")},
            **{key: wanted[key] for key in ("log_max_bytes", "log_max_files")},
            "master_port": port,
            "umask": wanted.get("umask", boot.umask()),
            "attempt": wanted.get("attempt", 1),
            "screen": wanted.get("screen"),
        }
        folders.write_json(f"{self.folder}/spec.json", spec)
        folders.write_json(f"{self.folder}/env.json", env if port is None else {**env, "MASTER_PORT": str(port)})
        self._link, theirs = socket.socketpair()
        with theirs:
            pid = begin(theirs.fileno())
        found = processes.stat(pid)
        self._boot = (pid, found.start if found else 0)
        answer = boot.await_start(self._link, self.folder)
        if not answer.get("ok"):
            code = answer.get("exit_code", 1)
            kind = "cannot_start" if code in (125, 126, 127) else "failed"
            raise Refused(kind, str(answer.get("message")), code=code)

    def keep(self) -> None:
        assert self._link is not None
        with contextlib.suppress(BrokenPipeError):  # all its workers have ended already
            self._link.sendall(KEEP)
        self._link.close()

    def end(self) -> bool:
        """End the supervisor, which exits unless it was kept. False if something does not end."""
        if self._link is not None:
            self._link.close()
        deadline = time.monotonic() + boot.UNDO_SECONDS
        while self._boot[0] and processes.alive(*self._boot):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


#: Files of one attempt in a worker's folder. The working folder stays.
_OF_ATTEMPT = ("log", "exit.json", "proc.json", "trainer.json", "stopping")


class NextAttempt:
    """The next attempt of a job in its folder, with the environment and working folders of the one before. `undo`
    restores what was there, until `keep`."""

    def __init__(self, folder: str, record: dict[str, Any]) -> None:
        """`record`: the content of `job.json`. Raises Refused unless all workers have ended."""
        folders.must_have_ended(record)
        self.folder = folder
        before = {name: folders.read_json(f"{folder}/{name}.json") or {} for name in ("spec", "env")}
        self._spec, self._env = before["spec"], before["env"]
        if not (str(self._env.get("MASTER_PORT")).isdigit() and self._spec.get("workers")):
            raise Refused("failed", "the record of its environment is damaged")
        self._before = {"job": record, **before}
        self._own = [f"{folder}/workers/{one.get('folder', one['name'])}" for one in self._spec["workers"]]
        self._start = Start(folder)
        self._moved = 0

    def ready(self, argv: list[str] | None) -> dict[str, Any]:
        """The next attempt: the same command, or `argv`. Raises Refused if it cannot be started."""
        argv = argv or self._spec["argv"]
        places = [one.get("chdir") or f"{own}/work" for one, own in zip(self._spec["workers"], self._own)]  # noqa: B905
        for place in sorted(set(places)):
            check(argv, place, self._env)
        earlier = max(number for own in self._own for number in (0, *attempts(own)))
        return {"argv": argv, "chdir": places[0], "attempt": earlier + 2, "port": int(self._env["MASTER_PORT"])}

    def go(self, argv: list[str], number: int, port: int, begin: Callable[[int], int]) -> None:
        """Start it as attempt `number`. Raises as `Start.go`."""
        self._moved = number - 1
        for own in self._own:
            for name in _OF_ATTEMPT:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(f"{own}/{name}", f"{own}/{name}.{self._moved}")
            folders.private(f"{own}/log")
        self._start.go({**self._spec, "argv": argv, "attempt": number}, self._env, port, begin)

    def keep(self) -> None:
        self._start.keep()

    def undo(self) -> bool:
        """End what was started, and restore the attempt before; False if something does not end."""
        if not self._start.end():
            return False
        for own in self._own if self._moved else ():
            for name in _OF_ATTEMPT:
                with contextlib.suppress(OSError):
                    os.unlink(f"{own}/{name}")
                with contextlib.suppress(OSError):
                    folders.remove(f"{own}/{name}")
                with contextlib.suppress(OSError):
                    os.rename(f"{own}/{name}.{self._moved}", f"{own}/{name}")
        for name, value in self._before.items() if self._moved else ():
            with contextlib.suppress(OSError):
                folders.write_json(f"{self.folder}/{name}.json", value)
        return True


def check(argv: list[str], place: str, env: Mapping[str, str]) -> None:
    """Raise Refused with the error of a shell for the working folder and the command."""
    if not os.path.isdir(place):
        raise Refused("cannot_start", f"{place}: no such folder", code=125)
    if not os.access(place, os.X_OK):
        raise Refused("cannot_start", f"{place}: permission denied", code=125)
    word = argv[0]
    folder_list = [""] if "/" in word else os.get_exec_path(env)
    paths = [os.path.join(place, folder, word) for folder in folder_list]
    if not any(os.path.exists(path) for path in paths):
        raise Refused("cannot_start", f"{word}: command not found", code=127)
    if not any(os.path.isfile(path) and os.access(path, os.X_OK) for path in paths):
        raise Refused("cannot_start", f"{word}: cannot be executed", code=126)


def begin_apart(folder: str, link: int) -> int:
    """Start the supervisor through a process that exits at once: it is then not a child of this process and does
    not have the guard's mark, so that only the socket decides whether it stays."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            env = {key: value for key, value in os.environ.items() if key != "ATLCTL_EXEC"}
            # No bytecode cache: only this job uses the program.
            said = str(boot.begin(f"{folder}/program", folder, link, env, "-B").pid).encode()
        except OSError as error:
            said = f"{error.filename}: {error.strerror}".encode()
        finally:
            os.write(writer, said)
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    if not said.isdigit():
        raise Refused("failed", said.decode("utf-8", "replace") or "the supervisor could not be started")
    return int(said)


def _undisturbed() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


class _NextTold:
    """The next attempt of one worker for a remote client."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self._wanted = wanted
        self.folder = wanted["folder"]
        self._lock: folders.Lock | None = None
        self._next: NextAttempt | None = None
        self._argv: list[str] = []

    def prepare(self) -> dict[str, Any]:
        folders.record(self.folder, self._wanted["uid"])  # the lock needs the folder
        self._lock = folders.Lock(self.folder)
        self._next = NextAttempt(self.folder, folders.record(self.folder, self._wanted["uid"]))
        ready = self._next.ready(self._wanted["again"])
        self._argv = ready["argv"]
        if self._wanted["chooses_port"]:
            ready["port"] = boot.choose_port(None, ready["port"])
        return ready

    def go(self, order: dict[str, Any]) -> None:
        assert self._next is not None
        self._next.go(self._argv, order["attempt"], order["port"], functools.partial(begin_apart, self.folder))

    def keep(self) -> None:
        assert self._next is not None
        assert self._lock is not None
        self._next.keep()
        self._lock.release()

    def undo(self) -> bool:
        _undisturbed()
        undone = self._next is None or self._next.undo()
        if self._lock is not None:
            self._lock.release()
        return undone


class Told:
    """The start of one worker for a remote client. `undo` reverts it until `keep`."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self._wanted = wanted
        self._state = folders.state()
        job = f"{self._state}/{folders.TREE}/{wanted['name']}"
        self.folder = f"{job}/{wanted['own']}"
        self._aside = f"{job}/.old-{wanted['own']}"
        self._lock: folders.Lock | None = None
        self._start = Start(self.folder)
        #: Whether the content of `folder` belongs to this start.
        self._ours = False
        self._env: dict[str, str] = {}
        self._place = ""

    def prepare(self) -> dict[str, Any]:
        """All steps that can fail before a process is started."""
        self._take_folder()
        self._place = os.path.normpath(os.path.join(os.getcwd(), self._wanted["chdir"] or "."))
        self._env = environment(self._wanted, os.environ, self._state)
        check(self._wanted["argv"], self._place, self._env)
        port = self._port() if self._wanted["chooses_port"] else None
        self._fill_folder()
        return {"folder": self.folder, "chdir": self._place, "port": port, "host": os.uname().nodename}

    def _take_folder(self) -> None:
        for path in (f"{self._state}/{folders.TREE}", os.path.dirname(self.folder)):
            folders.private(path)
        self._lock = folders.Lock(self.folder)
        self._give_way()
        self._ours = True

    def _fill_folder(self) -> None:
        own = f"/workers/{self._wanted['own']}"
        for part in ("", "/program", "/workers", own, f"{own}/work", f"{own}/log"):
            folders.private(self.folder + part)
        # The modules that were sent include the supervisor.
        texts: dict[str, str] = sys.modules["__main__"].texts
        for name in sorted(texts):
            path = "/program/" + name.replace(".", "/")
            if any(other.startswith(name + ".") for other in texts):
                folders.private(self.folder + path)
                path += "/__init__"
            self._write(path + ".py", texts[name])

    def _write(self, path: str, text: str) -> None:
        descriptor = os.open(self.folder + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)

    def _give_way(self) -> None:
        """Move an ended job's folder aside; one that runs, or may run on another machine, stays."""
        if os.path.islink(self.folder):
            raise folders.linked(self.folder)
        # A killed start may have left both: the folder moved aside is the job.
        if os.path.isdir(self._aside) and not os.path.exists(f"{self.folder}/job.json"):
            folders.delete(self.folder)
            os.rename(self._aside, self.folder)
        folders.delete(self._aside)
        found = folders.read_json(f"{self.folder}/job.json")
        if found is None:
            folders.delete(self.folder)
            return
        if not self._wanted["gives_way"]:
            raise Refused("taken", f"a job of the name {self._wanted['name']} is there already")
        presence, place = folders.presence(found)
        if presence == "alive":
            raise Refused("running", f"a job of the name {self._wanted['name']} runs there")
        if presence == "elsewhere":
            raise Refused(
                "elsewhere", f"a job of the name {self._wanted['name']} was started in that folder on {place}"
            )
        os.rename(self.folder, self._aside)

    def _port(self) -> int:
        wanted = self._wanted["port"]
        port = boot.choose_port(wanted, self._wanted["default_port"])
        if port is None:
            raise Refused("failed", f"port {wanted} is in use there")
        return port

    def go(self, order: dict[str, Any]) -> None:
        """Start the supervisor and the worker. Raises as `Start.go`."""
        workers = [
            {**worker, "folder": self._wanted["own"], "chdir": self._place} for worker in self._wanted["workers"]
        ]
        begin = functools.partial(begin_apart, self.folder)
        self._start.go({**self._wanted, "workers": workers}, self._env, order["port"], begin)

    def keep(self) -> None:
        self._start.keep()
        with contextlib.suppress(Refused):  # it runs; the next start removes the rest of the old one
            folders.delete(self._aside)
        if self._lock is not None:
            self._lock.release()

    def undo(self) -> bool:
        """End everything started and restore the previous state; False if something does not end."""
        _undisturbed()
        if self._lock is None:
            return True  # the content is not from this start
        if not self._start.end():
            self._lock.release()
            return False
        with contextlib.suppress(Refused, OSError):
            if self._ours:
                folders.delete(self.folder)
            if self._ours and os.path.isdir(self._aside):
                os.rename(self._aside, self.folder)
        self._lock.release()
        return True
