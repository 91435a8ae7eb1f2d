"""The beginning of one file, as the worker sees it."""

from __future__ import annotations

import os
import stat
from typing import Any

from . import folders
from .telling import say, write


def read(wanted: dict[str, Any]) -> None:
    """One line of JSON, then the bytes. A relative path begins in the worker's working folder. Raises Refused."""
    record = folders.record(wanted["folder"], wanted["uid"])
    base = record["workers"][0].get("chdir", "/")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(os.path.join(base, wanted["path"]), flags)
    except (OSError, ValueError):
        say({"event": "none"})
        return
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        say({"event": "none"})
        return
    with open(descriptor, "rb") as file:
        say({"event": "file"})
        left = wanted["limit"]
        while left > 0:
            data = file.read(min(left, 1 << 18))
            if not data:
                return
            write(data)
            left -= len(data)
