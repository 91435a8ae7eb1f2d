"""Lines of JSON over any descriptor. Lines from the agent to the client start with a mark, so that other output between
them is ignored."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time

from atlctl.remote.sentences import plain

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    #: Sends an event of one command: `say(ev="...", ...)`. The last event has `end=True`.
    Say = Callable[..., None]

MARK = b"\x1e"
_lock = threading.Lock()
_out = [1]


def write(descriptor: int, data: bytes) -> None:
    """Write all data, even if each call takes only a part."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def tell(descriptor: int, value: Any) -> None:
    """Write one line. Not thread-safe: a long line is written in parts."""
    write(descriptor, line(value))


def line(value: Any) -> bytes:
    return json.dumps(plain(value), separators=(",", ":")).encode() + b"\n"


def cut(held: bytearray) -> list[bytes]:
    """Remove and return the complete lines in `held`; an incomplete line stays."""
    whole, end, _ = held.rpartition(b"\n")
    del held[: len(whole) + len(end)]
    return [bytes(one) for one in whole.split(b"\n") if one]


def lines(descriptor: int) -> Iterator[bytes]:
    """The lines of a descriptor until its end."""
    held = bytearray()
    while True:
        data = os.read(descriptor, 1 << 16)
        if not data:
            return
        held += data
        yield from cut(held)


# A child of the agent


def main(module: str, function: str, size: str) -> None:
    """Run `function` of `module` with an argument of `size` bytes from standard input, and only the standard library:
    PYTHONPATH is ignored."""
    library = os.path.dirname(os.__file__)
    sys.path[:] = [library, library + "/lib-dynload"]
    data = b""
    while len(data) < int(size):
        got = os.read(0, int(size) - len(data))
        if not got:
            return
        data += got
    getattr(importlib.import_module(module), function)(json.loads(data))


# Output of the agent


def redirect() -> None:
    """Reserve standard output for events: output of libraries and children goes to standard error from now on."""
    _out[0] = os.dup(1)
    os.dup2(2, 1)


def emit(fields: dict[str, Any]) -> None:
    """Write one event. Thread-safe; not for forked children, whose events the agent forwards."""
    data = MARK + line(dict(fields, t=round(time.monotonic(), 6)))
    with _lock:
        write(_out[0], data)


def speaker(number: int) -> Say:
    """The `say` function for the client's command `number`."""

    def say(**fields: Any) -> None:
        emit(dict(fields, re=number))

    return say
