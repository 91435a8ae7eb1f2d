"""The error tree: every failure a user can meet, with its exit code and the next step.

    AtlctlError                   1    the operation failed, or a prompt was declined
    +-- UsageError                2    the command line or the configuration is wrong
    +-- NothingMatched            3    no such job, worker or selection
    +-- NotAllowed                4    not authenticated, or not permitted
    +-- TimedOut                  124  a deadline passed
    +-- Unreachable               255  a worker or a supervisor could not be reached, or was lost
    +-- Replaced                  1    another job has the name by now

Backends map what they meet to these; nothing else reaches the user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar

from atlctl.i18n import Message


class ExitCode(IntEnum):
    """What `atlctl` exits with. `exec` also passes on the codes of commands (see `fold_codes`)."""

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
    """A failure with one clear line, an optional hint (the next command) and an exit code."""

    exit_code: ClassVar[int] = ExitCode.FAILED
    kind: ClassVar[str] = "failed"

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AtlctlError):
    """The command line, an environment variable or a configuration file is wrong."""

    exit_code = ExitCode.USAGE
    kind = "usage"


class Declined(AtlctlError):
    """The user answered no: nothing was done, and that is no error to be mended."""


class NothingMatched(AtlctlError):
    """No job, worker or selection of that description."""

    exit_code = ExitCode.NOTHING_MATCHED
    kind = "nothing_matched"


class NotAllowed(AtlctlError):
    """Not authenticated, or not permitted (a file, a socket, an API)."""

    exit_code = ExitCode.NOT_ALLOWED
    kind = "not_allowed"


class TimedOut(AtlctlError):
    """A deadline passed before the operation was done."""

    exit_code = ExitCode.TIMEOUT
    kind = "timeout"


class Unreachable(AtlctlError):
    """A worker or the supervisor of a job could not be reached, or was lost on the way."""

    exit_code = ExitCode.UNREACHABLE
    kind = "unreachable"


class Replaced(AtlctlError):
    """Another job has the name of `job` by now, and is left alone."""

    def __init__(self, job: str, hint: str | None = None) -> None:
        super().__init__(
            Message("job {job} was replaced by another of the same name meanwhile", job=job), hint or f"atlctl ps {job}"
        )


# What several modules say.

LEAVE_ONE_OUT = Message("leave one of them out")
SEE_PERMISSIONS = Message("see your permissions: atlctl doctor")


def no_answer(seconds: float) -> Message:
    """The reason of a worker that was asked."""
    return Message("no answer within {seconds:g} s", seconds=seconds)


def why_of(error: AtlctlError | OSError) -> str:
    """Why something failed, without the path that it is about."""
    return error.message if isinstance(error, AtlctlError) else error.strerror or str(error)


def unreadable(path: str, why: object) -> Message:
    """A file that is there."""
    return Message("{path} cannot be read: {why}", path=path, why=why)


def not_regular(path: str) -> Message:
    """A folder, a pipe or a device in place of a file."""
    return Message("{path} is not a regular file", path=path)


def too_large(path: str, limit: int) -> Message:
    """A file of more than `limit` bytes."""
    return Message("{path} is larger than {limit} bytes", path=path, limit=limit)


def fold_errors(errors: Sequence[AtlctlError]) -> int:
    """One exit code for questions to many workers: one lost or unreachable 255, else timeout 124, else 1; none 0."""
    codes = {error.exit_code for error in errors}
    for code in (ExitCode.UNREACHABLE, ExitCode.TIMEOUT):
        if code in codes:
            return code
    return ExitCode.FAILED if codes else ExitCode.OK


#: The exit code of the shell that looks for a Python on a worker (`remote/sh/find_python.sh`) and finds none.
NO_PYTHON = 3
_WITHOUT_PYTHON = re.compile(r"[^;]*(?:; too old: (?P<old>[^;]*))?(?:; not used, [^:;]*: (?P<unsafe>.*))?")


def without_python(said: str) -> Message:
    """Why there is no Python, of the last line of that shell."""
    found = _WITHOUT_PYTHON.fullmatch(said)
    old, unsafe = found.group("old", "unsafe") if found else ("", "")
    why = Message("no Python 3.8 or newer found")
    if old:
        why = Message("{why}; too old: {pythons}", why=why, pythons=old)
    if unsafe:
        why = Message("{why}; not used, because other users can change it: {path}", why=why, path=unsafe)
    return why
