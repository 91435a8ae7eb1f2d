"""Real local processes as those of a container: started, watched and ended without a thread for each."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import termios
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

#: Environment variable of all processes of a pod: "<server>/<pod UID>".
MARK = "ATLCTL_TEST_POD"
#: The mark of the running test, passed on so that the suite finds leftovers.
TEST_MARK = "ATLCTL_TEST_ID"


class StartError(Exception):
    """The container runtime's message for a command that cannot start."""


class TooLongError(StartError):
    """An argument, or all of them together, is too long."""


@dataclass(slots=True)
class Child:
    """A started process. `code` is set when it has ended: 128 + the signal if it was killed by one."""

    pid: int
    ended: asyncio.Future[int]

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process or to its group, if it still runs."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if group else os.kill)(self.pid, number)


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    stdin: int,
    stdout: int,
    stderr: int,
    *,
    tty: bool = False,
) -> Child:
    """Start `argv` in its own session. Raises StartError with the container runtime's message."""
    if not argv:
        raise StartError("OCI runtime exec failed: exec failed: args must not be empty")
    prefix = "OCI runtime exec failed: exec failed: unable to start container process: "
    program = shutil.which(argv[0], path=env.get("PATH", "")) if "/" not in argv[0] else argv[0]
    if program is None or not argv[0]:
        raise StartError(f'{prefix}exec: "{argv[0]}": executable file not found in $PATH')
    try:
        process = subprocess.Popen(
            argv,
            executable=program,
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            close_fds=False,  # every descriptor of Python's is closed on exec anyway, and this is faster
            preexec_fn=_take_terminal if tty else None,
        )
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise TooLongError(f"exec {program}: argument list too long") from None
        words = (os.strerror(error.errno) if error.errno else str(error)).lower()
        stat = "stat " + argv[0] + ": " if error.errno == errno.ENOENT else ""
        raise StartError(f'{prefix}exec: "{argv[0]}": {stat}{words}') from None
    except ValueError as error:  # a NUL byte in an argument
        raise StartError(f"{prefix}{error}") from None
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    _watch(process, ended)
    return Child(process.pid, ended)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _watch(process: subprocess.Popen[bytes], ended: asyncio.Future[int]) -> None:
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(process.pid)

    def over() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        code = process.wait()
        if not ended.done():
            ended.set_result(code if code >= 0 else 128 - code)

    loop.add_reader(handle, over)


def marked(server: str, uids: Collection[str] | None = None) -> Iterator[int]:
    """Processes of a server's pods, including zombies: of those with one of `uids`, or of all."""
    word = f"{MARK}={server}/".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                words = b"\0" + file.read()
            _, found, rest = words.partition(b"\0" + word)
            if found and (uids is None or rest.partition(b"\0")[0].decode(errors="replace") in uids):
                yield int(name)


def kill_marked(server: str, uids: Collection[str] | None = None) -> None:
    """SIGKILL these processes repeatedly, to include those started meanwhile."""
    for _ in range(20):
        living = [pid for pid in marked(server, uids) if not _is_zombie(pid)]
        if not living:
            return
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal. A container's first process ignores all others except SIGKILL."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/status") as file:
            mask = int(file.read().partition("SigCgt:")[2].split()[0], 16)
        return bool(mask >> (number - 1) & 1)
    return False


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"ZX"
    except OSError:
        return True


def describe(pid: int) -> dict[str, object]:
    """Information about a process for tests."""
    command, parent, state, group = "", 0, "?", 0
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        state, parent, group = fields[0].decode(), int(fields[1]), int(fields[2])
    return {"pid": pid, "parent": parent, "group": group, "state": state, "command": command}


class Pipe:
    """The read end of a pipe or terminal, read only on request: a writer without a reader blocks."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd

    async def read(self, size: int = 32768) -> bytes:
        """The next bytes; empty at the end."""
        # A process that prints fast always has some: the event loop must run even so.
        await asyncio.sleep(0)
        while True:
            try:
                return os.read(self.fd, size)
            except BlockingIOError:
                await self._ready()
            except OSError as error:  # a terminal whose other side is closed
                if error.errno == errno.EIO:
                    return b""
                raise

    async def write(self, data: bytes) -> bool:
        """Write all of `data`; False if the other side is closed."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:
                await self._ready(writing=True)
            except OSError:
                return False
        return True

    async def _ready(self, *, writing: bool = False) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
        add(self.fd, _set, ready)
        try:
            await ready
        finally:
            if self.fd >= 0:
                remove(self.fd)

    def close(self) -> None:
        if self.fd >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.fd)
            loop.remove_writer(self.fd)
            os.close(self.fd)
            self.fd = -1


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
