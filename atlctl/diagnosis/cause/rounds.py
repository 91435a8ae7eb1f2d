"""A job with judged processes, split into rounds: failed processes, victims, ended and silent processes."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from atlctl.diagnosis.clockskew import Clocks
from atlctl.diagnosis.evidence import JobEvidence
from atlctl.diagnosis.failures import Failure, Judge, Part
from atlctl.diagnosis.joining import MAX_LOCAL, AgentEnd, Process, WorkerRounds, collect_all
from atlctl.diagnosis.logfacts import CollectiveLine, LogFacts, PlainLine
from atlctl.diagnosis.logline import Origin, When
from atlctl.diagnosis.platform import PlatformState
from atlctl.diagnosis.result import Cause, Confidence, GpuIdentity, Proof, Traceback
from atlctl.diagnosis.signatures import Matcher
from atlctl.diagnosis.torchelastic import NoteKind
from atlctl.diagnosis.tracebacks import Frame, Raised, Trace, exception_name, innermost_own, read_frame
from atlctl.i18n import Message

CUT_OFF = Message("lines of its log are missing, perhaps with the first failure")
#: Last log lines that are kept for a cause without a traceback.
MAX_LAST_LINES = 12
#: A rank in a line; irrelevant lines: separators, frames of C++, torchrun's summary, modules in a crash.
_RANK = re.compile(r"\br(?:ank)?[ =:_]{0,2}(\d{1,6})\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_ATTEMPT = re.compile(r"/attempt_(\d{1,9})/")
_NOISE = re.compile(r"\W*$|frame #\d|\s*<NO_OTHER_FAILURES>|\S+ FAILED$|Extension modules: ")
#: The start of Python's report of a crash, and the headers of the crashed thread's stack.
_CRASH = "Fatal Python error: "
_STACKS = ("Current thread ", "Stack (most recent call first)")


@dataclass
class JudgedJob:
    """A job with judged processes. `failures` are the processes of all rounds, in the order of workers."""

    evidence: JobEvidence
    workers: list[WorkerRounds]
    failures: list[Failure]
    clocks: Clocks
    matcher: Matcher

    @cached_property
    def last_round(self) -> int:
        return max((worker.rounds.seen - 1 for worker in self.workers), default=0)

    def when(self, failure: Failure) -> When | None:
        return self.clocks.when(failure.worker, failure.time)

    @cached_property
    def heard(self) -> set[str]:
        """Workers with a log."""
        return {worker.worker for worker in self.workers if worker.evidence.log is not None}

    @cached_property
    def unread(self) -> list[str]:
        """Workers whose log could not be read."""
        return [worker.worker for worker in self.workers if worker.evidence.log is None]

    @cached_property
    def cut(self) -> set[str]:
        """Workers whose logs lack their beginning, which may have contained earlier failures.

        They begin inside a report, lack an attempt, or begin at a step after all steps of another worker.
        """
        logs = {worker.worker: log for worker in self.workers if (log := worker.evidence.log)}
        steps = {name: [int(_NUMBER.findall(mark)[0]) for mark in log.marks] for name, log in logs.items() if log.marks}
        soonest = min((max(numbers) for numbers in steps.values()), default=0)
        late = {name for name, numbers in steps.items() if min(numbers) > soonest}
        return late | {
            worker.worker
            for worker in self.workers
            if (log := logs.get(worker.worker)) and (log.cut or _last_attempt(log) >= worker.rounds.count)
        }

    @cached_property
    def incomplete(self) -> bool:
        """Whether some worker left no log."""
        return bool(self.evidence.missing or self.unread or self._lacks_ranks)

    @cached_property
    def whole(self) -> bool:
        """Whether every worker is known to have a whole log; a single log may be one of many."""
        known = len(self.workers) > 1 or self.evidence.expected == 1 or self._world > 0 or self.launched
        return known and not (self.incomplete or self.cut)

    @cached_property
    def launched(self) -> bool:
        """Whether the only log is that of a launcher that starts all ranks of a job: it names the global ones."""
        logs = [worker.evidence.log for worker in self.workers if worker.evidence.log]
        return len(logs) == 1 and any(note.launcher and note.rank is not None for note in logs[0].notes)

    @cached_property
    def _world(self) -> int:
        """The largest world size in the logs, 0 if none has one."""
        logs = [worker.evidence.log for worker in self.workers if worker.evidence.log]
        return max((item.world or 0 for log in logs for item in log.identities), default=0)

    def of_groups(self, groups: Mapping[str, int], speaker: int | None) -> int | None:
        """The global rank with these ranks in its groups (`tp`, `pp`, ...) that shares all other groups with `speaker`.

        None if the logs do not show it: they must name the sizes of all groups, and all the same.
        """
        meshes = {worker.evidence.log.mesh for worker in self.workers if worker.evidence.log} - {()}
        mesh = meshes.pop() if len(meshes) == 1 else ()
        if not mesh or self._world not in (0, math.prod(size for _, size in mesh)):
            return None
        left = dict(groups)
        found, step = 0, 1
        for name, size in reversed(mesh):
            # Data parallelism may have several dimensions: `dp_replicate` and `dp_shard`.
            group = next((group for group in groups if name.startswith(group)), None)
            if group is not None:
                left[group], at = divmod(left[group], size)
            elif size > 1 and speaker is None:
                return None
            else:
                at = (speaker or 0) // step % size
            found += at * step
            step *= size
        return None if any(left.values()) else found

    @cached_property
    def _lacks_ranks(self) -> bool:
        """Whether the global ranks in the logs show that there were more workers than logs."""
        bases: dict[str, int] = {}
        size = 1
        for item in self.failures:
            size = max(size, (item.local_rank or 0) + 1)
            if item.rank is not None and item.local_rank is not None:
                bases[item.worker] = item.rank - item.local_rank
        if not bases or set(bases) != self.heard:
            return False
        starts = sorted({0, *bases.values(), self._world})
        return min(bases.values()) > 0 or any(end - start > size for start, end in pairwise(starts))

    def timed(self, failures: Sequence[Failure]) -> list[tuple[When, Failure]]:
        """Failures whose time is known, the earliest first."""
        known = [(when, item) for item in failures if (when := self.when(item)) is not None]
        return sorted(known, key=lambda pair: pair[0].seconds)

    @cached_property
    def _by_name(self) -> dict[str | None, WorkerRounds]:
        return {worker.worker: worker for worker in reversed(self.workers)}

    @cached_property
    def _by_worker(self) -> dict[str, list[Failure]]:
        found: dict[str, list[Failure]] = {}
        for item in self.failures:
            found.setdefault(item.worker, []).append(item)
        return found

    def find(self, name: str | None) -> WorkerRounds | None:
        return self._by_name.get(name)

    def worker(self, name: str) -> WorkerRounds:
        return self._by_name[name]

    def failures_of(self, name: str) -> Sequence[Failure]:
        """The failures of a worker's processes."""
        return self._by_worker.get(name, ())

    def last_words(self, name: str) -> list[Proof]:
        """The last line of a worker's log, if it has one."""
        worker = self.find(name)
        log = worker.evidence.log if worker else None
        return [Proof(name, log.last_line, log.last_text)] if log and log.last_line else []

    def last_lines(self, name: str, process: Process | None = None) -> list[Proof]:
        """Lines of a worker's log before the first report of an end in the round, or its last lines without one.

        With a process, only lines that may be its own.
        """
        worker = self.find(name)
        log = worker.evidence.log if worker else None
        lines: Sequence[PlainLine] = log.tail if log else ()
        if worker and process and process.tail:
            lines = process.tail
        elif worker and process and log:
            ends, number = worker.rounds.ends, process.round
            start = ends[number - 1] if 0 < number <= len(ends) else 0
            end = next((at for at in log.before if at > start), None)
            if end is None and process.entry is not None:
                return []  # the log begins after the end
            lines = [
                line
                for line in (lines if end is None else log.before[end])
                if line.line_no > start and _may_be_of(line.origin, process)
            ]
            lines = _of_rank(process.rank, lines)
        return [Proof(name, line.line_no, line.text) for line in lines if not _NOISE.match(line.text)]

    def category(self, text: str, other: str = "python_exception") -> str:
        """The category of a line by its signature; `other` without one."""
        match = self.matcher.match(text)
        return match.signature.category if match else other

    def cause(
        self,
        failure: Failure,
        confidence: Confidence,
        why: str,
        *,
        category: str | None = None,
        extra: Sequence[Proof] = (),
    ) -> Cause:
        """A judged process as a root cause."""
        process, platform = failure.process, self.worker(failure.worker).evidence.platform
        trace = traceback_of(failure)
        lines = [] if trace else self.last_lines(failure.worker, process)
        crash = crash_stack(lines)
        own = innermost_own(crash.frames) if crash else None
        return Cause(
            worker=failure.worker,
            category=category or failure.category or "unknown",
            message=failure.message,
            confidence=confidence,
            why=why,
            rank=failure.rank,
            local_rank=failure.local_rank,
            attempt=process.round if process.attempt is None else process.attempt,
            node=platform.node if platform else None,
            host_ip=platform.host_ip if platform else None,
            gpu=_gpu(failure, platform),
            exit_code=failure.exit_code,
            signal=failure.signal,
            exception=failure.exception,
            brief=failure.raised.inner if failure.raised else "",
            detail=failure.detail,
            frame=failure.frame or own,
            time=self.when(failure),
            signature=failure.signature,
            proofs=_apart((*([crash.proof] if crash and crash.proof else []), *proofs(failure), *extra)),
            traceback=trace or crash,
            last_lines=tuple(lines[-MAX_LAST_LINES:]),
        )

    def worker_cause(
        self,
        name: str | None,
        category: str,
        message: str,
        confidence: Confidence,
        why: str,
        *,
        extra: Sequence[Proof] = (),
        host: str | None = None,
    ) -> Cause:
        """A whole worker as a root cause; `name` is None if it left no log."""
        found = self.find(name)
        platform = found.evidence.platform if found else None
        return Cause(
            worker=name,
            category=category,
            message=message,
            confidence=confidence,
            why=why,
            node=platform.node if platform else None,
            host_ip=platform.host_ip if platform else None,
            host=host,
            exit_code=platform.exit_code if platform else None,
            proofs=tuple(extra),
            last_lines=tuple(self.last_lines(name)[-MAX_LAST_LINES:]) if name else (),
        )


