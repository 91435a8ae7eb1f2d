"""For commands that ask many workers something: a sink that keeps what they say, and why one of them did not answer."""

from __future__ import annotations

from collections.abc import Mapping

from atlctl.backends.base import Stream
from atlctl.fanout.outcome import Kind, Outcome
from atlctl.jobs.errors import AtlctlError, ExitCode, NothingMatched, TimedOut, Unreachable
from atlctl.jobs.model import Worker


class Keep:
    """A sink that keeps the beginning of each worker's output, until it is taken."""

    def __init__(self, limits: Mapping[Stream, int]) -> None:
        """`limits`: bytes of each stream of one worker."""
        self._limits = limits
        self._held: dict[tuple[str, Stream], bytearray] = {}

    async def started(self, worker: Worker) -> None:
        """Nothing is shown before the end."""

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        held = self._held.setdefault((worker.name, stream), bytearray())
        held += data[: self._limits[stream] - len(held)]

    async def finished(self, outcome: Outcome) -> None:
        """Read when all are."""

    def take(self, worker: Worker, stream: Stream) -> bytes:
        return bytes(self._held.pop((worker.name, stream), b""))


def ended(worker: Worker) -> AtlctlError:
    """Why a worker that has ended was not asked."""
    return NothingMatched(f"not running ({worker.state})")


def unanswered(outcome: Outcome, program: str, missing: str, exited: str) -> AtlctlError:
    """Why a worker gave no answer. `program` asked it, `missing` was not found there; `exited`: what an end of its own
    means.
    """
    may_run = f"; {program} may still run there" if outcome.may_still_run else ""
    if outcome.kind is Kind.TIMEOUT:
        return TimedOut(f"{outcome.reason}{may_run}")
    if outcome.code == ExitCode.NOT_FOUND:
        return AtlctlError(f"there is no {missing}")
    if outcome.kind is Kind.EXITED:
        return AtlctlError(exited)
    if outcome.code == ExitCode.UNREACHABLE:
        return Unreachable(f"lost: {outcome.reason}{may_run}")
    return AtlctlError(f"{outcome.reason}{may_run}")
