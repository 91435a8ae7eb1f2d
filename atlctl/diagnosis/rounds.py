"""Splits one worker's log into rounds: from one start of its processes to the next.

An agent ends a round by ending its processes (`Sending process N closing signal`) and, where one of its own failed, by
`failed (exitcode: ...)`. Attempt numbers are no help: each agent counts its own failures only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atlctl.diagnosis.agentnotes import AgentNote, NoteKind
from atlctl.diagnosis.moments import Moment

_LAST = 2**62
#: Without times: lines that may stand between two of an agent's notes about one and the same end.
_NEAR = 60
#: Seconds from the signals to the report: processes that leave on SIGTERM, and such that have to be killed.
_UNFORCED = 12.0
_FORCED = 60.0


@dataclass(frozen=True, slots=True)
class Rounds:
    """`ends` are the lines of the last note of each round that an agent ended; a round may be open behind them."""

    ends: tuple[int, ...]
    #: True where the last end is the agent's own as well: nothing runs behind it.
    final: bool
    #: True where nothing behind the last end shows that anything was started again.
    cut: bool = False

    @property
    def count(self) -> int:
        return len(self.ends) if self.final else len(self.ends) + 1

    @property
    def seen(self) -> int:
        """Rounds of which anything stands in the log."""
        return self.count - 1 if self.cut else self.count

    def of(self, line_no: int) -> int:
        """The round in which a line was printed."""
        return min(bisect_left(self.ends, line_no), self.count - 1)

    def ended_by(self, line_no: int) -> int:
        """The round that a summary in this line is about: the last that ended before it."""
        number = bisect_left(self.ends, line_no) - 1
        if self.ends and self.ends[-1] == _LAST and number == len(self.ends) - 2:
            return len(self.ends) - 1
        return max(0, min(number, self.count - 1))


def split_rounds(
    notes: Sequence[AgentNote],
    moments: Mapping[int, Moment],
    starts: Sequence[int],
    ends: Sequence[int],
    last_activity: int,
) -> Rounds:
    """`starts` are lines in which a process says who it is, `ends` lines that end the agent: summaries and the like.

    `last_activity` is the last line that shows the training going on.
    """
    agents = [note.line_no for note in notes if note.kind is NoteKind.STARTED]
    starts = sorted((*starts, *agents))
    found: list[int] = []
    since: AgentNote | None = None
    forced = False
    closed: list[int] = []
    for note in notes:
        if note.kind is NoteKind.SIGNALLED:
            if any(line > note.line_no for line in agents):
                continue
            # Nothing is started again: what its processes print on their way out is still this round's.
            return Rounds((*found, _LAST), final=True)
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
    return Rounds(tuple(found), final, cut=bool(found) and not (final or later) and last_activity <= found[-1])


def _later_start(closed: Sequence[int], note: AgentNote) -> bool:
    """Whether the process that failed was started later than those that were closed.

    Processes of one start get their numbers in the order of their local ranks: no more of them than the local rank
    can have lower numbers.
    """
    if note.kind is not NoteKind.FAILED or note.pid is None or note.local_rank is None:
        return False
    return sum(pid < note.pid for pid in closed) > note.local_rank


def _one_end(first: AgentNote, second: AgentNote, moments: Mapping[int, Moment], forced: bool) -> bool:
    """Whether both notes are about the end of one and the same set of processes.

    An agent sends its signals at once, and reports when all are gone: at most 30 s later, and then it has said that it
    killed them.
    """
    patience = 2.0 if second.kind is NoteKind.CLOSING else _UNFORCED
    if forced or second.kind is NoteKind.FORCED:
        patience = _FORCED
    start, end = moments.get(first.line_no), moments.get(second.line_no)
    if start is not None and end is not None:
        return end.seconds - start.seconds <= patience
    return second.line_no - first.line_no <= (_NEAR if second.kind is NoteKind.CLOSING else 4 * _NEAR)
