"""Parses torchelastic's (torchrun's) output about a failure: agent lines, summaries, error files.

Formats of torch 1.9 to 2.13. For attempts that were restarted, the agent prints only single lines at its default log
level.

Summaries (`ChildFailedError`): the layout changed in torch 1.10 (`host`, `traceback`) and the exit code's row in 2.12
(signal's name); all are read. Lines of a block may have any prefix: it is learnt from the block's section lines, with
any digits for those of times, so that interleaved lines of other processes are recognised and skipped.

Error files (`error.json`): `@record` writes `{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack":
"...", "timestamp": "1763660699"}}}`; torchrun adds `errorCode` beside the inner `message`. Others write a plain string:
`{"message": "text", "timestamp": 123}`. The content comes from the job and is not trusted.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain, islice
from signal import Signals
from typing import Any

from atlctl.diagnosis.consequence import own_text
from atlctl.diagnosis.logline import PROGRESS, PROGRESS_HEAD, clean_line, decode
from atlctl.diagnosis.scanner import sieve_for
from atlctl.diagnosis.tracebacks import HEADER, read_exception
from atlctl.i18n import Message, about
from atlctl.jobs import fields
from atlctl.jobs.errors import too_long


class NoteKind(StrEnum):
    """The kind of an agent's line."""

    #: `failed (exitcode: 1) local_rank: 0 (pid: 14)`: the first failed local rank of one attempt.
    FAILED = "failed"
    #: A launcher reports that a process is gone, without its exit code or signal.
    DIED = "died"
    #: A launcher reports the exit code of a process that it does not name.
    UNNAMED = "unnamed"
    #: `Sending process 15 closing signal SIGTERM`: a *victim*, alive when the agent detected the failure.
    CLOSING = "closing"
    #: `Unable to shutdown process 15 via ..., forcefully exiting via ...SIGKILL`.
    FORCED = "forced"
    #: `Received 15 death signal`, or `SignalException: Process 1 got signal: 15`: sent to the agent.
    SIGNALLED = "signalled"
    #: The agent itself died of a rendezvous error.
    RENDEZVOUS = "rendezvous"
    #: `Worker group FAILED. 2/3 attempts left; will restart worker group` (INFO level only).
    RESTART = "restart"
    #: The start of an agent: torchrun reports a setting. After another agent's end, the container was restarted.
    STARTED = "started"


#: Kinds of notes about the end of processes.
ENDINGS = (NoteKind.CLOSING, NoteKind.FAILED, NoteKind.DIED, NoteKind.UNNAMED)


@dataclass(frozen=True, slots=True)
class AgentNote:
    """One line of the agent. `pid` is in the worker's own pid namespace.

    `launcher`: another launcher than torchrun printed it (`mp.spawn`, mpirun, srun, horovodrun), some of which name the
    global `rank`.
    """

    kind: NoteKind
    line_no: int
    text: str
    pid: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    rank: int | None = None
    launcher: bool = False
    #: Further ranks of which the line says the same.
    more: tuple[int, ...] = ()


#: Byte strings that occur in a log only if a torchelastic trainer failed: the header of the final summary, a signal to
#: the agent, the agent's own death by a rendezvous error, and any other traceback of torchrun itself (its store is
#: gone). An attempt that is restarted prints none of them.
FAILURE_MARKERS: tuple[bytes, ...] = (
    b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    b"torch.distributed.elastic.multiprocessing.api.SignalException: Process ",
    b"torch.distributed.elastic.rendezvous.api.RendezvousConnectionError",
    b"torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    b"torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
    b"torch.distributed.elastic.rendezvous.api.RendezvousStateError",
    b'torch/distributed/launcher/api.py", line ',
)

#: The line that an agent prints when it starts.
AGENT_STARTS = b"Setting OMP_NUM_THREADS environment variable for each process"

_SIGNAL = r"(?:Signals\.)?(?P<signal>\w{1,20})"
_SIGNALLED = (
    r"(?:Received (?=(?:Signals\.)?\w{1,20} death signal)"
    rf"|elastic\.multiprocessing\.api\.SignalException: Process \d{{1,9}} got signal: ){_SIGNAL}"
)


