"""Small files that are either whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any


def write_json(path: str, value: Any) -> None:
    """Write 0600 beside `path`, then rename. Raises OSError, and leaves no other file behind."""
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(json.dumps(value).encode())
            while view:  # a disk that is nearly full takes a part
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
