"""Pod logs: read to the end, followed across lost connections, restarts and new pods, or read backwards.

Each line is returned once. The API does not separate standard output from standard error: all lines are "stdout".
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Generic, Protocol

from atlctl.backends.base import LogLine, LogRequest, S, awaiting_log
from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Api, ApiError, NoServer, NotFound, Object, Stream
from atlctl.backends.kubernetes.logstream import NODE_WORDS, PIECE, LineFeed, SeenLines, Stamps
from atlctl.i18n import Message
from atlctl.jobs import fields
from atlctl.jobs.errors import AtlctlError, NothingMatched, Unreachable
from atlctl.jobs.model import Job, Worker

#: Maximum number of open streams: each one is a connection through the API server to a kubelet.
STREAMS = 64
#: Minimum number of new bytes for a log that is read to its end to count as active.
LEAST = 8192
#: A longer read may have been cut by a failing node, and is checked once.
UNCHECKED = 64 * 1024
#: If there are fewer streams than workers, each read is limited to this size, to free the stream soon.
BITE = 128 * 1024
#: Lines of the first tail: some MiB of a typical log.
FIRST = 20_000
#: Growth factor of a tail.
GROWTH = 8
#: A tail of more bytes is requested again with fewer lines.
MOST = 32 * 1024 * 1024
#: Bytes at the start of a tail that are searched for a timestamp or a kubelet message.
_START = 4096
#: The server's messages if there is no log.
_WAITING = "is waiting to start: "
_TERMINATED = "is terminated"
_NO_PREVIOUS = "previous terminated container "
#: Waiting reasons that pass without help. The user has to fix image and configuration errors.
PASSING = frozenset({"", "ContainerCreating", "PodInitializing", "CrashLoopBackOff"})
_TEXT = 300

_LOG = logging.getLogger(__name__)

Batch = Sequence[LogLine]


class Places(Protocol):
    """Access to pods for log readers. Raises the errors of the Api."""

    async def pod(self, job: Job, worker: str, *, fresh: bool) -> Object | None:
        """The worker's newest pod; None if it has none. `fresh`: query the server, otherwise cached data is enough."""

    def container(self, pod: Object) -> str:
        """The container whose log is read."""

    async def over(self, job: Job) -> bool:
        """Whether the job will get no new pods and no restarts."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Times in seconds. `lost`: how long to retry a node that does not answer while following its log.

    `idle`: a followed stream without data is reopened after it, because it may be dead. `silent`: the same for a read
    to the end that receives less than `LEAST` bytes; `give_up`: no retries after so long without a line. `beat`: a
    followed log counts as quiet after it. `confirm`: the server knows of a restart after it. `look`: maximum age of a
    pod's data between two polls. `tries`: number of retries without data.
    """

    pause: float = 0.25
    most: float = 8.0
    poll: float = 1.5
    idle: float = 60.0
    silent: float = 15.0
    give_up: float = 20.0
    beat: float = 0.1
    confirm: float = 3.0
    look: float = 10.0
    lost: float = 300.0
    tries: int = 5

    def after(self, failures: int) -> float:
        """The pause after consecutive failures: grows, with random variation between readers."""
        longest: float = min(self.pause * 2.0 ** min(failures, 16), self.most)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311  # no secret


class LogStreams:
    """Limits the number of open streams. If there are too few, followed logs leave room for short reads."""

    def __init__(self, limit: int = STREAMS) -> None:
        self.limit = limit
        self._gate = asyncio.Semaphore(limit)
        self._following = 0

    def crowded(self, workers: int) -> bool:
        """Whether there are fewer streams than workers."""
        return workers > self.limit

    def may_follow(self, workers: int) -> bool:
        """Whether another stream may stay open."""
        room = self.limit - max(1, self.limit // 4) if self.crowded(workers) else self.limit
        return self._following < room

    @asynccontextmanager
    async def open(self, *, follow: bool) -> AsyncIterator[None]:
        self._following += follow
        try:
            async with self._gate:
                yield
        finally:
            self._following -= follow


class PodLogs:
    def __init__(
        self,
        api: Api,
        places: Places,
        *,
        streams: LogStreams | None = None,
        patience: Patience | None = None,
        piece: int = PIECE,
        waiting: Callable[[str], None] | None = None,
    ) -> None:
        """`waiting` is called with a note when a log cannot be read, once until a log is read again."""
        self.api = api
        self.places = places
        self.streams = streams or LogStreams()
        self.patience = patience or Patience()
        self.piece = piece
        self._waiting = waiting
        self._troubled = False

    def failed(self, worker: str, error: AtlctlError) -> None:
        """Report a log that cannot be read and will be retried."""
        if self._waiting is not None and not self._troubled:
            self._waiting(awaiting_log(worker, error))
        self._troubled = True

    def came(self) -> None:
        self._troubled = False

    def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Batch]:
        """See `LogSource.lines`. Raises AtlctlError with the reason if there is no log.

        Following continues with restarts of the container and with the worker's next pod, until the job has ended.
        """
        return _LogReading(self, job, worker, request).batches()