def _compiled(*rows: tuple[bytes, NoteKind, str]) -> tuple[tuple[bytes, NoteKind, re.Pattern[str]], ...]:
    return tuple((literal, kind, re.compile(pattern)) for literal, kind, pattern in rows)


#: A literal, the kind of note, and the pattern of the line. The first matching literal decides.
_NOTES = _compiled(
    (
        b"(exitcode: ",
        NoteKind.FAILED,
        r"failed \(exitcode: (?P<code>-?\d{1,9})\) local_rank: (?P<local>-?\d{1,9}) \(pid: (?P<pid>-?\d{1,9})\)",
    ),
    (b" closing signal ", NoteKind.CLOSING, rf"Sending process (?P<pid>\d{{1,9}}) closing signal {_SIGNAL}"),
    (
        b"forcefully exiting via",
        NoteKind.FORCED,
        rf"Unable to shutdown process (?P<pid>\d{{1,9}}) via .{{1,40}}?forcefully exiting via {_SIGNAL}",
    ),
    (b" death signal", NoteKind.SIGNALLED, _SIGNALLED),
    (b"api.SignalException: ", NoteKind.SIGNALLED, _SIGNALLED),
    (
        b"elastic.rendezvous.api.Rendezvous",
        NoteKind.RENDEZVOUS,
        r"torch\.distributed\.elastic\.rendezvous\.api\.(?P<text>Rendezvous(?!GracefulExit)\w{1,40}Error\b.*)",
    ),
    (
        b"attempts left; will restart",
        NoteKind.RESTART,
        r"Worker group \w{1,20}\. \d{1,9}/\d{1,9} attempts left; will restart worker group",
    ),
    (AGENT_STARTS, NoteKind.STARTED, ""),
)
#: Slurm's names for signals.
_SLURM = {
    "Killed": "SIGKILL",
    "Terminated": "SIGTERM",
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point": "SIGFPE",
}
#: Words of launchers that are ended from outside, and the signal.
_ENDED = {"interrupt": "SIGINT", "forcing job termination": "SIGTERM", "KeyboardInterrupt": "SIGINT"}
_HOW = _SLURM | _ENDED
#: Most tasks that are taken from one line.
_MAX_TASKS = 4_096
#: A shell's exit code after a signal is this plus the signal's number.
_SHELLS_ADD = 128
_SRUN = (
    rf"srun: error: [\w.,\[\]-]{{1,200}}: tasks? (?P<tasks>\d{{1,7}}(?:[,-]\d{{1,7}}){{0,1000}}): "
    rf"(?:Exited with exit code (?P<code>\d{{1,9}})|(?P<how>{'|'.join(_SLURM)}))"
)
#: The same for other launchers.
_LAUNCHER_NOTES = _compiled(
    # torch.multiprocessing.spawn: the index of a process is its local rank.
    (
        b"ProcessExitedException: ",
        NoteKind.FAILED,
        r"process (?P<local>\d{1,7}) terminated with (?:exit code (?P<code>\d{1,9})|signal (?P<signal>SIG\w{1,9}))",
    ),
    (b" terminated with the following error:", NoteKind.FAILED, r"^-- Process (?P<local>\d{1,7}) terminated with "),
    (
        b" via signal SIG",
        NoteKind.CLOSING,
        r"Terminating process (?P<pid>\d{1,9}) via signal (?P<signal>SIG\w{1,20})",
    ),
    # Open MPI, prterun, horovodrun. The exit code is in the line after the name.
    (
        b" exited on signal ",
        NoteKind.FAILED,
        r"process rank (?P<rank>\d{1,7}) with PID \d{1,10} on node \S{1,200} exited on signal (?P<signal>\d{1,3})",
    ),
    (b" due to process rank ", NoteKind.FAILED, r"has exited due to process rank (?P<rank>\d{1,7}) with PID "),
    (b"Process name: ", NoteKind.FAILED, r"Process name: (?:\[\S{1,200},)?(?P<rank>\d{1,7})\]?\s*$"),
    (b"Exit code: ", NoteKind.FAILED, r"^\s*Exit code: {1,8}(?P<code>\d{1,9})\s*$"),
    (b"MPI_ABORT was invoked on rank ", NoteKind.FAILED, r"MPI_ABORT was invoked on rank (?P<rank>\d{1,7})"),
    (
        b" exit with status code ",
        NoteKind.FAILED,
        r"\bProcess (?P<rank>\d{1,7}) exit with status code (?P<code>\d{1,9})\b",
    ),
    # Lightning's first process, of the others of its node.
    (
        b"Child process with PID ",
        NoteKind.FAILED,
        r"\[rank: (?P<local>\d+)\] Child process with PID (?P<pid>\d{1,9}) terminated with code (?P<code>-?\d{1,3})",
    ),
    # Ray Train: its controller, and before Ray 2.43 its trainer.
    (b", local_rank=", NoteKind.DIED, r"DistributedContext\(world_rank=(?P<rank>\d{1,7}), "),
    (b" has failed.", NoteKind.DIED, r"\bWorker (?P<rank>\d{1,7}) has failed\.\s*$"),
    # DeepSpeed. The `--local_rank` in its report is always the last one, and it ends all processes, also those that
    # have ended.
    (
        b" exits with return code = ",
        NoteKind.UNNAMED,
        r"\] \[launch\.py:\d{1,5}:\w{1,40}\] \[.{0,8000} exits with return code = (?P<code>-?\d{1,9})\s*$",
    ),
    (
        b"Main process received SIG",
        NoteKind.SIGNALLED,
        r"\] \[launch\.py:\d{1,5}:\w{1,40}\] Main process received (?P<signal>SIG\w{1,9}), exiting",
    ),
    # Ray's driver; the lines of its processes have a prefix.
    (b"*** SIGTERM received at ", NoteKind.SIGNALLED, r"^\*\*\* (?P<signal>SIGTERM) received at time=\d"),
    (b"pdsh@", NoteKind.SIGNALLED, r"^pdsh@\S{1,200}: (?P<how>interrupt)\b"),
    # Lightning: each process reports SIGTERM.
    (b"Received SIGTERM: 15", NoteKind.SIGNALLED, r"\[rank: (?P<rank>\d{1,7})\] Received (?P<signal>SIGTERM): 15"),
    (b"Detected KeyboardInterrupt, ", NoteKind.SIGNALLED, r"^Detected (?P<how>KeyboardInterrupt), attempting graceful"),
    (
        b" after failure of Process ",
        NoteKind.DIED,
        r"^Terminating remaining workers after failure of Process (?P<rank>\d{1,7})",
    ),
    # srun. It ends the other tasks if one fails; Slurm numbers tasks as torch numbers ranks.
    (b"srun: ", NoteKind.SIGNALLED, r"srun: (?P<how>interrupt|forcing job termination)\b"),
    (b"srun: ", NoteKind.CLOSING, r"srun: (?:launch/slurm: _step_signal: Terminating |Job step aborted: )"),
    (b"srun: error: ", NoteKind.FAILED, _SRUN),
    # `atlctl run`, of one of several processes of its worker.
    (
        b"atlctl run: rank ",
        NoteKind.FAILED,
        r"^atlctl run: rank (?P<rank>\d{1,7}) ended with (?:exit code (?P<code>\d{1,9})|(?P<signal>SIG\w{1,9}))$",
    ),
)


