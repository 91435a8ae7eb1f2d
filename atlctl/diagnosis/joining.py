"""Joins the facts of all sources about each process, agent and worker, split into rounds.

A round lasts from one start of a worker's processes to the next. An agent ends it by ending its processes (`Sending
process N closing signal`) and, if one of them failed, with `failed (exitcode: ...)`. Attempt numbers do not help: each
agent counts only its own failures.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from atlctl.diagnosis.consequence import consequence_of, own_text
from atlctl.diagnosis.evidence import WorkerEvidence
from atlctl.diagnosis.logfacts import CollectiveLine, Identity, LogFacts, PlainLine, Says, SignatureHit
from atlctl.diagnosis.logline import Moment
from atlctl.diagnosis.result import Proof
from atlctl.diagnosis.signatures import LineRole
from atlctl.diagnosis.torchelastic import ENDINGS, AgentNote, ErrorRecord, NoteKind, SummaryEntry
from atlctl.diagnosis.tracebacks import Raised, Trace, read_chain

_LAST = 2**62
#: Without times: the most lines between an agent's two notes about the same end.
_NEAR = 60
#: Most seconds from the signals to the report, if the processes exit on SIGTERM and need not be killed.
_UNFORCED = 12.0
_FORCED = 60.0


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of a worker. `ends` are the lines of the last note of each ended round; another round may follow.
    `agents` are the lines in which an agent starts: a script may start it again."""

    ends: tuple[int, ...]
    #: True if the agent ended too: nothing runs after the last end.
    final: bool
    #: True if nothing after the last end shows a new start.
    cut: bool = False
    agents: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return len(self.ends) if self.final else len(self.ends) + 1

    @property
    def launch(self) -> int:
        """The first round of the last agent."""
        return bisect_left(self.ends, self.agents[-1]) if self.agents else 0

    @property
    def seen(self) -> int:
        """The number of rounds with lines in the log."""
        return self.count - 1 if self.cut else self.count

    def of(self, line_no: int) -> int:
        """The round in which a line was printed."""
        number = bisect_left(self.ends, line_no)
        return min(number - self._before_agent(number, line_no), self.seen - 1)

    def ended_by(self, line_no: int) -> int:
        """The round that a summary in this line is about: the last that ended before it."""
        number = bisect_left(self.ends, line_no) - 1
        if self.ends and self.ends[-1] == _LAST and number == len(self.ends) - 2:
            return len(self.ends) - 1 - self._before_agent(number + 1, line_no)
        return max(0, min(number, self.count - 1))

    def _before_agent(self, number: int, line_no: int) -> bool:
        """Whether the line is between the end of the round before `number` and the start of its agent."""
        if number == 0 or not self.ends[number - 1]:
            return False
        next_agent = bisect_left(self.agents, self.ends[number - 1])
        return next_agent < len(self.agents) and line_no < self.agents[next_agent]


def split_rounds(
    notes: Sequence[AgentNote],
    moments: Mapping[int, Moment],
    starts: Sequence[int],
    agents: Sequence[int],
    ends: Sequence[int],
    last_activity: int,
) -> Rounds:
    """Splits a log into rounds. `starts` are lines in which a process names its rank, `agents` those in which an agent
    starts, `ends` lines at the agent's end.

    `last_activity` is the last line that shows training progress.
    """
    starts = sorted((*starts, *agents))
    found: list[int] = []
    since: AgentNote | None = None
    forced = False
    closed: list[int] = []
    for note in notes:
        if note.kind is NoteKind.SIGNALLED:
            if any(line > note.line_no for line in agents):
                continue
            # Nothing is started again: the output of exiting processes still belongs to this round.
            return Rounds((*found, _LAST), final=True, agents=tuple(agents))
        if note.kind not in (NoteKind.CLOSING, NoteKind.FORCED, NoteKind.FAILED):
            continue
        same = since is not None and since.kind is not NoteKind.FAILED and _one_end(since, note, moments, forced)
        same = same and not _later_start(closed, note)
        if same and not any(since.line_no < line < note.line_no for line in starts if since):
            found[-1] = note.line_no
        else:
            found.append(note.line_no)
            forced = False
            closed.clear()
        if note.kind is NoteKind.CLOSING and note.pid is not None:
            closed.append(note.pid)
        forced = forced or note.kind is NoteKind.FORCED
        since = note
    later = found and any(line > found[-1] for line in starts)
    final = bool(found) and not later and any(line > found[-1] for line in ends)
    cut = bool(found) and not (final or later) and last_activity <= found[-1]
    return Rounds(tuple(found), final, cut, tuple(agents))


