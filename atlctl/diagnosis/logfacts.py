"""Reads one worker's log into facts: tracebacks, the agent's notes, signatures, statements on collectives, identities.

The caller may skip lines without any of `literals_of` unless the reader requested them. Statements on collectives have
the formats of ProcessGroupNCCL from torch 1.8 to 2.13, of `monitored_barrier` and of `TORCH_DISTRIBUTED_DEBUG=DETAIL`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from statistics import median

from atlctl.diagnosis.consequence import COLLECTIVE_MISMATCH, consequence_of
from atlctl.diagnosis.logline import (
    ATTEMPT,
    ATTEMPT_LITERAL,
    NOBODY,
    PROGRESS,
    PROGRESS_HEAD,
    WRAPPER,
    Moment,
    Origin,
    clean_line,
    dated_near,
    goes_on,
    mark_of,
    split_origin,
    split_stamp,
    told_time,
    zone_of,
)
from atlctl.diagnosis.scanner import sieve_for
from atlctl.diagnosis.signatures import LineRole, Match, Matcher
from atlctl.diagnosis.torchelastic import (
    ENDINGS,
    NOTE_LITERALS,
    SUMMARY_LITERALS,
    AgentNote,
    NoteKind,
    Summaries,
    Summary,
    of_launchers,
    parse_note,
)
from atlctl.diagnosis.tracebacks import CUT_TOP, HEADER, TRACEBACK_LITERALS, Trace, Traces, Unfinished, read_embedded

#: Most notes that are kept of one log.
MAX_NOTES = 8_192
MAX_FIRST_HITS = 200
MAX_LAST_HITS = 400
MAX_COLLECTIVES = 20_000
MAX_IDENTITIES = 8_192
MAX_ADDRESSES = 64
MAX_MARKS = 2_000
#: Ordinary lines that are kept before an end; characters of each; ends for which they are kept.
MAX_BEFORE = 32
_BEFORE_TEXT = 300
MAX_ENDS = 8
_TEXT_LIMIT = 1_000
#: Lines with two times that do not fit a time zone: how many show that the stamps are another clock's, and how far
#: their differences may be apart, in seconds. Lines that were held back in a buffer differ by more.
_MIN_AHEAD, _MAX_AHEAD, _MAX_SPREAD = 3, 64, 3.0
#: Lines with a training step after a death or a traceback that show that the training continued. Fewer may be from
#: other ranks that finish their current step.
_OUTLIVED = 8

_STEP = re.compile(PROGRESS)
#: A line that is longer than a stamp is not blank.
_STAMPED = 48
_EVENT = '"name": "torchelastic.worker.status.FAILED"'
#: Literals of torchelastic's events, of NCCL's warnings before a failure, and of attempts.
_OTHER_LITERALS = (b"torchelastic.worker.status.FAILED", b"NCCL WARN", ATTEMPT_LITERAL)
#: Byte strings of which one is in a line that reports an end.
END_LITERALS = (b"(exitcode: ", b" closing signal ")
#: A log that was cut at its top may begin in the middle of a traceback.
_FRAME = b'File "'
#: The end of the first line of prterun's report of a signal, which it wraps.
_WRAPPED = b" exited on"
#: Starts of lines inside a traceback, a C++ stack or torchrun's report.
_INSIDE = re.compile(r"\s+\S|frame #\d|<omitting python frames>|\[\d{1,4}\]:$")


@dataclass(frozen=True, slots=True)
class SignatureHit:
    """A line in which a signature was found."""

    line_no: int
    text: str
    origin: Origin
    time: Moment | None
    match: Match


@dataclass(frozen=True, slots=True)
class PlainLine:
    """An ordinary line: not of a traceback, not a note of an agent, not a statement on a collective."""

    line_no: int
    text: str
    origin: Origin


@dataclass(slots=True)
class LogFacts:
    """The facts of one worker's log, each list in log order. Lines count from 1.

    `mesh`: the job's parallel dimensions, if the log names them. `moments` are the times of the notes, by line.
    `events` are torchelastic's event lines, by rank. `zone`: seconds by which the worker's local time is ahead of the
    stamps, if known; `adrift`: this does not fit a time zone, so the stamps are from another clock. `marks` are times
    of lines that ranks print in step (`step 12/100`), by the text that is the same on all ranks. `bases` are global
    minus local rank of lines with both in front (`[default1]:[rank5]:` of `--tee`). `last_activity` is the last line
    that shows the program continuing, `outlived` the last line at which the training had continued for long after all
    deaths and tracebacks before it. `went_on`: the last line of a rank (None: of no known one) after its traceback with
    a training step and the process's own time. `before` are the plain lines before the first note of each end, by the
    note's line, `tail` those at the end of the log. `cut`: the log begins in the middle of a report. `attempt`: the
    facts are those of this attempt of `atlctl rerun` in a container, 0 if there was none; `ended`: its exit code, or
    its negative signal.
    """

    summaries: list[Summary] = field(default_factory=list)
    notes: list[AgentNote] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    unfinished: list[Unfinished] = field(default_factory=list)
    collectives: list[CollectiveLine] = field(default_factory=list)
    identities: list[Identity] = field(default_factory=list)
    hits: list[SignatureHit] = field(default_factory=list)
    mesh: Mesh = ()
    addresses: tuple[str, ...] = ()
    events: dict[int, int] = field(default_factory=dict)
    moments: dict[int, Moment] = field(default_factory=dict)
    zone: float | None = None
    adrift: bool = False
    marks: dict[str, float] = field(default_factory=dict)
    bases: set[int] = field(default_factory=set)
    first: Moment | None = None
    last: Moment | None = None
    last_activity: int = 0
    outlived: int = 0
    went_on: dict[int | None, int] = field(default_factory=dict)
    cut: bool = False
    last_line: int = 0
    last_text: str = ""
    before: dict[int, tuple[PlainLine, ...]] = field(default_factory=dict)
    tail: tuple[PlainLine, ...] = ()
    attempt: int = 0
    ended: int | None = None

    @property
    def said(self) -> bool:
        """Whether anything was found at all."""
        return bool(self.hits or self.notes) or not self.only_reports

    @property
    def only_reports(self) -> bool:
        """Whether no line is known to be a process's or an agent's own."""
        notes = [note for note in self.notes if note.kind is not NoteKind.SIGNALLED or not note.launcher]
        return not any((self.summaries, notes, self.traces, self.collectives, self.identities, self.events))


@lru_cache(maxsize=8)
def literals_of(matcher: Matcher) -> frozenset[bytes]:
    """Byte strings of which every relevant line contains at least one."""
    own = (*NOTE_LITERALS, *SUMMARY_LITERALS, *TRACEBACK_LITERALS, *_OTHER_LITERALS)
    return matcher.literals() | {*own, *COLLECTIVE_LITERALS, *IDENTITY_LITERALS}


class LogReader:
    """Reader of one log: takes its lines in order."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._summaries = Summaries()
        self._traces = Traces()
        self._facts = LogFacts()
        self._addresses: dict[str, None] = {}
        self._last_hits: deque[SignatureHit] = deque(maxlen=MAX_LAST_HITS)
        self._holds = sieve_for(literals_of(matcher))
        self._header: SignatureHit | None = None
        self._steps_to_outlive = 0
        self._spoke: set[int | None] = set()
        self._ahead: list[float] = []
        self._fed = 0
        self._last_no = 0
        self._last: tuple[bytes, Moment | None] | None = None
        self._plain: deque[tuple[int, bytes]] = deque(maxlen=MAX_BEFORE)
        self._in_end = False
        self._ray = RayTrain()
        self._deepspeed = DeepSpeed()
        self._half = b""

    def catch_up(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Takes lines that were skipped, with their numbers."""
        for number, line in lines:
            if number > self._last_no:
                self._put(number, line)

    def _put(self, line_no: int, line: bytes) -> None:
        self._plain.append((line_no, line[:_BEFORE_TEXT]))
        self._in_end = False

    def _plain_lines(self) -> tuple[PlainLine, ...]:
        found = []
        for line_no, line in self._plain:
            raw = clean_line(split_stamp(line)[1])
            origin, text = split_origin(raw)
            speaker = origin if origin.known else self._ray.speaker(raw)
            if text.strip() and speaker is not None:
                found.append(PlainLine(line_no, text, speaker))
        return tuple(found)

    def feed(self, line_no: int, line: bytes, stamp: Moment | None = None) -> bool:
        """Takes one line without its newline; returns whether it needs the next line in any case. Never raises.

        `stamp`: the node's timestamp, if it is not in front of the line.
        """
        self._last_no = line_no
        if len(line) > _STAMPED or split_stamp(line)[1].strip():
            self._last = (line, stamp)
        self._fed += 1
        if self._fed == 1:
            self._traces = Traces(line_no)  # lines may be counted over several logs
            self._facts.cut = _begins_inside(split_stamp(line)[1][:_TEXT_LIMIT])
        if (
            not (self._summaries.open or self._half or self._traces.open_near(line_no))
            and not self._holds(line)
            and not (self._fed <= CUT_TOP and _FRAME in line)
            and not self._traces.open_at(line_no)
        ):
            self._put(line_no, line)
            self._pass_over(line_no, line, stamp)
            return False
        body = line
        if stamp is None:
            stamp, body = split_stamp(line)
        raw = clean_line(body)
        if raw.startswith(WRAPPER):
            if attempt := ATTEMPT.match(raw):
                self._attempt(line_no, int(attempt[1]), attempt[2], attempt[3])
            return self._traces.open_at(line_no)
        if not raw.strip():
            return self._summaries.open or self._traces.open_at(line_no)
        time = self._time(raw, stamp)
        host, raw = self._deepspeed.host_of(raw)
        origin, text = split_origin(raw)
        if host:
            origin = replace(origin, stream=host)
        speakers = self._ray.speakers(raw, origin, text)
        origin = speakers[0] if speakers else origin
        if self._summaries.feed(raw, line_no):
            # The line that opens a summary also ends torchrun's own traceback.
            if "ChildFailedError" in raw:
                self._traces.feed(origin, text, line_no, time)
                if match := self._matcher.match(text):
                    self._header = SignatureHit(line_no, text[:_TEXT_LIMIT], origin, time, match)
            return True
        if _RAY_COPY not in text:
            self._statements(text, origin, line_no, time)
        if origin.rank is not None and origin.local_rank is not None:
            self._facts.bases.add(origin.rank - origin.local_rank)
        if embedded := read_embedded(text):
            speaker = origin if origin.known or embedded.rank is None else Origin(embedded.rank)
            for lines in embedded.tracebacks:
                self._traces.take(speaker, lines, line_no, time)
            return self._traces.open_at(line_no)
        if text[:1] == "{" and HEADER in text:
            return self._traces.open_at(line_no)  # half an object: no traceback begins in it
        half, self._half = self._half, body.rstrip() if body.rstrip().endswith(_WRAPPED) else b""
        note = parse_note(half + b" " + body if half else body, line_no)
        if note is not None and note.launcher and origin.known:
            note = None  # a rank that starts processes itself
        if note is not None and len(self._facts.notes) < MAX_NOTES:
            self._facts.notes.append(note)
            if time is not None:
                self._facts.moments[line_no] = time
            if note.kind in ENDINGS and not self._in_end:
                self._in_end = True
                before = self._facts.before
                before[line_no] = self._plain_lines()
                if len(before) > MAX_ENDS:
                    del before[next(iter(before))]
        if note is None or note.launcher:  # a launcher's report may be a line of a traceback, too
            taken = [self._traces.feed(speaker, text, line_no, time) for speaker in speakers]
            if any(taken):
                self._steps_to_outlive = _OUTLIVED
                self._spoke |= {speaker.rank for speaker in speakers}
                return True
            if (match := self._matcher.match(text)) and speakers:
                self._hit(SignatureHit(line_no, text[:_TEXT_LIMIT], origin, time, match))
                if consequence_of(text) is None and match.signature.role is not LineRole.NOISE:
                    self._put(line_no, line)
            elif goes_on(line):
                self._went_on(line_no, line)
                self._put(line_no, line)
            elif note is None:
                self._put(line_no, line)
        if note is not None and note.kind in (NoteKind.SIGNALLED, NoteKind.RENDEZVOUS):
            self._traces.feed(origin, text, line_no, time)  # the last line of the agent's own traceback
        return bool(self._half) or self._summaries.open or self._traces.open_at(line_no)

    def _attempt(self, line_no: int, number: int, code: str | None, signal: str | None) -> None:
        """An attempt begins, or has ended. The lines before its beginning are about another one."""
        if code is None and signal is None:
            LogReader.__init__(self, self._matcher)
            self._last_no, self._fed, self._traces = line_no, 1, Traces(line_no)
        self._facts.attempt = number
        self._facts.ended = int(code) if code else -int(signal) if signal else None

    def facts(self) -> LogFacts:
        """The facts so far."""
        made = replace(
            self._facts,
            summaries=self._summaries.found(),
            traces=self._traces.found(),
            unfinished=self._traces.unfinished(),
            addresses=tuple(self._addresses),
            hits=[*self._facts.hits, *self._last_hits],
        )
        made.notes = of_launchers(made.notes, bool(made.summaries))
        if self._header is not None and not made.summaries:  # the log ends in the middle of the agent's report
            made.hits.append(self._header)
        if made.zone is None and len(self._ahead) >= _MIN_AHEAD and max(self._ahead) - min(self._ahead) <= _MAX_SPREAD:
            made.zone, made.adrift = median(self._ahead), True
        reports = [note.line_no for note in self._facts.notes if note.kind is NoteKind.FAILED]
        # An agent reports the first failed process before its summary.
        made.cut = made.cut or (
            bool(made.summaries) and min(reports, default=self._last_no) > made.summaries[0].line_no
        )
        if world := self._ray.world:
            made.identities.append(Identity(self._last_no, None, None, world))
        made.last_line = self._last_no
        made.tail = self._plain_lines()
        if self._last is not None:
            line, stamp = self._last
            if stamp is None:
                stamp, line = split_stamp(line)
            text = clean_line(line)
            made.last, made.last_text = stamp or told_time(text), text[:_TEXT_LIMIT]
        return made

    def _pass_over(self, line_no: int, line: bytes, stamp: Moment | None) -> None:
        """Handles an irrelevant line: only the time and the sign of progress are used. Most lines come here."""
        facts = self._facts
        if goes_on(line):
            self._went_on(line_no, line)
        elif self._fed > CUT_TOP or facts.first is not None:
            return
        if len(facts.marks) < MAX_MARKS or facts.zone is None:
            if stamp is None:
                stamp, line = split_stamp(line)
            self._time(clean_line(line), stamp)

    def _went_on(self, line_no: int, line: bytes) -> None:
        """Takes a line that shows the program continuing."""
        self._facts.last_activity = line_no
        if not (self._spoke or self._steps_to_outlive) or _STEP.search(line[:PROGRESS_HEAD]) is None:
            return
        if self._spoke:
            raw = clean_line(split_stamp(line)[1])
            origin, text = split_origin(raw)
            speaker = origin if origin.known else self._ray.speaker(raw) or NOBODY
            # A line that was printed without a logger may have waited in a buffer until the process ended.
            if speaker.rank in self._spoke and told_time(text) is not None:
                self._facts.went_on[speaker.rank] = line_no
        if self._steps_to_outlive:
            self._steps_to_outlive -= 1
            if not self._steps_to_outlive:
                self._facts.outlived = line_no

    def _time(self, raw: str, stamp: Moment | None) -> Moment | None:
        """The time of a line; also notes the time zone, and the time of a training step."""
        facts = self._facts
        told = told_time(raw) if stamp is None or facts.zone is None else None
        time = stamp or told
        if stamp and told and facts.zone is None:
            local = told.seconds if told.dated else dated_near(told.seconds, stamp.seconds)
            ahead = local - stamp.seconds if local is not None else 0.0
            facts.zone = zone_of(ahead) if local is not None else None
            if facts.zone is None and len(self._ahead) < _MAX_AHEAD:
                self._ahead.append(ahead)
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
            facts.identities += self._deepspeed.ranks(text, line_no) or read_identity(text, line_no)
        facts.mesh = read_mesh(text) or facts.mesh
        if (address := read_address(text)) and len(self._addresses) < MAX_ADDRESSES:
            self._addresses[address] = None
        if _EVENT in text and len(facts.events) < MAX_IDENTITIES and (rank := _event_rank(text)) is not None:
            facts.events[rank] = line_no

    def _hit(self, hit: SignatureHit) -> None:
        if hit.match.signature.role is LineRole.NOISE:
            return
        if hit.match.death:
            self._steps_to_outlive = _OUTLIVED
        if len(self._facts.hits) < MAX_FIRST_HITS:
            self._facts.hits.append(hit)
        else:
            self._last_hits.append(hit)


#: Ray Train's controller prints the rank of each process; a line of a process has its pid, and its node's address if it
#: is not the driver's.
_RAY_RANK = re.compile(r"ip=(?P<ip>[^,\s)]{1,80}), pid=(?P<pid>\d{1,10})\) world_rank=(?P<rank>\d{1,7})")
_RAY_LINE = re.compile(r"\([A-Za-z_]\w{0,60} pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[^)\s]{1,80}))?\)")
#: A copy of an earlier line.
_RAY_COPY = "x across cluster]"
#: The heading of the error of these ranks, in the error of the whole group.
_RAY_ERROR = re.compile(r"\[Rank (?P<ranks>\d{1,7}(?:,\d{1,7}){0,1000}) Error Snippet\]:")
_RAY_SHORTENED = "... (Output truncated."
_RAY_GONE = "A worker health check failed"
_CHAINED = ("During handling of the above", "The above exception was the direct")


class RayTrain:
    """Finds the process of each line that Ray Train's driver prints, also of errors that its reports quote."""

    def __init__(self) -> None:
        self._ranks: dict[str, dict[str, int]] = {}
        self._quoted: tuple[Origin, ...] = ()
        self._quotes_trace = False
        self._before = ""
        self._cut = False

    @property
    def world(self) -> int:
        """The number of ranks, 0 if some are not known."""
        ranks = {rank for of_pid in self._ranks.values() for rank in of_pid.values()}
        return len(ranks) if ranks == set(range(len(ranks))) else 0

    def speaker(self, raw: str) -> Origin | None:
        """The process that printed the line; None for the controller and for copies of lines."""
        line = _RAY_LINE.match(raw) if self._ranks else None
        if line is None:
            return NOBODY
        of_pid = self._ranks.get(line["pid"], {})
        if not of_pid or _RAY_COPY in raw:
            return None
        # Nodes may have equal pids; the driver's own node has no address.
        rank = next(iter(of_pid.values())) if len(of_pid) == 1 else of_pid.get(line["ip"] or "")
        return Origin(rank)

    def speakers(self, raw: str, origin: Origin, text: str) -> Sequence[Origin]:
        """The processes whose output the line is: several if they are quoted together, none for a report or a copy."""
        if "world_rank=" in text and (found := _RAY_RANK.search(text)):
            self._ranks.setdefault(found["pid"], {})[found["ip"]] = int(found["rank"])
        if not self._ranks or origin.known:
            return (origin,)
        own = self.speaker(raw)
        if _RAY_COPY in text:
            return ()
        if own is not None and own.known:
            return (own,)
        if (found := _RAY_ERROR.match(text)) or text.startswith(_RAY_GONE):
            ranks = found["ranks"].split(",")[:64] if found else []
            self._quoted, self._quotes_trace = tuple(Origin(int(rank)) for rank in ranks), False
            return ()
        shortened, self._cut = self._cut, text.startswith(_RAY_SHORTENED)
        if shortened or self._cut:
            return ()  # it goes on in the middle of a line
        if text.startswith(HEADER):
            if self._quotes_trace and not self._before.startswith(_CHAINED):
                self._quoted = ()  # the launcher's own
            self._quotes_trace = True
        self._before = text if text.strip() else self._before
        return self._quoted or (() if own is None else (origin,))


#: DeepSpeed's launcher of each host prints its number, then the ranks of all hosts. Over pdsh its lines have the host
#: in front, as have those of its processes.
_NODE_RANK = re.compile(r"\[launch\.py:\d{1,5}:\w{1,40}\] nnodes=\d{1,6}, .{0,80}\bnode_rank=(?P<number>\d{1,6})")
_RANK_MAP = re.compile(
    r"(?:(?P<prefix>\S{1,253}): )?\[[^\]]{1,40}\] \[\w{1,10}\] \[launch\.py:\d{1,5}:\w{1,40}\] "
    r"global_rank_mapping=defaultdict\(<class 'list'>, \{(?P<ranks>.+)\}\)"
)
_RANKS_OF_HOST = re.compile(r"'(?P<host>[^']{1,253})': \[(?P<ranks>\d{1,7}(?:, \d{1,7}){0,63})\]")


class DeepSpeed:
    """Knows the ranks of a job that DeepSpeed started, and the hosts in front of the lines that pdsh prints."""

    def __init__(self) -> None:
        self._hosts: set[str] = set()
        self._number = 0

    def host_of(self, raw: str) -> tuple[str, str]:
        """The host in front of a line, and the line without it; no host if pdsh did not print the log."""
        if "global_rank_mapping=" in raw and (found := _RANK_MAP.match(raw)) and found["prefix"]:
            self._hosts.update(match["host"] for match in _RANKS_OF_HOST.finditer(found["ranks"]))
        host, colon, rest = raw.partition(": ") if self._hosts else ("", "", "")
        return (host, rest) if colon and host in self._hosts else ("", raw)

    def ranks(self, text: str, line_no: int) -> list[Identity]:
        """The processes that a line of the launcher lists."""
        if "node_rank=" in text and (found := _NODE_RANK.search(text)):
            self._number = int(found["number"])
        if "global_rank_mapping=" not in text or (found := _RANK_MAP.match(text)) is None:
            return []
        of_hosts = [
            [int(rank) for rank in match["ranks"].split(", ")] for match in _RANKS_OF_HOST.finditer(found["ranks"])
        ]
        world = sum(map(len, of_hosts))
        if self._hosts:  # local ranks of several hosts in one log would be mixed up
            return [Identity(line_no, rank, None, world) for ranks in of_hosts for rank in ranks]
        own = of_hosts[self._number] if self._number < len(of_hosts) else []
        return [Identity(line_no, rank, local, world) for local, rank in enumerate(own)]


def _begins_inside(line: bytes) -> bool:
    """Whether a log that begins with this line was cut: the line is inside a report, or reports an end."""
    note = parse_note(line, 1)
    return _INSIDE.match(split_origin(clean_line(line))[1]) is not None or (
        note is not None and note.kind in ENDINGS and not note.launcher
    )


def _event_rank(text: str) -> int | None:
    start = text.find('"global_rank": ')
    digits = text[start + 15 : start + 22].split(",")[0].strip() if start >= 0 else ""
    return int(digits) if digits.isdecimal() else None


class Says(StrEnum):
    """The kind of a statement on a collective."""

    #: This rank waited in a collective until the timeout.
    TIMEOUT = "timeout"
    #: Counters only: the last enqueued operation of this rank.
    COUNTERS = "counters"
    #: This rank's watchdog ended it because of the error in the text.
    DIED = "died"
    #: A report that names other ranks: `ranks` did not join.
    NAMES = "names"
    #: A fingerprint of the collective that this rank runs.
    RUNS = "runs"
    #: A fingerprint that this rank received from another one; torch may print it garbled.
    HEARD = "heard"


@dataclass(frozen=True, slots=True)
class CollectiveLine:
    """One statement on a collective. `rank` is global for the default group, else the rank in the group; `seq` counts
    from 1.

    `group` is the process group's GUID, empty for the default group or if the line has none.
    """

    says: Says
    line_no: int
    text: str
    time: Moment | None
    rank: int | None = None
    group: str = ""
    seq: int | None = None
    operation: str = ""
    sizes: str = ""
    enqueued: int | None = None
    ranks: tuple[int, ...] = ()


#: Ranks of one list that are kept.
_MAX_NAMED = 100_000

_WHO = re.compile(r"\[(?:PG (?P<pg>[^\]]{0,120}?) ?)?Rank (?P<rank>\d{1,7})\]")
#: `ID 3 PG GUID 7(tp)`: the GUID is the same on all members. Before torch 2.5 `7 (tp)` or `7`.
_GROUP = re.compile(r"(?:ID \d{1,9} PG GUID )?(?P<guid>\w{1,64})")
_WORK = re.compile(r"WorkNCCL\((?P<fields>[^)]{0,200}(?:\(ms\)=\d{1,12}[^)]{0,60})?)\)")
_FIELD = re.compile(r"(\w{1,20})=(\w{1,30})")
_COUNTERS = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), last completed (?:NCCL )?work: -?\d{1,18}",
    re.IGNORECASE,
)
_DIED = re.compile(r"watchdog thread terminated with exception: (?P<why>.{0,600})")
_ASYNC = re.compile(r"raised the following async exception: (?P<why>.{0,600})")
_BARRIER = re.compile(
    r"(?:\[Rank (?P<rank>\d{1,7})\]: )?Ranks? (?P<ranks>[\d, ]{1,12000}) failed to pass monitoredBarrier"
)
_LAGS = re.compile(
    r"\[(?P<ranks>\d{1,7}(?:, ?\d{1,7}){0,2000})\] (?:finished|joined) .{0,60}?but didn't join collective"
)
_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<seq>\d{1,12}),? ?)?OpType=(?P<op>\w{1,40})(?P<sizes>[^)]{0,300}?)(?:TensorDeviceTypes|\))"
)

