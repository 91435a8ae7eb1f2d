"""Reads one worker's log into facts. Lines may be left out that hold none of `literals_of` and were not asked for."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace
from functools import lru_cache

from atlctl.diagnosis.agentnotes import LITERALS as NOTE_LITERALS
from atlctl.diagnosis.agentnotes import AgentNote, NoteKind, parse_note
from atlctl.diagnosis.moments import Moment, mark_of, split_stamp, told_time, zone_of
from atlctl.diagnosis.origin import Origin, split_origin
from atlctl.diagnosis.progress import PROGRESS, PROGRESS_HEAD
from atlctl.diagnosis.reading import collectives, identity
from atlctl.diagnosis.reading.collectives import Collective, read_collectives
from atlctl.diagnosis.reading.embedded import read_embedded
from atlctl.diagnosis.reading.identity import Identity, read_address, read_identity
from atlctl.diagnosis.reading.traces import CUT_TOP, Trace, Traces
from atlctl.diagnosis.scanning.sieve import sieve_for
from atlctl.diagnosis.signatures.match import Match, Matcher
from atlctl.diagnosis.signatures.model import Role
from atlctl.diagnosis.summary import Summary
from atlctl.diagnosis.text import clean_line
from atlctl.diagnosis.torchelastic import LITERALS as SUMMARY_LITERALS
from atlctl.diagnosis.torchelastic import Summaries
from atlctl.diagnosis.tracebacks import HEADER

#: Of one log are kept.
MAX_NOTES = 8_192
MAX_FIRST_HITS = 200
MAX_LAST_HITS = 400
MAX_COLLECTIVES = 20_000
MAX_IDENTITIES = 8_192
MAX_ADDRESSES = 64
MAX_MARKS = 2_000
_TEXT_LIMIT = 1_000
#: Lines with a step of the training behind a death or a traceback after which the training has gone on. Other
#: ranks print the step that they are in.
_OUTLIVED = 8

_TRACE_LITERALS = (b"Traceback (most recent call last)", b"Exception in thread ", b"Exception ignored in")
#: A sign that the program went on: a line below ERROR of its log, a step of the training, a progress bar.
_GOES_ON = re.compile(rb"(?<!NCCL )\b(?:INFO|DEBUG)\b|" + PROGRESS)
_STEP = re.compile(PROGRESS)
#: A line that is longer than a stamp is not blank.
_STAMPED = 48
_EVENT = '"name": "torchelastic.worker.status.FAILED"'
_EVENT_LITERALS = (b"torchelastic.worker.status.FAILED",)
_NCCL_LITERALS = (b"NCCL WARN",)
#: A log that was cut at its top may begin in the middle of a traceback.
_FRAME = b'File "'


@dataclass(frozen=True, slots=True)
class Hit:
    """A line in which a signature was found."""

    line_no: int
    text: str
    origin: Origin
    time: Moment | None
    match: Match


@dataclass(slots=True)
class LogFacts:
    """What stands in one worker's log, each list in the order of the log. Lines count from 1.

    `moments` are the times of the notes, by their lines. `events` are torchelastic's event lines, by rank. `zone` is
    how many seconds the worker's local time is ahead of UTC, where the log tells. `marks` are times of lines
    that ranks print in step (`step 12/100`), by their text without what differs from rank to rank. `last_activity` is
    the last line that shows the program going on, `outlived` the last at which the training had gone on for long after
    every death and every traceback before it.
    """

    summaries: list[Summary] = field(default_factory=list)
    notes: list[AgentNote] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    identities: list[Identity] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)
    addresses: tuple[str, ...] = ()
    events: dict[int, int] = field(default_factory=dict)
    moments: dict[int, Moment] = field(default_factory=dict)
    zone: float | None = None
    marks: dict[str, float] = field(default_factory=dict)
    first: Moment | None = None
    last: Moment | None = None
    last_activity: int = 0
    outlived: int = 0
    last_line: int = 0
    last_text: str = ""

    @property
    def said(self) -> bool:
        """Whether anything was found at all."""
        return any((self.summaries, self.notes, self.traces, self.collectives, self.hits, self.identities, self.events))


@lru_cache(maxsize=8)
def literals_of(matcher: Matcher) -> frozenset[bytes]:
    """Byte strings of which one stands in every line that says something."""
    own = (*NOTE_LITERALS, *SUMMARY_LITERALS, *_TRACE_LITERALS, *_EVENT_LITERALS, *_NCCL_LITERALS)
    return matcher.literals() | {*own, *collectives.LITERALS, *identity.LITERALS}


def _tells(line: bytes) -> bool:
    """Whether a short line is more than a stamp."""
    return bool(split_stamp(line)[1].strip())


class LogReader:
    """Takes the lines of one log in their order."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._summaries = Summaries()
        self._traces = Traces()
        self._facts = LogFacts()
        self._addresses: dict[str, None] = {}
        self._last_hits: deque[Hit] = deque(maxlen=MAX_LAST_HITS)
        self._holds = sieve_for(literals_of(matcher))
        self._header: Hit | None = None
        self._steps_to_outlive = 0
        self._fed = 0
        self._last_no = 0
        self._last: tuple[bytes, Moment | None] | None = None

    def feed(self, line_no: int, line: bytes, stamp: Moment | None = None) -> bool:
        """Takes one line without its newline; True while the next line is wanted whatever it holds. Never raises.

        `stamp` is the node's, where it does not stand in front of the line.
        """
        self._last_no = line_no
        if len(line) > _STAMPED or _tells(line):
            self._last = (line, stamp)
        self._fed += 1
        if (
            not self._holds(line)
            and not (self._fed <= CUT_TOP and _FRAME in line)
            and not self._summaries.open
            and not self._traces.open_at(line_no)
        ):
            self._pass_over(line_no, line, stamp)
            return False
        body = line
        if stamp is None:
            stamp, body = split_stamp(line)
        raw = clean_line(body)
        if not raw.strip():
            return self._summaries.open or self._traces.open_at(line_no)
        time = self._time(raw, stamp)
        origin, text = split_origin(raw)
        if self._summaries.feed(raw, line_no):
            # The line that opens a summary also ends torchrun's own traceback.
            if "ChildFailedError" in raw:
                self._traces.feed(origin, text, line_no, time)
                if match := self._matcher.match(text):
                    self._header = Hit(line_no, text[:_TEXT_LIMIT], origin, time, match)
            return True
        self._statements(text, origin, line_no, time)
        if embedded := read_embedded(text):
            speaker = origin if origin.known or embedded.rank is None else Origin(embedded.rank)
            for lines in embedded.tracebacks:
                self._traces.take(speaker, lines, line_no, time)
            return self._traces.open_at(line_no)
        if text[:1] == "{" and HEADER in text:
            return self._traces.open_at(line_no)  # half an object: no traceback begins in it
        note = parse_note(body, line_no)
        if note is not None and len(self._facts.notes) < MAX_NOTES:
            self._facts.notes.append(note)
            if time is not None:
                self._facts.moments[line_no] = time
        elif self._traces.feed(origin, text, line_no, time):
            self._steps_to_outlive = _OUTLIVED
            return True
        elif match := self._matcher.match(text):
            self._hit(Hit(line_no, text[:_TEXT_LIMIT], origin, time, match))
        elif _GOES_ON.search(line[:PROGRESS_HEAD]):
            self._went_on(line_no, line)
        if note is not None and note.kind in (NoteKind.SIGNALLED, NoteKind.RENDEZVOUS):
            self._traces.feed(origin, text, line_no, time)  # the last line of the agent's own traceback
        return self._summaries.open or self._traces.open_at(line_no)

    def facts(self) -> LogFacts:
        """What was found so far."""
        made = replace(
            self._facts,
            summaries=self._summaries.found(),
            traces=self._traces.found(),
            addresses=tuple(self._addresses),
            hits=[*self._facts.hits, *self._last_hits],
        )
        if self._header is not None and not made.summaries:  # the log ends in the middle of the agent's report
            made.hits.append(self._header)
        made.last_line = self._last_no
        if self._last is not None:
            line, stamp = self._last
            if stamp is None:
                stamp, line = split_stamp(line)
            text = clean_line(line)
            made.last, made.last_text = stamp or told_time(text), text[:_TEXT_LIMIT]
        return made

    def _pass_over(self, line_no: int, line: bytes, stamp: Moment | None) -> None:
        """A line that says nothing but that the program goes on, and when. Most lines of a log come here."""
        facts = self._facts
        if _GOES_ON.search(line[:PROGRESS_HEAD]):
            self._went_on(line_no, line)
        elif self._fed > CUT_TOP or facts.first is not None:
            return
        if len(facts.marks) < MAX_MARKS or facts.zone is None:
            if stamp is None:
                stamp, line = split_stamp(line)
            self._time(clean_line(line), stamp)

    def _went_on(self, line_no: int, line: bytes) -> None:
        """Takes a line that shows the program going on."""
        self._facts.last_activity = line_no
        if self._steps_to_outlive and _STEP.search(line[:PROGRESS_HEAD]):
            self._steps_to_outlive -= 1
            if not self._steps_to_outlive:
                self._facts.outlived = line_no

    def _time(self, raw: str, stamp: Moment | None) -> Moment | None:
        """When a line was printed; notes the zone, and the time of a step of the training."""
        facts = self._facts
        told = told_time(raw) if stamp is None or facts.zone is None else None
        time = stamp or told
        if stamp and told and told.dated and (zone := zone_of(told, stamp)) is not None:
            facts.zone = zone
        if time is None:
            return None
        facts.first = facts.first or time
        if len(facts.marks) < MAX_MARKS and time.dated and time.resolution < 1 and (mark := mark_of(raw)):
            facts.marks.setdefault(mark, time.seconds)
        return time

    def _statements(self, text: str, origin: Origin, line_no: int, time: Moment | None) -> None:
        facts = self._facts
        if len(facts.collectives) < MAX_COLLECTIVES:
            facts.collectives += read_collectives(text, origin.rank, line_no, time)
        if len(facts.identities) < MAX_IDENTITIES:
            facts.identities += read_identity(text, line_no)
        if (address := read_address(text)) and len(self._addresses) < MAX_ADDRESSES:
            self._addresses[address] = None
        if _EVENT in text and len(facts.events) < MAX_IDENTITIES and (rank := _event_rank(text)) is not None:
            facts.events[rank] = line_no

    def _hit(self, hit: Hit) -> None:
        if hit.match.signature.role is Role.NOISE:
            return
        if hit.match.death:
            self._steps_to_outlive = _OUTLIVED
        if len(self._facts.hits) < MAX_FIRST_HITS:
            self._facts.hits.append(hit)
        else:
            self._last_hits.append(hit)


def _event_rank(text: str) -> int | None:
    start = text.find('"global_rank": ')
    digits = text[start + 15 : start + 22].split(",")[0].strip() if start >= 0 else ""
    return int(digits) if digits.isdecimal() else None