def _later_start(closed: Sequence[int], note: AgentNote) -> bool:
    """Whether the process that failed was started later than those that were closed.

    Processes are started in the order of their local ranks: of one start, at most as many as the local rank can have
    lower pids.
    """
    if note.kind is not NoteKind.FAILED or note.pid is None or note.local_rank is None:
        return False
    return sum(pid < note.pid for pid in closed) > note.local_rank


def _one_end(first: AgentNote, second: AgentNote, moments: Mapping[int, Moment], forced: bool) -> bool:
    """Whether both notes are about the end of the same set of processes.

    An agent sends its signals at once, and reports when all processes have ended: at most 30 s later, and then it also
    reports that it killed them.
    """
    patience = 2.0 if second.kind is NoteKind.CLOSING else _UNFORCED
    if forced or second.kind is NoteKind.FORCED:
        patience = _FORCED
    start, end = moments.get(first.line_no), moments.get(second.line_no)
    if start is not None and end is not None:
        return end.seconds - start.seconds <= patience
    return second.line_no - first.line_no <= (_NEAR if second.kind is NoteKind.CLOSING else 4 * _NEAR)


@dataclass(slots=True)
class Process:
    """One process in one round. Unknown fields are None or empty.

    `closed`: its agent sent it a signal; `forced`: it did not exit on that signal. `traces`, `said` and `hits` are from
    its own output; `guessed_words`: they may be from another process of the same worker. `tail`: the last lines of the
    rank's log files.
    """

    worker: str
    index: int
    round: int
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    entry: SummaryEntry | None = None
    note: AgentNote | None = None
    closed: int | None = None
    forced: int | None = None
    seen: int | None = None
    record: ErrorRecord | None = None
    record_path: str | None = None
    event: int | None = None
    attempt: int | None = None
    traces: list[Trace] = field(default_factory=list)
    said: list[CollectiveLine] = field(default_factory=list)
    hits: list[SignatureHit] = field(default_factory=list)
    guessed_words: bool = False
    tail: tuple[PlainLine, ...] = ()
    #: It printed a traceback whose exception is not in the log.
    unfinished: int | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code as in torchelastic: minus the signal's number. From the agent's note, else the summary."""
        if self.note is not None and self.note.exit_code is not None:
            return self.note.exit_code
        return self.entry.exit_code if self.entry else None

    @property
    def failed(self) -> bool:
        """Whether any source reports that it failed by itself."""
        return bool(self.entry or self.note or self.traces or self.record or self.event is not None)

    def chain(self) -> tuple[Raised, ...]:
        """The exceptions that ended it, the first raised first; empty if none is known."""
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
    """The end of an agent for a reason other than its processes' failure: a signal, the store, the rendezvous."""

    worker: str
    line_no: int
    text: str
    time: Moment | None
    signal: str | None = None
    chain: tuple[Raised, ...] = ()

    @property
    def proof(self) -> Proof:
        return Proof(self.worker, self.line_no, self.text)


@dataclass(slots=True)
class WorkerRounds:
    """The facts of one worker. `loose` are tracebacks and signature hits of no known process, by round."""

    evidence: WorkerEvidence
    rounds: Rounds
    processes: list[Process]
    ends: list[AgentEnd]
    loose_traces: dict[int, list[Trace]] = field(default_factory=dict)
    loose_hits: dict[int, list[SignatureHit]] = field(default_factory=dict)

    @property
    def worker(self) -> str:
        return self.evidence.worker

    @property
    def elastic(self) -> bool:
        """Whether the log has lines of an agent that knows its processes."""
        log = self.evidence.log
        return bool(log and (log.summaries or any(note.kind is not NoteKind.UNNAMED for note in log.notes)))

    @property
    def addresses(self) -> frozenset[str]:
        """The worker's own addresses, as far as its log or the platform names them."""
        log, platform = self.evidence.log, self.evidence.platform
        return frozenset((*(log.addresses if log else ()), *(platform.addresses if platform else ())))

    def of_round(self, number: int) -> list[Process]:
        first = bisect_left(self.processes, number, key=lambda process: process.round)
        return self.processes[first : bisect_right(self.processes, number, key=lambda process: process.round)]


def is_victim_end(end: AgentEnd) -> bool:
    """Whether the agent ended because another agent did."""
    return any(consequence_of(raised.text) for raised in end.chain) or consequence_of(end.text) is not None