@dataclass(frozen=True, slots=True)
class Instance:
    """A run of a container. `id` is empty until it has started; `last_id` is the previous run.

    `final`: it has ended and will not restart in this pod.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    id: str
    last_id: str
    running: bool
    final: bool

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}/log"

    def same(self, other: Instance) -> bool:
        """Whether both are the same run, as far as known."""
        return self.uid == other.uid and (self.id == other.id or not self.id or not other.id)


def instance(pod: Object, container: str) -> Instance:
    """The run of `container`, from the pod's status."""
    meta, status = objects.meta(pod), objects.status(pod)
    found: Object = {}
    for part in ("containerStatuses", "initContainerStatuses"):
        found = next((one for one in fields.entries(status.get(part)) if one.get("name") == container), found)
    state = fields.mapping(found.get("state"))
    ended = fields.mapping(state.get("terminated"))
    policy = objects.spec(pod).get("restartPolicy", "Always")
    stays_ended = bool(ended) and (policy == "Never" or (policy == "OnFailure" and ended.get("exitCode") == 0))
    return Instance(
        namespace=str(meta.get("namespace", "")),
        pod=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        container=container,
        id=str(found.get("containerID") or ""),
        last_id=str(objects.dig(found, "lastState", "terminated", "containerID") or ""),
        running="running" in state,
        final=stays_ended or status.get("phase") in ("Succeeded", "Failed"),
    )


class _OtherRun(Exception):
    """An answer does not begin with the known lines: the container may have restarted."""