#: Byte strings of which every statement on a collective contains one.
COLLECTIVE_LITERALS = (
    b"Watchdog caught collective",
    b"ast enqueued",
    b"watchdog thread terminated",
    b"following async exception",
    b"failed to pass monitoredBarrier",
    b"didn't join collective",
    COLLECTIVE_MISMATCH.encode(),
)


def read_collectives(text: str, rank: int | None, line_no: int, time: Moment | None) -> list[CollectiveLine]:
    """Parses the statements in one line; `rank` is that of its prefix. An empty list for nearly all lines."""
    if COLLECTIVE_MISMATCH in text:
        return _fingerprints(text, line_no, time)
    shown = text[:_TEXT_LIMIT]
    if "monitoredBarrier" in text:
        return _named(_BARRIER, text, line_no, time)
    if "didn't join collective" in text:
        return _named(_LAGS, text, line_no, time)
    # Searching for a plain text first costs a tenth of a pattern.
    counted = _COUNTERS.search(text) if "enqueued" in text.lower() else None
    caught = "Watchdog caught collective" in text
    died = "exception: " in text and (_DIED.search(text) or _ASYNC.search(text))
    if not (counted or caught or died):
        return []
    who = _WHO.search(text)
    said = int(who["rank"]) if who else rank
    group = _group(who["pg"]) if who and who["pg"] else ""
    # The prefix is the global rank; the number in brackets is the rank in the group.
    said = rank if rank is not None else said
    enqueued = int(counted["enqueued"]) if counted else None
    if caught:
        fields = dict(_FIELD.findall(work["fields"])) if (work := _WORK.search(text)) else {}
        seq = fields.get("SeqNum", "")
        return [
            CollectiveLine(
                Says.TIMEOUT,
                line_no,
                shown,
                time,
                said,
                group,
                int(seq) if seq.isdecimal() else None,
                fields.get("OpType", ""),
                fields.get("NumelIn", ""),
                enqueued,
            )
        ]
    if counted:
        return [CollectiveLine(Says.COUNTERS, line_no, shown, time, said, group, enqueued=enqueued)]
    return [CollectiveLine(Says.DIED, line_no, shown, time, said, group)]


