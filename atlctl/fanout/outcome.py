"""Outcomes of a command on each worker, and the sink that receives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from atlctl.backends.base import Stream
from atlctl.jobs.errors import ExitCode
from atlctl.jobs.model import Worker


class EndKind(StrEnum):
    EXITED = "exited"
    FAILED_TO_START = "failed_to_start"
    TIMEOUT = "timeout"
    LOST = "lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a command on one worker. Each selected worker gets exactly one.

    `may_still_run`: its end could not be confirmed. `guarded`: it would have ended with this client (None: never
    started). `not_allowed`: not started because authentication or authorization failed. `truncated`: output is missing;
    if it exited, only later output of processes that it left behind.
    """

    worker: Worker
    kind: EndKind
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    guarded: bool | None = None
    may_still_run: bool = False
    truncated: bool = False
    not_allowed: bool = False

    @property
    def ok(self) -> bool:
        return self.kind is EndKind.EXITED and self.exit_code == 0

    @property
    def code(self) -> int:
        """The outcome as an exit code: 128 + N for signal N."""
        if self.kind is EndKind.EXITED:
            return 128 + self.signal if self.signal is not None else (self.exit_code or 0)
        if self.kind is EndKind.FAILED_TO_START:
            return ExitCode.CANNOT_START if self.exit_code is None else self.exit_code
        return {EndKind.TIMEOUT: ExitCode.TIMEOUT, EndKind.LOST: ExitCode.UNREACHABLE}.get(
            self.kind, ExitCode.INTERRUPTED
        )


def fold_codes(outcomes: Sequence[Outcome]) -> int:
    """The exit code of a run: for a single worker its own; else 255 if any was lost or unreachable, else 124 for a
    timeout, else the highest code."""
    if len(outcomes) == 1:
        return outcomes[0].code
    codes = [outcome.code for outcome in outcomes]
    if ExitCode.UNREACHABLE in codes and any(
        o.kind is EndKind.LOST or (o.kind is EndKind.FAILED_TO_START and o.code == ExitCode.UNREACHABLE)
        for o in outcomes
    ):
        return ExitCode.UNREACHABLE
    if any(outcome.kind is EndKind.TIMEOUT for outcome in outcomes):
        return ExitCode.TIMEOUT
    return max(codes, default=ExitCode.OK)


class OutcomeSink(Protocol):
    """Receives the events of a run. Each call may wait, which slows the workers."""

    async def started(self, worker: Worker) -> None: ...

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None: ...

    async def finished(self, outcome: Outcome) -> None:
        """Called once per worker, after its last `output`."""