_ATTEMPT_PATH = re.compile(r"((?:^|(?<=/))[^/]+/attempt_(\d{1,9})/(\d{1,9})/error\.json)$")
#: Lines before an agent's report in which a logged traceback counts as a process's last message.
_LAST_WORDS = 120
_ABORTED = -6
#: Exit codes that victims have, too: an exception, and an abort by NCCL's watchdog.
OF_VICTIMS = (1, _ABORTED)
#: Exceptions by which `mp.spawn` reports the end of a process, and all by which launchers do.
_SPAWN_REPORTS = frozenset({"ProcessExitedException", "ProcessRaisedException"})
_REPORTS = _SPAWN_REPORTS | {
    "ChildFailedError",
    "SignalException",
    "CalledProcessError",
    "WorkerGroupError",
    "TrainingFailedError",
}
#: Most processes of a worker.
MAX_LOCAL = 256


def collect_all(workers: Sequence[WorkerEvidence]) -> list[WorkerRounds]:
    """Splits the workers' evidence by round and process.

    Each pod has a separate pid namespace: if some workers show the pid of local rank 0, the others have the same. If
    all agents were started again, the rounds of the last ones have the same numbers, however many there were before.
    """
    found = [_Collector(item, None, settle=False).result() for item in workers]
    logged = [worker.rounds for worker in found if worker.evidence.log is not None]
    again = all(rounds.launch or len(rounds.agents) > 1 for rounds in logged)  # an agent may be killed
    last = max((rounds.launch for rounds in logged), default=0) if again else 0
    late = [max(0, last - worker.rounds.launch) for worker in found]
    steps = Counter(
        process.pid - process.local_rank
        for worker in found
        for process in worker.processes
        if process.pid is not None and process.local_rank is not None and process.round == 0
    )
    usual = steps.most_common(1)[0][0] if steps else None
    settled = [
        _Collector(worker.evidence, usual, settle=True, late=rounds).result()
        if rounds or any(_nameless(item) for item in worker.processes)
        else worker
        for worker, rounds in zip(found, late, strict=True)
    ]
    _number_the_rest(settled)
    return settled


def _number_the_rest(workers: Sequence[WorkerRounds]) -> None:
    """Assigns the remaining global ranks to the only worker without known ones, if all workers have logs."""
    told = {item.world for worker in workers for item in (worker.evidence.log or LogFacts()).identities if item.world}
    for number in {process.round for worker in workers for process in worker.processes}:
        processes = [process for worker in workers for process in worker.of_round(number)]
        if any(not worker.of_round(number) for worker in workers) or (told and told != {len(processes)}):
            continue
        nameless = [process for process in processes if process.rank is None]
        left = sorted(set(range(len(processes))) - {process.rank for process in processes})
        if len({process.worker for process in nameless}) != 1 or len(left) != len(nameless):
            continue
        alike = len(workers) > 1 and len({len(worker.of_round(number)) for worker in workers}) == 1
        alike = alike and all(len(worker.of_round(number)) == len(nameless) for worker in workers)
        if alike and all(process.local_rank is None and process.pid for process in nameless):
            # Processes are started in the order of their local ranks.
            nameless.sort(key=lambda process: process.pid or 0)
            for local, process in enumerate(nameless):
                process.local_rank = local
        if [process.local_rank for process in nameless] == [rank - left[0] for rank in left]:
            for process, rank in zip(nameless, left, strict=True):
                process.rank = rank


