"""The workers of the job: started, listened to, and their ends written down."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import children, files, processes
from .crilog import CriLog
from .loop import Loop

#: Seconds that a worker's pipes may stay open after everything of it has ended.
DRAIN_SECONDS = 2.0
READ_SIZE = 256 * 1024


class WorkerRun:
    """One worker: a process in its own session with its own folder, its log, and how it ended."""

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
        """`place`: the working folder of its processes. `markers`: bytes in its output that say that its trainer has
        failed. `on_end` is called once, at the end."""
        self.name = name
        self.folder = folder
        self.place = place
        self.ended = False
        self.stopping = False
        #: What it left behind is being killed.
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

    def begin(self, argv: Sequence[str], env: Mapping[str, str], soft_limit: int) -> None:
        """Start it. Raises StartError, or OSError on a full disk."""
        ends = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            child = children.spawn(
                argv,
                folder=self.place,
                env=env,
                stdio=(null, ends[0][1], ends[1][1]),
                session=True,
                soft_limit=soft_limit,
            )
        except children.StartError:
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
        files.write_json(f"{self.folder}/proc.json", {"pid": self.pid, "start": self.start, "started": time.time()})

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
        # A marker may lie across two reads: torchrun's output often comes through a `tee` that cuts anywhere.
        seam = self._seams.get(reader, b"") + data[: self._reach]
        self._seams[reader] = (seam if len(data) < self._reach else data)[-self._reach :]
        if any(marker in data or marker in seam for marker in self._markers):
            self._note_trainer_failure()

    def _note_trainer_failure(self) -> None:
        now = time.time()
        if now - self._marked_at < 1.0:
            return  # one block holds several markers
        self._marked_at = now
        with contextlib.suppress(OSError):  # a full disk must not cost the worker; the log holds the text too
            files.write_json(f"{self.folder}/trainer.json", {"failed_at": now})

    def note_stopping(self) -> None:
        """Somebody asked for its end: shown at once, and in how it ended."""
        self.stopping = True
        with contextlib.suppress(OSError):  # the note is for `ps` only
            files.write_json(f"{self.folder}/stopping", {"since": time.time()})

    def _close(self, reader: int) -> None:
        self._loop.forget(reader)
        os.close(reader)
        del self._open[reader]

    def reaped(self, status: int) -> None:
        """Its first process has ended with this wait status."""
        self._status = children.exit_code(status)
        if self._child is not None:
            self._child.returncode = self._status

    @property
    def exited(self) -> bool:
        """Its first process has ended; what that one left may still run."""
        return self._status is not None

    def when_ended(self, told: Callable[[], None]) -> None:
        """Call `told` when the exit stands in its file, or could not be written for now."""
        self._told.append(told)
        if self.ended:
            self._tell()

    def conclude(self) -> None:
        """Nothing of it runs any more: read the pipes to their end, then write the exit. Safe to call twice."""
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
            files.write_json(f"{self.folder}/exit.json", value)
        except FileNotFoundError:
            self.ended = True  # the entry was removed by hand: nobody is left to tell
        except OSError:
            self._loop.later(1.0, lambda: self._write_exit(when))  # a full disk: the exit code waits for room
        else:
            self.ended = True
        self._tell()
        if self.ended:
            self._on_end()