def _last_attempt(log: LogFacts) -> int:
    """The highest attempt number in the paths of torchrun's summaries: each attempt has a round."""
    paths = (entry.error_file or "" for summary in log.summaries for entry in summary.entries)
    return max((int(found[1]) for path in paths if (found := _ATTEMPT.search(path))), default=0)


def _may_be_of(origin: Origin, process: Process) -> bool:
    ranks, local_ranks = (origin.rank, process.rank), (origin.local_rank, process.local_rank)
    return all(None in pair or pair[0] == pair[1] for pair in (ranks, local_ranks))


def _of_rank(rank: int | None, lines: Sequence[PlainLine]) -> Sequence[PlainLine]:
    """Drops lines that name another rank, if any lines name this rank."""
    named = [(line, int(found[1]) if (found := _RANK.search(line.text)) else None) for line in lines]
    if not any(other == rank is not None for _, other in named):
        return lines
    return [line for line, other in named if other in (None, rank)]


def traceback_of(failure: Failure) -> Traceback | None:
    """The traceback of the failure's exception; None if its frames are not known."""
    process, raised = failure.process, failure.raised
    if raised is None:
        return None
    chain = process.chain()
    own = next((trace for trace in reversed(process.traces) if trace.chain == chain), None)
    if own is not None:
        proof = Proof(failure.worker, own.line_no, raised.message)
    elif process.record is not None and process.record_path:
        proof = Proof(failure.worker, None, raised.message, process.record_path)
    else:
        proof = Proof(failure.worker, raised.line_no, raised.message)
    return _traceback_in(chain, raised, proof)


