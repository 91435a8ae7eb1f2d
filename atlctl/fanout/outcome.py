"""How a command ended on each worker, and who is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from atlctl.backends.base import Stream
from atlctl.jobs.errors import ExitCode
from atlctl.jobs.model import Worker


class EndKind(StrEnum):
    """The five ways a command on a worker can end."""

    EXITED = "exited"
    FAILED_TO_START = "failed_to_start"
    TIMEOUT = "timeout"
    LOST = "lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one command on one worker. Every selected worker gets exactly one.

    `may_still_run`: its end could not be proven. `guarded`: it would have died with this client (None: never started).
    `not_allowed`: it was not started because the user is not authenticated, or not permitted to.
    `truncated`: output is missing; of one that exited, only what processes that it left behind printed later.
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
        """The exit code this outcome counts as: signal N counts as 128 + N."""
        if self.kind is EndKind.EXITED:
            return 128 + self.signal if self.signal is not None else (self.exit_code or 0)
        if self.kind is EndKind.FAILED_TO_START:
            return ExitCode.CANNOT_START if self.exit_code is None else self.exit_code
        return {EndKind.TIMEOUT: ExitCode.TIMEOUT, EndKind.LOST: ExitCode.UNREACHABLE}.get(
            self.kind, ExitCode.INTERRUPTED
        )


def fold_codes(outcomes: Sequence[Outcome]) -> int:
    """One exit code for a run: one worker selected gives its own; several: any lost or unreachable 255,
    else timeout 124, else the highest code."""
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
    """Takes what a run produces. Each call may wait: that is how a slow reader slows the workers."""

    async def started(self, worker: Worker) -> None: ...

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None: ...

    async def finished(self, outcome: Outcome) -> None:
        """Called once for each worker, after the last `output` of it."""
