"""Workers of the job and commands executed in them: starts them, reads their output, records their ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import resource
import shlex
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import processes
from .folders import write_json
from .logs import CriLog
from .loop import Loop


class StartError(Exception):
    """A command did not start; with a shell's exit code: 126, 127, else 125."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.reason = reason


def exit_code(status: int) -> int:
    """The exit code of a wait status, or the negative signal, as in `Popen.returncode`."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _preparation(terminal: bool, group: bool, soft_limit: int) -> Callable[[], None] | None:
    """The function to run in the new process before the command; None if not needed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limited = soft_limit != hard
    if not (terminal or group or limited):
        return None

    def prepare() -> None:
        if group:
            os.setpgid(0, 0)
        if limited:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard))
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    return prepare


def spawn(
    argv: Sequence[str],
    *,
    folder: str,
    env: Mapping[str, str],
    stdio: tuple[int, int, int],
    session: bool,
    soft_limit: int,
    terminal: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `argv` as leader of a new process group or session. Raises StartError.

    `terminal`: stdin is a terminal and becomes the controlling one. `soft_limit`: its limit on descriptors.
    """
    own_group = not (session or terminal)
    # Python 3.8 has no such option, which is cheaper than a preexec function.
    by_option = own_group and sys.version_info >= (3, 11)
    start: type[subprocess.Popen[bytes]] | functools.partial[subprocess.Popen[bytes]] = subprocess.Popen
    if by_option:
        start = functools.partial(subprocess.Popen, process_group=0)
    try:
        return start(
            list(argv),
            cwd=folder,
            env=dict(env),
            stdin=stdio[0],
            stdout=stdio[1],
            stderr=stdio[2],
            start_new_session=session or terminal,
            preexec_fn=_preparation(terminal, own_group and not by_option, soft_limit),
        )
    except OSError as error:
        raise _explained(error, argv[0], folder) from error
    except (ValueError, subprocess.SubprocessError) as error:
        raise StartError(125, f"{argv[0]}: {error}") from error


def open_screen(folder: str) -> tuple[int, int]:
    """Open the standard output and error of the process with this `/proc/PID/fd`. Raises OSError, as for a socket."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC
    return os.open(f"{folder}/1", flags), os.open(f"{folder}/2", flags)


def _explained(error: OSError, program: str, folder: str) -> StartError:
    if error.filename == folder:
        return StartError(125, f"the worker's working folder cannot be entered: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return StartError(127, f"{program}: command not found")
    cannot_run = isinstance(error, (PermissionError, NotADirectoryError)) or error.errno == errno.ENOEXEC
    return StartError(126 if cannot_run else 125, f"{program}: {error.strerror or error}")


#: Seconds for which a worker's pipes may stay open after all its processes have ended.
DRAIN_SECONDS = 2.0
READ_SIZE = 256 * 1024


class WorkerRun:
    """A worker: a process with its own session, folder and log, and its result."""

    def __init__(
        self,
        loop: Loop,
        folder: str,
        place: str,
        name: str,
        markers: Sequence[bytes],
        log_limits: tuple[int, int],
        on_end: Callable[[], None],
    ) -> None:
        """`place`: the working folder. `markers`: bytes in its output that show a failed trainer. `on_end` is called
        once."""
        self.name = name
        self.folder = folder
        self.place = place
        self.ended = False
        self.stopping = False
        #: Whether the processes that it left behind are being killed.
        self.cleaning = False
        self._concluding = False
        self.pid = 0
        self.start = 0
        self._status: int | None = None
        self._loop = loop
        self._on_end = on_end
        self._told: list[Callable[[], None]] = []
        self._markers = tuple(markers)
        self._marked_at = 0.0
        self._reach = max((len(marker) for marker in self._markers), default=1)
        self._seams: dict[int, bytes] = {}
        self._open: dict[int, str] = {}
        self._log = CriLog(f"{folder}/log", *log_limits)
        self._child: subprocess.Popen[bytes] | None = None
        self._screen: tuple[int, int] | None = None
        self._attempt = 0

    def show_on(self, folder: str, attempt: int) -> None:
        """Give it the standard output and error of another process (`folder`: its `/proc/PID/fd`) in place of a log,
        with a line about the beginning and the end of this attempt. Raises OSError."""
        self._screen = open_screen(folder)
        self._attempt = attempt

    def _announce(self, text: str) -> None:
        """Formats that `diagnosis.logline` reads."""
        if self._screen is not None:
            with contextlib.suppress(OSError):
                os.write(
                    self._screen[0], f"atlctl: attempt {self._attempt}{text}\n".encode("utf-8", "backslashreplace")
                )

    def begin(self, argv: Sequence[str], env: Mapping[str, str], soft_limit: int) -> None:
        """Start it. Raises StartError; OSError on a full disk."""
        ends = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        out, err = self._screen or (ends[0][1], ends[1][1])
        self._announce(": " + " ".join(map(shlex.quote, argv)))
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            child = spawn(
                argv,
                folder=self.place,
                env=env,
                stdio=(null, out, err),
                session=True,
                soft_limit=soft_limit,
            )
        except StartError:
            for reader, _ in ends:
                os.close(reader)
            raise
        finally:
            os.close(null)
            for _, writer in ends:
                os.close(writer)
        self._child, self.pid = child, child.pid
        identity = processes.stat(child.pid)
        self.start = identity.start if identity else 0
        for (reader, _), stream in zip(ends, ("stdout", "stderr")):  # noqa: B905  strict is younger than Python 3.8
            os.set_blocking(reader, False)
            self._open[reader] = stream
            self._loop.read(reader, functools.partial(self._readable, reader))
        write_json(f"{self.folder}/proc.json", {"pid": self.pid, "start": self.start, "started": time.time()})

    def _readable(self, reader: int) -> None:
        try:
            data = os.read(reader, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(reader)
            return
        self._log.feed(self._open[reader], data)
        # A marker may be split across two reads: torchrun's output often passes through a `tee` that cuts anywhere.
        seam = self._seams.get(reader, b"") + data[: self._reach]
        self._seams[reader] = (seam if len(data) < self._reach else data)[-self._reach :]
        if any(marker in data or marker in seam for marker in self._markers):
            self._note_trainer_failure()

    def _note_trainer_failure(self) -> None:
        now = time.time()
        if now - self._marked_at < 1.0:
            return  # one block contains several markers
        self._marked_at = now
        with contextlib.suppress(OSError):  # a full disk must not end the worker; the log contains the text, too
            write_json(f"{self.folder}/trainer.json", {"failed_at": now})

    def note_stopping(self) -> None:
        """Record a requested end, for `ps` and for its result."""
        self.stopping = True
        with contextlib.suppress(OSError):  # the note is only for `ps`
            write_json(f"{self.folder}/stopping", {"since": time.time()})

    def _close(self, reader: int) -> None:
        self._loop.forget(reader)
        os.close(reader)
        del self._open[reader]

    def reaped(self, status: int) -> None:
        """Record the wait status of its first process."""
        self._status = exit_code(status)
        if self._child is not None:
            self._child.returncode = self._status

    @property
    def exited(self) -> bool:
        """Whether its first process has ended; others may still run."""
        return self._status is not None

    def when_ended(self, told: Callable[[], None]) -> None:
        """Set the callback for when the exit is written, or could not be written for now."""
        self._told.append(told)
        if self.ended:
            self._tell()

    def conclude(self) -> None:
        """All its processes have ended: read the pipes to the end, then write the exit. Can be called repeatedly."""
        if self._concluding:
            return
        self._concluding = True
        deadline = time.monotonic() + DRAIN_SECONDS

        def look() -> None:
            for reader in list(self._open):
                self._readable(reader)
            if self._open and time.monotonic() < deadline:
                self._loop.later(0.01, look)
                return
            for reader in list(self._open):
                self._close(reader)
            self._log.close()
            self._write_exit(time.time())

        look()

    def _tell(self) -> None:
        told, self._told = self._told, []
        for tell in told:
            tell()

    def _write_exit(self, when: float) -> None:
        code = self._status if self._status is not None else -9
        value: dict[str, Any] = {
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "ended": when,
            "stopped": self.stopping,
            "log_bytes_lost": self._log.lost,
        }
        try:
            write_json(f"{self.folder}/exit.json", value)
        except FileNotFoundError:
            self.ended = True  # the folder was removed by hand, so there is no one to notify
        except OSError:
            self._loop.later(1.0, lambda: self._write_exit(when))  # a full disk: retry until there is space
        else:
            self.ended = True
        self._tell()
        if self.ended:
            self._announce(f" ended: exit code {code}" if code >= 0 else f" ended: signal {-code}")
            self._on_end()