class _LogReading:
    """Reads the log of one worker once."""

    def __init__(self, source: PodLogs, job: Job, worker: Worker, request: LogRequest) -> None:
        self._source = source
        self._api, self._places, self._patience = source.api, source.places, source.patience
        self._job, self._worker, self._request = job, worker, request
        self._seen = SeenLines()
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
        """The current log; both runs if the container restarts meanwhile."""
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
                anchored, self._tail = True, self._tail or None  # every line from now on is new
                if problem.reason not in PASSING or await self._places.over(self._job):
                    raise
                self._failures = 0
                yield []
                await asyncio.sleep(self._patience.poll)
            except (NoServer, ApiError) as error:
                if not passing(error) and not isinstance(error, NotFound):
                    raise
                yield []
                await self._wait_out(error)

    async def _go_on(self, at: Instance | None) -> AsyncGenerator[Batch, None]:
        """Read what is available: the rest of a run that ended, and the current run."""
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
        elif monotonic() - begun < 1:  # the server learns late that a container has ended
            self._idle += 1
            yield []
            await asyncio.sleep(min(self._patience.after(self._idle), self._patience.poll))
        if not follow and not self._more:
            yield []
            await asyncio.sleep(self._patience.poll)

    async def _current(self) -> Instance | None:
        """The worker's current container; between polls not queried each time."""
        polled = self._polled and self._at is not None and self._settled is None and not self._failures
        if polled and monotonic() - self._looked < self._patience.look:
            return self._at
        at = await self._look(fresh=True)
        if at is not None and self._at is not None and at.same(self._at) and polled:
            self._seen.repin()
        return at

    async def _follow_stream(self) -> AsyncGenerator[Batch, None]:
        """Follow a stream to its end. Leaves early if another container has taken over."""
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
        """The lines of the run `before` after the last one received."""
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
        """Query the current run after the server must know it. The next answer is then trusted."""
        await asyncio.sleep(self._patience.confirm)
        at = await self._look(fresh=True)
        self._believe = at is None or self._at is None or at.same(self._at)
        return at

    async def _anchor(self, at: Instance) -> None:
        """For `tail=0`: note the current end of the log, so that later lines are known to be new."""
        self._at = at
        if at.id:
            self._tail = 1
            async with aclosing(self._read()) as read:
                async for _ in read:
                    pass
        self._tail = None

    async def _wait_out(self, error: AtlctlError) -> None:
        """Pause after a failure. Raises if failures last too long."""
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
        """Read up to the current end of the log; resume broken answers.

        The answers of a failing node end as if they were complete. If that is possible, and always with `sure`, the end
        counts only once two answers agree.
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
        """One answer, from the end of the previous one. `bite`: read up to so many bytes, and return them
        afterwards."""
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
            if passing(error) or isinstance(error, NotFound):
                raise
            raise self._refused(error) from error

    def _taken(self, feed: LineFeed, chunk: bytes) -> Batch:
        self._source.came()
        batch = feed.feed(chunk)
        if feed.other:
            raise _OtherRun
        if batch and self._tail is not None and self._seen.pinned_since is None:
            # Lines before the tail are not wanted, also in later requests.
            self._seen.unpin()
            self._seen.pin()
        return batch

    @property
    def _more(self) -> bool:
        """Whether the last limited read was full."""
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
            Message("worker {worker} no longer has a pod, and its log is gone with it", worker=self._worker.name),
            f"atlctl ps {self._job.name}",
        )

    def _said(self) -> AtlctlError:
        assert self._feed.words is not None
        return no_log(self._feed.words, self._at.pod if self._at else "", self._pod, self._job.name)

    def _refused(self, error: ApiError) -> AtlctlError:
        pod, container = (self._at.pod, self._at.container) if self._at else (self._worker.pod or "", None)
        return refused(error, pod, container, self._job.name)


@dataclass(frozen=True, slots=True)
class Tail(Generic[S]):
    """The last `lines` lines of a log, `size` bytes with timestamps, consumed by `sink`.

    `whole`: the log has no earlier lines. `first`: time of the first line in nanoseconds since the epoch; None if there
    are no lines.
    """

    sink: S
    lines: int
    size: int
    whole: bool
    first: int | None


class TailReader(Generic[S]):
    """Reads the log of one worker backwards. `new_sink` makes a sink for each answer."""

    def __init__(
        self, source: PodLogs, job: Job, worker: Worker, new_sink: Callable[[], S], *, most: int = MOST
    ) -> None:
        self._source = source
        self._job = job
        self._worker = worker
        self._new_sink = new_sink
        self._most = most
        self._asked = FIRST

    async def read(self, lines: int = FIRST) -> Tail[S]:
        """The last `lines` lines, or fewer if they are very long.

        Raises AtlctlError with the reason if there is no log.
        """
        asked = lines
        while True:
            tail = await self._tried(asked, self._most)
            if tail is not None:
                self._asked = asked
                return tail
            asked = max(1, asked // GROWTH)
            if asked == 1:
                return await self._all(1)

    async def more(self) -> Tail[S]:
        """A tail longer than the last one by the factor `GROWTH`."""
        self._asked *= GROWTH
        return await self._all(self._asked)

    async def _all(self, lines: int) -> Tail[S]:
        tail = await self._tried(lines, None)
        assert tail is not None
        return tail

    async def _tried(self, lines: int, most: int | None) -> Tail[S] | None:
        failures, since, patience = 0, monotonic(), self._source.patience
        while True:
            try:
                return await self._answer(lines, most)
            except (NoServer, ApiError) as error:
                failures += 1
                if not passing(error) or failures >= patience.tries or monotonic() - since > patience.give_up:
                    if isinstance(error, ApiError):
                        pod = self._worker.pod or self._worker.name
                        raise refused(error, pod, None, self._job.name) from error
                    raise
                self._source.failed(self._worker.name, error)
                await asyncio.sleep(patience.after(failures))

    async def _answer(self, lines: int, most: int | None) -> Tail[S] | None:
        """One answer into a new sink; None if it is longer than `most` bytes."""
        source, name = self._source, self._job.name
        pod = await source.places.pod(self._job, self._worker.name, fresh=False)
        if pod is None:
            raise NothingMatched(
                Message("worker {worker} has no pod (any more), so it has no log", worker=self._worker.name),
                f"atlctl ps {name}",
            )
        at = instance(pod, source.places.container(pod))
        query = {"container": at.container, "timestamps": "true", "tailLines": str(lines)}
        sink, size, count, start, last = self._new_sink(), 0, 0, b"", b""
        async with source.streams.open(follow=False), source.api.stream(at.path, query) as (status, stream):
            if status == 204:
                raise no_node(at.pod, pod, name)
            async with aclosing(chunks(stream, None, source.patience.silent)) as parts:
                async for chunk in parts:
                    if not chunk:
                        continue
                    if len(start) < _START:
                        start += chunk[: _START - len(start)]
                        if start.startswith(NODE_WORDS):
                            raise no_log(start.decode("utf-8", "replace").strip()[:300], at.pod, pod, name)
                    size += len(chunk)
                    if most is not None and size > most:
                        return None
                    count += chunk.count(b"\n")
                    last = chunk
                    sink.feed(chunk)
        count += bool(last) and not last.endswith(b"\n")
        return Tail(sink, count, size, count < lines, Stamps().split(start)[0])


async def chunks(stream: Stream, beat: float | None, idle: float) -> AsyncGenerator[bytes | None, None]:
    """The chunks of `stream`; None after `beat` seconds without data, and repeatedly after that.

    Ends after `idle` seconds without data. Without `beat`, silence is not expected: it raises NoServer instead, also if
    less than `LEAST` bytes have arrived in that time.
    """
    iterator = aiter(stream)

    async def following() -> bytes | None:
        return await anext(iterator, None)

    task: asyncio.Task[bytes | None] | None = None
    quiet, got = 0.0, 0
    try:
        while quiet < idle:
            if task is None:
                task = asyncio.create_task(following())
            wait = idle - quiet if beat is None else min(beat * 10 if quiet else beat, idle)
            begun = monotonic()
            done, _ = await asyncio.wait({task}, timeout=wait)
            if not done:
                if beat is None:
                    raise NoServer(
                        Message("the API server sent {got} bytes of a log in {idle:g} s", got=got, idle=idle)
                    )
                quiet += wait
                yield None
                continue
            chunk, task = task.result(), None
            if chunk is None:
                return
            got += len(chunk)
            if beat is not None or got >= LEAST:
                quiet, got = 0.0, 0
            else:
                quiet = min(quiet + monotonic() - begun, idle - 0.001)
            yield chunk
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()


def second(epoch: float) -> str:
    """A time as the server expects it, in whole seconds."""
    return datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def passing(error: AtlctlError) -> bool:
    """Whether the error may be temporary: no connection, no answer from the node, busy server."""
    return isinstance(error, NoServer) or (isinstance(error, ApiError) and (error.status >= 500 or error.status == 429))


class NotYet(AtlctlError):
    """There is no log yet. `reason`: why the container waits; empty if the pod has no node."""

    def __init__(self, message: str, hint: str, reason: str) -> None:
        super().__init__(message, hint)
        self.reason = reason


class NoLog(AtlctlError):
    """The node has no log of the pod, or no longer has it."""


def no_node(pod: str, found: Object | None, job: str) -> NotYet:
    """The error for 204: the pod has no node."""
    why = ""
    for condition in fields.entries(objects.status(found or {}).get("conditions")):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            why = f" ({condition.get('reason', '')}: {str(condition.get('message', ''))[:_TEXT]})"
    return NotYet(Message("pod {pod} has no node yet, so it has no log{why}", pod=pod, why=why), f"atlctl ps {job}", "")


def refused(error: ApiError, pod: str, container: str | None, job: str) -> AtlctlError:
    """The error for a refused log request; the original one if it is clear enough."""
    named = Message("pod {pod}", pod=pod)
    if container:
        named = Message("container {container} of pod {pod}", container=container, pod=pod)
    if isinstance(error, NotFound):
        return NothingMatched(Message("pod {pod} is gone, and its log with it", pod=pod), f"atlctl ps {job}")
    if error.status == 400 and _WAITING in error.text:
        reason = error.text.rpartition(_WAITING)[2].strip()[:_TEXT]
        text = Message("{named} has no log yet, it waits to start: {why}", named=named, why=reason)
        return NotYet(text, f"atlctl ps {job}", reason)
    if error.status == 400 and error.text.startswith(_NO_PREVIOUS):
        return NothingMatched(
            Message("{named} was not restarted: there is no log of a previous instance", named=named),
            Message("leave out --previous"),
        )
    if error.status == 400 and error.text.endswith(_TERMINATED):
        return NoLog(Message("{named} has ended, and its node no longer has its log", named=named), f"atlctl ps {job}")
    if error.status >= 500:
        return Unreachable(
            Message("the node of pod {pod} does not answer: {why}", pod=pod, why=error.text[:_TEXT] or error.reason),
            f"atlctl ps {job}",
        )
    return error


def no_log(words: str, pod: str, found: Object | None, job: str) -> NoLog:
    """The error for the kubelet's message `words` in place of a log."""
    status = objects.status(found or {})
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")[:_TEXT]
    ended = f" ({reason}: {message})" if reason and message else f" ({reason})" if reason else ""
    return NoLog(
        Message("the node of pod {pod} has no log of it{ended}: {why}", pod=pod, ended=ended, why=words),
        f"atlctl ps {job}",
    )
