"""The evidence of a job before any judgement, and the check whether more of its logs must be read.

All evidence is optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atlctl.diagnosis.flightrecorder import FlightDump
from atlctl.diagnosis.logfacts import LogFacts
from atlctl.diagnosis.logline import Moment
from atlctl.diagnosis.platform import Event, PlatformState
from atlctl.diagnosis.torchelastic import ErrorRecord
from atlctl.jobs import podnews
from atlctl.jobs.model import State


@dataclass(frozen=True, slots=True)
class RankLogFacts:
    """The output of one rank in torchelastic's files (`--redirects`, `--tee`)."""

    attempt: int
    local_rank: int
    facts: LogFacts


@dataclass(frozen=True, slots=True)
class WorkerEvidence:
    """The evidence of one worker.

    `log` is None if no log could be read; an empty log is an empty LogFacts. `error_files` maps each file's path to its
    content: paths end as torchelastic made them (`RUN_x/attempt_N/LOCAL_RANK/error.json`).
    """

    worker: str
    index: int
    log: LogFacts | None = None
    error_files: Mapping[str, ErrorRecord] = field(default_factory=dict)
    rank_logs: Sequence[RankLogFacts] = ()
    dumps: Sequence[FlightDump] = ()
    state: State = State.UNKNOWN
    platform: PlatformState | None = None

    @property
    def failed(self) -> bool:
        """Whether its platform reports a failure."""
        bad = self.state in (State.FAILED, State.HELD, State.LOST)
        return bad or bool(self.platform and self.platform.exit_code)


@dataclass(frozen=True, slots=True)
class JobEvidence:
    """All workers in order, and the platform's facts about the job.

    `expected`: the number of workers the job should have, None if unknown. `missing` are the names or indexes of
    workers that should exist and were never seen. `dumps` belong to no known worker. `launcher`: lines of a log shared
    by workers that are of none of them, and only report the end of processes.
    """

    workers: tuple[WorkerEvidence, ...]
    expected: int | None = None
    missing: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    dumps: Sequence[FlightDump] = ()
    launcher: WorkerEvidence | None = None

    @property
    def deleted(self) -> dict[str, float]:
        """Workers whose pods were deleted by their controller, with the time in seconds since the epoch."""
        return {
            event.worker: event.first
            for event in reversed(self.events)
            if event.worker and event.first is not None and _is_deletion(event)
        }


def _is_deletion(event: Event) -> bool:
    news = podnews.read(event.reason, event.message)
    return news is not None and news.what == "deleted"


#: Lines before a log's first sign of failure that are enough to show normal operation.
LINES_BEFORE = 2_000
#: Seconds before the job's first sign of failure from which every log must be read.
SECONDS_BEFORE = 30.0


@dataclass(frozen=True, slots=True)
class ReadPart:
    """The end of one log: its facts, whether it is the whole log, the time of its first line (seconds, epoch)."""

    facts: LogFacts
    whole: bool
    first: float | None

    @property
    def enough(self) -> bool:
        """Whether nothing in front of it matters."""
        return self.whole or bool(self.facts.attempt)


def first_sign(facts: LogFacts) -> tuple[int, float | None] | None:
    """The line number and time of the first sign of failure; None if there is none."""
    signs = [(trace.line_no, _epoch(trace.time)) for trace in facts.traces[:1]]
    signs += [(note.line_no, _epoch(facts.moments.get(note.line_no))) for note in facts.notes[:1]]
    signs += [(hit.line_no, _epoch(hit.time)) for hit in facts.hits[:1]]
    return min(signs, key=lambda sign: sign[0], default=None)


def _epoch(moment: Moment | None) -> float | None:
    return moment.seconds if moment is not None and moment.absolute else None


def beginning(parts: Mapping[str, ReadPart]) -> float | None:
    """The time from which every log must be read, seconds since the epoch; None if no sign has a time."""
    signs = [first_sign(part.facts) for part in parts.values()]
    times = [sign[1] for sign in signs if sign is not None and sign[1] is not None]
    return min(times) - SECONDS_BEFORE if times else None


def uncovered(parts: Mapping[str, ReadPart]) -> frozenset[str]:
    """The workers whose logs must be read further to find the job's first failure.

    These are workers whose first sign of failure is too close to the start of the part, and workers whose part begins
    after the first failure of the job. If no log shows any sign, all workers with incomplete logs.
    """
    signs = {name: first_sign(part.facts) for name, part in parts.items()}
    if not any(signs.values()):
        return frozenset(name for name, part in parts.items() if not part.enough)
    begin = beginning(parts)
    short = set()
    for name, part in parts.items():
        sign = signs[name]
        if part.enough:
            continue
        near = sign is not None and sign[0] <= LINES_BEFORE
        late = begin is not None and part.first is not None and part.first > begin
        if near or late:
            short.add(name)
    return frozenset(short)
