"""Child processes of the agent for operations that may block in the kernel (a dead mount, a stuck driver), and the
agent's cleanup steps.

Threads do not help: a process cannot end while one of its threads is blocked in the kernel, and its output stream stays
open. A blocked child has none of the agent's descriptors: the agent abandons it, and it ends when the kernel releases
it. A child is a new Python, because the agent has threads, and a fork copies only one of them.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time

from atlctl.remote import proc, sending
from atlctl.remote.sentences import Sentence

from . import wire

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

#: Maximum bytes of a child's line.
_LINE = 4 << 20


class Silent(Exception):
    """The child did not answer in time."""


class Gone(Exception):
    """The child has ended; the argument is its last line on standard error."""


class Child:
    """A Python process that runs `function(argument)` of `module`, sent with the agent's modules that it imports.

    It writes lines of JSON. When the agent ends for any reason, the child's input ends.
    """

    def __init__(self, module: ModuleType, function: str, argument: Any) -> None:
        given = json.dumps(argument).encode()
        sent = sending.packed(sending.needed(module.__name__, wire.__name__))
        words = [sys.executable or "/proc/self/exe", "-S", "-u", "-c", sending.boot(), wire.__name__, str(len(sent))]
        words += ["--", module.__name__, function, str(len(given))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        self._held = b""
        self._write(sent + given)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, **fields: Any) -> None:
        self._write(wire.line(fields))

    def hear(self, seconds: float) -> dict[str, Any]:
        """The next line. Raises `Silent` or `Gone`."""
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        while b"\n" not in self._held:
            if not _ready(self._process.stdout.fileno(), end - time.monotonic()):
                raise Silent
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data or len(self._held) > _LINE:
                raise Gone(self._last())
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        return dict(json.loads(line))

    def state(self) -> tuple[str, str]:
        """The process's state letter (`D`: uninterruptible wait) and its wait location in the kernel."""
        found = proc.text(f"/proc/{self.pid}/stat", 4096).rpartition(")")[2].split()
        place = proc.text(f"/proc/{self.pid}/wchan", 100)
        return (found[0] if found else "?"), ("" if place == "0" else place)

    def let_go(self) -> None:
        """Close its input, so that it cleans up and ends."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def ended(self, seconds: float) -> bool:
        """Wait up to `seconds`; whether it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill it. If it is in an uninterruptible wait, it is abandoned and ends when the kernel releases it."""
        self._process.kill()
        self.ended(0.2)

    def close(self) -> None:
        """Close the pipes."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _write(self, data: bytes) -> None:
        # A child reads its input first, so these few KiB do not block.
        assert self._process.stdin is not None
        try:
            wire.write(self._process.stdin.fileno(), data)
        except (BrokenPipeError, ValueError):
            raise Gone(self._last()) from None

    def _last(self) -> str:
        self.ended(0.5)
        assert self._process.stderr is not None
        descriptor = self._process.stderr.fileno()
        said = os.read(descriptor, 1 << 16) if _ready(descriptor, 0) else b""
        lines = said.decode("utf-8", "backslashreplace").strip().splitlines()
        return lines[-1][:300] if lines else Sentence("it ended with {code}", code=self._process.returncode)


def call(module: ModuleType, function: str, argument: Any, seconds: float) -> tuple[dict[str, Any] | None, str]:
    """The line printed by `function`, or None and the reason why there is none."""
    child = Child(module, function, argument)
    name = f"child {child.pid}"
    at_end(name, child.kill)
    try:
        return child.hear(seconds), ""
    except Silent:
        state, place = child.state()
        told = {"seconds": f"{seconds:g}", "state": state, "place": place}
        if not place:
            return None, Sentence("no answer in {seconds} s (process state {state})", **told)
        return None, Sentence("no answer in {seconds} s (process state {state}, in {place})", **told)
    except Gone as gone:
        return None, gone.args[0]
    finally:
        child.kill()
        child.close()
        not_at_end(name)


def _ready(descriptor: int, seconds: float) -> bool:
    poll = select.poll()  # `select` refuses descriptors above 1023, which a large mesh may have in use
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


# Cleanup at the end of the agent (except by SIGKILL): written files, started processes

_lock = threading.Lock()
_steps: dict[str, Callable[[], object]] = {}


def at_end(name: str, step: Callable[[], object]) -> None:
    """Run `step` at the end, unless it is removed by `name` before."""
    with _lock:
        _steps[name] = step


def not_at_end(name: str) -> None:
    with _lock:
        _steps.pop(name, None)


def undo() -> None:
    """Run all steps, newest first; a failed step does not prevent the others."""
    while True:
        with _lock:
            if not _steps:
                return
            _, step = _steps.popitem()
        try:
            step()
        except OSError:
            continue