def _group(words: str) -> str:
    match = _GROUP.match(words)
    return "" if match is None or match["guid"] == "0" else match["guid"]


def _named(pattern: re.Pattern[str], text: str, line_no: int, time: Moment | None) -> list[CollectiveLine]:
    match = pattern.search(text)
    if match is None:
        return []
    ranks = tuple(int(word) for word in re.findall(r"\d+", match["ranks"])[:_MAX_NAMED])
    return [CollectiveLine(Says.NAMES, line_no, text[:_TEXT_LIMIT], time, ranks=ranks)]


def _fingerprints(text: str, line_no: int, time: Moment | None) -> list[CollectiveLine]:
    """Parses both sides of a mismatch: the collective of this rank, and the one received from another."""
    return [
        CollectiveLine(
            Says.HEARD if number else Says.RUNS,
            line_no,
            text[:_TEXT_LIMIT],
            time,
            int(match["rank"]),
            seq=int(match["seq"]) if match["seq"] else None,
            operation=match["op"],
            sizes=match["sizes"].strip(" ,"),
        )
        for number, match in enumerate(_FINGERPRINT.finditer(text[:8_000]))
    ]


#: Byte strings of which every line with an identity or an address contains one.
IDENTITY_LITERALS = (
    b"local_rank",
    b"LOCAL_RANK",
    b"ocal rank",
    b"ocal Rank",
    b"global_ranks=",
    b"global_world_sizes=",
    b" nranks ",
    b"GLOBAL_RANK: ",
    b"global_rank_mapping=",
    b" node_rank=",
    b" Error Snippet]:",
    b"Bootstrap : Using",
    b"Bootstrap: Using",
    b", local=[",
    b"orld size",
    b"orld Size",
    b"device mesh with",
)

