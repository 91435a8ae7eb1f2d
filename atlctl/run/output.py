"""The output of a wrapped command: every byte to the wrapper's own streams, and a copy to the log.

Neither waits for the other. A log on a hanging or full disk loses lines, which are counted; the screen gets every byte.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.statedir import write_all
from atlctl.remote.supervisor.logs import Clock, CriLog

#: Most bytes that wait for the log; further ones are lost.
BUFFER = 4 << 20
#: Size and number of the files of a log.
MAX_BYTES, MAX_FILES = 64 << 20, 4
_READ = 1 << 16
#: After lines of less than so many bytes a pump waits so many seconds for more of them: each turn costs 0.1 ms.
_LITTLE, _GATHER_SECONDS = 1 << 12, 0.05
#: Bytes, the last ones of each turn, that are searched for steps, and lines with steps that are read: 20 a second.
_SEARCHED, _MOST_STEPS = 1 << 16, 4
#: Seconds for which lines are collected before they are written to the log, and between looks at a pump.
_PAUSE_SECONDS = 0.2


class Log:
    """A log that is written by a thread, since the disk may hang. `lost`: bytes that are not in it."""

    def __init__(self, folder: str, watched: Callable[[bytes], None] | None = None) -> None:
        """`watched` is called with what the thread has taken. Nothing is raised: without a folder all is lost."""
        self._folder, self._watched = folder, watched
        self._waiting: list[tuple[str, bytes, bytes]] = []
        self._clock = Clock()
        self._size = self._dropped = 0
        self._changed = threading.Condition()
        self._closing = False
        self._log: CriLog | None = None
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Bytes that were dropped, failed to be written, or still wait."""
        return self._dropped + self._size + (self._log.lost if self._log else 0)

    def put(self, stream: str, data: bytes) -> None:
        """Take output; never waits."""
        with self._changed:
            if self._size + len(data) > BUFFER or self._closing:
                self._dropped += len(data)
                return
            if not self._waiting:
                self._changed.notify()
            self._waiting.append((stream, data, self._clock.stamp()))
            self._size += len(data)

    def close(self, seconds: float) -> None:
        """Write the rest, for `seconds` at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            self._log = CriLog(self._folder, MAX_BYTES, MAX_FILES)
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    break
                if not self._closing and self._size < _READ:  # one turn for several lines costs a third
                    self._changed.wait_for(lambda: self._closing, _PAUSE_SECONDS)
                taken, self._waiting = self._waiting, []
            for stream, data, stamp in taken:
                if self._log is not None:
                    self._log.feed(stream, data, stamp)
            data = b"".join(data for _, data, _ in taken)
            if self._watched is not None:
                self._watched(data)
            with self._changed:
                self._size -= len(data)
                self._dropped += 0 if self._log is not None else len(data)
        if self._log is not None:
            self._log.close()


class Pump(threading.Thread):
    """Copies one stream of the command, from the pipe `source`, to the descriptor `screen` and to `log`."""

    def __init__(self, source: int, screen: int, stream: str, log: Log) -> None:
        super().__init__(name=stream, daemon=True)
        self._source, self._screen, self._stream, self._log = source, screen, stream, log
        #: Whether it waits for the reader of the screen.
        self.writing = False
        self.start()

    def run(self) -> None:
        shown = True
        with os.fdopen(self._source, "rb", buffering=0) as pipe:
            while data := pipe.read(_READ):
                self._log.put(self._stream, data)
                if shown:
                    self.writing = True
                    try:
                        write_all(self._screen, data)
                    except OSError:  # closed: the command goes on, as its log does
                        shown = False
                    self.writing = False
                if len(data) < _LITTLE and data.endswith(b"\n"):  # else the rest of a line comes at once
                    time.sleep(_GATHER_SECONDS)


class StepsOfOutput:
    """Reads the training's steps in the output of one attempt, writes them to `steps.jsonl` in `folder`, and calls
    `warn` when they become slow. `last`: number and time of the last step."""

    def __init__(self, worker: str, folder: str, warn: Callable[[Message], object]) -> None:
        from atlctl.diagnosis.stepfile import StepFolder, StepsFile  # not before there is output
        from atlctl.diagnosis.stepwatch import StepWatch

        self._worker, self._warn = worker, warn
        self._watch, self._file = StepWatch(), StepsFile(StepFolder(folder))
        self._rest = b""
        self.last: tuple[int, float] | None = None

    def feed(self, data: bytes) -> None:
        """Take output as it comes."""
        from atlctl.diagnosis.steps import step_sieve
        from atlctl.diagnosis.stepwatch import slow_text

        data = self._rest + data
        cut = len(data) > _SEARCHED
        data = data[-_SEARCHED:]
        *lines, self._rest = data.split(b"\n")
        if not step_sieve()(data):  # once for all of them
            return
        now = time.time()
        steps = list(islice(filter(step_sieve(), reversed(lines[cut:])), _MOST_STEPS))
        for line in reversed(steps):
            if (slow := self._watch.feed(self._worker, line, now)) is not None:
                self._warn(slow_text(slow))
        self._keep(self._watch.fresh())

    def close(self) -> None:
        """Write the last steps."""
        self._keep(self._watch.rest())

    def _keep(self, entries: list[dict[str, Any]]) -> None:
        if not entries:
            return
        from atlctl.diagnosis.steps import last_step

        self.last = last_step(self._watch.workers[self._worker].main())
        with contextlib.suppress(OSError, AtlctlError):  # they are in the log, too
            self._file.add(entries)


def drained(pumps: list[Pump], seconds: float) -> None:
    """Wait until the pipes are read to their ends: for a slow reader of the screen as long as it takes, for a process
    left behind that holds a pipe open `seconds` at most."""
    for pump in pumps:
        deadline = time.monotonic() + seconds
        while pump.is_alive() and (pump.writing or time.monotonic() < deadline):
            pump.join(_PAUSE_SECONDS)
