"""Evidence of a living or ended job for its diagnosis: logs, error files, states and events of its platform.

Logs that are far away are read from their ends, and further back only if the start of the failure is not in what was
read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from atlctl.backends.base import PREVIOUS, End, LogEnds, LogLine, LogRequest, LogSource
from atlctl.cli import say
from atlctl.cli.evidence.findings import say_cut
from atlctl.cli.evidence.logpath import FilesRead, Story, join, read_files
from atlctl.cli.loglines import lines_of
from atlctl.diagnosis.evidence import JobEvidence, ReadPart, WorkerEvidence, first_sign, uncovered
from atlctl.diagnosis.logfacts import LogFacts, LogReader, literals_of
from atlctl.diagnosis.logline import Moment, split_stamp
from atlctl.diagnosis.platform import Event, PlatformState
from atlctl.diagnosis.torchelastic import ERROR_FILE_LIMIT, ErrorRecord, parse_error_file
from atlctl.i18n import Message
from atlctl.jobs import podnews
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import State, Worker
from atlctl.recording.events import of_object
from atlctl.recording.feed import Feed, Told
from atlctl.recording.save import named_in
from atlctl.render.table import rfc3339

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.diagnosis.signatures import Matcher
    from atlctl.jobs.model import Job

#: Workers whose logs are read at once.
READERS = 16
#: The same where each is a stream over a network.
FAR_READERS = 64
#: How often logs in which nothing failed are read further back than their ends.
_LOOKS = 1
#: Lines, and bytes, at the end of a log that are kept.
_LATEST, _LATEST_BYTES = 200, 16 << 10
#: Lines that are read of the instance before the last restart.
_PREVIOUS = 20_000

#: The last lines of a log, each with its time.
Latest = Sequence[tuple[bytes, float]]


@dataclass(frozen=True, slots=True)
class Collected:
    """`unread`: the workers whose log could not be read, and why; they are in the evidence without a log.

    `problems` are files inside workers that could not be read, by worker. `stories` have the place of each line.
    `latest` are the last lines of each log, with their times (seconds since the epoch).
    """

    evidence: JobEvidence
    unread: Mapping[str, AtlctlError]
    problems: Sequence[tuple[str, AtlctlError]]
    stories: Mapping[str, Story]
    latest: Mapping[str, Latest]


async def collect(
    source: Backend,
    job: Job,
    matcher: Matcher,
    log_path: str | None = None,
    events: Sequence[Mapping[str, Any]] = (),
    attempt: int | None = None,
) -> Collected:
    """Reads all workers' logs and error files, some workers at a time; `log_path` names files inside them to read, too.

    `attempt`: that of the logs, see `LogRequest`. `events` are the platform's, as it has them: workers that only these
    report are in the evidence without a log.

    Raises AtlctlError if the job as a whole cannot be reached.
    """
    gate = asyncio.Semaphore(READERS)
    logs, unread, cut, latest = await _logs(source, job, matcher, gate, attempt)
    files = FilesRead()
    if log_path is not None:
        with say.doing(Message("reading {path} in the workers of job {job}", path=log_path, job=job.name)):
            files = await read_files(lambda: source.executor(job), job.workers, log_path, matcher)
        for remark in files.remarks:
            say.note(remark)
    stories = join(logs, files.files, job.workers, frozenset(cut))

    async def evidence(worker: Worker) -> WorkerEvidence:
        async with gate:
            return await _worker(source, job, worker, stories[worker.name])

    with say.counting(Message("reading the error files of job {job}", job=job.name), len(job.workers)) as one:
        workers = await asyncio.gather(*(one(evidence(worker)) for worker in job.workers))
    told, gone = _told(job, events)
    missing = tuple(f"worker {index}" for index in job.missing)
    whole = JobEvidence((*workers, *gone), expected=job.expected, missing=missing, events=told)
    return Collected(whole, unread, files.problems, stories, latest)


def _told(job: Job, events: Sequence[Mapping[str, Any]]) -> tuple[tuple[Event, ...], list[WorkerEvidence]]:
    """The events with workers in place of pods, and the workers whose pods are gone, by their names."""
    names = {worker.pod: worker.name for worker in job.workers}
    present = set(names.values())
    gone: dict[str, None] = {}
    told = []
    for event in map(of_object, events):
        pod = event.worker
        if pod is not None:
            name = names.get(pod) or podnews.worker_of(job.name, pod)
            if name is not None and name not in present:
                gone[name] = None
            event = replace(event, worker=name or pod)
        told.append(event)
    free = iter(job.missing)
    return tuple(told), [WorkerEvidence(name, next(free, job.expected)) for name in sorted(gone)]


async def _logs(
    source: Backend, job: Job, matcher: Matcher, gate: asyncio.Semaphore, attempt: int | None
) -> tuple[Mapping[str, LogFacts | None], dict[str, AtlctlError], set[str], Mapping[str, Latest]]:
    """All logs, those that could not be read, those whose lines have no numbers (only the end of them was read), and
    the last lines."""
    reading = Message("reading the logs of job {job}", job=job.name)
    if isinstance(source, LogEnds) and attempt is None:  # asked at run time: only some sources have it
        with say.doing(reading):
            found = await read_ends(source, job, job.workers, matcher, asyncio.Semaphore(FAR_READERS))
        if found.cut:
            _say_cut(found.cut)
        return found.facts, found.unread, {*found.cut, *found.led}, found.latest
    latest: dict[str, Latest] = {}
    unread: dict[str, AtlctlError] = {}

    async def log(worker: Worker) -> LogFacts | None:
        async with gate:
            try:
                facts, latest[worker.name] = await _log(source, job, worker, matcher, attempt)
                return facts
            except AtlctlError as error:
                unread[worker.name] = error
                return None

    names = [worker.name for worker in job.workers]
    with say.counting(reading, len(names)) as one:
        found_logs = await asyncio.gather(*(one(log(worker)) for worker in job.workers))
    return dict(zip(names, found_logs, strict=True)), unread, set(), latest


def _say_cut(cut: Mapping[str, float | None]) -> None:
    times = [time for time in cut.values() if time is not None]
    say_cut(cut, *([Message("from {time} on", time=rfc3339(max(times)))] if times else []))


class Far(LogSource, LogEnds, Protocol):
    """Logs that are large and far away."""


@dataclass(frozen=True, slots=True)
class Tails:
    """The logs read, by worker. `unread`: why a log could not be read. `cut`: logs of which only the end was read, with
    the time of its first line (seconds since the epoch, None if it has none). `led`: logs that follow that of the
    previous instance. The lines of both kinds of logs have no line numbers. `latest`: the last lines of each."""

    facts: dict[str, LogFacts | None]
    unread: dict[str, AtlctlError]
    cut: dict[str, float | None]
    led: frozenset[str] = frozenset()
    latest: Mapping[str, Latest] = field(default_factory=dict)


class Scan:
    """Takes one worker's log in chunks, behind the lines of the instance `before`, and keeps its facts."""

    def __init__(self, matcher: Matcher, before: Sequence[LogLine] = ()) -> None:
        self._matcher = matcher
        self._reader = LogReader(matcher)
        self._feed: Feed | None = None
        self._number = feed_lines(self._reader, before, 0)
        self._end = b""

    def feed(self, data: bytes) -> None:
        self._end = (self._end + data[-_LATEST_BYTES:])[-_LATEST_BYTES:]
        if self._feed is None:
            self._feed = Feed(self, "", self._number, literals_of(self._matcher), data, alone=True)
        self._feed.feed(data)

    def finish(self) -> LogFacts:
        """The log has ended."""
        if self._feed is not None:
            self._feed.finish()
        return self._reader.facts()

    def latest(self) -> Latest:
        """The last lines that have a time."""
        found = map(split_stamp, self._end.splitlines())
        return [(line, stamp.seconds) for stamp, line in found if stamp is not None]

    def reader(self, _name: str, _how: Told | None) -> LogReader:
        """See `atlctl.recording.feed.Readers`: every line is this worker's."""
        return self._reader

    def mixed(self, _name: str) -> None:
        """See `atlctl.recording.feed.Readers`."""