_RANK = re.compile(r"(?<![\w.])(?<!local )(?:global[_ ]?)?rank[=: ]{1,3}(\d{1,7})(?![\d.])", re.IGNORECASE)
_LOCAL = re.compile(r"(?<![\w.])local[_ -]?rank[=: ]{1,3}(\d{1,4})(?![\d.])", re.IGNORECASE)
_WORLD = re.compile(r"(?<![\w.])(?:world(?:[_ ]?size)?[=: ]{1,3}|rank \d{1,7} of )(\d{1,7})(?![\d.])", re.IGNORECASE)
_PID = re.compile(r"\bpid[=: ]{1,3}(\d{1,9})\b")
_GLOBALS = re.compile(r"\bglobal_ranks=\[(\d{1,7}(?:, \d{1,7}){0,200})\]")
_WORLDS = re.compile(r"\bglobal_world_sizes=\[(\d{1,7})")
#: Lightning's message when a process group is made.
_MEMBER = re.compile(r"\bGLOBAL_RANK: (\d{1,7}), MEMBER: \d{1,7}/(\d{1,7})\b")
_NCCL = re.compile(r"NCCL INFO .{0,80}?\brank (\d{1,7}) nranks (\d{1,7}) cudaDev (\d{1,4})\b")
#: Addresses of this side: NCCL's bootstrap, gloo's report of a failed connection.
_OWN = re.compile(r"Bootstrap ?: Using [^\s:]{1,30}:([\d.]{7,15}|[0-9a-fA-F:]{3,45})<|, local=\[([^\]\s]{3,60})\]")


