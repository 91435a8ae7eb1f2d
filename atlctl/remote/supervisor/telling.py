"""Output to the client: lines of JSON on standard output, followed by bytes."""

from __future__ import annotations

import json
import os
from typing import Any


class Refused(Exception):
    """The request was refused.

    `kind`: absent, replaced, running, taken, elsewhere, not_allowed, cannot_start, failed.
    """

    def __init__(self, kind: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.told = {"event": "failed", "kind": kind, "message": message, **more}


def explained(error: OSError, path: str) -> Refused:
    """The refusal for an error with a file or folder."""
    denied = isinstance(error, PermissionError) or error.strerror == os.strerror(30)  # a read-only file system
    return Refused("not_allowed" if denied else "failed", f"{error.filename or path}: {error.strerror or error}")


def say(message: dict[str, Any]) -> None:
    """Write one line. Raises OSError if the client no longer reads."""
    write(json.dumps(message).encode() + b"\n")


def write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
