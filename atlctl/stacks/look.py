"""Run the stack probe on many workers at once: a report from each, or the reason why there is none."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from atlctl.backends.base import Argv, ExecRequest, Execution, Executor
from atlctl.diagnosis.rankreport import StackReport, parse_report
from atlctl.fanout import engine
from atlctl.fanout.limits import make_room
from atlctl.fanout.outcome import Outcome
from atlctl.fanout.sessions import ExecutorAround, FedExecution, KeepingSink, ended, last_words, unanswered
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Worker
from atlctl.remote import sending
from atlctl.remote.stacks.main import DUMP, RAS, SPY

#: Seconds over which CPU time is measured, and seconds of the timeout that are reserved for overhead.
WINDOW = 2.0
_MARGIN = 2.0
#: Simultaneous connections, and simultaneous probes. The last one bounds memory: a report has about 100 KiB.
PARALLEL = 64
AT_ONCE = 256
_STDOUT, _STDERR = 8 << 20, 4096
#: The programs: one that takes stacks at the end of the window, one that samples all the time (`slow`).
PROBE, SAMPLER = "atlctl.remote.stacks.main", "atlctl.remote.stacks.slow"


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one worker: a report, or the error."""

    worker: Worker
    report: StackReport | None = None
    error: AtlctlError | None = None


async def look(
    executor: Executor,
    workers: Sequence[Worker],
    timeout: float,
    pyspy: bytes | bool,
    window: float = WINDOW,
    *,
    dump: bool = False,
    program: str = PROBE,
    watching: Callable[[engine.FanOut], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> list[Look]:
    """Probe each of `workers`, in their order, within `timeout` seconds for connecting and for the probe.

    `pyspy`: a py-spy program to send along, or whether to run one of the worker; `dump`: let torch write its flight
    recorders; `program`: one of `PROBE` and `SAMPLER`. `watching` is a context manager around the run. A worker's
    failure is in its result. Workers that have ended are not probed. Raises AtlctlError if this process may not open
    enough connections.
    """
    living = [worker for worker in workers if worker.state.active]
    answers: dict[str, Look] = {}
    if living:
        make_room(len(living), PARALLEL, AT_ONCE)
        source = sending.packed(sending.needed(program))
        brought = await asyncio.to_thread(zlib.compress, pyspy, 1) if isinstance(pyspy, bytes) else b""
        seconds = max(window, timeout - _MARGIN)
        words = (sending.boot(), program, str(len(source)), "--", f"{window:g}", f"{seconds:g}", str(len(brought)))
        request = ExecRequest(Argv(sending.command("atlctl-stacks", "-I -S", words)), stdin=True)
        sink = KeepingSink({"stdout": _STDOUT, "stderr": _STDERR})
        limits = engine.Limits(PARALLEL, AT_ONCE, timeout, timeout)
        # Any rank's RAS service answers for all of them, so few are asked: others may be on a machine that hangs.
        asked = {living[at].name for at in {0, len(living) // 2, len(living) - 1}}

        def fed(worker: Worker, execution: Execution) -> _Sent:
            flags = RAS * (worker.name in asked) + SPY * bool(pyspy) + DUMP * dump
            return _Sent(execution, source + b"%d" % flags + brought)

        feeding = ExecutorAround(executor, fed)
        fan_out = engine.FanOut(feeding, living, request, limits, sink)
        with watching(fan_out):
            outcomes = await fan_out.run()
        answers = {outcome.worker.name: _answer(outcome, sink) for outcome in outcomes}
    return [answers.get(worker.name) or Look(worker, error=ended(worker)) for worker in workers]


def with_stacks(item: Look, later: Look | None) -> Look:
    """`item` with the Python stacks of a later look at the same processes."""
    if item.report is None or later is None or later.report is None:
        return item
    found = {(rank.pid, rank.start): rank for rank in later.report.ranks}
    ranks = []
    for rank in item.report.ranks:
        new = found.get((rank.pid, rank.start))
        if new is not None and not rank.threads:
            rank = replace(rank, source=new.source, threads=new.threads, problems=new.problems, spy=new.spy)
        ranks.append(rank)
    return replace(item, report=replace(item.report, ranks=tuple(ranks)))


class _Sent(FedExecution):
    """An execution that sends `data` and the end of input once it has started."""

    def __init__(self, inner: Execution, data: bytes) -> None:
        super().__init__(inner)
        self._data = data

    async def feed(self) -> None:
        try:
            await self._inner.write(self._data)
        finally:
            with contextlib.suppress(AtlctlError, OSError):
                await self._inner.close_stdin()


def _answer(outcome: Outcome, sink: KeepingSink) -> Look:
    worker = outcome.worker
    out, err = sink.take(worker, "stdout"), sink.take(worker, "stderr")
    if outcome.ok and not outcome.truncated:
        report = parse_report(out)
        if report is not None:
            return Look(worker, report)
        return Look(worker, error=AtlctlError(Message("its report cannot be read")))
    return Look(worker, error=unanswered(outcome, Message("the probe"), "sh", last_words(outcome, err)))
