"""Which failure of a job was observed first: a heuristic, not a root cause.

What is compared comes from torchelastic alone: summaries, error files, the agents' single lines,
uncaught tracebacks with their rank. Three classes, each put behind the one before:

1. a failure of the last attempt whose text is not a peer's consequence,
2. such a failure of an earlier attempt that was restarted,
3. consequences (see `consequence`).

Within a class the earliest is taken. Times are whole seconds, and equal ones are a tie: which of
two failures in one second came first cannot be read from them. A time means one of two things:
with an error file it is when the exception was raised, without one it is when the agent
noticed, 0.1 s later as a rule and up to 30 s later for a process that it had to end itself. A
failure with only the agent's time therefore never counts as earlier than that. Clocks and zones of the
workers are assumed to agree; where a worker has both an error file and its summary, its zone is
known from the two and taken into account.

Not found this way: a rank that hangs or leaves with exit code 0. Only its victims speak.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from atlctl.diagnosis.agentnotes import AgentNote, NoteKind
from atlctl.diagnosis.consequence import is_consequence, own_text
from atlctl.diagnosis.errorfile import ErrorRecord
from atlctl.diagnosis.finding import Candidate, Evidence, Finding, WorkerEvidence
from atlctl.diagnosis.summary import Entry
from atlctl.diagnosis.text import naive_seconds
from atlctl.diagnosis.tracebacks import Frame, RankTraceback, exception_type
from atlctl.jobs.model import State

__all__ = ["Candidate", "Evidence", "Finding", "WorkerEvidence", "first_observed"]

_ATTEMPT_PATH = re.compile(r"([^/]+/attempt_(\d{1,9})/(\d{1,9})/error\.json)$")
#: After a restart gloo reads the addresses of the attempt before from the store (torch 2.13): nobody's fault.
_STALE_MESH = re.compile(r"Gloo connectFullMesh failed")

_AGENT_ENDS = (NoteKind.SIGNALLED, NoteKind.RENDEZVOUS)


def first_observed(workers: Sequence[WorkerEvidence]) -> Finding:
    """Orders everything that failed; see the module for the rules and their limits."""
    year, common = _year(workers), _common_offset(workers)
    found: list[Candidate] = []
    silent = []
    for worker in workers:
        own = list(_Reader(worker, year, common).candidates())
        found += own
        if not own and worker.state in (State.FAILED, State.HELD, State.LOST):
            silent.append(worker.worker)
    found.sort(key=_order)
    # A launch script can hide torchrun's code, so that only a log without an agent's end tells of success.
    if not found or not any(worker.state is not State.SUCCEEDED or _ended_badly(worker) for worker in workers):
        return Finding((), tuple(found), True, tuple(silent))
    first = [item for item in found if _place(item) == _place(found[0])]
    tied = tuple(replace(item, tie=len(first) > 1) for item in first)
    return Finding(tied, tuple(found[len(first) :]), False, tuple(silent))


def _ended_badly(worker: WorkerEvidence) -> bool:
    return bool(worker.summaries) or any(note.kind in _AGENT_ENDS for note in worker.notes)


def _class(item: Candidate) -> int:
    if item.consequence:
        return 2
    return 1 if item.earlier_attempt else 0


def _place(item: Candidate) -> tuple[int, bool, int]:
    """Equal for failures between which nothing decides."""
    return _class(item), item.time is None, int(item.time or 0)


def _order(item: Candidate) -> tuple[tuple[int, bool, int], int, int, int]:
    local = item.local_rank if item.local_rank is not None else -1
    line = min((proof.line_no for proof in item.evidence if proof.line_no), default=0)
    return _place(item), item.index, local, line


def _same_file(path: str) -> str:
    match = _ATTEMPT_PATH.search(path)
    return match[1] if match else path


def _offset(worker: WorkerEvidence) -> float | None:
    """Seconds that this worker's local time is ahead of UTC, from an entry and its error file."""
    files = {_same_file(path): record for path, record in worker.error_files.items()}
    for summary in worker.summaries:
        for entry in summary.entries:
            record = files.get(_same_file(entry.error_file)) if entry.error_file else None
            if record is None or record.time is None or entry.time is None:
                continue
            ahead = entry.time - record.time
            zone = round(ahead / 900) * 900  # zones are multiples of a quarter of an hour
            if abs(ahead - zone) <= 2 and abs(zone) <= 14 * 3600:
                return float(zone)
    return None


def _common_offset(workers: Sequence[WorkerEvidence]) -> float:
    return next((ahead for worker in workers if (ahead := _offset(worker)) is not None), 0.0)


def _year(workers: Sequence[WorkerEvidence]) -> str:
    """The year that torch's own log times lack, from any summary; a fixed one where there is none."""
    texts = (entry.time_text for worker in workers for part in worker.summaries for entry in part.entries)
    return next((text[:4] for text in texts if text), "2000")