def _traceback_in(chain: Sequence[Raised], raised: Raised, proof: Proof) -> Traceback | None:
    """The traceback of an exception of a chain; None if its frames are not known."""
    if not raised.frames:
        return None
    earlier = () if raised.of else tuple(chain[: chain.index(raised)])
    message = raised.inner or raised.message
    return Traceback(
        raised.frames, raised.omitted, exception_name(message) or raised.exception, message, earlier, proof
    )


def raised_in(cause: Cause, trace: Trace, proof: Proof) -> Cause:
    """`cause` with the exception of a traceback, its line of code and its lines."""
    raised = trace.chain[0]
    shown = _traceback_in(trace.chain, raised, proof)
    return replace(cause, exception=raised.exception, frame=raised.frame, traceback=shown)


def crash_stack(lines: Sequence[Proof]) -> Traceback | None:
    """The stack that Python's faulthandler printed when the process crashed; None if these lines have none."""
    start = next((at for at, line in enumerate(lines) if line.text.startswith(_CRASH)), len(lines))
    frames: list[Frame] = []
    in_stack = False
    for line in lines[start:]:
        frame = read_frame(line.text)
        if frame is not None and in_stack:
            frames.append(frame)
        elif frames:
            break
        in_stack = in_stack or line.text.startswith(_STACKS)
    if not frames:
        return None
    return Traceback(tuple(reversed(frames)), exception=_CRASH[:-2], message=lines[start].text, proof=lines[start])