def rank_ended(rank: int, status: int) -> bytes:
    """The line of a log for the failure of a process, with a status as of Popen."""
    named = -status in map(int, Signals)
    how = Signals(-status).name if named else f"exit code {status if status >= 0 else _SHELLS_ADD - status}"
    return f"atlctl run: rank {rank} ended with {how}\n".encode()


#: Byte strings of which every line that `parse_note` recognises contains one.
NOTE_LITERALS = frozenset(literal for literal, _, _ in (*_NOTES, *_LAUNCHER_NOTES))

#: Characters of a line that are kept as evidence.
_TEXT_LIMIT = 1000


def parse_note(line: bytes, line_no: int) -> AgentNote | None:
    """Parses an agent's note; None for other lines, most of which take only a few byte searches."""
    if not sieve_for(NOTE_LITERALS)(line):
        return None
    for literal, kind, pattern in _NOTES:
        if literal in line:
            text = clean_line(line)
            match = pattern.search(text)
            return _note(kind, match.groupdict(), text, line_no) if match else None
    for literal, kind, pattern in _LAUNCHER_NOTES:
        if literal in line and (match := pattern.search(text := clean_line(line))):
            found = {name: value for name, value in match.groupdict().items() if value is not None}
            if "how" in found:
                found["signal"] = _HOW[found["how"]]
            note = _note(kind, found, text, line_no)
            code = note.exit_code
            if code is not None and signal_name(str(code - _SHELLS_ADD)) in Signals.__members__:
                code = _SHELLS_ADD - code
                note = replace(note, signal=signal_name(str(-code)))
            elif note.signal in Signals.__members__:
                code = -Signals[str(note.signal)]
            if code == 0:
                return None
            ranks = _numbers(found.get("tasks", found.get("rank", "")))
            return replace(note, exit_code=code, rank=next(iter(ranks), None), launcher=True, more=ranks[1:])
    return None


