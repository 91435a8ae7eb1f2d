"""The last part of a log that was recorded in several files: by bytes, or from a moment on."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

#: A recorder's stamps are in UTC, so that the order of their bytes is that of time; seconds are exact enough.
_STAMP = re.compile(rb"(?:^|\n)(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+Z ")
#: Bytes in which a line with a stamp is looked for, and the distance to a line's place that is near enough.
_WINDOW, _NEAR = 1 << 16, 1 << 18


@dataclass(frozen=True, slots=True)
class Ends:
    """How much of each worker's log is read: at least the last `share` bytes, and all lines printed since a moment.

    `since` in seconds since the epoch; None where bytes alone count. It holds for logs with stamps.
    """

    share: int
    since: float | None = None

    def of(self, paths: Sequence[str]) -> tuple[list[tuple[str, int]], bool]:
        """Files of one log that are there, oldest first, and the bytes of each to leave out; whether anything is.

        A recorder that goes on removes the oldest file from time to time.
        """
        there = [path for path in paths if os.path.lexists(path)] or list(paths)
        begin = None if self.since is None else f"{datetime.fromtimestamp(self.since, UTC):%Y-%m-%dT%H:%M:%S}".encode()
        left = self.share
        wanted: list[tuple[str, int]] = []
        for path in reversed(there):
            skip = max(0, os.lstat(path).st_size - left)
            left -= os.lstat(path).st_size
            early = begin is not None and skip > 0
            if early and begin is not None:
                skip = min(skip, _before(path, begin))
            wanted.append((path, skip))
            if skip or (left <= 0 and not early):
                break
        return wanted[::-1], len(wanted) < len(there) or bool(wanted[-1][1])


def _before(path: str, begin: bytes) -> int:
    """Bytes of a file that were printed before `begin`, some fewer; 0 where its lines have no stamps."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        low, high = 0, os.fstat(fd).st_size
        while high - low > _NEAR:
            middle = (low + high) // 2
            found = _STAMP.search(os.pread(fd, _WINDOW, middle))
            if found is None:
                return 0
            if found[1] < begin:
                low = middle + found.start()
            else:
                high = middle
        return low
    finally:
        os.close(fd)
