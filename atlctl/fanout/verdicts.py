"""What the end of a run means: events and exceptions of a backend as the outcome of one worker."""

from __future__ import annotations

import errno
import logging

from atlctl.backends.base import Event, Exited, FailedToStart, Lost
from atlctl.fanout.outcome import Kind, Outcome
from atlctl.jobs.errors import AtlctlError, ExitCode, NotAllowed, NothingMatched, TimedOut, Unreachable
from atlctl.jobs.model import Worker

_log = logging.getLogger(__name__)


def not_begun(worker: Worker) -> Outcome:
    """The run was cancelled before this worker's turn."""
    return Outcome(worker, Kind.CANCELLED, reason="not begun")


def outcome_of(worker: Worker, event: Event | None, guarded: bool | None) -> Outcome:
    """The outcome of a command that ended by itself; None: without a terminal event. Success needs an explicit
    exit code."""
    match event:
        case Exited(exit_code, signal, truncated) if exit_code is not None or signal is not None:
            return Outcome(worker, Kind.EXITED, exit_code, signal, guarded=guarded, truncated=truncated)
        case FailedToStart(exit_code, reason):
            return Outcome(worker, Kind.FAILED_TO_START, exit_code, reason=reason, guarded=guarded)
        case Lost(reason):
            pass
        case _:
            reason = "the connection ended without a word on how the command ended"
    return Outcome(worker, Kind.LOST, reason=reason, guarded=guarded, may_still_run=True)


def event_of(error: Exception, started: bool) -> Event:
    """What an exception of a backend means for its worker, before or after `Started`."""
    code = ExitCode.UNREACHABLE
    if isinstance(error, AtlctlError):
        reason = error.message
        if not isinstance(error, (Unreachable, TimedOut, NotAllowed, NothingMatched)):
            code = ExitCode.CANNOT_START
    elif isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            code = ExitCode.CANNOT_START  # this machine's trouble, not the worker's
    else:
        _log.debug("a backend raised what it should have mapped", exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        code = ExitCode.CANNOT_START
    return Lost(reason) if started else FailedToStart(code, reason)
