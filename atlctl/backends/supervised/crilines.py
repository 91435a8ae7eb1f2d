"""Lines of a CRI log file to lines of a log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from atlctl.backends.base import LogLine, Stream

#: A line longer than this comes in pieces, the first ones marked as not complete.
MAX_LINE = 16 * 1024 * 1024
#: More lines of the files than one line may be cut into (pieces of 16 KiB).
PIECES = MAX_LINE // (16 * 1024) + 64

#: Fields of a CRI line that is cut short.
_EMPTY = [b""] * 3


class Joiner:
    """CRI lines to log lines: joins the pieces of long lines, each stream for itself."""

    def __init__(self, since: int) -> None:
        self._since = since
        self._parts: dict[Stream, list[bytes]] = {"stdout": [], "stderr": []}
        self._times: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self._stamp = b""
        self._second = 0

    def take(self, line: bytes) -> LogLine | None:
        stamp, name, tag, text = (line.split(b" ", 3) + _EMPTY)[:4]
        stream: Stream = "stderr" if name == b"stderr" else "stdout"
        when = self._nanoseconds(stamp)
        if when is None or tag not in (b"F", b"P"):
            return LogLine(None, "stdout", line)  # torn by a full disk: shown as it stands
        parts = self._parts[stream]
        if not parts:
            if tag == b"F":  # nearly all of them
                return LogLine(when, stream, text) if when >= self._since else None
            self._times[stream] = when
        parts.append(text)
        if tag == b"P" and sum(map(len, parts)) < MAX_LINE:
            return None
        return self._whole(stream, complete=tag == b"F")

    def rest(self) -> Iterator[LogLine]:
        """Last lines that never got their newline."""
        for stream, parts in self._parts.items():
            if parts:
                line = self._whole(stream, complete=False)
                if line is not None:
                    yield line

    def _whole(self, stream: Stream, complete: bool) -> LogLine | None:
        data, self._parts[stream] = b"".join(self._parts[stream]), []
        when = self._times[stream]
        return LogLine(when, stream, data, complete) if when >= self._since else None

    def _nanoseconds(self, stamp: bytes) -> int | None:
        # Most lines share the second of the line before.
        head, fraction = stamp[:19], stamp[20:-1]
        if head != self._stamp:
            try:
                moment = datetime.strptime(head.decode("ascii"), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
            except ValueError:
                return None
            self._stamp, self._second = head, int(moment.timestamp())
        if not fraction.isdigit():
            return None
        return self._second * 1_000_000_000 + int(fraction if len(fraction) == 9 else fraction.ljust(9, b"0")[:9])
