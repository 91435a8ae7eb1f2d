"""Runs `atlctl` as its users do: in a child process, on pipes or on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.support import zygote

#: A status line up to where it is erased, and the last erasing: how slow a machine is decides whether there is one.
STATUS_LINE = re.compile(rb"\r\x1b\[K(?:[^\r\n]*(?=\r\x1b\[K))?")
#: Warnings are errors in the child too; the flag is not inherited by what the child starts.
ATLCTL: tuple[str, ...] = (sys.executable, "-W", "error", "-m", "atlctl")


class Result(NamedTuple):
    """The result of a run. On a terminal `stdout` is the whole screen output without status lines, and `stderr` is
    empty.

    `code` is the exit code, or -N for signal N.
    """

    stdout: bytes
    stderr: bytes
    code: int


class CliTimeoutError(AssertionError):
    """The run did not end in time; its process group was killed with SIGKILL."""


def run_cli(
    *args: str,
    before: Sequence[str] = (),
    stdin: bytes | None = None,
    env: Mapping[str, str | None] | None = None,
    tty: bool = False,
    timeout: float = 100,
    columns: int = 80,
    rows: int = 24,
) -> Result:
    """Run `atlctl ARGS` to its end.

    `before`: words before the command line. `stdin`: bytes on a pipe (None: /dev/null); with `tty` they are typed.
    `env`: changes to this process's environment, None removes a variable. `tty`: all three streams on one terminal of
    `columns` x `rows`, which is the controlling terminal. `timeout` in seconds. Raises CliTimeoutError with the output
    so far.
    """
    if tty:
        return _on_terminal(args, stdin or b"", env, timeout, columns, rows)
    streams = {"stdin": subprocess.DEVNULL if stdin is None else subprocess.PIPE, "stdout": -1, "stderr": -1}
    with popen_cli(*args, before=before, env=env, **streams, start_new_session=True) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired as late:
            os.killpg(process.pid, signal.SIGKILL)
            raise CliTimeoutError(_late(args, timeout, (late.stdout or b"") + (late.stderr or b""))) from None
    return Result(stdout, stderr, process.returncode)


def popen_cli(
    *args: str, before: Sequence[str] = (), env: Mapping[str, str | None] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start `atlctl ARGS` with options of Popen, for tests that send it signals or keep its streams."""
    environment = _environment(env)
    if not before and _forks(environment, options):
        return zygote.Forked(args, env=environment, **options)
    return subprocess.Popen([*before, *ATLCTL, *args], env=environment, **options)


def _forks(env: Mapping[str, str], options: Mapping[str, Any]) -> bool:
    return ATLCTL[0] == sys.executable and zygote.forkable(env, options)


def _environment(extra: Mapping[str, str | None] | None) -> dict[str, str]:
    # A test's name may hold the secret that the test looks for.
    merged = {**os.environ, "PYTEST_CURRENT_TEST": None, **(extra or {})}
    return {name: value for name, value in merged.items() if value is not None}


def _on_terminal(
    args: tuple[str, ...], typed: bytes, env: Mapping[str, str | None] | None, timeout: float, columns: int, rows: int
) -> Result:
    terminal, line = pty.openpty()
    fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    streams = {"stdin": line, "stdout": line, "stderr": line}
    # setsid(1) makes the terminal the controlling one of a new session, then becomes atlctl; a fork does that itself.
    before = () if _forks(_environment(env), streams) else ("setsid", "--ctty")
    with popen_cli(*args, before=before, env=env, **streams) as run:
        os.close(line)
        try:
            screen = _talk(run, terminal, typed, time.monotonic() + timeout)
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                raise CliTimeoutError(_late(args, timeout, screen))
        finally:
            os.close(terminal)
    return Result(STATUS_LINE.sub(b"", screen), b"", run.returncode)


def _talk(run: subprocess.Popen[bytes], terminal: int, typed: bytes, deadline: float) -> bytes:
    """Type and read until the run has ended and the screen is quiet, or the deadline has passed."""
    screen = bytearray()
    while time.monotonic() < deadline:
        ended = run.poll() is not None
        readable, writable, _ = select.select([terminal], [terminal] if typed else [], [], 0 if ended else 0.02)
        if writable and not ended:
            typed = typed[os.write(terminal, typed) :]
        if readable:
            try:
                screen += os.read(terminal, 65536)
                continue
            except OSError:  # EIO: the terminal's other side is closed
                time.sleep(0.002)
        if ended:
            break
    return bytes(screen)


def _late(args: tuple[str, ...], timeout: float, printed: bytes) -> str:
    return f"atlctl {' '.join(args)}: not ended after {timeout} s; printed {printed[-2000:]!r}"
