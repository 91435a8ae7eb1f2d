"""One line of JSON for each thing that is said, behind a mark, so that text of libraries between them does no harm."""

from __future__ import annotations

import os
import threading
import time

from . import streams

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: Says something about one command: `say(ev="...", ...)`. The last word on it carries `end=True`.
    Say = Callable[..., None]

MARK = b"\x1e"
_lock = threading.Lock()
_out = [1]


def redirect() -> None:
    """Keep standard output for these lines: what libraries and children print goes to standard error from now on."""
    _out[0] = os.dup(1)
    os.dup2(2, 1)


def emit(fields: dict[str, Any]) -> None:
    """Write one line. Thread-safe; not for forked children, whose lines the agent passes on."""
    line = MARK + streams.line(dict(fields, t=round(time.monotonic(), 6)))
    with _lock:
        streams.write(_out[0], line)


def speaker(number: int) -> Say:
    """For the command `number` of the client."""

    def say(**fields: Any) -> None:
        emit(dict(fields, re=number))

    return say
