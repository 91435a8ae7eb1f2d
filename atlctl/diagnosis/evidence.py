"""What goes into `first_observed` and what comes out: plain, immutable data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atlctl.diagnosis.agentnotes import AgentNote
from atlctl.diagnosis.errorfile import ErrorRecord
from atlctl.diagnosis.summary import Summary
from atlctl.diagnosis.tracebacks import Frame, RankTraceback
from atlctl.jobs.model import State

LABEL = "first observed (heuristic)"


@dataclass(frozen=True, slots=True)
class WorkerEvidence:
    """What is known of one worker. `error_files` maps each file's path to its content.

    Paths end as torchelastic made them (`RUN_x/attempt_N/LOCAL_RANK/error.json`); what stands in front
    may be the collector's. `summaries`, `notes` and `tracebacks` come from one `SummaryParser`.
    """

    worker: str
    index: int
    summaries: Sequence[Summary] = ()
    error_files: Mapping[str, ErrorRecord] = field(default_factory=dict)
    notes: Sequence[AgentNote] = ()
    tracebacks: Sequence[RankTraceback] = ()
    state: State = State.UNKNOWN
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a statement stands: a line of a worker's log (from 1), or one of its files."""

    worker: str
    line_no: int | None
    text: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One failed process, or an agent (`rank` and `local_rank` are None).

    `time` are seconds since the epoch as far as the worker's zone is known; `time_text` is what
    was printed. `attempt` counts from 0 on this worker's agent only; None where it is unknown.
    `consequence` is why it counts as a peer's consequence.
    """

    worker: str
    index: int
    rank: int | None
    local_rank: int | None
    exit_code: int | None
    signal: str | None
    exception: str | None
    message: str
    frame: Frame | None
    time: float | None
    time_text: str
    consequence: str | None
    evidence: tuple[Evidence, ...]
    attempt: int | None = None
    earlier_attempt: bool = False
    tie: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """The failures in their order: `candidates` share the first place, `followed` come behind.

    `nothing_found` is True where no worker says that it failed, or where all of them succeeded after
    a restart (`followed` then holds the attempts that failed). `silent` are workers that ended in
    failure, or were lost, and left nothing of torchelastic's: look at them where the rest is consequences.
    """

    candidates: tuple[Candidate, ...]
    followed: tuple[Candidate, ...]
    nothing_found: bool
    silent: tuple[str, ...] = ()
    label: str = LABEL

    @property
    def only_consequences(self) -> bool:
        """True where every failure that was seen is a peer's consequence: the first is not among them."""
        return bool(self.candidates) and all(item.consequence for item in self.candidates)