class _Collector:
    def __init__(self, evidence: WorkerEvidence, usual: int | None, *, settle: bool, late: int = 0) -> None:
        """`usual`: pid of local rank 0 in the first round of other workers. `settle`: assign by the facts known now.
        `late`: rounds that it lacks at the start."""
        self.evidence = evidence
        self.usual = usual
        self.settle = settle
        self.log = evidence.log or LogFacts()
        agents = _agent_starts(self.log)
        self.ends = [end for end in _agent_ends(evidence, self.log, agents) if not _went_on(self.log, end)]
        starts = [item.line_no for item in self.log.identities if item.rank is not None]
        finals = [*(summary.line_no for summary in self.log.summaries), *(end.line_no for end in self.ends)]
        self.rounds = split_rounds(self.log.notes, self.log.moments, starts, agents, finals, self.log.last_activity)
        self.rounds = replace(self.rounds, ends=(0,) * late + self.rounds.ends)
        if failed := [note.line_no for note in self.log.notes if note.launcher and note.kind is not NoteKind.CLOSING]:
            # Other launchers do not restart processes, but a script may start the launcher again.
            again = self.log.outlived > failed[-1]
            self.rounds = Rounds((failed[-1],), final=False) if again else Rounds((_LAST,), final=True)
        self.identities = _of_one_node(self.log.identities, self.rounds)
        self.processes: dict[int, list[Process]] = {}
        #: Global minus local rank, by round: a worker's ranks are consecutive.
        self.base: dict[int, int] = {}
        self.world: int | None = None
        self.files = dict(evidence.error_files)

    def result(self) -> WorkerRounds:
        found = WorkerRounds(self.evidence, self.rounds, [], self.ends)
        self._learn_bases()
        for item in self.identities:
            if item.rank is not None:
                process = self._process(self.rounds.of(item.line_no), item.rank, item.local_rank, item.pid)
                process.seen = item.line_no or process.seen
        for summary in self.log.summaries:
            number = self.rounds.ended_by(summary.line_no)
            for entry in summary.entries:
                self._process(number, entry.rank, entry.local_rank, entry.pid).entry = entry
        for note in self.log.notes:
            self._take_note(note)
        for rank, line_no in self.log.events.items():
            self._process(self.rounds.of(line_no), rank, None, None).event = line_no
        for statement in self.log.collectives:
            if statement.rank is not None and not statement.group and statement.says not in (Says.RUNS, Says.HEARD):
                self._process(self.rounds.of(statement.line_no), statement.rank, None, None).said.append(statement)
        self._take_traces(found)
        for number in list(self.processes):
            self._settle_base(number)
        self._spread_base()
        self._take_hits(found)
        self._take_files()
        self._take_rank_logs()
        self._attribute_loose(found)
        self._attribute_code()
        self._place_pids()
        found.processes = [process for number in sorted(self.processes) for process in self.processes[number]]
        return found

    def _place_pids(self) -> None:
        """Assigns the pids that the agent ended to ranks.

        Processes are started in the order of their local ranks, so that pids are consecutive; if that does not decide,
        they go to ranks without a known pid, first to those with output. A rank that is left over had exited before its
        agent ended the others.
        """
        for number in list(self.processes):
            processes = self.processes[number]
            steps = {p.pid - p.local_rank for p in processes if p.pid is not None and p.local_rank is not None}
            lowest = min((process.pid for process in processes if _nameless(process) and process.pid), default=0)
            if not steps and number == 0 and self.usual is not None and self.usual <= lowest:
                steps = {self.usual}  # another pod's: no process can have a lower number
            for process in [p for p in processes if _nameless(p)]:
                local = process.pid - next(iter(steps)) if len(steps) == 1 and process.pid else -1
                if 0 <= local < MAX_LOCAL:
                    processes.remove(process)
                    known = self._process(number, None, local, process.pid)
                    known.closed, known.forced = process.closed, process.forced
            if not self.settle:
                continue
            self._settle_by_gaps(number)
            processes = self.processes[number]
            if len(processes) == 1 and _nameless(processes[0]):
                processes[0].local_rank = 0  # the agent's only process
                continue
            nameless = [p for p in processes if _nameless(p)]
            free = [p for p in processes if p.rank is not None and p.pid is None and p.note is None and p.entry is None]
            free.sort(key=lambda item: (not (item.traces or item.said), item.rank))
            if not nameless or len(free) < len(nameless):
                continue
            for known, process in zip(free, nameless, strict=False):
                known.closed, known.forced = process.closed, process.forced
            self.processes[number] = [p for p in processes if p not in nameless]

    def _learn_bases(self) -> None:
        for summary in self.log.summaries:
            for entry in summary.entries:
                if entry.rank is not None and entry.local_rank is not None:
                    self.base[self.rounds.ended_by(summary.line_no)] = entry.rank - entry.local_rank
        for item in self.identities:
            if item.rank is not None and item.local_rank is not None:
                self.base.setdefault(self.rounds.of(item.line_no), item.rank - item.local_rank)
        if not self.base and len(self.log.bases) == 1 and min(self.log.bases) >= 0:
            self.base = dict.fromkeys(range(self.rounds.count), *self.log.bases)

    def _settle_base(self, number: int) -> None:
        """Joins facts by rank with facts by local rank, if every process of the worker has lines with its rank."""
        processes = self.processes[number]
        self._settle_by_words(number, processes)
        ranks = sorted(p.rank for p in processes if p.rank is not None and p.local_rank is None)
        halves = [p for p in processes if p.rank is None and p.local_rank is not None]
        seen = sorted(p.rank for p in processes if p.rank is not None and p.seen)
        reported = all(p.note and p.note.launcher and (p.local_rank or 0) < len(seen) for p in halves)
        if number not in self.base and halves and reported and seen == list(range(seen[0], seen[0] + len(seen))):
            self._join(number, seen[0], halves)  # a launcher that names local ranks, and all ranks of its node
        count = len({p.pid for p in processes if p.pid is not None})
        if number not in self.base and halves and len(ranks) == count > 0 and ranks[-1] - ranks[0] == count - 1:
            self._join(number, ranks[0], halves)

    def _spread_base(self) -> None:
        """Applies the base of one round to all rounds: after a restart a worker has the same ranks."""
        if len(bases := set(self.base.values())) != 1:
            return
        base = bases.pop()
        for process in (process for processes in self.processes.values() for process in processes):
            if process.local_rank is None and process.rank is not None and 0 <= process.rank - base < MAX_LOCAL:
                process.local_rank = process.rank - base

    def _settle_by_gaps(self, number: int) -> None:
        """Joins ranks and local ranks if both have the same gaps: 44, 46, 47 are 0, 2, 3."""
        processes = self.processes[number]
        halves = [p for p in processes if p.rank is None and p.local_rank is not None]
        ranks = sorted(p.rank for p in processes if p.rank is not None and p.local_rank is None)
        locals_ = sorted(p.local_rank for p in halves if p.local_rank is not None)
        gapless = ranks == list(range(ranks[0], ranks[-1] + 1)) if ranks else True
        base = ranks[0] - locals_[0] if ranks and locals_ else -1
        if number not in self.base and base >= 0 and not gapless and [rank - base for rank in ranks] == locals_:
            self._join(number, base, halves)

    def _join(self, number: int, base: int, halves: Sequence[Process]) -> None:
        """Sets the base of this round, and joins processes known only by local rank (`halves`) with their ranks."""
        self.base[number] = base
        self.processes[number] = [p for p in self.processes[number] if not any(p is half for half in halves)]
        for process in self.processes[number]:
            if process.rank is not None and process.local_rank is None and process.rank >= base:
                process.local_rank = process.rank - base
        for half in halves:
            known = self._process(number, None, half.local_rank, half.pid)
            known.note = half.note or known.note
            known.traces, known.hits = known.traces or half.traces, known.hits + half.hits
            known.tail, known.said = known.tail or half.tail, known.said + half.said
            known.record, known.record_path = known.record or half.record, known.record_path or half.record_path
            known.attempt = half.attempt if known.attempt is None else known.attempt
            known.closed, known.forced = half.closed or known.closed, half.forced or known.forced

    def _settle_by_words(self, number: int, processes: Sequence[Process]) -> None:
        """Joins the only process that the agent reports without a message with the only rank that has its own error."""
        halves = [p for p in processes if p.rank is None and p.note is not None and not p.traces]
        own = [
            p.rank
            for p in processes
            if p.rank is not None
            and p.local_rank is None
            and (chain := p.chain())
            and p.traces
            and consequence_of(chain[0].text) is None
        ]
        if number in self.base or len(halves) != 1 or len(own) != 1 or halves[0].local_rank is None:
            return
        base = own[0] - halves[0].local_rank
        if base >= 0:
            self._join(number, base, halves)

    def _process(self, number: int, rank: int | None, local: int | None, pid: int | None) -> Process:
        """The matching process of a round, or a new one."""
        base = self.base.get(number)
        if base is None and len(set(self.base.values())) == 1:
            base = next(iter(self.base.values()))
        if base is not None and base >= 0:
            if local is None and rank is not None and rank >= base:
                local = rank - base
            elif rank is None and local is not None:
                rank = base + local
        known = self.processes.setdefault(number, [])
        for process in known:
            if _same(process, rank, local, pid):
                process.rank = process.rank if process.rank is not None else rank
                process.local_rank = process.local_rank if process.local_rank is not None else local
                process.pid = process.pid if process.pid is not None else pid
                return process
        process = Process(self.evidence.worker, self.evidence.index, number, rank, local, pid)
        known.append(process)
        return process

    def _take_note(self, note: AgentNote) -> None:
        number = self.rounds.of(note.line_no)
        if note.kind in (NoteKind.FAILED, NoteKind.DIED):
            for rank in (note.rank, *note.more):
                process = self._process(number, rank, note.local_rank, note.pid)
                process.note = process.note or note
        elif note.kind is NoteKind.CLOSING and (note.pid, note.rank) != (None, None):
            for rank in (note.rank, *note.more):
                self._process(number, rank, None, note.pid).closed = note.line_no
        elif note.kind is NoteKind.FORCED:
            self._process(number, None, None, note.pid).forced = note.line_no

    def _take_traces(self, found: WorkerRounds) -> None:
        handled = self._handled()
        for item in self.log.unfinished:
            if item.origin.known and item.line_no > self.log.went_on.get(item.origin.rank, 0):
                number = self.rounds.of(item.line_no)
                self._process(number, item.origin.rank, item.origin.local_rank, None).unfinished = item.line_no
        for trace in self.log.traces:
            if trace.line_no in handled:
                continue
            if trace.agent or (not trace.origin.known and self._reports(trace)):
                continue
            number = self.rounds.of(trace.line_no)
            if trace.origin.known:
                self._process(number, trace.origin.rank, trace.origin.local_rank, None).traces.append(trace)
            else:
                found.loose_traces.setdefault(number, []).append(trace)

    def _handled(self) -> set[int]:
        """Lines of tracebacks of ranks that went on training, if something else explains the end or nothing ended; and
        of programs that the launch script ran before the agent."""
        gone = {process.rank for known in self.processes.values() for process in known if process.failed}
        went_on = {rank: line_no for rank, line_no in self.log.went_on.items() if rank not in gone}
        handled = {
            trace.line_no
            for trace in self.log.traces
            if trace.origin.rank is not None and trace.last.line_no < went_on.get(trace.origin.rank, 0)
        }
        ended = any(note.kind in ENDINGS for note in self.log.notes)
        if not gone and ended and len(handled) == len(self.log.traces):
            handled = set()
        first = next(iter(self.log.notes), None)
        if first is not None and first.kind is NoteKind.STARTED:
            handled |= {trace.line_no for trace in self.log.traces if trace.last.line_no < first.line_no}
        return handled

    def _reports(self, trace: Trace) -> bool:
        """Whether a traceback of a launcher or wrapper only reports the end of processes known from other lines."""
        if any(note.launcher for note in self.log.notes):
            return trace.last.exception.rpartition(".")[2] in _SPAWN_REPORTS
        summaries = self.log.summaries
        return self.rounds.final and bool(summaries) and trace.line_no > summaries[-1].entries[-1].line_no

    def _take_hits(self, found: WorkerRounds) -> None:
        for hit in self.log.hits:
            number = self.rounds.of(hit.line_no)
            if hit.origin.known:
                self._process(number, hit.origin.rank, hit.origin.local_rank, None).hits.append(hit)
            else:
                found.loose_hits.setdefault(number, []).append(hit)

    def _take_files(self) -> None:
        """Assigns error files by the path that a summary names, else by attempt and local rank."""
        by_path = {_tail(path): path for path in self.files}
        for processes in self.processes.values():
            for process in processes:
                path = process.entry.error_file if process.entry else None
                if path and (key := by_path.get(_tail(path))) and key in self.files:
                    process.record, process.record_path = self.files.pop(key), key
        attempts = sorted({int(match[2]) for path in self.files if (match := _ATTEMPT_PATH.search(path))})
        for path, record in list(self.files.items()):
            if match := _ATTEMPT_PATH.search(path):
                number = self._round_of_attempt(int(match[2]), attempts)
                process = self._process(number, None, int(match[3]), None)
                if process.record is None:
                    process.record, process.record_path = record, path
                    process.attempt = int(match[2])

    def _round_of_attempt(self, attempt: int, attempts: Sequence[int]) -> int:
        """The round of an attempt number, which counts only this agent's own failures."""
        failed = [self.rounds.of(note.line_no) for note in self.log.notes if note.kind is NoteKind.FAILED]
        if attempt < len(failed):
            return failed[attempt]
        return self.rounds.count - 1 if attempt == max(attempts) else min(attempt, self.rounds.count - 1)

    def _take_rank_logs(self) -> None:
        for item in self.evidence.rank_logs:
            number = self._round_of_attempt(item.attempt, sorted({log.attempt for log in self.evidence.rank_logs}))
            process = self._process(number, None, item.local_rank, None)
            if not process.traces:
                process.traces += [trace for trace in item.facts.traces if not trace.agent]
            process.hits += item.facts.hits
            process.tail += item.facts.tail
            process.said += [said for said in item.facts.collectives if said.rank is not None]
        for number, processes in list(self.processes.items()):
            # Processes that raised wrote both lines with their ranks and files of their local ranks.
            ranks = sorted(p.rank for p in processes if p.rank is not None and p.local_rank is None)
            halves = [p for p in processes if p.rank is None and p.local_rank is not None]
            locals_ = sorted(p.local_rank or 0 for p in halves if p.record or p.traces)
            if number not in self.base and ranks and locals_ == [rank - ranks[0] for rank in ranks]:
                self._join(number, ranks[0], halves)

    def _attribute_loose(self, found: WorkerRounds) -> None:
        """Assigns messages without a prefix (no process group yet, old torch) to processes that failed silently."""
        for number, processes in self.processes.items():
            _match_reports(processes, found.loose_traces.get(number, []))
            aborted = [p for p in processes if p.exit_code == _ABORTED and not p.chain() and not p.said]
            if len(aborted) == 1:
                aborted[0].hits += [hit for hit in found.loose_hits.get(number, []) if _explains_abort(hit)]
            silent = [p for p in processes if (p.exit_code or 0) > 0 and not p.chain()]
            if not silent:
                continue
            limit = max((p.note.line_no for p in silent if p.note), default=None)
            traces = [
                trace
                for trace in found.loose_traces.get(number, [])
                if not trace.thread and (limit is None or limit - trace.last.line_no < _LAST_WORDS * 10)
            ]
            if _by_all(processes, traces):
                silent = processes
            if len(silent) == 1 and 1 < len(traces) <= len(processes) and (own := self._own(traces)):
                silent[0].traces.append(own)
                silent[0].guessed_words = True
                found.loose_traces[number].remove(own)
            elif traces:
                _hand_out(traces, silent)
                found.loose_traces[number] = [t for t in found.loose_traces[number] if t not in traces]
            hits = [
                hit
                for hit in found.loose_hits.get(number, [])
                if hit.match.signature.role is LineRole.ROOT
                and (limit is None or abs(limit - hit.line_no) < _LAST_WORDS * 10)
            ]
            for process in silent:
                if not process.traces and hits:
                    process.hits.append(hits[-1])
                    process.guessed_words = len(silent) > 1

    def _own(self, traces: Sequence[Trace]) -> Trace | None:
        """The first of these, if it alone is of no process that lost a peer, and training ended with it: the others
        are then of processes that the agent ended before they had."""
        lost = [trace for trace in traces if consequence_of(trace.chain[0].text)]
        alone = lost == traces[1:] and self.log.last_activity < traces[0].line_no
        return traces[0] if alone else None

    def _attribute_code(self) -> None:
        """Assigns an exit code without a name to the only rank without output, if no victim can have it."""
        for note in self.log.notes:
            if note.kind is not NoteKind.UNNAMED or note.exit_code in OF_VICTIMS:
                continue
            processes = self.processes.get(self.rounds.of(note.line_no), [])
            mute = [
                process
                for process in processes
                if not (process.failed or process.said or process.hits or process.unfinished)
            ]
            if len(mute) == 1 and len(processes) > 1:
                mute[0].note = note