async def read_ends(
    source: Far, job: Job, workers: Sequence[Worker], matcher: Matcher, gate: asyncio.Semaphore
) -> Tails:
    """The facts of all workers' logs. `gate` bounds how many are read at once."""
    before: dict[str, list[LogLine]] = {}

    async def look_before(worker: Worker) -> None:
        async with gate:
            before[worker.name] = await _previous(source, job, worker)

    def scan(name: str) -> Scan:
        return Scan(matcher, before.get(name, ()))

    await asyncio.gather(*(look_before(worker) for worker in workers if worker.restarts))
    readers = {worker.name: source.end_reader(job, worker, partial(scan, worker.name)) for worker in workers}
    parts: dict[str, ReadPart] = {}
    latest: dict[str, Latest] = {}
    unread: dict[str, AtlctlError] = {}

    async def take(name: str, answer: Awaitable[End[Scan]]) -> None:
        async with gate:
            try:
                end = await answer
            except AtlctlError as error:
                # Line numbers continue from the part read before.
                if name not in parts:
                    unread[name] = error
                return
        latest[name] = end.sink.latest()
        parts[name] = ReadPart(end.sink.finish(), end.whole, None if end.first is None else end.first / 1e9)

    with say.counting(Message("reading the ends of the logs of job {job}", job=job.name), len(readers)) as one:
        await asyncio.gather(*(one(take(name, reader.read())) for name, reader in readers.items()))
    looks = 0
    while short := uncovered(parts):
        if not any(first_sign(part.facts) for part in parts.values()):
            if looks == _LOOKS:
                break
            looks += 1
        known = dict(parts)
        further = Message("reading the logs of job {job} further back", job=job.name)
        with say.counting(further, len(short)) as one:
            await asyncio.gather(*(one(take(name, readers[name].more())) for name in sorted(short)))
        if all(parts[name] is known[name] for name in short):
            break  # none of them could be read further back
    facts = {name: parts[name].facts if name in parts else None for name in readers}
    cut = {name: part.first for name, part in parts.items() if not part.whole}
    return Tails(facts, unread, cut, frozenset(name for name, lines in before.items() if lines), latest)


