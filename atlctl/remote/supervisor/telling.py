"""How the program here speaks to the client: lines of JSON on standard output, bytes behind them."""

from __future__ import annotations

import json
import os
from typing import Any


class Refused(Exception):
    """What was asked for is not done.

    `kind`: absent, replaced, running, taken, elsewhere, not_allowed, cannot_start, failed.
    """

    def __init__(self, kind: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.told = {"event": "failed", "kind": kind, "message": message, **more}


def explained(error: OSError, path: str) -> Refused:
    """What went wrong with a file or folder."""
    denied = isinstance(error, PermissionError) or error.strerror == os.strerror(30)  # a file system for reading only
    return Refused("not_allowed" if denied else "failed", f"{error.filename or path}: {error.strerror or error}")


def say(message: dict[str, Any]) -> None:
    """One line. Raises OSError where nobody reads any more."""
    write(json.dumps(message).encode() + b"\n")


def write(data: bytes) -> None:
    """All of these bytes."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
