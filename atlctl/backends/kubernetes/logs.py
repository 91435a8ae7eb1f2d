"""Logs of pods: read to their end or followed through lost connections, restarts and new pods, each line once.

The API does not tell standard output and standard error apart: every line is called "stdout".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from time import monotonic

from atlctl.backends.base import LogLine, LogRequest
from atlctl.backends.kubernetes.api import Api, ApiError, Missing, NoServer, Object, Stream
from atlctl.backends.kubernetes.logplaces import Instance, Patience, Places, Streams, chunks, instance, second
from atlctl.backends.kubernetes.logreason import PASSING, NoLog, NotYet, no_log, no_node, refused
from atlctl.backends.kubernetes.logstream import PIECE, LineFeed, Seen
from atlctl.jobs.errors import AtlctlError, NothingMatched
from atlctl.jobs.model import Job, Worker

#: A read of more than this may have been cut by a node that died, and is checked once.
UNCHECKED = 64 * 1024
#: Where not every worker can have a stream, logs are read in bites of this size, so that a stream is soon free again.
BITE = 128 * 1024

_LOG = logging.getLogger(__name__)

Batch = Sequence[LogLine]


class _OtherRun(Exception):
    """An answer does not begin with the lines that have come already: perhaps the container was started anew."""


class PodLogs:
    """The logs of all workers, through at most `streams` streams at once."""

    def __init__(
        self,
        api: Api,
        places: Places,
        *,
        streams: Streams | None = None,
        patience: Patience | None = None,
        piece: int = PIECE,
        waiting: Callable[[str], None] | None = None,
    ) -> None:
        """`waiting` is told what is waited for, once until a log comes again."""
        self.api = api
        self.places = places
        self.streams = streams or Streams()
        self.patience = patience or Patience()
        self.piece = piece
        self._waiting = waiting
        self._troubled = False

    def failed(self, worker: str, error: AtlctlError) -> None:
        """A log could not be read, and is asked for again."""
        if self._waiting is not None and not self._troubled:
            self._waiting(f"waiting for the log of {worker}: {error.message}")
        self._troubled = True

    def came(self) -> None:
        """A log was read."""
        self._troubled = False

    def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Batch]:
        """As `LogSource.lines`. Raises AtlctlError that says why there is no log.

        Followed, it goes on with the next run of the container and with the worker's next pod, until the job is over.
        """
        return _Reading(self, job, worker, request).batches()


class _Reading:
    """One worker's log, read once."""

    def __init__(self, source: PodLogs, job: Job, worker: Worker, request: LogRequest) -> None:
        self._source = source
        self._api, self._places, self._patience = source.api, source.places, source.patience
        self._job, self._worker, self._request = job, worker, request
        self._seen = Seen()
        self._since = int((request.since or 0) * 1e9)
        self._tail = request.tail
        self._pod: Object | None = None
        self._at: Instance | None = None
        self._looked = 0.0
        self._settled: Instance | None = None
        self._failures = 0
        self._failing_since = 0.0
        self._idle = 0
        self._believe = False
        self._polled = False
        self._feed = self._new_feed(replay=False, pinned=False, cut=False)
        self._asked: int | None = None
        self._bite = BITE if source.streams.crowded(len(job.workers)) else None

    async def batches(self) -> AsyncGenerator[Batch, None]:
        if self._request.follow and not self._request.previous:
            async with aclosing(self._followed()) as read:
                async for batch in read:
                    yield batch
            return
        at = await self._look(fresh=False)
        if at is None:
            raise self._gone()
        self._at = at
        if self._tail != 0:
            try:
                async with aclosing(self._once()) as read:
                    async for batch in read:
                        yield batch
            except ApiError as error:
                raise self._refused(error) from error

    async def _once(self) -> AsyncGenerator[Batch, None]:
        """The log as it is now; where the container starts again meanwhile, both its runs."""
        while True:
            try:
                async with aclosing(self._to_the_end(previous=self._request.previous)) as read:
                    async for batch in read:
                        yield batch
                return
            except _OtherRun:
                at, before = await self._settle_run(), self._at
                if at is not None and before is not None and not at.same(before):
                    async with aclosing(self._rest_of(at, before)) as read:
                        async for batch in read:
                            yield batch
                    self._seen.restart()
                    self._at, self._tail = at, None

    # -- following -------------------------------------------------------------------------------------------------

    async def _followed(self) -> AsyncGenerator[Batch, None]:
        anchored = self._tail != 0
        while True:
            try:
                at = await self._current()
                if at is not None and not anchored:
                    await self._anchor(at)
                    anchored = True
                async with aclosing(self._go_on(at)) as read:
                    async for batch in read:
                        yield batch
                if at is None or self._settled is not None:
                    if (at is None or at.final) and await self._places.over(self._job):
                        if self._pod is None and self._at is None:
                            raise self._gone()
                        return
                    yield []
                    await asyncio.sleep(self._patience.poll)
            except _OtherRun:
                yield []
                await self._settle_run()
            except NotYet as problem:
                anchored, self._tail = True, self._tail or None  # whatever comes will be new
                if problem.reason not in PASSING or await self._places.over(self._job):
                    raise
                self._failures = 0
                yield []
                await asyncio.sleep(self._patience.poll)
            except (NoServer, ApiError) as error:
                if not passing(error) and not isinstance(error, Missing):
                    raise
                yield []
                await self._wait_out(error)

    async def _go_on(self, at: Instance | None) -> AsyncGenerator[Batch, None]:
        """Reads what there is to read now: the rest of a run that ended, the run that is there."""
        if at is None:
            return
        if self._at is not None and not at.same(self._at):
            if at.uid == self._at.uid:
                async with aclosing(self._rest_of(at, self._at)) as read:
                    async for batch in read:
                        yield batch
            self._seen.restart()
            self._tail, self._settled = None, None
        if self._at is None or at.id or at.uid != self._at.uid:
            self._at = at
        if self._settled is not None:
            return
        self._seen.pin()
        if at.id and not at.running:
            try:
                async with aclosing(self._to_the_end(previous=False, sure=True)) as read:
                    async for batch in read:
                        yield batch
            except NoLog as problem:
                if await self._places.over(self._job):
                    raise
                _LOG.warning("%s: %s", self._worker.name, problem.message)
            self._settled = at
            self._failures = 0
            return
        follow = self._source.streams.may_follow(len(self._job.workers))
        begun, self._polled = monotonic(), not follow
        async with aclosing(self._follow_stream() if follow else self._read(bite=self._bite or BITE)) as read:
            async for batch in read:
                yield batch
        if self._feed.words:
            raise NoServer(self._said().message)
        self._failures = 0
        if self._feed.fresh:
            self._idle = 0
        elif monotonic() - begun < 1:  # the server hears late that a container has ended
            self._idle += 1
            yield []
            await asyncio.sleep(min(self._patience.after(self._idle), self._patience.poll))
        if not follow and not self._more:
            yield []
            await asyncio.sleep(self._patience.poll)

    async def _current(self) -> Instance | None:
        """The worker's container as the server knows it; between two polls not asked for each time."""
        polled = self._polled and self._at is not None and self._settled is None and not self._failures
        if polled and monotonic() - self._looked < self._patience.look:
            return self._at
        at = await self._look(fresh=True)
        if at is not None and self._at is not None and at.same(self._at) and polled:
            self._seen.repin()
        return at

    async def _follow_stream(self) -> AsyncGenerator[Batch, None]:
        """An open stream to its end. Left early where it turns out that another container has taken over."""
        confirmed = False
        opened = monotonic()
        async with aclosing(self._read(follow=True)) as read:
            async for batch in read:
                yield batch
                if not confirmed and monotonic() - opened >= self._patience.confirm:
                    now = await self._look(fresh=True)
                    if now is None or self._at is None or not now.same(self._at):
                        return
                    self._at = now if now.id else self._at
                    confirmed = True
                    self._seen.unpin()
                    self._failures = 0

    async def _rest_of(self, at: Instance, before: Instance) -> AsyncGenerator[Batch, None]:
        """What the run `before` wrote after the last line that came."""
        if not before.id:
            return
        if at.last_id != before.id:
            _LOG.info("%s: a run of container %s ended, and its last lines are gone", at.pod, at.container)
            return
        try:
            async with aclosing(self._to_the_end(previous=True, sure=True)) as read:
                async for batch in read:
                    yield batch
        except AtlctlError as error:
            if passing(error):
                raise
            _LOG.info("%s: the rest of the run before is not there: %s", at.pod, error.message)

    async def _settle_run(self) -> Instance | None:
        """Asks which run is there once the server must know. What the next answer brings is believed."""
        await asyncio.sleep(self._patience.confirm)
        at = await self._look(fresh=True)
        self._believe = at is None or self._at is None or at.same(self._at)
        return at

    async def _anchor(self, at: Instance) -> None:
        """For `tail=0`: notes where the log ends now, so that what comes is known to be new."""
        self._at = at
        if at.id:
            self._tail = 1
            async with aclosing(self._read()) as read:
                async for _ in read:
                    pass
        self._tail = None

    async def _wait_out(self, error: AtlctlError) -> None:
        """A pause after a failure. Raises once it has gone on for too long."""
        if self._feed.fresh or not self._failures:
            self._failing_since, self._failures, self._feed.fresh = monotonic(), 0, 0
        self._failures += 1
        ended = self._at is not None and self._at.final and self._failures >= self._patience.tries
        if ended or monotonic() - self._failing_since > self._patience.lost:
            if self._feed.words:
                raise self._said()
            raise (self._refused(error) if isinstance(error, ApiError) else error) from error
        self._source.failed(self._worker.name, error)
        await asyncio.sleep(self._patience.after(self._failures))

    # -- one read --------------------------------------------------------------------------------------------------

    async def _to_the_end(self, *, previous: bool, sure: bool = False) -> AsyncGenerator[Batch, None]:
        """Everything up to the log's end as it is now; answers that break are taken up again.

        A node that dies ends its answers as if they were whole. So where that may have happened, and always where it
        has to be `sure`, the end counts when two answers agree on it.
        """
        failures, checks, bite, since = 0, 0, self._bite, monotonic()
        rest: int | None = None
        while True:
            try:
                async with aclosing(self._read(previous=previous, bite=bite)) as read:
                    async for batch in read:
                        yield batch
            except (NoServer, ApiError) as error:
                if self._feed.fresh:
                    failures, since = 0, monotonic()
                else:
                    failures += 1
                patience = self._patience
                if not passing(error) or failures >= patience.tries or monotonic() - since > patience.give_up:
                    raise
                self._source.failed(self._worker.name, error)
                await asyncio.sleep(self._patience.after(failures))
                continue
            feed, failures, since = self._feed, 0, monotonic()
            if feed.words:
                raise self._said()
            if self._more:
                bite = bite if feed.fresh or bite is None else bite * 4
                continue
            agreed = checks > 0 and rest == feed.rest and not feed.fresh and (feed.reached or checks > 2)
            doubtful = sure or checks > 0 or feed.torn or feed.got > UNCHECKED or not feed.reached
            if agreed or not doubtful or checks >= 2 * self._patience.tries:
                last = feed.finish()
                if last:
                    yield last
                return
            rest, checks = feed.rest, checks + 1

    async def _read(
        self, *, follow: bool = False, previous: bool = False, bite: int | None = None
    ) -> AsyncGenerator[Batch, None]:
        """One answer, from where the last one ended. `bite`: at most so many bytes, held, then handed on."""
        at = self._at
        assert at is not None
        since = self._seen.pinned_since if previous and not self._request.previous else self._seen.since
        query = {"container": at.container, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if previous:
            query["previous"] = "true"
        if bite is not None:
            query["limitBytes"] = str(bite)
        if since is not None:
            query["sinceTime"] = second(since)
        else:
            if self._tail is not None:
                query["tailLines"] = str(self._tail)
            if self._request.since:
                query["sinceTime"] = second(self._request.since)
        feed = self._feed = self._new_feed(
            replay=True, pinned=previous and not self._request.previous, cut="sinceTime" in query
        )
        feed.wary = since is not None and not previous and not self._believe
        self._believe = False
        self._asked = bite
        held: list[bytes] = []
        async with self._source.streams.open(follow=follow), self._answer(at.path, query) as (status, stream):
            if status == 204:
                raise no_node(at.pod, self._pod, self._job.name)
            beat, idle = (self._patience.beat, self._patience.idle) if follow else (None, self._patience.silent)
            async with aclosing(chunks(stream, beat, idle)) as parts:
                async for chunk in parts:
                    if chunk is None:
                        yield []
                    elif bite is not None:
                        held.append(chunk)
                    elif batch := self._taken(feed, chunk):
                        yield batch
        for chunk in held:
            if batch := self._taken(feed, chunk):
                yield batch

    @asynccontextmanager
    async def _answer(self, path: str, query: dict[str, str]) -> AsyncIterator[tuple[int, Stream]]:
        try:
            async with self._api.stream(path, query) as answer:
                yield answer
        except ApiError as error:
            if passing(error) or isinstance(error, Missing):
                raise
            raise self._refused(error) from error

    def _taken(self, feed: LineFeed, chunk: bytes) -> Batch:
        self._source.came()
        batch = feed.feed(chunk)
        if feed.other:
            raise _OtherRun
        if batch and self._tail is not None and self._seen.pinned_since is None:
            # What lies before the tail is not wanted, in whatever way it is asked for later.
            self._seen.unpin()
            self._seen.pin()
        return batch

    @property
    def _more(self) -> bool:
        """Whether the last bite was full."""
        return self._asked is not None and self._feed.got >= self._asked

    def _new_feed(self, *, replay: bool, pinned: bool, cut: bool) -> LineFeed:
        known = self._seen.replay(pinned=pinned) if replay else None
        return LineFeed(self._seen, known, self._since, cut=cut, piece=self._source.piece)

    async def _look(self, *, fresh: bool) -> Instance | None:
        found = await self._places.pod(self._job, self._worker.name, fresh=fresh)
        if found is None:
            return None
        self._pod, self._looked = found, monotonic()
        return instance(found, self._places.container(found))

    def _gone(self) -> AtlctlError:
        return NothingMatched(
            f"worker {self._worker.name} has no pod any more, and its log is gone with it",
            f"atlctl ps {self._job.name}",
        )

    def _said(self) -> AtlctlError:
        assert self._feed.words is not None
        return no_log(self._feed.words, self._at.pod if self._at else "", self._pod, self._job.name)

    def _refused(self, error: ApiError) -> AtlctlError:
        pod, container = (self._at.pod, self._at.container) if self._at else (self._worker.pod or "", None)
        return refused(error, pod, container, self._job.name)


def passing(error: AtlctlError) -> bool:
    """Whether it may go away by itself: no connection, a node that does not answer, a server that is busy."""
    return isinstance(error, NoServer) or (isinstance(error, ApiError) and (error.status >= 500 or error.status == 429))
