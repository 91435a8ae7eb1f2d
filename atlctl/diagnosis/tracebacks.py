"""What a Python traceback says: the exception's line, its type, the last frame in the user's code.

Shared by the readers of logs, of summaries and of error files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

HEADER = "Traceback (most recent call last):"

_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w{0,99}\.){0,20}[A-Za-z_]\w{0,99})(?=: |:?\s*$)")
_EXCEPTION_NAME = re.compile(r"(?:Error|Exception|Interrupt|Exit|Warning|ExceptionGroup|StopIteration)$")
_FRAME = re.compile(r'^\s{0,40}File "([^"]{1,1000})", line (\d{1,9})(?:, in (.{1,200}))?')
_BOXED_FRAME = re.compile(r"^\s{0,8}[│|] (\S.{0,400}?):(\d{1,9}) in (\S{1,200})\s*(?:[│|]\s*)?$")
#: Exceptions of the standard library that are named otherwise: `socket.gaierror`, `struct.error`, `socket.timeout`.
_LOWER = re.compile(r"^[a-z_][\w.]*\.(?:error|gaierror|herror|timeout)$")
#: Code that is not the user's: installed packages, the standard library, frames without a file.
_FOREIGN_PATH = re.compile(r"(?:^|[/\\])(?:site-packages|dist-packages|lib(?:64)?[/\\]python3(?:\.\d+)?)[/\\]|^<")

#: A class name that a user may have given: the last part in CamelCase.
_CAMEL = re.compile(r"(?:^|\.)[A-Z][^\Wa-z]*+[a-z]\w*$")


@dataclass(frozen=True, slots=True)
class Frame:
    """One `File "...", line N, in f` of a traceback."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.path}", line {self.line}, in {self.function}'


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


def exception_name(line: str) -> str | None:
    """The type in a line that follows a traceback's frames: there any class name counts as an exception's."""
    match = _EXCEPTION.match(line)
    known = match and (_EXCEPTION_NAME.search(match[1]) or _CAMEL.search(match[1]) or _LOWER.search(match[1]))
    return match[1] if match and known else None


def frame_of(line: str) -> tuple[str, str, Frame | None] | None:
    """Path and function of a `File "...", line N, in f` line, and the frame where it is the user's code."""
    match = _FRAME.match(line)
    if match is None:
        return None
    function = (match[3] or "<unknown>").rstrip()
    if _FOREIGN_PATH.search(match[1]):
        return match[1], function, None
    return match[1], function, Frame(match[1], int(match[2]), function)


def boxed_frame_of(line: str) -> tuple[str, str, Frame | None] | None:
    """The same of a line in a box that rich draws: `│ /job/train.py:171 in main   │`."""
    match = _BOXED_FRAME.match(line)
    if match is None:
        return None
    place = None if _FOREIGN_PATH.search(match[1]) else Frame(match[1], int(match[2]), match[3])
    return match[1], match[3], place


def user_frame(lines: Sequence[str]) -> Frame | None:
    """The last frame in code that is neither an installed package nor the standard library."""
    found = None
    for line in lines:
        frame = frame_of(line)
        found = frame[2] or found if frame else found
    return found