class _Reader:
    """One worker's evidence, turned into candidates."""

    def __init__(self, worker: WorkerEvidence, year: str, common_offset: float) -> None:
        self.worker = worker
        self._year = year
        own = _offset(worker)
        self._ahead = common_offset if own is None else own
        self._files = dict(worker.error_files)
        self._forced = {note.pid for note in worker.notes if note.kind is NoteKind.FORCED}
        self._failed = [note for note in worker.notes if note.kind is NoteKind.FAILED]
        attempts = [int(match[2]) for path in self._files if (match := _ATTEMPT_PATH.search(path))]
        self._last_attempt = max([len(self._failed) - 1, *attempts])

    def candidates(self) -> Iterator[Candidate]:
        summary = self.worker.summaries[-1] if self.worker.summaries else None
        entries: Sequence[Entry] = summary.entries if summary else ()
        for entry in entries:
            yield self._from_entry(entry)
        yield from self._from_notes(entries)
        if not entries:
            yield from self._from_agent()
        yield from self._from_files()

    def _from_entry(self, entry: Entry) -> Candidate:
        path, record = self._take_file(entry.error_file)
        spoken = self._spoken(entry.rank, entry.line_no)
        message, exception, frame = entry.message_last_line, entry.exception, entry.frame
        evidence = [self._line(entry.line_no, message or f"exit code {entry.exit_code}")]
        if record is not None:
            # The file is whole, the log's copy may be cut.
            message, exception, frame = record.message, record.exception, record.frame
            evidence.append(Evidence(self.worker.worker, None, message, path))
        elif spoken is not None and own_text(message) is None:
            message, exception, frame = spoken.message, spoken.exception, spoken.frame
            evidence.append(self._line(spoken.line_no, message))
        time = record.time if record else None
        if time is None and entry.time is not None:
            time = entry.time - self._ahead
        return self._candidate(
            evidence,
            rank=entry.rank,
            local_rank=entry.local_rank,
            exit_code=entry.exit_code,
            signal=entry.signal,
            pid=entry.pid,
            exception=exception,
            message=message,
            frame=frame,
            time=time,
            time_text=entry.time_text,
            attempt=self._attempt_of(entry),
            earlier=False,
        )

    def _from_notes(self, entries: Sequence[Entry]) -> Iterator[Candidate]:
        """`failed (exitcode ...)` lines: the only trace of an attempt that has no summary."""
        pids = {entry.pid for entry in entries}
        before = 0
        for attempt, note in enumerate(self._failed):
            since, before = before, note.line_no
            if attempt == len(self._failed) - 1 and note.pid in pids:
                return  # the summary's own
            path, record = self._attempt_file(attempt, note.local_rank)
            message, exception, frame, rank, local = "", None, None, None, note.local_rank
            evidence = [self._line(note.line_no, note.text)]
            if record is not None:
                message, exception, frame = record.message, record.exception, record.frame
                rank = self._rank_of(message)
                evidence.append(Evidence(self.worker.worker, None, message, path))
            elif note.exit_code is not None and note.exit_code > 0:
                spoken, local = self._first_of_attempt(since, note, entries)
                if spoken is not None:
                    message, exception, frame, rank = spoken.message, spoken.exception, spoken.frame, spoken.rank
                    evidence.append(self._line(spoken.line_no, message))
            yield self._candidate(
                evidence,
                rank=rank,
                local_rank=local,
                exit_code=note.exit_code,
                signal=note.signal,
                pid=note.pid,
                exception=exception,
                message=message,
                frame=frame,
                time=record.time if record and record.time else self._note_time(note),
                time_text=note.time_text or "",
                attempt=attempt,
                earlier=bool(entries) or self._ended_later(note),
            )

    def _from_files(self) -> Iterator[Candidate]:
        """Error files that no entry and no line of the log mentions."""
        for path, record in sorted(self._files.items()):
            match = _ATTEMPT_PATH.search(path)
            if match is None and self._is_copy(path, record):
                continue
            attempt = int(match[2]) if match else None
            yield self._candidate(
                [Evidence(self.worker.worker, None, record.message, path)],
                rank=self._rank_of(record.message),
                local_rank=int(match[3]) if match else None,
                exit_code=record.exit_code,
                signal=None,
                pid=None,
                exception=record.exception,
                message=record.message,
                frame=record.frame,
                time=record.time,
                time_text="",
                attempt=attempt,
                earlier=attempt is not None and attempt < self._last_attempt,
            )

    def _from_agent(self) -> Iterator[Candidate]:
        """An agent that died without a summary: by a signal, or by the rendezvous."""
        notes = [n for n in self.worker.notes if n.kind in _AGENT_ENDS]
        signalled = [note for note in notes if note.kind is NoteKind.SIGNALLED]
        # The first of several lines about one death carries the time.
        for note in signalled[:1] or notes[-1:]:
            told = f"torchrun's agent received {note.signal}" if note.signal else note.text
            evidence = [self._line(note.line_no, note.text)]
            path, record = self._agent_file()
            if record is not None:
                evidence.append(Evidence(self.worker.worker, None, record.message, path))
            time = record.time if record and record.time else self._note_time(note)
            yield self._candidate(
                evidence,
                rank=None,
                local_rank=None,
                exit_code=None,
                signal=None,
                pid=None,
                exception=exception_type(told),
                message=told,
                frame=None,
                time=time,
                time_text=note.time_text or "",
                attempt=None,
                earlier=False,
                agent_signal=note.signal,
            )

    def _candidate(
        self,
        evidence: Sequence[Evidence],
        *,
        rank: int | None,
        local_rank: int | None,
        exit_code: int | None,
        signal: str | None,
        pid: int | None,
        exception: str | None,
        message: str,
        frame: Frame | None,
        time: float | None,
        time_text: str,
        attempt: int | None,
        earlier: bool,
        agent_signal: str | None = None,
    ) -> Candidate:
        why = is_consequence(message, exit_code, signal, forced=pid is not None and pid in self._forced)
        if why is None and attempt and _STALE_MESH.search(message):
            why = "gloo found no peers after a restart"
        return Candidate(
            self.worker.worker,
            self.worker.index,
            rank,
            local_rank,
            exit_code,
            signal or agent_signal,
            exception,
            message,
            frame,
            time,
            time_text,
            why,
            tuple(evidence),
            attempt,
            earlier,
        )

    def _attempt_of(self, entry: Entry) -> int | None:
        if entry.error_file and (match := _ATTEMPT_PATH.search(entry.error_file)):
            return int(match[2])
        return self._last_attempt if self._last_attempt >= 0 else None

    def _line(self, line_no: int, text: str) -> Evidence:
        return Evidence(self.worker.worker, line_no, text)

    def _take_file(self, path: str | None) -> tuple[str | None, ErrorRecord | None]:
        if path:
            for key in self._files:
                if _same_file(key) == _same_file(path):
                    return key, self._files.pop(key)
        return None, None

    def _attempt_file(self, attempt: int, local_rank: int | None) -> tuple[str | None, ErrorRecord | None]:
        for key in self._files:
            match = _ATTEMPT_PATH.search(key)
            if match and (int(match[2]), int(match[3])) == (attempt, local_rank):
                return key, self._files.pop(key)
        return None, None

    def _agent_file(self) -> tuple[str | None, ErrorRecord | None]:
        """The agent's own error file, where it wrote its own death into it."""
        for key, record in self._files.items():
            if not _ATTEMPT_PATH.search(key) and not self._is_copy(key, record):
                return key, self._files.pop(key)
        return None, None

    def _is_copy(self, path: str, record: ErrorRecord) -> bool:
        """Whether this file, outside of any attempt, is torchrun's copy of a worker's."""
        return any(
            other.message == record.message and other.time == record.time
            for key, other in self.worker.error_files.items()
            if key != path
        )

    def _rank_of(self, message: str) -> int | None:
        """The only rank whose uncaught exception had this very text; an error file holds no global rank."""
        ranks = {t.rank for t in self.worker.tracebacks if t.message == message}
        return ranks.pop() if len(ranks) == 1 else None

    def _spoken(self, rank: int | None, before: int) -> RankTraceback | None:
        """The rank's own last uncaught traceback of the last attempt."""
        since = self._failed[-2].line_no if len(self._failed) > 1 else 0
        found = [t for t in self.worker.tracebacks if t.rank == rank and since < t.line_no < before]
        return found[-1] if rank is not None and found else None

    def _first_of_attempt(
        self, since: int, note: AgentNote, entries: Sequence[Entry]
    ) -> tuple[RankTraceback | None, int | None]:
        """The traceback behind a `failed` line, which has no global rank, and its local rank.

        Of several, one that is no consequence. A worker's global ranks are consecutive, so
        that the summary's tell the local one; where there is none and several ranks spoke, it is unknown.
        """
        found = [t for t in self.worker.tracebacks if since < t.line_no < note.line_no]
        own = [t for t in found if is_consequence(t.message, None, None) is None]
        chosen = own[0] if own else found[0] if found else None
        if chosen is None or len({t.rank for t in found}) == 1:
            return chosen, note.local_rank
        bases = {e.rank - e.local_rank for e in entries if e.rank is not None and e.local_rank is not None}
        local = chosen.rank - bases.pop() if len(bases) == 1 else -1
        return chosen, local if local >= 0 else None

    def _ended_later(self, note: AgentNote) -> bool:
        """Whether something after this attempt ended the worker: it was restarted."""
        ends = (*_AGENT_ENDS, NoteKind.FAILED, NoteKind.RESTART)
        return any(later.kind in ends and later.line_no > note.line_no for later in self.worker.notes)

    def _note_time(self, note: AgentNote) -> float | None:
        if note.time_text is None:
            return None
        text = note.time_text if len(note.time_text) > 14 else f"{self._year}-{note.time_text}"
        naive = naive_seconds(text)
        return None if naive is None else naive - self._ahead
