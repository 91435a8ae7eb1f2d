"""torchelastic's failure output in one log: summaries, the agent's single lines, uncaught tracebacks.

Formats of torch 1.9 to 2.13. Lines are fed one by one; those without any of torchelastic's words
cost a handful of byte searches. Memory is bounded whatever the log holds.
"""

from __future__ import annotations

from collections import deque

from atlctl.diagnosis.agentnotes import FAILURE_MARKERS, AgentNote, NoteKind, parse_note
from atlctl.diagnosis.summary import Block, Entry, Summary
from atlctl.diagnosis.text import clean_line
from atlctl.diagnosis.tracebacks import RankTraceback, RankTracebacks

__all__ = [
    "FAILURE_MARKERS",
    "AgentNote",
    "Entry",
    "NoteKind",
    "RankTraceback",
    "Summary",
    "SummaryParser",
    "trainer_failed",
]

#: Of one log are kept: the last summaries, their entries altogether, the first notes.
MAX_SUMMARIES = 64
MAX_ALL_ENTRIES = 2_048
MAX_NOTES = 8_192


def trainer_failed(line: bytes) -> bool:
    """Whether this line of a log means that a torchelastic trainer ended in failure."""
    return any(marker in line for marker in FAILURE_MARKERS)


class SummaryParser:
    """Reads one worker's log. Lines of other workers in the same stream are not told apart here."""

    def __init__(self) -> None:
        self._summaries: deque[Summary] = deque(maxlen=MAX_SUMMARIES)
        self._notes: list[AgentNote] = []
        self._tracebacks = RankTracebacks()
        self._block: Block | None = None

    def feed_line(self, line: bytes, line_no: int) -> None:
        """Takes one line, with or without its newline. Never raises, whatever the bytes."""
        if self._block is not None:
            self._feed_block(line, line_no)
        elif (
            b"ChildFailedError:" in line
            or b"Root Cause" in line
            or b"Failures:" in line
            or b" time      :" in line
            or b" exitcode  :" in line
        ):  # written out: `any` over a tuple costs four times as much, and this runs for each line of a log
            self._block = Block(line_no, headed=False)
            self._feed_block(line, line_no)
        self._tracebacks.feed_line(line, line_no)
        note = parse_note(line, line_no)
        if note is not None and len(self._notes) < MAX_NOTES:
            self._notes.append(note)

    def summaries(self) -> list[Summary]:
        """In the order of the log; one that is still open or was cut off counts with what it has."""
        unfinished = self._block.summary() if self._block else None
        return [*self._summaries, *([unfinished] if unfinished else [])]

    def notes(self) -> list[AgentNote]:
        """The agent's single lines, in the order of the log."""
        return list(self._notes)

    def tracebacks(self) -> list[RankTraceback]:
        """Uncaught exceptions that carry their rank, in the order of the log."""
        return list(self._tracebacks.found())

    def _feed_block(self, line: bytes, line_no: int) -> None:
        assert self._block is not None
        if b"ChildFailedError:" in line:
            self._close()
            self._block = Block(line_no, headed=True)
            return
        self._block.feed(clean_line(line), line_no)
        if self._block.closed:
            self._close()

    def _close(self) -> None:
        summary = self._block.summary() if self._block else None
        self._block = None
        if summary is None:
            return
        self._summaries.append(summary)
        while len(self._summaries) > 1 and sum(len(item.entries) for item in self._summaries) > MAX_ALL_ENTRIES:
            self._summaries.popleft()