async def _previous(source: Far, job: Job, worker: Worker) -> list[LogLine]:
    """The end of the log of the instance before the last restart; empty if it is not available."""
    found: list[LogLine] = []
    try:
        async for batch in source.lines(job, worker, LogRequest(attempt=PREVIOUS, tail=_PREVIOUS)):
            found += batch
    except AtlctlError:
        return []  # a restart in a new pod leaves none
    return found


async def _worker(source: Backend, job: Job, worker: Worker, story: Story) -> WorkerEvidence:
    if story.log is not None and (code := story.log.ended) is not None:  # an attempt in a container that is kept
        state, (code, signal) = State.FAILED if code else State.SUCCEEDED, (code, None) if code >= 0 else (None, -code)
        last = story.log.last
        worker = replace(worker, state=state, exit_code=code, signal=signal, ended=last.seconds if last else None)
    return WorkerEvidence(
        worker.name,
        worker.index,
        story.log,
        error_files=await _error_files(source, job, worker, story.log) if story.log else {},
        rank_logs=story.rank_logs,
        state=worker.state,
        platform=_platform(worker),
    )


async def _log(
    source: Backend, job: Job, worker: Worker, matcher: Matcher, attempt: int | None
) -> tuple[LogFacts, Latest]:
    reader = LogReader(matcher)
    number = 0
    end: deque[LogLine] = deque(maxlen=_LATEST)
    async for batch in lines_of(source, job, worker, LogRequest(attempt=attempt)):
        number = feed_lines(reader, batch, number)
        end.extend(batch)
    return reader.facts(), [(line.data, line.time / 1e9) for line in end if line.time is not None]


def feed_lines(reader: LogReader, lines: Sequence[LogLine], behind: int) -> int:
    """Hands `lines` to the reader, which has seen `behind` lines; returns how many it has seen then."""
    for number, line in enumerate(lines, behind + 1):
        stamp = None if line.time is None else Moment(line.time / 1e9, 0.001, absolute=True)
        reader.feed(number, line.data, stamp)
    return behind + len(lines)


async def _error_files(source: Backend, job: Job, worker: Worker, log: LogFacts) -> dict[str, ErrorRecord]:
    """The error files that the worker's own summaries name, and those of the attempts before."""
    found: dict[str, ErrorRecord] = {}
    for path in named_in(log):
        data = await source.read_file(job, worker, path, ERROR_FILE_LIMIT + 1)
        if data is None:
            continue
        record, reason = parse_error_file(data)
        if record is None:
            say.note(Message("{names}: {path}: {text}", names=worker.name, path=path, text=reason))
        else:
            found[path] = record
    return found


def _platform(worker: Worker) -> PlatformState:
    return PlatformState(
        exit_code=worker.exit_code,
        signal=worker.signal,
        reason=worker.reason,
        finished=worker.ended,
        restarts=worker.restarts,
        node=worker.node or worker.host,
        host_ip=None,
        addresses=(worker.address,) if worker.address else (),
    )
