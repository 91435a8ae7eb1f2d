"""What is known of a job before anything is judged. Everything is optional, each part adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atlctl.diagnosis.errorfile import ErrorRecord
from atlctl.diagnosis.platform import Event, PlatformState
from atlctl.diagnosis.reading.reader import LogFacts
from atlctl.diagnosis.recorder.dump import FlightDump
from atlctl.jobs import podnews
from atlctl.jobs.model import State


@dataclass(frozen=True, slots=True)
class RankLog:
    """What one process printed into torchelastic's own files (`--redirects`, `--tee`). Paths are the collector's."""

    attempt: int
    local_rank: int
    path: str
    facts: LogFacts


@dataclass(frozen=True, slots=True)
class WorkerEvidence:
    """What is known of one worker.

    `log` is None where no log could be read; an empty log is an empty LogFacts. `error_files` maps each file's path to
    its content: paths end as torchelastic made them (`RUN_x/attempt_N/LOCAL_RANK/error.json`).
    """

    worker: str
    index: int
    log: LogFacts | None = None
    error_files: Mapping[str, ErrorRecord] = field(default_factory=dict)
    rank_logs: Sequence[RankLog] = ()
    dumps: Sequence[FlightDump] = ()
    state: State = State.UNKNOWN
    platform: PlatformState | None = None


@dataclass(frozen=True, slots=True)
class JobEvidence:
    """All workers in their order, and what the platform tells of the job.

    `expected` is how many workers the job should have, None where that is not known. `missing` are the names or indexes
    of workers that should exist and were never seen.
    """

    workers: tuple[WorkerEvidence, ...]
    expected: int | None = None
    missing: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def deleted(self) -> dict[str, float]:
        """Workers whose pods their controller has deleted, and when, in seconds since the epoch."""
        return {
            event.worker: event.first
            for event in reversed(self.events)
            if event.worker and event.first is not None and _is_deletion(event)
        }


def _is_deletion(event: Event) -> bool:
    news = podnews.read(event.reason, event.message)
    return news is not None and news.what == "deleted"