def _explains_abort(hit: SignatureHit) -> bool:
    """Whether a line without a prefix explains an abort: the text of an uncaught C++ exception."""
    return hit.match.signature.role in (LineRole.ROOT, LineRole.AMBIGUOUS) and "what():" in hit.text


def _match_reports(processes: Sequence[Process], traces: list[Trace]) -> None:
    """Assigns a traceback without a prefix to the process for which torchrun reports the same message."""
    for process in processes:
        if process.traces or not (process.entry or process.record):
            continue
        chain = process.chain()
        own = next((trace for trace in traces if chain and trace.last.message == chain[-1].message), None)
        if own is not None:
            process.traces.append(own)
            traces.remove(own)


def _by_all(processes: Sequence[Process], traces: Sequence[Trace]) -> bool:
    """Whether tracebacks are as many as the processes, which have no others, all with the same message of no victim."""
    return (
        len(processes) == len(traces) > 1
        and len({_shape(trace) for trace in traces}) == 1
        and consequence_of(traces[0].chain[0].text) is None
        and not any(process.chain() for process in processes)
    )


def _shape(trace: Trace) -> str:
    return re.sub(r"\d+", "#", trace.last.message)


def _of_one_node(identities: Sequence[Identity], rounds: Rounds) -> Sequence[Identity]:
    """The identities, without local ranks if the log has those of several nodes: then they would be mixed up."""
    ranks: dict[tuple[int, int], set[int]] = {}
    for item in identities:
        if item.rank is not None and item.local_rank is not None:
            ranks.setdefault((rounds.of(item.line_no), item.local_rank), set()).add(item.rank)
    if all(len(of_one) == 1 for of_one in ranks.values()):
        return identities
    return [replace(item, local_rank=None) for item in identities]