@dataclass(frozen=True, slots=True)
class Identity:
    """One process: global rank, local rank if known, its pid in the worker. `world`: total number of processes."""

    line_no: int
    rank: int | None
    local_rank: int | None
    world: int | None
    pid: int | None = None


def read_identity(text: str, line_no: int) -> list[Identity]:
    """Parse identities of processes from a line; an empty list for nearly all lines."""
    if "GLOBAL_RANK: " in text and (match := _MEMBER.search(text)):
        return [Identity(line_no, int(match[1]), None, int(match[2]))]
    if "world_rank=" in text and (match := _RAY_RANK.search(text)):
        # Local ranks of several nodes in one log would be mixed up.
        return [Identity(line_no, int(match["rank"]), None, None, int(match["pid"]))]
    if "global_ranks=" in text and (match := _GLOBALS.search(text)):
        ranks = [int(word) for word in match[1].split(", ")]
        return [Identity(line_no, rank, local, None) for local, rank in enumerate(ranks)]
    if "global_world_sizes=" in text and (match := _WORLDS.search(text)):
        return [Identity(line_no, None, None, int(match[1]))]
    if "NCCL INFO " in text and (match := _NCCL.search(text)):
        return [Identity(line_no, int(match[1]), int(match[3]), None)]
    local = _LOCAL.search(text) if "local" in text.lower() else None
    rank = _RANK.search(text) if local else None
    if rank and local:
        world, pid = _WORLD.search(text), _PID.search(text)
        return [
            Identity(
                line_no, int(rank[1]), int(local[1]), int(world[1]) if world else None, int(pid[1]) if pid else None
            )
        ]
    return []


