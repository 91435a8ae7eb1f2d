"""What a Python traceback says: the exception's line, its type, the last frame in the user's code.

Also the tracebacks that `torch.distributed` (2.2 and later) prints for uncaught exceptions: its
excepthook puts `[rank3]: ` in front of each line, with the *global* rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from atlctl.diagnosis.text import clean_line

HEADER = "Traceback (most recent call last):"

_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w{0,99}\.){0,20}[A-Za-z_]\w{0,99})(?=: |:?\s*$)")
_EXCEPTION_NAME = re.compile(r"(?:Error|Exception|Interrupt|Exit|Warning|ExceptionGroup|StopIteration)$")
_FRAME = re.compile(r'^\s{0,40}File "([^"]{1,1000})", line (\d{1,9})(?:, in (.{1,200}))?')
#: Code that is not the user's: installed packages, the standard library, frames without a file.
_FOREIGN_PATH = re.compile(r"(?:^|[/\\])(?:site-packages|dist-packages|lib(?:64)?[/\\]python3(?:\.\d+)?)[/\\]|^<")

#: Ranks whose uncaught tracebacks are kept, for one log.
MAX_RANKS = 4096
_MESSAGE_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class Frame:
    """One `File "...", line N, in f` of a traceback."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.path}", line {self.line}, in {self.function}'


@dataclass(frozen=True, slots=True)
class RankTraceback:
    """An uncaught exception (or the NCCL watchdog's verdict) of one global rank, as its process printed it."""

    rank: int
    message: str
    exception: str | None
    frame: Frame | None
    line_no: int


def read_exception(lines: Sequence[str]) -> tuple[str, str | None]:
    """The line that names the exception, and the exception's type (`torch.OutOfMemoryError`).

    It is the first unindented line after the last traceback header, so that a message of many
    lines gives its first. Without a header it is the last line that is not empty, and it has a
    type only where it looks like an exception's. An empty string where there is nothing.
    """
    start = None
    for number, line in enumerate(lines):
        if line.startswith(HEADER):
            start = number
    if start is not None:
        for line in lines[start + 1 :]:
            if match := _EXCEPTION.match(line):
                return line.rstrip(), match[1]
    for line in reversed(lines):
        if line.strip():
            return line.strip(), exception_type(line.strip())
    return "", None


def exception_type(line: str) -> str | None:
    """The type at the start of `line`, None where the line does not look like an exception's."""
    match = _EXCEPTION.match(line)
    return match[1] if match and _EXCEPTION_NAME.search(match[1]) else None


def user_frame(lines: Sequence[str]) -> Frame | None:
    """The last frame in code that is neither an installed package nor the standard library."""
    found = None
    for line in lines:
        found = _frame(line) or found
    return found


def _frame(line: str) -> Frame | None:
    match = _FRAME.match(line)
    if match is None or _FOREIGN_PATH.search(match[1]):
        return None
    return Frame(match[1], int(match[2]), (match[3] or "<unknown>").rstrip())


_RANK_LINE = re.compile(r"\[rank(\d{1,7})\]: ?(.*)")
_WATCHDOG = re.compile(
    r"(?:\[rank(\d{1,7})\]:|\[E [^\]]{1,200}\] \[Rank (\d{1,7})\]).{0,400}?"
    r"(Watchdog caught collective operation timeout.{0,400})"
)


class RankTracebacks:
    """Collects the `[rankN]: ` tracebacks of one log. Memory is bounded by `MAX_RANKS`."""

    def __init__(self) -> None:
        self._open: dict[int, Frame | None] = {}
        self._found: dict[tuple[int, int], RankTraceback] = {}

    def feed_line(self, line: bytes, line_no: int) -> None:
        """Takes one line; those without a rank's prefix cost two searches."""
        if b"Watchdog caught" in line:
            self._feed_watchdog(clean_line(line), line_no)
        elif b"[rank" in line:
            self._feed_rank(clean_line(line), line_no)

    def found(self) -> tuple[RankTraceback, ...]:
        """In the order of the log."""
        return tuple(sorted(self._found.values(), key=lambda item: item.line_no))

    def _feed_watchdog(self, text: str, line_no: int) -> None:
        match = _WATCHDOG.search(text)
        if match:
            self._keep(RankTraceback(int(match[1] or match[2]), match[3], None, None, line_no))

    def _feed_rank(self, text: str, line_no: int) -> None:
        match = _RANK_LINE.search(text)
        if match is None:
            return
        rank, rest = int(match[1]), match[2]
        while rest.startswith("[rank") and (again := _RANK_LINE.match(rest)):
            rest = again[2]  # the prefix is sometimes doubled
        if rest.startswith(HEADER):
            if rank in self._open or len(self._open) < MAX_RANKS:
                self._open[rank] = None
        elif rank in self._open:
            if frame := _frame(rest):
                self._open[rank] = frame
            elif named := _EXCEPTION.match(rest):
                frame = self._open.pop(rank)
                self._keep(RankTraceback(rank, rest[:_MESSAGE_LIMIT].rstrip(), named[1], frame, line_no))

    def _keep(self, item: RankTraceback) -> None:
        if len(self._found) < MAX_RANKS:
            self._found[(item.rank, item.line_no)] = item