def _numbers(listed: str) -> tuple[int, ...]:
    """The numbers of Slurm's `0-2,5`."""
    ends = [part.partition("-") for part in listed.split(",") if part]
    found = chain.from_iterable(range(int(low), int(high or low) + 1) for low, _, high in ends)
    return tuple(islice(found, _MAX_TASKS))


def _ends_others(note: AgentNote) -> bool:
    """Whether the launcher ends the processes that are left: one has failed, or it says so."""
    return note.kind in (NoteKind.FAILED, NoteKind.DIED) or (note.kind is NoteKind.CLOSING and note.pid is None)


def of_launchers(notes: Sequence[AgentNote], elastic: bool) -> list[AgentNote]:
    """The relevant notes: torchrun's if there are any or it left a summary (`elastic`), else another launcher's.

    A launcher that has reported a death ends the other processes: their SIGKILL or SIGTERM comes from it.
    """
    own = [note for note in notes if not note.launcher]
    if own or elastic:
        return own
    notes = _ended_from_outside(notes)
    found: list[AgentNote] = []
    for note in notes:
        if note.kind is NoteKind.FAILED and note.rank is None and note.local_rank is None:
            # Only the exit code of the process that the line before names.
            if found and found[-1].exit_code is None:
                found[-1] = replace(found[-1], exit_code=note.exit_code)
        elif note.signal in ("SIGKILL", "SIGTERM") and any(map(_ends_others, found)):
            found.append(replace(note, kind=NoteKind.CLOSING))
        else:
            found.append(note)
    return [
        replace(note, exit_code=1) if note.kind is NoteKind.FAILED and note.exit_code is None else note
        for note in found
    ]


def _ended_from_outside(notes: Sequence[AgentNote]) -> Sequence[AgentNote]:
    """The notes, with one for a signal to the launcher if all its processes, and none first, ended by SIGTERM.

    A single process that reports a signal is not the launcher.
    """
    told = [note for note in notes if note.kind is NoteKind.SIGNALLED and note.rank is not None]
    if len({note.rank for note in told}) == 1:
        notes = [note for note in notes if note not in told]
    failed = [note for note in notes if note.kind is NoteKind.FAILED]
    signals = {note.signal for note in failed if note.exit_code is not None}
    if len(failed) > 1 and len(failed) == len(notes) and signals == {"SIGTERM"}:
        return [replace(failed[0], kind=NoteKind.SIGNALLED)]
    return notes


def _note(kind: NoteKind, found: Mapping[str, str], text: str, line_no: int) -> AgentNote:
    pid, local, code = (int(found[name]) if name in found else None for name in ("pid", "local", "code"))
    signal = found["signal"] if "signal" in found else str(-code) if code is not None and code < 0 else ""
    text = found.get("text", text)[:_TEXT_LIMIT]
    return AgentNote(kind, line_no, text, pid, local, code, signal_name(signal))


