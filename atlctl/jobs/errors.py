"""The errors that users see, with their exit codes and hints.

    AtlctlError                   1    the operation failed, or a prompt was declined
    +-- UsageError                2    the command line or the configuration is wrong
    +-- NothingMatched            3    no such job, worker or selection
    +-- NotAllowed                4    not authenticated, or not permitted
    +-- TimedOut                  124  a deadline passed
    +-- Unreachable               255  a worker or a supervisor could not be reached, or was lost
    +-- Replaced                  1    another job has the name by now

Backends map the errors of their libraries to these; no other error reaches the user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar

from atlctl.i18n import Message


class ExitCode(IntEnum):
    """The exit codes of `atlctl`. `exec` also returns the exit codes of commands (see `fold_codes`)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOTHING_MATCHED = 3
    NOT_ALLOWED = 4
    INCOMPLETE = 5
    TIMEOUT = 124
    CANNOT_START = 125
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    READER_GONE = 141
    TERMINATED = 143
    UNREACHABLE = 255


class AtlctlError(Exception):
    """An error with one line of text, an optional hint (the next command) and an exit code."""

    exit_code: ClassVar[int] = ExitCode.FAILED
    kind: ClassVar[str] = "failed"

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AtlctlError):
    exit_code = ExitCode.USAGE
    kind = "usage"


class Declined(AtlctlError):
    """The user answered no: nothing was done. This is not shown as an error."""


class NothingMatched(AtlctlError):
    """No job, worker or selection matches."""

    exit_code = ExitCode.NOTHING_MATCHED
    kind = "nothing_matched"


class NotAllowed(AtlctlError):
    exit_code = ExitCode.NOT_ALLOWED
    kind = "not_allowed"


class TimedOut(AtlctlError):
    exit_code = ExitCode.TIMEOUT
    kind = "timeout"


class Unreachable(AtlctlError):
    exit_code = ExitCode.UNREACHABLE
    kind = "unreachable"


class Replaced(AtlctlError):
    """Another job has the name of `job` by now; it was left alone."""

    def __init__(self, job: str, hint: str | None = None) -> None:
        super().__init__(
            Message("job {job} was replaced by another of the same name meanwhile", job=job), hint or f"atlctl ps {job}"
        )


# Messages of several modules.

LEAVE_ONE_OUT = Message("leave one of them out")
NAME_HOSTS = Message("name hosts with --hostfile FILE")
SEE_PERMISSIONS = Message("see your permissions: atlctl doctor")


def no_answer(seconds: float, why: str = "") -> Message:
    if why:
        return Message("no answer within {seconds:g} s: {why}", seconds=seconds, why=why)
    return Message("no answer within {seconds:g} s", seconds=seconds)


def by_signal(number: int) -> Message:
    return Message("ended by signal {number}", number=number)


def why_of(error: AtlctlError | OSError) -> str:
    """Why something failed, without the path."""
    return error.message if isinstance(error, AtlctlError) else error.strerror or str(error)


def unreadable(path: str, why: object) -> Message:
    """The message for a file that exists but cannot be read."""
    return Message("{path} cannot be read: {why}", path=path, why=why)


def not_regular(path: str) -> Message:
    """The message for a folder, a pipe or a device in place of a file."""
    return Message("{path} is not a regular file", path=path)


def too_large(path: str, limit: int) -> Message:
    """The message for a file of more than `limit` bytes."""
    return Message("{path} is larger than {limit} bytes", path=path, limit=limit)


def too_long(limit: int) -> Message:
    """The reason for a document of more than `limit` bytes."""
    return Message("larger than {limit} bytes", limit=limit)


def fold_errors(errors: Sequence[AtlctlError]) -> int:
    """The exit code for errors of many workers: 255 for lost or unreachable, else 124 for a timeout, else 1; 0
    if none."""
    codes = {error.exit_code for error in errors}
    for code in (ExitCode.UNREACHABLE, ExitCode.TIMEOUT):
        if code in codes:
            return code
    return ExitCode.FAILED if codes else ExitCode.OK


#: Exit code of the shell script that searches for Python on a worker (`remote/sh/find_python.sh`) if it finds none.
NO_PYTHON = 3
_WITHOUT_PYTHON = re.compile(r"[^;]*(?:; too old: (?P<old>[^;]*))?(?:; not used, [^:;]*: (?P<unsafe>.*))?")


def without_python(said: str) -> Message:
    """The message for a worker without Python; `said` is the last output line of that shell script."""
    found = _WITHOUT_PYTHON.fullmatch(said)
    old, unsafe = found.group("old", "unsafe") if found else ("", "")
    why = Message("no Python 3.8 or newer found")
    if old:
        why = Message("{why}; too old: {pythons}", why=why, pythons=old)
    if unsafe:
        why = Message("{why}; not used, because other users can change it: {path}", why=why, path=unsafe)
    return why
