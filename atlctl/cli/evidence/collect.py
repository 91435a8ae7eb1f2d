"""Everything that is known of a living or ended job, as evidence for its diagnosis."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.jobs.errors import AtlctlError

if TYPE_CHECKING:
    from atlctl.backends.base import Backend, LogLine
    from atlctl.cli.evidence.logjoin import Story
    from atlctl.diagnosis.errorfile import ErrorRecord
    from atlctl.diagnosis.evidence import JobEvidence, WorkerEvidence
    from atlctl.diagnosis.platform import Event, PlatformState
    from atlctl.diagnosis.reading.reader import LogFacts, LogReader
    from atlctl.diagnosis.signatures.match import Matcher
    from atlctl.jobs.model import Job, Worker

#: Workers whose logs are read at once.
READERS = 16
#: The same where each is a stream over a network.
FAR_READERS = 64


@dataclass(frozen=True, slots=True)
class Collected:
    """`unread` are workers whose log could not be read, and why: they are in the evidence without a log of their own.

    `problems` are files inside workers that could not be read, by worker. `stories` tell where each line stands.
    """

    evidence: JobEvidence
    unread: Mapping[str, AtlctlError]
    problems: Sequence[tuple[str, AtlctlError]]
    stories: Mapping[str, Story]


async def collect(
    source: Backend,
    job: Job,
    matcher: Matcher,
    log_path: str | None = None,
    events: Sequence[Mapping[str, Any]] = (),
) -> Collected:
    """Reads all workers' logs and error files, some workers at a time; `log_path` names files inside them to read, too.

    `events` are the platform's, as it has them: workers that only these report are in the evidence without a log.

    Raises AtlctlError where the job as a whole cannot be reached.
    """
    from atlctl.cli.evidence.logjoin import join
    from atlctl.cli.evidence.logpath import Found, read_files
    from atlctl.diagnosis.evidence import JobEvidence

    gate = asyncio.Semaphore(READERS)
    logs, unread, cut = await _logs(source, job, matcher, gate)
    files = Found()
    if log_path is not None:
        files = await read_files(lambda: source.executor(job), job.workers, log_path, matcher)
        for remark in files.remarks:
            say.note(remark)
    stories = join(logs, files.files, job.workers, frozenset(cut))

    async def evidence(worker: Worker) -> WorkerEvidence:
        async with gate:
            return await _worker(source, job, worker, stories[worker.name])

    workers = await asyncio.gather(*map(evidence, job.workers))
    told, gone = _told(job, events)
    missing = tuple(f"worker {index}" for index in job.missing)
    whole = JobEvidence((*workers, *gone), expected=job.expected, missing=missing, events=told)
    return Collected(whole, unread, files.problems, stories)


def _told(job: Job, events: Sequence[Mapping[str, Any]]) -> tuple[tuple[Event, ...], list[WorkerEvidence]]:
    """The events with workers in place of pods, and the workers whose pods are gone, by their names."""
    from atlctl.diagnosis.evidence import WorkerEvidence
    from atlctl.jobs import podnews
    from atlctl.recording.events import of_object

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
    source: Backend, job: Job, matcher: Matcher, gate: asyncio.Semaphore
) -> tuple[Mapping[str, LogFacts | None], dict[str, AtlctlError], set[str]]:
    """All logs, those that could not be read, and those whose lines have no numbers: only the end of them was read."""
    from atlctl.backends.base import LogEnds

    if isinstance(source, LogEnds):  # asked at run time: only some sources have it
        from atlctl.cli.evidence import tails

        found = await tails.read(source, job, job.workers, matcher, asyncio.Semaphore(FAR_READERS))
        if found.cut:
            _say_cut(found.cut)
        return found.facts, found.unread, {*found.cut, *found.led}
    unread: dict[str, AtlctlError] = {}

    async def log(worker: Worker) -> LogFacts | None:
        async with gate:
            try:
                return await _log(source, job, worker, matcher)
            except AtlctlError as error:
                unread[worker.name] = error
                return None

    names = [worker.name for worker in job.workers]
    return dict(zip(names, await asyncio.gather(*map(log, job.workers)), strict=True)), unread, set()


def _say_cut(cut: Mapping[str, float | None]) -> None:
    from atlctl.jobs.naming import fold_names
    from atlctl.render.table import rfc3339

    times = [time for time in cut.values() if time is not None]
    since = f", from {rfc3339(max(times))} on" if times else ""
    say.note(f"only the end of the log of {fold_names(cut)} was read{since}: what failed begins there")


async def _worker(source: Backend, job: Job, worker: Worker, story: Story) -> WorkerEvidence:
    from atlctl.diagnosis.evidence import WorkerEvidence

    return WorkerEvidence(
        worker.name,
        worker.index,
        story.log,
        error_files=await _error_files(source, job, worker, story.log) if story.log else {},
        rank_logs=story.rank_logs,
        state=worker.state,
        platform=_platform(worker),
    )


async def _log(source: Backend, job: Job, worker: Worker, matcher: Matcher) -> LogFacts:
    from atlctl.backends.base import LogRequest
    from atlctl.diagnosis.reading.reader import LogReader

    reader = LogReader(matcher)
    number = 0
    async for batch in source.lines(job, worker, LogRequest()):
        number = feed_lines(reader, batch, number)
    return reader.facts()


def feed_lines(reader: LogReader, lines: Sequence[LogLine], behind: int) -> int:
    """Hands `lines` to the reader, which has seen `behind` lines; returns how many it has seen then."""
    from atlctl.diagnosis.moments import Moment

    for number, line in enumerate(lines, behind + 1):
        stamp = None if line.time is None else Moment(line.time / 1e9, 0.001, absolute=True)
        reader.feed(number, line.data, stamp)
    return behind + len(lines)


async def _error_files(source: Backend, job: Job, worker: Worker, log: LogFacts) -> dict[str, ErrorRecord]:
    """The error files that the worker's own summaries name, and those of the attempts before."""
    from atlctl.diagnosis.errorfile import SIZE_LIMIT, parse_error_file
    from atlctl.recording.errorfiles import named_in

    found: dict[str, ErrorRecord] = {}
    for path in named_in(log):
        data = await source.read_file(job, worker, path, SIZE_LIMIT + 1)
        if data is None:
            continue
        record, reason = parse_error_file(data)
        if record is None:
            say.note(f"{worker.name}: {path}: {reason}")
        else:
            found[path] = record
    return found


def _platform(worker: Worker) -> PlatformState:
    from atlctl.diagnosis.platform import PlatformState

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