def signal_name(text: str) -> str | None:
    """`SIGTERM` of `15`, `SIGTERM` or `Signals.SIGTERM` (Python versions differ), None for no signal."""
    name = text.removeprefix("Signals.")
    if name.isascii() and name.isdigit():
        try:
            return Signals(int(name)).name
        except ValueError:
            return f"signal {int(name)}"
    return name if name.startswith("SIG") else None


#: Entries that are kept of one summary; the root entry is always kept.
MAX_ENTRIES = 512
#: Consecutive lines of no block after which an unfinished block counts as cut off.
MAX_FOREIGN_LINES = 400
#: Characters kept of a traceback: half of its start, half of its end.
TRACEBACK_LIMIT = 8_192
_MESSAGE_LIMIT = 2_000
_PREFIX_LIMIT = 300

_SECTION = r"(Failures|Other Failures|Root Cause(?: \(first observed failure\))?):\s*$"
#: Indented by two, as printed; without the indent (some tools remove it), only in the padded form.
_ROW = (
    r"(?:  (?P<row>time|host|rank|exitcode|error_file|traceback|msg)\s*"
    r"|(?P<flat>time      |host      |rank      |exitcode  |error_file|traceback )):(?: |$)"
)
_LEARN = re.compile(rf"(.{{0,{_PREFIX_LIMIT}}}?)(?:{_SECTION}|{_ROW})")
_SECTION_ANYWHERE = re.compile(rf"(.{{0,{_PREFIX_LIMIT}}}?){_SECTION}")
_SECTION_LINE = re.compile(_SECTION)
_ROW_LINE = re.compile(_ROW)
_INDEX_LINE = re.compile(r"\[\d{1,7}\]:\s*$")
_BORDER_LINE = re.compile(r"([=*-])\1{2,}\s*$")
_VOLATILE = re.compile(
    r"(\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d:\d\d:\d\d(?:[.,]\d+)?|(?<!\d)\d+\.\d+s\t\d+\t|\b\d{10}\.\d+)"
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[_ T]\d\d:\d\d:\d\d$")
_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,7})\)$")
_EXIT = re.compile(r"(-?\d{1,10}) \(pid: (\d{1,10})\)(?:\s+\([^)]{1,20}\))?$")
#: torch 1.9 printed the error file's dict as Python shows it.
_MSG_DICT = re.compile(r"'message': (['\"])(.{0,2000}?)\1(?:, '|\})")


@dataclass(frozen=True, slots=True)
class SummaryEntry:
    """One failed process in a summary.

    `time` is in whole seconds of the worker's *local* time, read as if it were UTC: comparing it across workers assumes
    the same zone and clock. It is the exception's time if the process left an error file, otherwise the time at which
    its agent detected the end. `rank` is the global rank of that attempt; `exit_code` is minus the signal's number for
    a death by signal; `host` is the *agent's* name for itself.
    """

    time: float | None
    host: str
    rank: int | None
    local_rank: int | None
    exit_code: int | None
    pid: int | None
    error_file: str | None
    traceback: str
    message_last_line: str
    line_no: int


@dataclass(frozen=True, slots=True)
class Summary:
    """One agent's summary: only processes of its worker.

    `root_index` is the index in `entries` of the agent's root cause: the smallest time, the lowest local rank among
    equals. None if that part of the log is missing.
    """

    entries: tuple[SummaryEntry, ...]
    root_index: int | None
    line_no: int


