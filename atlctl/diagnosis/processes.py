"""What every source says about one process, one agent, one worker, put together by round."""

from __future__ import annotations

from dataclasses import dataclass, field

from atlctl.diagnosis.agentnotes import AgentNote
from atlctl.diagnosis.consequence import consequence_of, own_text
from atlctl.diagnosis.errorfile import ErrorRecord
from atlctl.diagnosis.evidence import WorkerEvidence
from atlctl.diagnosis.moments import Moment
from atlctl.diagnosis.reading.collectives import Collective
from atlctl.diagnosis.reading.reader import Hit
from atlctl.diagnosis.reading.traces import Raised, Trace, read_chain
from atlctl.diagnosis.rounds import Rounds
from atlctl.diagnosis.summary import Entry


@dataclass(slots=True)
class Process:
    """One process in one round. What no source told is None or empty.

    `closed`: its agent sent it a signal; `forced`: it did not leave on that. `traces`, `said` and `hits` are its own
    words; `guessed_words`: they may be another process's of the same worker.
    """

    worker: str
    index: int
    round: int
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    entry: Entry | None = None
    note: AgentNote | None = None
    closed: int | None = None
    forced: int | None = None
    seen: int | None = None
    record: ErrorRecord | None = None
    record_path: str | None = None
    event: int | None = None
    attempt: int | None = None
    traces: list[Trace] = field(default_factory=list)
    said: list[Collective] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)
    guessed_words: bool = False

    @property
    def exit_code(self) -> int | None:
        """torchelastic's: minus the number of the signal. The line at once says it before the summary does."""
        if self.note is not None and self.note.exit_code is not None:
            return self.note.exit_code
        return self.entry.exit_code if self.entry else None

    @property
    def failed(self) -> bool:
        """Whether any source says that it ended by itself in failure."""
        return bool(self.entry or self.note or self.traces or self.record or self.event is not None)

    def chain(self) -> tuple[Raised, ...]:
        """The exceptions that ended it, the first raised first; empty where nothing is known of one."""
        uncaught = [trace for trace in self.traces if not trace.thread]
        if uncaught:
            return uncaught[-1].chain
        if self.record is not None and (chain := read_chain(self.record.traceback or self.record.message)):
            return chain
        if self.entry is not None and own_text(self.entry.message_last_line):
            return read_chain(self.entry.traceback or self.entry.message_last_line, self.entry.line_no)
        return ()


@dataclass(slots=True)
class AgentEnd:
    """How the agent itself ended, where it was not by its processes' failure: a signal, the store, the rendezvous."""

    worker: str
    index: int
    line_no: int
    text: str
    time: Moment | None
    signal: str | None = None
    chain: tuple[Raised, ...] = ()


@dataclass(slots=True)
class WorkerRounds:
    """All of one worker. `loose` are tracebacks and signature hits by round that belong to no known process."""

    evidence: WorkerEvidence
    rounds: Rounds
    processes: list[Process]
    ends: list[AgentEnd]
    loose_traces: dict[int, list[Trace]] = field(default_factory=dict)
    loose_hits: dict[int, list[Hit]] = field(default_factory=dict)

    @property
    def worker(self) -> str:
        return self.evidence.worker

    @property
    def elastic(self) -> bool:
        """Whether an agent of torchelastic spoke at all."""
        log = self.evidence.log
        return bool(log and (log.notes or log.summaries))

    @property
    def addresses(self) -> frozenset[str]:
        """The worker's own addresses, as far as its log or the platform names them."""
        log, platform = self.evidence.log, self.evidence.platform
        return frozenset((*(log.addresses if log else ()), *(platform.addresses if platform else ())))

    def of_round(self, number: int) -> list[Process]:
        return [process for process in self.processes if process.round == number]


def is_victim_end(end: AgentEnd) -> bool:
    """Whether the agent ended because another one did."""
    return any(consequence_of(raised.text) for raised in end.chain) or consequence_of(end.text) is not None