def _gpu(failure: Failure, platform: PlatformState | None) -> GpuIdentity | None:
    """The GPU of a process: as named in its own line, else as listed by the platform for its local rank."""
    groups = failure.hit.match.groups if failure.hit else {}
    if "pci" in groups or "uuid" in groups:
        return GpuIdentity(None, groups.get("uuid"), groups.get("pci"))
    for item in platform.gpus if platform else ():
        if failure.local_rank is not None and failure.local_rank in (item.local_rank, item.index):
            return item
    return None


def proofs(failure: Failure) -> list[Proof]:
    """The places of a failure's evidence: its message, then torchrun's report, then its error file."""
    process = failure.process
    found: dict[int | str, Proof] = {}
    if failure.line_no:
        found[failure.line_no] = Proof(failure.worker, failure.line_no, failure.message)
    if process.note is not None:
        found.setdefault(process.note.line_no, Proof(failure.worker, process.note.line_no, process.note.text))
    elif process.entry is not None:
        entry = process.entry
        text = f"exitcode: {entry.exit_code} (pid: {entry.pid})"
        found.setdefault(entry.line_no, Proof(failure.worker, entry.line_no, text))
    if process.record is not None and process.record_path:
        found[process.record_path] = Proof(failure.worker, None, process.record.message, process.record_path)
    return list(found.values())


def build(evidence: JobEvidence, matcher: Matcher) -> JudgedJob:
    """Joins the evidence and judges every process by itself."""
    workers = collect_all(evidence.workers)
    failures = []
    for worker in workers:
        judge = Judge(matcher, worker.evidence.log or LogFacts())
        failures += [judge.judge(process) for process in worker.processes]
    return JudgedJob(evidence, workers, failures, Clocks(evidence.workers), matcher)


@dataclass
class Round:
    """One round of the job."""

    job: JudgedJob
    number: int
    failures: list[Failure] = field(default_factory=list)

    @classmethod
    def of(cls, job: JudgedJob, number: int) -> Round:
        return cls(job, number, [item for item in job.failures if item.process.round == number])

    def of_part(self, part: Part) -> list[Failure]:
        return [item for item in self.failures if item.part is part]

    @cached_property
    def initiators(self) -> list[Failure]:
        return self.of_part(Part.INITIATOR)

    @cached_property
    def victims(self) -> list[Failure]:
        return self.of_part(Part.VICTIM)

    @cached_property
    def final_ends(self) -> list[AgentEnd]:
        """Ends of agents whose last round is this one."""
        return [
            end
            for worker in self.job.workers
            for end in worker.ends
            if worker.rounds.ended_by(end.line_no) == self.number or worker.rounds.of(end.line_no) == self.number
        ]

    @cached_property
    def statements(self) -> list[CollectiveLine]:
        return [
            said
            for worker in self.job.workers
            if worker.evidence.log
            for said in worker.evidence.log.collectives
            if worker.rounds.of(said.line_no) == self.number
        ]

    @property
    def everywhere(self) -> bool:
        """Whether every log has this round."""
        return all(item.rounds.count > self.number for item in self.job.workers if item.evidence.log is not None)

    def silent_workers(self) -> list[WorkerRounds]:
        """Workers whose log reports no end in this round."""
        loud = {item.worker for item in self.failures if item.part is not Part.SILENT}
        loud |= {end.worker for end in self.final_ends}
        return [
            worker
            for worker in self.job.workers
            if worker.worker not in loud
            and worker.evidence.log is not None
            and worker.rounds.count > self.number
            and not any(note.kind is NoteKind.UNNAMED for note in worker.evidence.log.notes)
        ]


def name_process(process: Process) -> str:
    """`rank 3 (local rank 1)`, as far as known."""
    if process.rank is not None and process.local_rank is not None:
        return f"rank {process.rank} (local rank {process.local_rank})"
    if process.rank is not None:
        return f"rank {process.rank}"
    return f"local rank {process.local_rank}" if process.local_rank is not None else f"process {process.pid}"


