"""Finds processes: by the mark that all children of a test inherit, or by process group (Linux, /proc)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

#: Environment variable with the running test's mark.
MARK = "ATLCTL_TEST_ID"


@dataclass(frozen=True, slots=True)
class Process:
    """A live process (not a zombie). `command`: its command line, joined by spaces."""

    pid: int
    parent: int
    group: int
    session: int
    command: str


def processes() -> Iterator[Process]:
    """All visible live processes."""
    for pid in _pids():
        if (process := read(pid)) is not None:
            yield process


def read(pid: int) -> Process | None:
    """A process; None if it has ended or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may contain spaces and parentheses.
            state, parent, group, session = file.read().rpartition(b")")[2].split()[:4]
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if state in b"ZX":
        return None
    return Process(pid, int(parent), int(group), int(session), command)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie has ended."""
    return read(pid) is not None


def marked(mark: str | None = None) -> list[Process]:
    """Live processes started under `mark`, by default this test's, without this process."""
    word = f"{MARK}={os.environ[MARK] if mark is None else mark}".encode()
    found = []
    for pid in _pids():
        words = _environ(pid)
        if word in words and pid != os.getpid() and (process := read(pid)) is not None:
            found.append(process)
    return found


def _environ(pid: int) -> bytes:
    """A process's environment; empty if it cannot be read. During an exec it is empty for a moment."""
    for _ in range(3):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                words = file.read()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return b""
        if words or (process := read(pid)) is None or 2 in (pid, process.parent):  # a zombie, a kernel thread
            return words
        time.sleep(0.001)
    return b""


def in_group(group: int) -> list[Process]:
    """Live processes of a process group."""
    return [process for process in processes() if process.group == group]


def named(text: str) -> list[Process]:
    """This test's live processes whose command line contains `text`."""
    return [process for process in marked() if text in process.command]


def wait_until(predicate: Callable[[], object], timeout: float = 100.0, interval: float | None = None) -> bool:
    """Poll `predicate` until it is true; False after `timeout` seconds. Without an `interval`, less and less often."""
    begun = time.monotonic()
    while not predicate():
        now = time.monotonic()
        if now > begun + timeout:
            return False
        time.sleep(min(0.02 + (now - begun) / 20, 0.1) if interval is None else interval)
    return True


_started = 0


def _note_start(event: str, _: tuple[Any, ...]) -> None:
    global _started
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"):
        _started += 1


sys.addaudithook(_note_start)


def started() -> int:
    """The number of processes started by this one. If a test started none, it need not search for leftovers."""
    return _started


def leftovers(mark: str, patience: float = 5.0) -> list[Process]:
    """Processes of `mark` that are still alive after `patience` seconds. Kills them with SIGKILL."""
    if wait_until(lambda: not marked(mark), patience):
        return []
    left = marked(mark)
    # Repeat, to include processes started meanwhile.
    wait_until(lambda: not _kill(marked(mark)), patience)
    return left


def _kill(targets: list[Process]) -> list[Process]:
    for process in targets:
        kill(process)
    return targets


def kill(process: Process) -> None:
    """SIGKILL, if the process still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())
