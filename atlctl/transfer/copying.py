"""A copy to or from many workers at once: one result for each."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from atlctl.backends.base import ExecRequest, Executor, Stream
from atlctl.fanout.engine import FanOut, Limits
from atlctl.fanout.outcome import Kind, Outcome
from atlctl.jobs.errors import ExitCode
from atlctl.jobs.model import Worker
from atlctl.transfer.execution import Copy, DownExecutor, UpExecutor
from atlctl.transfer.extract import Tally
from atlctl.transfer.receive import EachTarget, OneTarget, Receiver
from atlctl.transfer.scripts import send_request, take_request
from atlctl.transfer.spec import Remote
from atlctl.transfer.tarwrite import Source


@dataclass(slots=True)
class Progress:
    """What can be told while copies go on. `done` and `total` count workers."""

    total: int
    done: int = 0
    copies: list[Copy] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(copy.tally.bytes for copy in self.copies)

    @property
    def files(self) -> int:
        return sum(copy.tally.files for copy in self.copies)


class _Silent:
    """The fan-out's sink: output never comes this far."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    async def started(self, worker: Worker) -> None:
        """Nothing is told of it."""

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        """The executions keep all output to themselves."""

    async def finished(self, outcome: Outcome) -> None:  # noqa: ARG002 - a part of the protocol
        self._progress.done += 1


class Copying:
    """A copy that is set up; `fan_out` runs it, and `results` tells afterwards. Both are to be used once."""

    def __init__(self, fan_out: FanOut, copies: dict[str, Copy], progress: Progress) -> None:
        self.fan_out = fan_out
        self.progress = progress
        self._copies = copies

    def results(self, outcomes: Sequence[Outcome]) -> list[tuple[Outcome, Copy]]:
        """What each outcome means for a copy: `exited` with 0 alone is a success (and a `changed` copy), any other
        exit is 1.

        `timeout`, `lost` and `cancelled` stay, and so does a worker that could not be reached.
        """
        return [(_judged(outcome, self._copies[outcome.worker.name]), self._copies[outcome.worker.name])
                for outcome in outcomes]  # fmt: skip


def download(
    executor: Executor, workers: Sequence[Worker], remote: Remote, path: str, each: bool, limits: Limits
) -> Copying:
    """From `remote` on `workers` to `path`. `each`: into a folder for each worker; else there is one worker."""
    receivers = {
        worker.name: Receiver(EachTarget(path, worker.name, remote.name) if each else OneTarget(path, remote.name))
        for worker in workers
    }
    copies = {name: Copy(receiver.path, receiver.tally) for name, receiver in receivers.items()}
    return _set_up(DownExecutor(executor, copies, receivers), workers, send_request(remote.path), copies, limits)


def upload(executor: Executor, workers: Sequence[Worker], source: Source, remote: Remote, limits: Limits) -> Copying:
    """`source` to `remote` on `workers`."""
    copies = {worker.name: Copy(remote.path, _tally(source)) for worker in workers}

    def request(_: Worker) -> ExecRequest:
        # Workers may share a disk: each has a temporary name of its own.
        tag = secrets.token_hex(8)
        return take_request(remote.path, source.name, source.kind, remote.slash, tag, source.size, source.mode)

    return _set_up(UpExecutor(executor, copies, source), workers, request, copies, limits)


def _tally(source: Source) -> Tally:
    tally = Tally()
    tally.skipped = source.skipped
    return tally


def _set_up(
    executor: Executor,
    workers: Sequence[Worker],
    request: ExecRequest | Callable[[Worker], ExecRequest],
    copies: dict[str, Copy],
    limits: Limits,
) -> Copying:
    progress = Progress(len(workers), copies=list(copies.values()))
    fan_out = FanOut(executor, workers, request, limits, _Silent(progress))
    return Copying(fan_out, copies, progress)


def _judged(outcome: Outcome, copy: Copy) -> Outcome:
    if outcome.kind in (Kind.TIMEOUT, Kind.CANCELLED) or (outcome.kind is Kind.LOST and not copy.problem):
        return outcome
    if outcome.kind is Kind.FAILED_TO_START:
        if outcome.code == ExitCode.UNREACHABLE:
            return outcome
        reason = f"no shell there: {outcome.reason}" if outcome.code == ExitCode.NOT_FOUND else outcome.reason
        return replace(outcome, exit_code=int(ExitCode.FAILED), reason=reason)
    if outcome.ok and not copy.problem:
        return outcome
    if copy.changed and outcome.kind is Kind.EXITED:
        return replace(outcome, exit_code=int(ExitCode.OK))
    how = f"ended by signal {outcome.signal}" if outcome.signal is not None else f"exit {outcome.exit_code}"
    return replace(
        outcome, kind=Kind.EXITED, exit_code=int(ExitCode.FAILED), signal=None, reason=copy.problem or copy.said or how
    )