def _apart(found: Sequence[Proof]) -> tuple[Proof, ...]:
    """Proofs without repeated lines."""
    kept: dict[tuple[str, str | None, int | str], Proof] = {}
    for proof in found:
        kept.setdefault((proof.worker, proof.file, proof.line_no or proof.text), proof)
    return tuple(kept.values())


#: The store key of a rank's address for gloo; the last number is the rank.
_ADDRESS_KEY = re.compile(r", keys: /\S{1,200}//\w{1,20}//\d{1,9}/(\d{1,7})\b")


@dataclass(slots=True)
class Universe:
    """The ranks of a round. `world` is the total number of processes, None if unknown.

    `unheard` are ranks without any line that must exist: below `world`, or named by a rank that waited for them.
    """

    world: int | None
    known: dict[int, Failure] = field(default_factory=dict)
    unheard: tuple[int, ...] = ()

    @property
    def holes(self) -> bool:
        """Whether ranks below the highest known one have no lines."""
        return len(self.known) <= max(self.known, default=-1)

    @property
    def complete(self) -> bool:
        """Whether every rank of the job has lines or is named."""
        return self.world is not None and not self.unheard


def universe(this: Round) -> Universe:
    """The ranks of a round. If several processes claim a rank, one with a reported end is preferred."""
    told = Counter(
        item.world
        for worker in this.job.workers
        if worker.evidence.log
        for item in worker.evidence.log.identities
        if item.world is not None and worker.rounds.of(item.line_no) == this.number
    )
    known: dict[int, Failure] = {}
    for item in this.failures:
        if item.rank is not None and (item.rank not in known or known[item.rank].part is Part.SILENT):
            known[item.rank] = item
    world = told.most_common(1)[0][0] if told else None
    if world is not None and known and max(known) >= world:
        world = None
    awaited = [int(found[1]) for item in this.victims if (found := _ADDRESS_KEY.search(item.message))]
    unheard = {*range(world or 0), *awaited} - known.keys()
    return Universe(world, known, tuple(sorted(unheard)))


def gaps(this: Round) -> list[Process]:
    """Local ranks that a worker must have, judging by other workers, but that no line names."""
    locals_of: dict[str, set[int]] = defaultdict(set)
    bases: dict[str, int] = {}
    indexes: dict[str, int] = {}
    for item in this.failures:
        if item.local_rank is not None:
            locals_of[item.worker].add(item.local_rank)
            indexes[item.worker] = item.process.index
            if item.rank is not None:
                bases[item.worker] = item.rank - item.local_rank
    sizes = Counter(len(found) for found in locals_of.values() if found == set(range(len(found))))
    usual, agree = sizes.most_common(1)[0] if sizes else (0, 0)
    if agree == 1:
        usual = max(sizes)  # launchers usually start the same number on every worker
    missing = []
    for worker, found in locals_of.items():
        size = min(max(*found, usual - 1, 0) + 1, MAX_LOCAL)  # a number in a line may be anything
        base = bases.get(worker)
        missing += [
            Process(worker, indexes[worker], this.number, None if base is None else base + local, local)
            for local in range(size)
            if local not in found
        ]
    return missing


def place_unheard(this: Round, rank: int) -> Process | None:
    """The worker and local rank that a rank without lines must have, derived from the neighbouring ranks."""
    ranges: dict[str, tuple[int, int, int]] = {}
    for item in this.failures:
        if item.rank is not None and item.local_rank is not None:
            base = item.rank - item.local_rank
            low, high, index = ranges.get(item.worker, (base, item.rank, item.process.index))
            ranges[item.worker] = (min(low, base), max(high, item.rank), index)
    starts = sorted(low for low, _, _ in ranges.values())
    for worker, (low, _, index) in ranges.items():
        at = bisect_right(starts, low)
        if low <= rank and (at == len(starts) or rank < starts[at]):
            size = max(high - start + 1 for start, high, _ in ranges.values())
            if rank - low < max(size, 1):
                return Process(worker, index, this.number, rank, rank - low)
    return None


def rank_of_the_mute(this: Round, worker: str) -> int | None:
    """The rank of a worker without lines, if every other worker has one rank and exactly one rank is missing."""
    others = [item for item in this.failures if item.worker != worker]
    count = len(this.job.workers)
    ranks = {item.rank for item in others if item.rank is not None}
    missing = set(range(count)) - ranks
    return missing.pop() if len(others) == len(ranks) == count - 1 and len(missing) == 1 else None
