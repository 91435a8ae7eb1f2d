"""A sampler on each worker: one look at all of them, or one that goes on, with those that are lost asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from atlctl.backends.base import ExecRequest, Executor, Measuring, Stream
from atlctl.cli import say
from atlctl.cli.top.reading import sampler
from atlctl.cli.top.view import View
from atlctl.fanout import engine
from atlctl.fanout.limits import make_room
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.fanout.sessions import ended, ended_with, unanswered
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, Replaced, TimedOut

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.jobs.model import Job, Worker

#: Workers connected to at once, and asked at once by a single look.
_PARALLEL = 64
_AT_ONCE = 256
#: Seconds until a worker that was lost is asked again: at first, and at most.
_RETRY = (1.0, 30.0)
#: Seconds for which what is known of the job counts: it is asked for where a worker is lost.
_FRESH = {"local": 1.0}
_FRESH_REMOTE = 5.0
#: Seconds from SIGTERM to SIGKILL.
_GRACE = 0.5


class Watch:
    """The workers of one job and their figures. Also the sink of the engine's runs."""

    def __init__(self, source: Backend, job: Job, workers: Sequence[Worker], timeout: float) -> None:
        """`timeout`: seconds for a worker to be reached, and for an answer if it is asked once."""
        self.job = job
        self.views = [View(worker) for worker in workers]
        self._by_name = {view.worker.name: view for view in self.views}
        self._source = source
        self._timeout = timeout
        self._clock = asyncio.get_running_loop().time
        self._gate = asyncio.Semaphore(_PARALLEL)
        self._connecting: set[str] = set()
        self._asking = asyncio.Lock()
        self._asked_at = self._clock()
        #: Set whenever a worker has answered or was lost.
        self.changed = asyncio.Event()
        #: Workers on which a sampler may still run.
        self.left: list[str] = []

    # From the engine

    async def started(self, worker: Worker) -> None:
        view = self._by_name[worker.name]
        view.turn("live", self._clock())
        view.heard = view.looked = self._clock()
        self._reached(worker.name)

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        view = self._by_name[worker.name]
        view.hear(stream, data, self._clock())
        if view.answered:
            self.changed.set()

    async def finished(self, outcome: Outcome) -> None:
        self._reached(outcome.worker.name)
        if outcome.may_still_run:
            self.left.append(outcome.worker.name)

    def _reached(self, name: str) -> None:
        if name in self._connecting:
            self._connecting.discard(name)
            self._gate.release()

    # Once

    async def look(self) -> None:
        """Ask each worker once that has not ended; `error` of a view says why it did not report everything."""
        living = [view.worker for view in self.views if view.worker.state.active]
        for view in self.views:
            if not view.worker.state.active:
                view.error = ended(view.worker)
                view.turn("ended", self._clock(), view.error.message)
        if not living:
            return
        make_room(len(living), _PARALLEL, _AT_ONCE)
        limits = engine.Limits(_PARALLEL, _AT_ONCE, self._timeout, self._timeout)
        request = ExecRequest(sampler(1, looks=1))
        self.measure()
        executor = self._source.executor(self.job)
        try:
            fan_out = engine.FanOut(executor, living, request, limits, self)
            with say.running(fan_out):
                outcomes = await fan_out.run()
        finally:
            await executor.aclose()
        self.measure()
        for outcome in outcomes:
            view = self._by_name[outcome.worker.name]
            view.error = _wrong(view, outcome)

    # On and on

    async def follow(self, interval: float) -> None:
        """Keep a sampler on each worker until this is cancelled. Raises AtlctlError where the job was replaced."""
        make_room(len(self.views), _PARALLEL, None)
        request = ExecRequest(sampler(interval))
        for view in self.views:
            view.minute = max(1, round(60 / interval))
        executor = self._source.executor(self.job)
        try:
            async with asyncio.TaskGroup() as group:
                for view in self.views:
                    group.create_task(self._keep(view, executor, request))
        except* AtlctlError as errors:
            raise errors.exceptions[0] from None
        finally:
            await executor.aclose()

    async def _keep(self, view: View, executor: Executor, request: ExecRequest) -> None:
        limits = engine.Limits(1, None, None, self._timeout, _GRACE)
        first, most = _RETRY
        wait = first
        while True:
            if view.worker.state.active:
                await self._gate.acquire()
                self._connecting.add(view.worker.name)
                (outcome,) = await engine.run(executor, [view.worker], request, limits, self)
                if view.compute.count:
                    wait = first
                reason = unanswered(outcome, Message("the sampler"), "sh", _ended(view, outcome), lost="").message
                view.begin(self._clock())
                await self._refresh(self._clock())
                if view.worker.state.active:
                    view.turn("lost", self._clock(), reason)
            if not view.worker.state.active:
                view.turn("ended", self._clock(), ended(view.worker).message)
            self.changed.set()
            await asyncio.sleep(wait)
            wait = min(2 * wait, most)
            await self._refresh(self._clock() - _FRESH.get(self._source.name, _FRESH_REMOTE))

    async def _refresh(self, since: float) -> None:
        """The workers as their job shows them, not older than `since`; unchanged if it does not answer."""
        async with self._asking:
            if self._asked_at >= since:
                return
            try:
                job = await self._source.get_job(self.job.name)
            except AtlctlError:
                return
            self._asked_at = self._clock()
            if job.uid != self.job.uid:
                raise Replaced(job.name)
            for worker in job.workers:
                if worker.name in self._by_name:
                    self._by_name[worker.name].worker = worker

    # For the table

    def measure(self) -> None:
        """Where the place itself knows what workers take, ask it."""
        if isinstance(self._source, Measuring):
            found = self._source.measure([view.worker for view in self.views if view.worker.state.active])
            for view in self.views:
                view.take(found.get(view.worker.name), self._clock())

    @property
    def over(self) -> bool:
        """Every worker has ended."""
        return all(view.phase == "ended" for view in self.views)


def _ended(view: View, outcome: Outcome) -> str:
    """The meaning of a sampler's end by itself."""
    ended = ended_with(outcome, Message("the sampler"))
    return Message("{what}: {why}", what=ended, why=view.gpus.early) if view.gpus.early else ended


def _wrong(view: View, outcome: Outcome) -> AtlctlError | None:
    """Why a worker that was asked once has not reported everything, None if it has."""
    if outcome.ok:
        trouble = "" if view.gpus.latest is None else view.gpus.latest.trouble
        if trouble:
            return AtlctlError(trouble)
        return None if view.compute.count else AtlctlError(_ended(view, outcome))
    if outcome.kind is EndKind.TIMEOUT and view.gpus.asked and not view.gpus.count:
        return TimedOut(Message("nvidia-smi has not answered: {why}", why=outcome.reason))
    return unanswered(outcome, Message("the sampler"), "sh", _ended(view, outcome))
