"""Lines of JSON: through any descriptor, and those of the agent to the client, each behind a mark, so that text of
libraries between them does no harm."""

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

    #: Says something about one command: `say(ev="...", ...)`. The last word on it carries `end=True`.
    Say = Callable[..., None]

MARK = b"\x1e"
_lock = threading.Lock()
_out = [1]


def write(descriptor: int, data: bytes) -> None:
    """All of it, however little of it is taken at once."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def tell(descriptor: int, value: Any) -> None:
    """One line. Not for several threads at once: a long line goes in parts."""
    write(descriptor, line(value))


def line(value: Any) -> bytes:
    return json.dumps(plain(value), separators=(",", ":")).encode() + b"\n"


def cut(held: bytearray) -> list[bytes]:
    """Takes the whole lines out of `held`; the beginning of the next one stays."""
    whole, end, _ = held.rpartition(b"\n")
    del held[: len(whole) + len(end)]
    return [bytes(one) for one in whole.split(b"\n") if one]


def lines(descriptor: int) -> Iterator[bytes]:
    """Until its end."""
    held = bytearray()
    while True:
        data = os.read(descriptor, 1 << 16)
        if not data:
            return
        held += data
        yield from cut(held)


# A child of the agent


def main(module: str, function: str, size: str) -> None:
    """Runs `function` of `module` with the argument that is the next `size` bytes of standard input. With the standard
    library and nothing else: what is in PYTHONPATH is no business of these."""
    library = os.path.dirname(os.__file__)
    sys.path[:] = [library, library + "/lib-dynload"]
    data = b""
    while len(data) < int(size):
        got = os.read(0, int(size) - len(data))
        if not got:
            return
        data += got
    getattr(importlib.import_module(module), function)(json.loads(data))


# The agent's own


def redirect() -> None:
    """Keep standard output for these lines: what libraries and children print goes to standard error from now on."""
    _out[0] = os.dup(1)
    os.dup2(2, 1)


def emit(fields: dict[str, Any]) -> None:
    """Write one line. Thread-safe; not for forked children, whose lines the agent passes on."""
    data = MARK + line(dict(fields, t=round(time.monotonic(), 6)))
    with _lock:
        write(_out[0], data)


def speaker(number: int) -> Say:
    """For the command `number` of the client."""

    def say(**fields: Any) -> None:
        emit(dict(fields, re=number))

    return say