#: The job's parallel dimensions and their sizes, the outermost first: the last one has neighbouring ranks.
Mesh = tuple[tuple[str, int], ...]
#: torchtitan's device mesh: names and sizes, from 2025 on pairs. Those of expert parallelism overlap the others.
_MESH = re.compile(
    r"device mesh with \[(?P<names>'\w{1,20}'(?:, '\w{1,20}'){0,7})\], \[(?P<sizes>\d{1,6}(?:, \d{1,6}){0,7})\]"
)
_MESH_PAIRS = re.compile(r"device mesh with parallelism: (?P<pairs>\w{1,20}=\d{1,6}(?:, \w{1,20}=\d{1,6}){0,9})")
#: Megatron's sizes, and their usual order.
_MESH_SIZE = re.compile(r"(?<!encoder-)\b(pipeline-model|data|context|tensor-model)-parallel[ -]size: (\d{1,6})")
_MEGATRON = {"pipeline-model": "pp", "data": "dp", "context": "cp", "tensor-model": "tp"}


def read_mesh(text: str) -> Mesh:
    """The job's parallel dimensions, if this line names them; else an empty tuple."""
    if "using world size: " in text:
        of = dict(_MESH_SIZE.findall(text[:_TEXT_LIMIT]))
        return tuple((short, int(of.get(name, 1))) for name, short in _MEGATRON.items()) if of else ()
    if "device mesh with" not in text:
        return ()
    if match := _MESH.search(text):
        names, sizes = re.findall(r"\w+", match["names"]), re.findall(r"\d+", match["sizes"])
        return tuple(zip(names, map(int, sizes), strict=True)) if len(names) == len(sizes) else ()
    pairs = re.findall(r"\b(\w{1,20})=(\d{1,6})", match["pairs"]) if (match := _MESH_PAIRS.search(text)) else []
    return tuple((name, int(size)) for name, size in pairs if name not in ("ep", "etp"))


def read_address(text: str) -> str | None:
    """The worker's own address, if this line names it."""
    match = _OWN.search(text) if "Bootstrap" in text or "local=[" in text else None
    return (match[1] or match[2]) if match else None