class _Clipped:
    """Collects the lines of a text; of a long text, it keeps the start and the end."""

    def __init__(self) -> None:
        self.head: list[str] = []
        self.tail: deque[str] = deque()
        self._head_left = TRACEBACK_LIMIT // 2
        self._tail_left = TRACEBACK_LIMIT // 2

    def add(self, line: str) -> None:
        line = line[: TRACEBACK_LIMIT // 4]
        size = len(line) + 1
        if self._head_left >= size and not self.tail:
            self.head.append(line)
            self._head_left -= size
            return
        self.tail.append(line)
        self._tail_left -= size
        while self._tail_left < 0:
            self._tail_left += len(self.tail.popleft()) + 1

    def lines(self) -> list[str]:
        return [*self.head, *self.tail]


@dataclass(slots=True)
class _Draft:
    line_no: int
    rows: dict[str, str] = field(default_factory=dict)
    stack: _Clipped | None = None

    def entry(self) -> SummaryEntry:
        rank = _RANK.match(self.rows.get("rank", ""))
        left = _EXIT.match(self.rows.get("exitcode", ""))
        time_text = self.rows.get("time", "").replace("_", " ").replace("T", " ")
        path = self.rows.get("error_file")
        attempt = _ATTEMPT.fullmatch(path or "")
        lines = self.stack.lines() if self.stack else []
        message = _message(self.rows["msg"]) if "msg" in self.rows else read_exception(lines)[0]
        return SummaryEntry(
            time=_naive_seconds(time_text) if time_text else None,
            host=self.rows.get("host", ""),
            rank=int(rank[1]) if rank else None,
            local_rank=int(rank[2]) if rank else int(attempt[4]) if attempt else None,
            exit_code=int(left[1]) if left else None,
            pid=int(left[2]) if left else None,
            error_file=None if path in (None, "", "<N/A>") else path,
            traceback="\n".join(lines).rstrip(),
            message_last_line=message[:_MESSAGE_LIMIT],
            line_no=self.line_no,
        )


def _naive_seconds(text: str) -> float | None:
    """Whole seconds of `YYYY-MM-DD HH:MM:SS` (any one separator), read as if it were UTC.

    The text has no zone, so the result can only be compared with times of the same zone. None if it is not a date.
    """
    try:
        moment = datetime.fromisoformat(text.strip()[:19].replace("_", " ")).replace(tzinfo=UTC)
    except ValueError:
        return None
    return moment.timestamp()


def _message(value: str) -> str:
    """The message in torch 1.9's `msg: "..."` row."""
    text = value.strip().removeprefix('"').removesuffix('"')
    if match := _MSG_DICT.search(text):
        text = match[2].partition("\\n")[0]
    return text


class _SummaryBlock:
    """Parser of one summary. Feed it lines until `closed`.

    `headed` is True if its first line was seen: then its prefix is that of its section lines, otherwise (a log cut at
    the top) that of the first row.
    """

    def __init__(self, line_no: int, *, headed: bool) -> None:
        self.closed = False
        self._learn = _SECTION_ANYWHERE if headed else _LEARN
        self._line_no = line_no
        self._prefix: re.Pattern[str] | None = None
        self._old = False
        self._in_root = False
        self._drafts: list[_Draft] = []
        self._current: _Draft | None = None
        self._root: _Draft | None = None
        self._foreign = 0
        self._foreign_traceback = False

    @property
    def empty(self) -> bool:
        """True while no row of any entry was seen."""
        return not any(draft.rows for draft in self._drafts)

    def feed(self, text: str, line_no: int) -> bool:
        """Takes one line, already without terminal codes; False if it is not a line of this block."""
        body = self._body(text)
        if body is not None and self._take(body, line_no):
            self._foreign = 0
            return True
        self._foreign += 1
        self.closed = self._foreign >= MAX_FOREIGN_LINES
        return False

    def summary(self) -> Summary | None:
        """The summary so far; None if it is empty."""
        drafts = [draft for draft in self._drafts if draft.rows]
        # A `rank` row alone is not the rest of a summary that was cut: other rows follow it there.
        if not drafts or (self._learn is _LEARN and all(draft.rows.keys() == {"rank"} for draft in drafts)):
            return None
        root = next((number for number, draft in enumerate(drafts) if draft is self._root), None)
        entries = tuple(draft.entry() for draft in drafts)
        return Summary(entries, root, self._line_no)

    def _body(self, text: str) -> str | None:
        """`text` without the block's prefix, None if it has another one."""
        if self._prefix is None:
            match = self._learn.match(text)
            if match is None:
                return None
            self._prefix = _prefix_pattern(match[1])
        match = self._prefix.match(text)
        return text[match.end() :] if match else None

    def _take(self, body: str, line_no: int) -> bool:
        row = _ROW_LINE.match(body)
        if row and self._take_row((row["row"] or row["flat"]).rstrip(), body[row.end() :].strip(), line_no):
            self._foreign_traceback = False
            return True
        if not body.startswith(" "):
            return self._take_frame(body, line_no)
        if self._foreign_traceback or self._current is None or self._current.stack is None:
            return False
        if (text := self._current.rows["traceback"]) and own_text(text) is None:
            return False  # another process printed into this block
        self._current.stack.add(body[2:] if body.startswith("  ") else body[1:])
        return True

    def _take_frame(self, body: str, line_no: int) -> bool:
        """Takes a line that is not indented: a border, section, index, or a line of another process."""
        if section := _SECTION_LINE.match(body):
            self._in_root = section[1].startswith("Root")
            self._old = self._old or section[1] in ("Root Cause", "Other Failures")
            self._current = None
        elif border := _BORDER_LINE.match(body):
            self._end_at(border[1])
        elif _INDEX_LINE.match(body):
            self._start(line_no)
        else:
            # An exception's line ends a traceback that another process printed into this block.
            self._foreign_traceback = body.startswith(HEADER)
            return False
        self._foreign_traceback = False
        return True

    def _end_at(self, border: str) -> None:
        closing = "*" if self._old else "="
        if self.empty or border != closing:
            return
        if self._root is None and not self._old:
            self._root = self._current  # the line `Root Cause` was cut off; its entry is the last
        self.closed = True

    def _start(self, line_no: int) -> _Draft:
        draft = _Draft(line_no)
        self._current = draft
        if self._in_root and self._root is None:
            self._root = draft
            self._drafts.append(draft)
        elif len(self._drafts) < MAX_ENTRIES:
            self._drafts.append(draft)
        return draft

    def _take_row(self, key: str, value: str, line_no: int) -> bool:
        form = {"time": _TIME, "rank": _RANK, "exitcode": _EXIT}.get(key)
        if form is not None and form.match(value) is None:
            return False
        draft = self._current
        if draft is not None and draft.stack is not None and key != "time":
            return False  # a line of the traceback that looks like a row
        if draft is None or (key == "time" and "time" in draft.rows):
            draft = self._start(line_no)
        elif key in draft.rows:
            return False
        draft.rows[key] = value[:_MESSAGE_LIMIT] if key != "msg" else value[:TRACEBACK_LIMIT]
        if key == "traceback":
            draft.stack = _Clipped()
            draft.stack.add(value)
        return True


def _prefix_pattern(prefix: str) -> re.Pattern[str]:
    parts = _VOLATILE.split(prefix)
    return re.compile(
        "".join(re.sub(r"\d+", r"\\d+", part) if odd % 2 else re.escape(part) for odd, part in enumerate(parts))
    )


#: Kept of one log: the last summaries, and entries of all of them.
MAX_SUMMARIES = 4_096
MAX_ALL_ENTRIES = 8_192

_ATTEMPT = re.compile(r"(.*/attempt_)(\d{1,4})(/(\d{1,4})/error\.json)")
#: In a row of ranks, which needs no literal beside those of lines that name local ranks.
_RANK_ROW = "rank      :"
#: Texts that open a summary; a log cut at the top begins with a row.
_OPENERS = (_RANK_ROW, "ChildFailedError:", "Root Cause", "Failures:", "time      :", " exitcode  :")
SUMMARY_LITERALS = tuple(opener.encode() for opener in _OPENERS if opener != _RANK_ROW)


class Summaries:
    """Reads the summaries of one worker's log. Those of other workers in the same stream are not separated here."""

    def __init__(self) -> None:
        self._done: deque[Summary] = deque()
        self._entries = 0
        self._block: _SummaryBlock | None = None

    @property
    def open(self) -> bool:
        """Whether the next lines may belong to a summary."""
        return self._block is not None

    def feed(self, text: str, line_no: int) -> bool:
        """Takes one line without terminal codes; True if it belongs to a summary. Never raises."""
        if self._block is None:
            for opener in _OPENERS:
                if opener in text:
                    break
            else:
                return False
            self._block = _SummaryBlock(line_no, headed=False)
        if "ChildFailedError:" in text:
            self._close()
            self._block = _SummaryBlock(line_no, headed=True)
            return True
        taken = self._block.feed(text, line_no)
        if self._block.closed:
            self._close()
        return taken

    def found(self) -> list[Summary]:
        """The summaries in log order, including unfinished ones."""
        unfinished = self._block.summary() if self._block else None
        return [*self._done, *([unfinished] if unfinished else [])]

    def _close(self) -> None:
        summary = self._block.summary() if self._block else None
        self._block = None
        if summary is None:
            return
        self._done.append(summary)
        self._entries += len(summary.entries)
        while len(self._done) > MAX_SUMMARIES or (len(self._done) > 1 and self._entries > MAX_ALL_ENTRIES):
            self._entries -= len(self._done.popleft().entries)


def all_attempts(path: str) -> list[str]:
    """The paths of the error file `path` for all attempts of its process, the last one first."""
    match = _ATTEMPT.fullmatch(path)
    if match is None:
        return [path]
    return [f"{match[1]}{attempt}{match[3]}" for attempt in range(int(match[2]), -1, -1)]


#: A new start of the agent, or training progress: then the failure was not the end.
_GOES_ON = re.compile(PROGRESS + b"|" + re.escape(AGENT_STARTS))


def trainer_failed(lines: Iterable[bytes]) -> bool:
    """Whether the last lines of a log show that a trainer failed and did not continue."""
    failed = False
    for line in lines:
        if any(marker in line for marker in FAILURE_MARKERS):
            failed = True
        elif failed and _GOES_ON.search(line[:PROGRESS_HEAD]):
            failed = False
    return failed


#: The largest error file that is read, in bytes.
ERROR_FILE_LIMIT = 4 * 1024 * 1024
#: Characters that are kept of a message and of a call stack (its end, with the exception).
ERROR_TEXT_LIMIT = 16_384


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """One process's record of its exception.

    `time` is seconds since the epoch by the worker's clock, whole seconds, None if the file has none (torchelastic then
    takes 0 and wrongly lets that entry win).
    """

    message: str
    traceback: str
    time: float | None


def parse_error_file(data: bytes) -> tuple[ErrorRecord | None, str]:
    """The record and an empty string, or None and the reason why it cannot be read. Never raises."""
    if len(data) > ERROR_FILE_LIMIT:
        return None, too_long(ERROR_FILE_LIMIT)
    if not data.strip():
        return None, about("file", "empty")
    try:
        document = fields.read_json(decode(data))
    except fields.NotRead as error:
        return None, error.why
    if not isinstance(document, dict):
        return None, Message("not a JSON object")
    outer = document.get("message")
    inner: Mapping[str, Any] = outer if isinstance(outer, dict) else {}
    text = inner.get("message") if inner else outer
    message = fields.text(text)[:ERROR_TEXT_LIMIT].strip()
    extra = fields.mapping(inner.get("extraInfo")) or fields.mapping(document.get("extraInfo"))
    traceback = fields.text(extra.get("py_callstack"))[-ERROR_TEXT_LIMIT:].rstrip()
    if not message and not traceback:
        return None, Message("no message")
    stack = traceback.splitlines() or message.splitlines()
    line, _ = read_exception(stack)
    if not traceback and not message.startswith(HEADER):
        # A plain message starts with its exception, whatever follows on further lines.
        line = next(text.strip() for text in stack if text.strip())
    return ErrorRecord(line, traceback, _first_time(extra, inner, document)), ""


def _first_time(*places: Mapping[str, Any]) -> float | None:
    for place in places:
        value = place.get("timestamp")
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        try:
            seconds = float(value)
        except (ValueError, OverflowError):
            continue
        # 0 is torchelastic's value for "unknown"; 1e11 s is the year 5138.
        if math.isfinite(seconds) and 0 < seconds < 1e11:
            return seconds
    return None
