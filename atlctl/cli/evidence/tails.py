"""Logs of a job read from their ends, and further back only where the start of its failure is not in what was read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from atlctl.backends.base import End, LogEnds, LogLine, LogRequest, LogSource
from atlctl.cli.evidence.collect import feed_lines
from atlctl.diagnosis.coverage import ReadPart, first_sign, uncovered
from atlctl.diagnosis.reading.reader import LogFacts, LogReader, literals_of
from atlctl.diagnosis.signatures.match import Matcher
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Job, Worker
from atlctl.recording.feed import Feed, Told

#: How often logs in which nothing failed are read further back than their ends.
_LOOKS = 1
#: Lines that are read of the instance before the last restart.
_PREVIOUS = 20_000


class Far(LogSource, LogEnds, Protocol):
    """Logs that are large and far away."""


@dataclass(frozen=True, slots=True)
class Tails:
    """What was read, by worker. `unread`: why a log could not be. `cut`: logs of which only the end was read, with the
    time of its first line (seconds since the epoch, None where it has none). `led`: logs behind that of the instance
    before. In logs of both sorts lines have no numbers of their own.
    """

    facts: dict[str, LogFacts | None]
    unread: dict[str, AtlctlError]
    cut: dict[str, float | None]
    led: frozenset[str] = frozenset()


class Scan:
    """Takes one worker's log in chunks, behind the lines of the instance `before`, and keeps its facts."""

    def __init__(self, matcher: Matcher, before: Sequence[LogLine] = ()) -> None:
        self._matcher = matcher
        self._reader = LogReader(matcher)
        self._feed: Feed | None = None
        self._number = feed_lines(self._reader, before, 0)

    def feed(self, data: bytes) -> None:
        if self._feed is None:
            self._feed = Feed(self, "", self._number, literals_of(self._matcher), data, alone=True)
        self._feed.feed(data)

    def finish(self) -> LogFacts:
        """The log has ended."""
        if self._feed is not None:
            self._feed.finish()
        return self._reader.facts()

    def reader(self, _name: str, _how: Told | None) -> LogReader:
        """See `atlctl.recording.feed.Readers`: every line is this worker's."""
        return self._reader

    def mixed(self, _name: str) -> None:
        """See `atlctl.recording.feed.Readers`."""


async def read(source: Far, job: Job, workers: Sequence[Worker], matcher: Matcher, gate: asyncio.Semaphore) -> Tails:
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
    unread: dict[str, AtlctlError] = {}

    async def take(name: str, answer: Awaitable[End[Scan]]) -> None:
        async with gate:
            try:
                end = await answer
            except AtlctlError as error:
                # What was read of it before counts on.
                if name not in parts:
                    unread[name] = error
                return
        parts[name] = ReadPart(end.sink.finish(), end.whole, None if end.first is None else end.first / 1e9)

    await asyncio.gather(*(take(name, reader.read()) for name, reader in readers.items()))
    looks = 0
    while short := uncovered(parts):
        if not any(first_sign(part.facts) for part in parts.values()):
            if looks == _LOOKS:
                break
            looks += 1
        known = dict(parts)
        await asyncio.gather(*(take(name, readers[name].more()) for name in sorted(short)))
        if all(parts[name] is known[name] for name in short):
            break  # none of them could be read further back
    facts = {name: parts[name].facts if name in parts else None for name in readers}
    cut = {name: part.first for name, part in parts.items() if not part.whole}
    return Tails(facts, unread, cut, frozenset(name for name, lines in before.items() if lines))


async def _previous(source: Far, job: Job, worker: Worker) -> list[LogLine]:
    """The end of the log of the instance before the last restart; empty where there is none to be had."""
    found: list[LogLine] = []
    try:
        async for batch in source.lines(job, worker, LogRequest(previous=True, tail=_PREVIOUS)):
            found += batch
    except AtlctlError:
        return []  # a restart in a new pod leaves none
    return found
