"""Starts commands in forks of a process that has imported `atlctl`: each takes a tenth of the CPU time.

As a program, `zygote.py FD` reads requests from a socket until its other end is closed. Each comes with a socket for
the command's PID and exit status, its folder and its three streams.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Beginnings of variables that Python, C libraries and imported modules read only at the start of a process.
AT_START = ("PYTHON", "LD_", "MALLOC_", "SSL_")
#: Options of Popen that a fork can have. It always has a new session.
OPTIONS = {"stdin", "stdout", "stderr", "bufsize", "cwd", "start_new_session"}
#: What commands import when they need it, beside `atlctl`.
LIBRARIES = ("aiohttp", "asyncssh", "rich.console", "rich.table", "yaml", "zstandard")
#: The variable by which tests find processes; the kernel shows the value that a process was started with.
MARK, NOBODY = "ATLCTL_TEST_ID", "0" * 32
#: Notes on processes that were gone.
NOTES = Path(__file__).parents[2] / "build" / "zygote.log"
#: Of a PID and an exit status on the socket.
DIGITS = 8


# In the tests


class Forked(subprocess.Popen[bytes]):
    """`atlctl ARGS` in a fork, in a new session. It is no child of this process: its end is read from a socket."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[3:9]
        sys.audit("subprocess.Popen", executable, args, cwd, env)
        streams = [stream if stream != -1 else number for number, stream in enumerate((p2cread, c2pwrite, errwrite))]
        details = json.dumps({"args": args, "env": env, "umask": _umask()}).encode() + b"\n"
        folder = os.open(cwd or ".", os.O_PATH)
        try:
            self.pid = self._forked(details, [folder, *streams])
        except OSError as error:
            _forget(error)
            self.pid = self._forked(details, [folder, *streams])
        finally:
            os.close(folder)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _forked(self, details: bytes, fds: list[int]) -> int:
        """The PID of a new fork. Raises OSError."""
        self._end, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(_zygote(), [b"."], [theirs.fileno(), *fds])
            self._end.sendall(details)
            return self._number()
        except OSError:
            self._end.close()
            raise

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout and max(timeout, 0))[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(self._number())
            self._end.close()
        return self.returncode

    def _number(self) -> int:
        data = self._end.recv(DIGITS, socket.MSG_WAITALL)
        if len(data) < DIGITS:
            raise ConnectionResetError("the process that forks has ended")
        return int(data)


def forkable(env: Mapping[str, str], options: Mapping[str, object]) -> bool:
    """Whether a fork is as a new process with this environment and these options of Popen."""
    return options.keys() <= OPTIONS and _at_start(env) == _at_start(_environment())


def _at_start(env: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """Of the locale, the encoding alone counts."""
    locale = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG", "")
    return {name: value for name, value in env.items() if name.startswith(AT_START)}, locale.endswith(".UTF-8")


_before_tests = dict(os.environ)


@functools.cache
def _environment() -> dict[str, str]:
    from tests.support import isolation

    own = {name: value for name, value in _before_tests.items() if not isolation.FOREIGN.fullmatch(name)}
    return {**own, **isolation.environment(Path("/")), MARK: NOBODY}


@functools.cache
def _start() -> socket.socket:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        fd, null = theirs.fileno(), subprocess.DEVNULL
        program = [sys.executable, "-W", "error", __file__, str(fd)]
        options: dict[str, Any] = {"pass_fds": [fd], "stdin": null, "stdout": null, "start_new_session": True}
        process = subprocess.Popen(program, env=_environment(), cwd="/", **options)
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _forget(error: OSError) -> None:
    """The process that forks is gone, or its socket was closed: let another one start, and note that."""
    with _starting:
        _start.cache_clear()
    NOTES.parent.mkdir(exist_ok=True)
    with NOTES.open("a") as log:
        print(time.ctime(), os.environ.get("PYTEST_CURRENT_TEST"), repr(error), file=log)


_starting = threading.Lock()


def _zygote() -> socket.socket:
    with _starting:
        return _start()


def _umask() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask"))


# In the zygote


def _load() -> None:
    import atlctl

    for module in pkgutil.walk_packages(atlctl.__path__, "atlctl."):
        if not module.name.startswith(("atlctl.packaging", "atlctl.remote", "atlctl.cli.demo_job")):
            importlib.import_module(module.name)
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _serve(requests: socket.socket) -> None:
    """Fork for each request. Returns in the forks, as what was asked for, and at the end of the requests."""
    mark = _initial(MARK)
    running: dict[int, tuple[int, socket.socket]] = {}  # by PID descriptor
    while True:
        readable = select.select([requests.fileno(), *running], [], [])[0]
        for ended in running.keys() & readable:
            pid, end = running.pop(ended)
            _tell(end, os.waitpid(pid, 0)[1])
            end.close()
            os.close(ended)
        if requests.fileno() not in readable:
            continue
        data, fds, _, _ = socket.recv_fds(requests, 1, 5)
        if not data:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            for unused in (requests, *(end for _, end in running.values())):
                unused.detach()
            _become(fds, mark)
            return
        for fd in fds[1:]:
            os.close(fd)
        end = socket.socket(fileno=fds[0])
        _tell(end, pid)
        running[os.pidfd_open(pid)] = pid, end


def _tell(end: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the test has given up
        end.sendall(f"{number:{DIGITS}}".encode())


def _initial(name: str) -> int:
    """The address of the value of a variable as /proc shows it."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    address: int = getenv(name.encode())
    return address


def _become(fds: list[int], mark: int) -> None:
    """Make this process what a new one would be."""
    with open(fds[0], closefd=False) as end:
        details: dict[str, Any] = json.loads(end.readline())
    os.setsid()
    os.fchdir(fds[1])
    for number, fd in enumerate(fds[2:]):
        os.dup2(fd, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.umask(details["umask"])
    ctypes.memmove(mark, details["env"].get(MARK, NOBODY).encode(), len(NOBODY))
    os.environ.clear()
    os.environ.update(details["env"])
    time.tzset()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        binary = open(number, old.buffer.mode, 0 if isinstance(old.buffer, io.FileIO) else -1, closefd=False)  # noqa: SIM115
        lines = old.line_buffering or binary.isatty()
        new = io.TextIOWrapper(binary, old.encoding, old.errors, line_buffering=lines, write_through=old.write_through)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    with contextlib.suppress(FileNotFoundError):
        sys.path[0] = os.getcwd()
    sys.argv[1:] = details["args"]


if __name__ == "__main__":
    _load()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from atlctl import __main__ as command

    sys.argv[0] = command.__file__
    command.main()
