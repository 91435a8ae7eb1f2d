"""What the workers print, as pieces of text with a true time, and how it comes out of each worker's own clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """A worker's clock. All values are ns, `zone` seconds.

    `skew`: how far it runs ahead of the true time. `steady`: what is added to the fraction, and to nothing else, in the
    stamps of C++ lines, whose digits come from a clock that has nothing to do with the wall. `zone`: local less UTC.
    """

    skew: int = 0
    steady: int = 0
    zone: int = 0

    def local(self, moment: int) -> tuple[time.struct_time, int]:
        """Local wall time, with the ns of its second."""
        seconds, fraction = divmod(moment + self.skew, SECOND)
        return time.gmtime(seconds + self.zone), fraction

    def glog(self, moment: int) -> str:
        """`1120 17:45:05.123456789`: the month has no leading zero."""
        wall, fraction = self.local(moment)
        return f"{wall.tm_mon}{time.strftime('%d %H:%M:%S', wall)}.{(fraction + self.steady) % SECOND:09d}"

    def torch(self, moment: int) -> str:
        """`1120 17:45:05.757000`, as torch's Python loggers write it."""
        wall, fraction = self.local(moment)
        return f"{time.strftime('%m%d %H:%M:%S', wall)}.{fraction // 1_000_000:03d}000"

    def asctime(self, moment: int) -> str:
        """`2026-11-20 17:45:05,757`, as Python's `logging` writes it."""
        wall, fraction = self.local(moment)
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', wall)},{fraction // 1_000_000:03d}"

    def plain(self, moment: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
        """Whole seconds of local time."""
        return time.strftime(form, self.local(moment)[0])

    def second(self, moment: int) -> int:
        """What `int(time.time())` gives on this worker."""
        return (moment + self.skew) // SECOND


@dataclass(frozen=True, slots=True, order=True)
class _Piece:
    moment: int
    number: int
    text: str
    end: str


class Log:
    """One worker's output. Pieces come in any order; one piece is never torn apart by another."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._pieces: list[_Piece] = []
        self._cut: int | None = None

    def add(self, moment: int, text: str, end: str = "\n") -> None:
        """`moment`: true time in ns. With an empty `end` the line stays open, as a progress bar leaves it."""
        self._pieces.append(_Piece(moment, len(self._pieces), text, end))

    def cut(self, moment: int) -> None:
        """Nothing from this moment on has reached the log."""
        self._cut = moment if self._cut is None else min(moment, self._cut)

    def lines(self) -> list[tuple[int, str]]:
        """Complete lines with their time of arrival (ns, the node's clock), which always rises."""
        lines: list[tuple[int, str]] = []
        before = 0
        open_text = ""
        for piece in sorted(self._pieces):
            if self._cut is not None and piece.moment >= self._cut:
                break
            open_text += piece.text + piece.end
            *done, open_text = open_text.split("\n")
            for line in done:
                arrived = piece.moment + self.clock.skew + 20_000 + piece.moment % 299_993
                before = max(before + 700, arrived)
                lines.append((before, line))
        if open_text and self._cut is None:
            lines.append((before + 700, open_text))
        return lines


def stamps(lines: list[tuple[int, str]]) -> str:
    """The text as `kubectl logs --timestamps` gives it."""
    parts = []
    second, head = -1, ""
    for moment, line in lines:
        seconds, fraction = divmod(moment, SECOND)
        if seconds != second:
            second, head = seconds, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        parts.append(f"{head}.{fraction:09d}Z {line}\n")
    return "".join(parts)
