"""The result of a diagnosis: plain, immutable data. See docs/en/errors.md for the meaning of each word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from atlctl.diagnosis.logline import When
from atlctl.diagnosis.tracebacks import Frame, Raised


class Verdict(StrEnum):
    """The kind of answer."""

    RANK = "rank"
    WORKER = "worker"
    RANKS = "ranks"
    JOB = "job"
    EXTERNAL = "external"
    NONE = "none"
    UNDECIDED = "undecided"


class Confidence(StrEnum):
    """The confidence in a root cause. docs/en/corpus.md has the accuracy of each level."""

    CERTAIN = "certain"
    LIKELY = "likely"
    GUESS = "guess"


@dataclass(frozen=True, slots=True)
class Proof:
    """The place of a piece of evidence: a line of a worker's log (from 1), or a file."""

    worker: str
    line_no: int | None
    text: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """One GPU, as far as the platform or the log names it: `index` and `pci` are the driver's on the node.

    `local_rank`: that of the process that used it, if known.
    """

    index: int | None = None
    uuid: str | None = None
    pci: str | None = None
    local_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Traceback:
    """The innermost `frames` of an exception, or of a waiting process (`exception` is empty); the innermost is last.

    `omitted`: the number of frames above them. `earlier`: the exceptions before it in the chain, the first raised
    first. `proof`: the place of the whole traceback.
    """

    frames: tuple[Frame, ...]
    omitted: int = 0
    exception: str = ""
    message: str = ""
    earlier: tuple[Raised, ...] = ()
    proof: Proof | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """A root cause, or a candidate for one.

    `worker` is None if the text names none (a worker without a log). `host` is an address or host name that victims
    name. `attempt` counts from 0 on this worker. `why`: the reason in one sentence. `brief`: shown to people instead of
    the message (without the rank's name, or the exception of a DataLoader's child), or empty. `last_lines`: the last
    lines of the log, if there is no traceback: of the process if lines name their rank, else of its worker.
    """

    worker: str | None
    category: str
    message: str
    confidence: Confidence
    why: str
    rank: int | None = None
    local_rank: int | None = None
    attempt: int | None = None
    node: str | None = None
    host_ip: str | None = None
    host: str | None = None
    gpu: GpuIdentity | None = None
    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None
    brief: str = ""
    detail: str = ""
    frame: Frame | None = None
    time: When | None = None
    signature: str = ""
    proofs: tuple[Proof, ...] = ()
    traceback: Traceback | None = None
    last_lines: tuple[Proof, ...] = ()

    def placed(self, place: Callable[[Proof], Proof]) -> Cause:
        """The same, with each proof as `place` gives it."""
        trace = self.traceback
        return replace(
            self,
            proofs=tuple(map(place, self.proofs)),
            last_lines=tuple(map(place, self.last_lines)),
            traceback=trace and replace(trace, proof=trace.proof and place(trace.proof)),
        )


@dataclass(frozen=True, slots=True)
class Followed:
    """Consequences of one kind. `ranks` are global, `workers` are names; `first` is the time of the earliest."""

    reason: str
    count: int
    workers: tuple[str, ...]
    ranks: tuple[int, ...]
    first: When | None
    proof: Proof | None


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One worker's line in the report. `said` is its first failure, or how its log ends."""

    worker: str
    index: int
    part: str
    said: str
    first: When | None
    processes: int
    failed: int
    rounds: int
    proof: Proof | None
    skew: float | None = None


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of one process of the deciding round. `part` is `cause` for a root cause, else as for a worker."""

    worker: str
    rank: int | None
    local_rank: int | None
    part: str
    exit_code: int | None
    signal: str | None
    said: str
    time: When | None
    proof: Proof | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer. `root_causes` is empty for `none` and `undecided`; `candidates` are given for `undecided`.

    `earlier` are failures of rounds before the deciding one. `remarks` are sentences on missing or unusual evidence.
    `ranks` are the processes of the deciding round. `partial`: of some log not everything was read.
    """

    verdict: Verdict
    root_causes: tuple[Cause, ...] = ()
    candidates: tuple[Cause, ...] = ()
    cascade: tuple[Followed, ...] = ()
    workers: tuple[WorkerReport, ...] = ()
    earlier: tuple[Cause, ...] = ()
    remarks: tuple[str, ...] = field(default=())
    ranks: tuple[RankEnd, ...] = ()
    partial: bool = False

    def placed(self, place: Callable[[Proof], Proof]) -> Diagnosis:
        """The same, with each proof as `place` gives it."""

        def caused(items: Sequence[Cause]) -> tuple[Cause, ...]:
            return tuple(item.placed(place) for item in items)

        return replace(
            self,
            root_causes=caused(self.root_causes),
            candidates=caused(self.candidates),
            earlier=caused(self.earlier),
            cascade=tuple(replace(item, proof=item.proof and place(item.proof)) for item in self.cascade),
            workers=tuple(replace(item, proof=item.proof and place(item.proof)) for item in self.workers),
            ranks=tuple(replace(item, proof=item.proof and place(item.proof)) for item in self.ranks),
        )
