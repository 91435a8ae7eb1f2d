"""Asks `nvidia-smi` in many workers at once: GPUs of those that told, and why the others did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atlctl.backends.base import Argv, ExecRequest
from atlctl.fanout import engine
from atlctl.fanout.keep import Keep, ended, unanswered
from atlctl.fanout.limits import make_room
from atlctl.fanout.outcome import Kind, Outcome
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.gpus import QUERY, Readout, complaint, parse

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
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


async def scan(source: Backend, job: Job, workers: Sequence[Worker], timeout: float) -> list[Told]:
    """One answer for each of `workers`, in their order, each within `timeout` seconds of connecting and of starting.

    No failure of a worker is raised. Workers that have ended are not asked.
    """
    living = [worker for worker in workers if worker.state.active]
    answers: dict[str, Told] = {}
    if living:
        make_room(len(living), _PARALLEL, _AT_ONCE)
        sink = Keep({"stdout": _KEPT, "stderr": _KEPT})
        limits = engine.Limits(_PARALLEL, _AT_ONCE, timeout, timeout)
        executor = source.executor(job)
        try:
            outcomes = await engine.run(executor, living, ExecRequest(Argv(QUERY)), limits, sink)
        finally:
            await executor.aclose()
        for outcome in outcomes:
            worker = outcome.worker
            out, err = sink.take(worker, "stdout"), sink.take(worker, "stderr")
            answers[worker.name] = _told(outcome, parse(out), complaint(err, out))
    return [answers.get(worker.name) or Told(worker, error=ended(worker)) for worker in workers]


def _told(outcome: Outcome, readout: Readout, said: str) -> Told:
    """Rows that came are shown whatever the exit code: one GPU that is lost makes nvidia-smi fail for all."""
    worker = outcome.worker
    if outcome.kind is Kind.EXITED and (readout.gpus or readout.none):
        return Told(worker, readout)
    if outcome.ok:
        return Told(
            worker, error=AtlctlError(f"nvidia-smi printed no GPU: {said}" if said else "nvidia-smi said nothing")
        )
    how = f"signal {outcome.signal}" if outcome.signal is not None else str(outcome.exit_code)
    exited = f"nvidia-smi ended with {how}{f': {said}' if said else ''}"
    return Told(worker, error=unanswered(outcome, "nvidia-smi", "nvidia-smi", exited))
