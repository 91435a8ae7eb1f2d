"""Asks `nvidia-smi` in many workers at once: GPUs of those that told, and why the others did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atlctl.backends.base import Argv, ExecRequest
from atlctl.cli.execute import DESCRIPTORS_AT_START, DESCRIPTORS_EACH
from atlctl.fanout import engine
from atlctl.fanout.limits import raise_descriptor_limit
from atlctl.fanout.outcome import Kind, Outcome
from atlctl.jobs.errors import AtlctlError, ExitCode, NothingMatched, TimedOut, Unreachable
from atlctl.jobs.gpus import QUERY, Readout, complaint, parse

if TYPE_CHECKING:
    from atlctl.backends.base import Backend, Stream
    from atlctl.jobs.model import Job, Worker

#: Workers connected to, and workers asked, at once.
_PARALLEL = 64
_AT_ONCE = 256
#: Bytes of each stream of one worker that are kept: some thousand GPUs.
_KEPT = 256 << 10


@dataclass(frozen=True, slots=True)
class Told:
    """One worker's answer: a readout, or an error that says why there is none."""

    worker: Worker
    readout: Readout | None = None
    error: AtlctlError | None = None


class _Keep:
    """A sink that keeps the beginning of each worker's output."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, Stream], bytearray] = {}

    async def started(self, worker: Worker) -> None:
        """Nothing is shown before the end."""

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        held = self.held.setdefault((worker.name, stream), bytearray())
        held += data[: _KEPT - len(held)]

    async def finished(self, outcome: Outcome) -> None:
        """Read when all are."""

    def of(self, worker: Worker, stream: Stream) -> bytes:
        return bytes(self.held.get((worker.name, stream), b""))


async def scan(source: Backend, job: Job, workers: Sequence[Worker], timeout: float) -> list[Told]:
    """One answer for each of `workers`, in their order, each within `timeout` seconds of connecting and of starting.

    No failure of a worker is raised. Workers that have ended are not asked.
    """
    living = [worker for worker in workers if worker.state.active]
    answers: dict[str, Told] = {}
    if living:
        at_once = min(len(living), _AT_ONCE)
        needed = at_once * DESCRIPTORS_EACH + min(at_once, _PARALLEL) * DESCRIPTORS_AT_START
        raise_descriptor_limit(needed, DESCRIPTORS_EACH + DESCRIPTORS_AT_START)
        sink = _Keep()
        limits = engine.Limits(_PARALLEL, _AT_ONCE, timeout, timeout)
        executor = source.executor(job)
        try:
            outcomes = await engine.run(executor, living, ExecRequest(Argv(QUERY)), limits, sink)
        finally:
            await executor.aclose()
        for outcome in outcomes:
            worker = outcome.worker
            out, err = sink.of(worker, "stdout"), sink.of(worker, "stderr")
            answers[worker.name] = _told(outcome, parse(out), complaint(err, out))
    return [answers.get(worker.name) or Told(worker, error=_ended(worker)) for worker in workers]


def _ended(worker: Worker) -> AtlctlError:
    return NothingMatched(f"not running ({worker.state})")


def _told(outcome: Outcome, readout: Readout, said: str) -> Told:
    """Rows that came are shown whatever the exit code: one GPU that is lost makes nvidia-smi fail for all."""
    worker = outcome.worker
    if outcome.kind is Kind.EXITED and (readout.gpus or readout.none):
        return Told(worker, readout)
    if outcome.ok:
        return Told(
            worker, error=AtlctlError(f"nvidia-smi printed no GPU: {said}" if said else "nvidia-smi said nothing")
        )
    may_run = "; nvidia-smi may still run there" if outcome.may_still_run else ""
    if outcome.kind is Kind.TIMEOUT:
        return Told(worker, error=TimedOut(f"{outcome.reason}{may_run}"))
    if outcome.code == ExitCode.NOT_FOUND:
        return Told(worker, error=AtlctlError("there is no nvidia-smi"))
    if outcome.kind is Kind.EXITED:
        how = f"signal {outcome.signal}" if outcome.signal is not None else str(outcome.exit_code)
        return Told(worker, error=AtlctlError(f"nvidia-smi ended with {how}{f': {said}' if said else ''}"))
    if outcome.code == ExitCode.UNREACHABLE:
        return Told(worker, error=Unreachable(f"lost: {outcome.reason}{may_run}"))
    return Told(worker, error=AtlctlError(f"{outcome.reason}{may_run}"))
