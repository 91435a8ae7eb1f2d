"""`atlctl` on a terminal on which a test types and reads while it runs."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from tests.support import proc
from tests.support.cli import ATLCTL

# Leads the terminal's session instead of a shell: when a leader ends, the terminal hangs up and resets its mode before
# a test can check it. Writes the exit code to one pipe, and exits when the other is closed.
_LEADER = """
import os, signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
def foreground():
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
code = subprocess.call(sys.argv[4:], preexec_fn=foreground if sys.argv[3] == "job" else None)
os.write(int(sys.argv[1]), b"%d" % code)
os.close(int(sys.argv[1]))
while os.read(int(sys.argv[2]), 1):
    pass
"""


class Terminal:
    """A context manager that starts `atlctl ARGS` and kills the rest at the end. `screen`: all output so far.

    `job`: in a separate process group, as started by a shell. Only then SIGTSTP can stop it.
    """

    def __init__(
        self,
        *args: str,
        env: Mapping[str, str | None],
        columns: int = 80,
        rows: int = 24,
        flags: tuple[str, ...] = (),
        job: bool = False,
    ) -> None:
        self.screen = b""
        self._seen = 0
        self._ended = False
        self._terminal, self.line = pty.openpty()
        self.resize(columns, rows)
        self.before = self.mode()
        self._codes, told = os.pipe()
        hold, self._hold = os.pipe()
        merged = {**os.environ, **env}
        self._leader = subprocess.Popen(
            [
                *("setsid", "--ctty", sys.executable, "-I", "-S", "-c", _LEADER, str(told), str(hold)),
                "job" if job else "",
                *(*ATLCTL[:1], *flags, *ATLCTL[1:], *args),
            ],
            env={name: value for name, value in merged.items() if value is not None},
            stdin=self.line,
            stdout=self.line,
            stderr=self.line,
            pass_fds=(told, hold),
        )
        os.close(told)
        os.close(hold)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._hold)
        if not self._ended:
            os.killpg(self._leader.pid, signal.SIGKILL)
        self._leader.wait()
        for descriptor in (self._terminal, self.line, self._codes):
            os.close(descriptor)

    @property
    def pid(self) -> int:
        """The PID of atlctl itself."""

        def children() -> list[proc.Process]:
            return [process for process in proc.processes() if process.parent == self._leader.pid]

        assert proc.wait_until(children)
        return children()[0].pid

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def mode(self) -> list[Any]:
        """The terminal's settings from termios."""
        return termios.tcgetattr(self.line)

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def wait_for(self, text: bytes, timeout: float = 100) -> bytes:
        """Read until `text` appears in the output since the last wait; returns that output."""
        start = self._seen
        deadline = time.monotonic() + timeout
        while (at := self.screen.find(text, start)) < 0:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.screen[start:]!r}"
            self._read(0.05)
        self._seen = at + len(text)
        return self.screen[start : self._seen]

    def poll(self) -> None:
        """Read the output that is available now or in a moment."""
        self._read(0.05)

    def code(self, timeout: float = 100) -> int:
        """Wait for the end of atlctl; returns its exit code, or -N if signal N killed it."""
        deadline = time.monotonic() + timeout
        while not select.select([self._codes], [], [], 0)[0]:
            assert time.monotonic() < deadline, f"atlctl has not ended: {self.screen[-2000:]!r}"
            self._read(0.02)
        code = int(os.read(self._codes, 16))
        self._ended = True
        while self._read(0.02):
            pass
        return code

    def _read(self, seconds: float) -> bool:
        if not select.select([self._terminal], [], [], seconds)[0]:
            return False
        try:
            self.screen += os.read(self._terminal, 65536)
        except OSError:  # EIO: hung up
            return False
        return True