def _nameless(process: Process) -> bool:
    return process.rank is None and process.local_rank is None and process.closed is not None


def _hand_out(traces: Sequence[Trace], silent: Sequence[Process]) -> None:
    if len(silent) == 1 or len({_shape(trace) for trace in traces}) == 1:
        for process in silent:
            process.traces.append(traces[-1])
        return
    # The agent's `failed` line is about the first process that ended; the others follow in any order.
    ordered = sorted(silent, key=lambda p: (p.note is None, p.local_rank or 0))
    for process, trace in zip(ordered, traces[-len(ordered) :], strict=False):
        process.traces.append(trace)
        process.guessed_words = True


def _same(process: Process, rank: int | None, local: int | None, pid: int | None) -> bool:
    if local is not None and process.local_rank is not None:
        return local == process.local_rank
    if rank is not None and process.rank is not None:
        return rank == process.rank
    return pid is not None and pid == process.pid


def _tail(path: str) -> str:
    match = _ATTEMPT_PATH.search(path)
    return match[1] if match else path


def _agent_ends(evidence: WorkerEvidence, log: LogFacts, started: Sequence[int]) -> Iterator[AgentEnd]:
    """The first line about each death of an agent: a signal, or its own exception that is not a summary. `started`: see
    `_agent_starts`."""
    signalled = [note for note in log.notes if note.kind is NoteKind.SIGNALLED]
    since = max((line for line in started if signalled and line < signalled[-1].line_no), default=0)
    for note in [note for note in signalled if note.line_no > since][:1]:
        yield AgentEnd(evidence.worker, note.line_no, note.text, log.moments.get(note.line_no), note.signal)
    reported = any(note.launcher for note in log.notes)
    for trace in log.traces:
        name = trace.last.exception.rpartition(".")[2]
        if trace.agent and not trace.logged and name not in _REPORTS and not (reported and name != "KeyboardInterrupt"):
            signal = "SIGINT" if name == "KeyboardInterrupt" else None
            yield AgentEnd(evidence.worker, trace.last.line_no, trace.last.message, trace.time, signal, trace.chain)
    if not any(trace.agent and "Rendezvous" in trace.last.exception for trace in log.traces):
        for note in [note for note in log.notes if note.kind is NoteKind.RENDEZVOUS][-1:]:
            moment = log.moments.get(note.line_no)
            yield AgentEnd(evidence.worker, note.line_no, note.text, moment)


