"""torchelastic's failure summaries in one log. Formats of torch 1.9 to 2.13; memory is bounded."""

from __future__ import annotations

import re
from collections import deque

from atlctl.diagnosis.agentnotes import FAILURE_MARKERS, AgentNote, NoteKind
from atlctl.diagnosis.summary import Block, Entry, Summary

__all__ = ["FAILURE_MARKERS", "AgentNote", "Entry", "NoteKind", "Summaries", "Summary"]

#: Of one log are kept: the last summaries, their entries altogether.
MAX_SUMMARIES = 4_096
MAX_ALL_ENTRIES = 8_192

_ATTEMPT = re.compile(r"(.*/attempt_)(\d{1,4})(/\d{1,4}/error\.json)")
#: One of these opens a summary; a log cut at the top begins with a row.
_OPENERS = ("ChildFailedError:", "Root Cause", "Failures:", " time      :", " exitcode  :", "time      :")
#: The same as bytes.
LITERALS = (b"ChildFailedError:", b"Root Cause", b"Failures:", b"time      :", b" exitcode  :")


class Summaries:
    """Reads the summaries of one worker's log. Those of other workers in the same stream are not told apart here."""

    def __init__(self) -> None:
        self._done: deque[Summary] = deque(maxlen=MAX_SUMMARIES)
        self._block: Block | None = None

    @property
    def open(self) -> bool:
        """True while the lines that follow may belong to a summary."""
        return self._block is not None

    def feed(self, text: str, line_no: int) -> bool:
        """Takes one line without terminal codes; True where it belongs to a summary. Never raises."""
        if self._block is None:
            if not any(opener in text for opener in _OPENERS):
                return False
            self._block = Block(line_no, headed=False)
        if "ChildFailedError:" in text:
            self._close()
            self._block = Block(line_no, headed=True)
            return True
        taken = self._block.feed(text, line_no)
        if self._block.closed:
            self._close()
        return taken

    def found(self) -> list[Summary]:
        """In the order of the log; one that is still open or was cut off counts with what it has."""
        unfinished = self._block.summary() if self._block else None
        return [*self._done, *([unfinished] if unfinished else [])]

    def _close(self) -> None:
        summary = self._block.summary() if self._block else None
        self._block = None
        if summary is None:
            return
        self._done.append(summary)
        while len(self._done) > 1 and sum(len(item.entries) for item in self._done) > MAX_ALL_ENTRIES:
            self._done.popleft()


def all_attempts(path: str) -> list[str]:
    """Where an error file of that name lies for each attempt of its process, the last one first."""
    match = _ATTEMPT.fullmatch(path)
    if match is None:
        return [path]
    return [f"{match[1]}{attempt}{match[3]}" for attempt in range(int(match[2]), -1, -1)]
