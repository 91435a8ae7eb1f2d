"""Small files that are either whole or not there."""

from __future__ import annotations

import json
import os
from typing import Any


def write_json(path: str, value: Any) -> None:
    """Write 0600 beside `path`, then rename. Raises OSError, and leaves no other file behind."""
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(descriptor, json.dumps(value).encode())
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