def _agent_starts(log: LogFacts) -> list[int]:
    """Lines in which an agent starts. Some print nothing then: words after the last ones of an agent are another's."""
    found = [note.line_no for note in log.notes if note.kind is NoteKind.STARTED]
    agents = [trace.last for trace in log.traces if trace.agent and not trace.logged]
    last_words = [max(item.line_no for item in summary.entries) for summary in log.summaries if summary.entries]
    last_words += [raised.line_no for raised in agents if "SignalException" in raised.exception]
    words = sorted((*(n.line_no for n in log.notes if not n.launcher), *(raised.line_no for raised in agents)))
    silent = []
    for last, following in pairwise((*sorted(last_words), _LAST)):
        at = bisect_right(words, last)
        if at < len(words) and words[at] <= following and words[at] not in found:
            silent.append(last + 1)
    return sorted(found + silent)


def _went_on(log: LogFacts, end: AgentEnd) -> bool:
    """Whether the worker was started again after this end, which then belongs to an earlier instance."""
    later = [item.line_no for item in log.identities if item.rank is not None]
    later += [item.line_no for item in log.summaries]
    later += [note.line_no for note in log.notes if note.kind is NoteKind.STARTED]
    if any(line_no > end.line_no for line_no in later):
        return True
    if any(note.kind is NoteKind.SIGNALLED for note in log.notes):
        return False
    return log.last_activity > end.line_no or any(
        note.line_no > end.line_no for note in log.notes if note.kind in ENDINGS
    )
