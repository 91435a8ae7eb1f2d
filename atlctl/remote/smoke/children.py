"""Children of the agent, for what may block where no signal reaches (a dead mount, a stuck driver), and what is undone
at the agent's end.

A thread would do no better than the agent itself: as long as one of its threads waits in the kernel, a process cannot
end, and the stream that it writes to stays open. A child that is stuck holds none of the agent's descriptors: the agent
leaves it behind, and it ends when the kernel lets go of it. It is a fresh Python, since the agent has threads, of which
a fork takes half.
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

#: Bytes of one line of a child.
_LINE = 4 << 20


class Silent(Exception):
    """Nothing was said in time."""


class Gone(Exception):
    """The child has ended; its argument is what it said last on standard error."""


class Child:
    """A Python that runs `function(argument)` of `module`. What that imports of the agent's modules goes with it.

    It speaks lines of JSON. Its input ends when the agent ends, however that comes about.
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
        """The next line. Raises `Silent` and `Gone`."""
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
        """The letter of the process's state (`D`: waits where no signal reaches) and where in the kernel it waits."""
        found = proc.text(f"/proc/{self.pid}/stat", 4096).rpartition(")")[2].split()
        place = proc.text(f"/proc/{self.pid}/wchan", 100)
        return (found[0] if found else "?"), ("" if place == "0" else place)

    def let_go(self) -> None:
        """End its input: it undoes what it did and ends."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def ended(self, seconds: float) -> bool:
        """Whether it has ended, `seconds` from now at the latest."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """At once. One that waits where no signal reaches is left behind: it ends when the kernel lets go of it."""
        self._process.kill()
        self.ended(0.2)

    def close(self) -> None:
        """It is not spoken with any more."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _write(self, data: bytes) -> None:
        # A child reads its input before it does anything else: these few KiB do not wait for it to do so.
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
    """The one line that `function` prints, or None and why there is none."""
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


# The end of the agent, whatever ends it short of SIGKILL: files it wrote, processes it started

_lock = threading.Lock()
_steps: dict[str, Callable[[], object]] = {}


def at_end(name: str, step: Callable[[], object]) -> None:
    """`step` runs at the end, unless it is dropped by `name` before."""
    with _lock:
        _steps[name] = step


def not_at_end(name: str) -> None:
    with _lock:
        _steps.pop(name, None)


def undo() -> None:
    """Newest first; a step that fails keeps no other from running."""
    while True:
        with _lock:
            if not _steps:
                return
            _, step = _steps.popitem()
        try:
            step()
        except OSError:
            continue
