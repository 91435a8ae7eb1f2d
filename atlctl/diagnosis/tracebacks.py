"""Parses Python tracebacks: frames, exceptions, all tracebacks of a log with their chains, those in JSON log lines.

Used for logs, torchelastic's summaries and error files, and stacks. In a log each prefix (`[rank3]: `, `[default0]:`)
is a separate stream. Lines without a prefix share a stream, in which the tracebacks of two processes may interleave:
then frames are lost, but no line is attributed to another process.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile

from atlctl.diagnosis.logline import NOBODY, Moment, Origin
from atlctl.jobs.fields import without_surrogates

HEADER = "Traceback (most recent call last):"
#: The function of a frame without one, as in a syntax error.
UNKNOWN = "<unknown>"

_EXCEPTION = re.compile(r"((?:(?:[^\W\d]\w{0,99}|<locals>)\.){0,20}[^\W\d]\w{0,99})(?=: |:?\s*$)")
_EXCEPTION_NAME = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Warning|ExceptionGroup|StopIteration|异常|错误|失败|例外|エラー|오류|예외)$"
)
_FRAME = re.compile(r'^(?:> )?\s{0,40}File "([^"]{1,1000})", line (\d{1,9})(?:, in (.{1,200}))?')
_BOXED_SOURCE = re.compile(r"^\s{0,8}[│|] {1,4}[❱>] {1,4}\d{1,9} [│|](.{0,400}?)[│|]?\s*$")
#: Python's markers under a line of code.
_CARETS = re.compile(r"[\s^~]+$")
_BOXED_FRAME = re.compile(r"^\s{0,8}[│|] (\S.{0,400}?):(\d{1,9}) in (\S{1,200})\s*(?:[│|]\s*)?$")
#: Exceptions of the standard library that are named otherwise: `socket.gaierror`, `struct.error`, `socket.timeout`.
_LOWER = re.compile(r"^[a-z_][\w.]*\.(?:error|gaierror|herror|timeout)$")
#: Code that is not the user's: installed packages, the standard library, frames without a file.
_FOREIGN_PATH = re.compile(r"(?:^|[/\\])(?:site-packages|dist-packages|lib(?:64)?[/\\]python3(?:\.\d+)?)[/\\]|^<")

#: Words of shells for a process that a signal ended.
_OF_SHELLS = frozenset({"Terminated", "Killed", "Aborted"})
#: A progress bar of tqdm: `Training:  40%|####      | 4/10`.
_BAR = re.compile(r"\d%\|")
#: Characters of a path or function in a dump of stacks.
_DUMP_TEXT = 300
#: A class name of a user's exception: the last part is in CamelCase.
_CAMEL = re.compile(r"(?:^|\.)[A-Z][^\Wa-z]*+[a-z]\w*$")


@dataclass(frozen=True, slots=True)
class Frame:
    """One `File "...", line N, in f` of a traceback. `source`: its line of code, empty if that was not printed."""

    path: str
    line: int
    function: str
    source: str = field(default="", compare=False)

    @property
    def own(self) -> bool:
        """Whether it is in the user's code."""
        return is_users_code(self.path)

    def __str__(self) -> str:
        return f'File "{self.path}", line {self.line}, in {self.function}'


def read_exception(lines: Sequence[str]) -> tuple[str, str | None]:
    """The line that names the exception, and the exception's type (`torch.OutOfMemoryError`).

    It is the first unindented line after the last traceback header, which is the first line of a long message. Without
    a header it is the last line that is not empty, with a type only if it looks like an exception's. An empty text if
    there is none.
    """
    start = None
    for number, line in enumerate(lines):
        if line.startswith(HEADER):
            start = number
    if start is not None:
        for line in lines[start + 1 :]:
            if match := _EXCEPTION.match(line):
                return line.rstrip(), match[1]
    for line in reversed(lines):
        if line.strip():
            return line.strip(), exception_type(line.strip())
    return "", None


def exception_type(line: str) -> str | None:
    """The type at the start of `line`, None if the line does not look like an exception's."""
    match = _EXCEPTION.match(line)
    return match[1] if match and _EXCEPTION_NAME.search(match[1]) else None


#: Characters of a line at most, for which a parser remembers its answer: all ranks print the same tracebacks.
_REMEMBERED = 512


def exception_name(line: str) -> str | None:
    """The type in a line that follows a traceback's frames: there any class name counts as an exception's."""
    return (_exception_name if len(line) <= _REMEMBERED else _exception_name.__wrapped__)(line)


@lru_cache(maxsize=4096)
def _exception_name(line: str) -> str | None:
    match = _EXCEPTION.match(line)
    if match is None:
        return None
    if match[1] in _OF_SHELLS or _BAR.search(line, match.end(), match.end() + 200):
        return None
    known = _EXCEPTION_NAME.search(match[1]) or _CAMEL.search(match[1]) or _LOWER.search(match[1])
    return match[1] if known or (not match[1].isascii() and line[match.end() : match.end() + 2] == ": ") else None


def frame_of(line: str) -> Frame | None:
    """The frame of a `File "...", line N, in f` line."""
    return (_frame_of if len(line) <= _REMEMBERED else _frame_of.__wrapped__)(line)


@lru_cache(maxsize=4096)
def _frame_of(line: str) -> Frame | None:
    match = _FRAME.match(line)
    return Frame(match[1], int(match[2]), (match[3] or UNKNOWN).rstrip()) if match else None


def read_frame(line: str) -> Frame | None:
    """The frame of a `File "...", line N in f` line, as `faulthandler` prints it."""
    match = re.match(r'\s{0,8}File "(.{1,1000})", line (\d{1,9}) in (.{1,300})$', line)
    return Frame(match[1][:_DUMP_TEXT], int(match[2]), match[3].strip()[:_DUMP_TEXT]) if match else None


def boxed_frame_of(line: str) -> Frame | None:
    """The frame of a line in a box drawn by rich: `│ /job/train.py:171 in main   │`."""
    match = _BOXED_FRAME.match(line)
    return Frame(match[1], int(match[2]), match[3]) if match else None


def is_users_code(path: str) -> bool:
    """Whether a file belongs neither to an installed package nor to the standard library."""
    return bool(path) and _FOREIGN_PATH.search(path) is None


def innermost_own(frames: Sequence[Frame]) -> Frame | None:
    """The last frame in the user's code."""
    return next((frame for frame in reversed(frames) if frame.own), None)


def user_frame(lines: Sequence[str]) -> Frame | None:
    """The last frame in code that is neither an installed package nor the standard library."""
    found = None
    for line in lines:
        frame = frame_of(line)
        found = frame if frame and frame.own else found
    return found


#: Lines of a message that are kept after its first, and lines within which the next exception of a chain must follow.
MAX_DETAIL = 12
_LINGER = 60
#: Lines at the start of a log in which a traceback may lack its header.
CUT_TOP = 20
#: Lines among the frames that are neither frames nor code after which a traceback counts as cut off.
_MAX_FOREIGN = 50
#: Lines of other streams after which a traceback counts as ended.
_PATIENCE = 300
#: Open streams, and tracebacks that are kept from the start and from the end of a log.
MAX_STREAMS = 8_192
#: Innermost frames that are kept of one exception; different frames of one log; characters of a line of code;
#: tracebacks without an exception, the last ones.
MAX_FRAMES = 40
_MAX_KNOWN = 8_000
_SOURCE_LIMIT = 240
MAX_UNFINISHED = 64
MAX_FIRST = 1_000
MAX_LAST = 4_000
_MESSAGE_LIMIT = 2_000

_CONNECTORS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_THREAD = "Exception in thread "
#: Exceptions of a finaliser or an atexit callback: the interpreter prints them and continues, with the same exit code.
_IGNORED = ("Exception ignored ", "Error in atexit._run_exitfuncs")
#: Lines after such an announcement within which its traceback begins.
_SOON = 3
#: Byte strings of which every line that opens a traceback contains one.
TRACEBACK_LITERALS = (b"Traceback (most recent call last)", _THREAD.encode(), *(text.encode() for text in _IGNORED))
_AGENT_FRAMES = (
    "torch/distributed/run.py",
    "torch/distributed/launch.py",
    "torch/distributed/launcher/api.py",
    "torch/distributed/elastic/agent/",
    "torch/distributed/elastic/rendezvous/",
    "bin/torchrun",
    "accelerate/commands/",
    "deepspeed/launcher/",
    "horovod/runner/",
    "ray/train/v2/api/",
    "ray/train/base_trainer.py",
)
#: A wrapper script's report that its launcher failed.
_LAUNCHER_FAILED = re.compile(
    r"CalledProcessError: Command .{0,300}?\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed|"
    r"mpirun|mpiexec|prterun|horovodrun|srun)\b"
)
#: The margin of an exception group, and the line in front of each of its exceptions.
_GROUP_HEADER = "Exception Group Traceback (most recent call last):"
_MARGIN = re.compile(r"\s{0,200}(?:\| ?|\+ (?=Exception Group ))")
_MEMBER = re.compile(r"\s{0,200}(?:\+-)?\+-{8,80}(?: (?:\d{1,9}|\.\.\.) -{8,80})?$")
#: The top of the box that rich draws around tracebacks; the exception is below the box.
_BOX = re.compile(r"\s{0,8}[╭┌+][─-]{1,400} ?Traceback \(most recent call last\)")
#: Most lines over which rich wraps a message.
_WRAPPED = 10
_SIDES = ("│", "╰", "└", "|", "+")
#: The start of another log line, which ends a message.
_LOG_LINE = re.compile(
    r"(?:\S{1,80}:\d{1,9}:\d{1,9} \[\d|\[?\d{4}-\d\d-\d\d"
    r"|[DIWEC]\d{4} \d\d:|\[[DIWEF]\d{0,4} |[A-Z]{4,8}:[\w.]|\s*\d{1,3}%\|)"
)

#: torch.distributed.checkpoint raises the exceptions of some ranks on all: the message that names the ranks, and the
#: end of the header of each rank's traceback, which follows. At most so many of these are kept.
_OF_RANKS = re.compile(r"CheckpointException ranks:dict_keys\(\[(\d{1,7}(?:, \d{1,7})*)\]\)")
_OF_RANK = re.compile(r" \(RANK \d{1,7}\)\s*$")
_MOST_OF_RANKS = 8

#: Messages whose first line does not give the reason.
_LONG = re.compile(r"NCCL|DataLoader worker|: \d{1,6} validation errors? for ")
#: A line of a list in a message.
_ITEM = re.compile(r"[ \t]|[-*•] ")
#: torch's Python loggers repeat their prefix in front of every line of a traceback that they report.
_GLOG = re.compile(r"[DIWEC]\d{4} [\d:.]{8,20} ")


@dataclass(frozen=True, slots=True)
class Raised:
    """One exception of a chain.

    `detail` are further lines of its message; `frame` is the last in the user's code; `operation` is the function of
    torch.distributed in which it was raised, or empty. `frames` are the innermost ones, in traceback order; `omitted`:
    the number of frames above them.
    """

    exception: str
    message: str
    detail: tuple[str, ...]
    frame: Frame | None
    line_no: int
    operation: str = ""
    frames: tuple[Frame, ...] = ()
    omitted: int = 0
    #: The exception of a DataLoader's child, if the message only wraps it: then the frames are the child's.
    inner: str = ""
    #: The ranks that torch.distributed.checkpoint names, whose exceptions begin the chain, in this order.
    of: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The message, with further lines if they contain the reason: errors of NCCL and of loader processes.

        Without a prefix, the lines after a message may be from another process.
        """
        return "\n".join((self.message, *self.detail)) if _LONG.search(self.message) else self.message

    @property
    def told(self) -> str:
        """The text for people: also with the list after a message that ends in a colon."""
        if not self.message.endswith(":") or _LONG.search(self.message):
            return self.text
        return "\n".join((self.message, *takewhile(_ITEM.match, self.detail)))


@dataclass(frozen=True, slots=True)
class Trace:
    """A traceback. `chain` runs from the first exception to the last raised.

    `time` is that of its first line. `agent`: of torchrun itself. `thread`: of a thread other than the main one, which
    does not end the process. `logged`: the program caught and printed it.
    """

    origin: Origin
    line_no: int
    chain: tuple[Raised, ...]
    time: Moment | None
    agent: bool = False
    thread: bool = False
    logged: bool = False

    @property
    def last(self) -> Raised:
        return self.chain[-1]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A traceback without its exception, which is not in the log. `frame` is the last one in the user's code."""

    origin: Origin
    line_no: int
    frame: Frame | None


@dataclass(slots=True)
class _Open:
    origin: Origin
    line_no: int
    time: Moment | None
    thread: bool
    logged: bool
    ignored: bool = False
    group: bool = False
    chain: list[Raised] = field(default_factory=list)
    detail: list[str] = field(default_factory=list)
    frame: Frame | None = None
    operation: str = ""
    agent: bool = False
    #: The innermost frames, the number of all frames, and whether the next line may be the code of the last one.
    frames: deque[Frame] = field(default_factory=lambda: deque(maxlen=MAX_FRAMES))
    count: int = 0
    awaits_source: bool = False
    #: The message contains the traceback of a DataLoader's child, whose frames and exception replace the parent's.
    child: bool = False
    inner: str = ""
    of: tuple[int, ...] = ()
    #: Width of rich's box, 0 without one; the number of wrapped lines that may follow, and the width of the last one.
    boxed: int = 0
    wrapped: int = 0
    filled: int = 0
    in_message: bool = False
    connected: bool = False
    lines: int = 0
    foreign: int = 0

    def trace(self) -> Trace | None:
        if not self.chain or self.ignored:
            return None
        self._settle()
        if self.group:  # the first exception in it that is not a group
            self.chain = [item for item in self.chain if not item.exception.endswith("Group")][:1] or self.chain[:1]
        agent = self.agent or _LAUNCHER_FAILED.search(self.chain[-1].message) is not None
        return Trace(self.origin, self.line_no, tuple(self.chain), self.time, agent, self.thread, self.logged)

    def unfinished(self) -> Unfinished | None:
        """The traceback if it has frames and no exception; None for one that did not end a process."""
        if self.chain or not self.frames or self.ignored or self.agent or self.thread:
            return None
        return Unfinished(self.origin, self.line_no, self.frame)

    def link(self) -> None:
        """Prepares for the next exception of the chain."""
        self._settle()
        self.in_message = self.connected = False
        self.frame = None
        self.operation = ""
        self._forget_frames()
        self.lines = self.foreign = 0

    def add_frame(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.count += 1
        self.awaits_source = True

    def add_source(self, text: str) -> None:
        """Takes the code of the last frame, if the line is that."""
        boxed = _BOXED_SOURCE.match(text) if self.boxed else None
        if boxed is None and self.boxed:
            return
        source = boxed[1].replace("│", " ").strip() if boxed else text.strip()
        if self.awaits_source and source and not _CARETS.match(source):
            self.frames[-1] = replace(self.frames[-1], source=source[:_SOURCE_LIMIT])
        self.awaits_source = False

    def _forget_frames(self) -> None:
        self.frames.clear()
        self.count, self.awaits_source, self.child, self.inner = 0, False, False, ""

    def start_child(self) -> None:
        """Starts the traceback of a DataLoader's child inside the message."""
        self._forget_frames()
        self.child = True

    def start_of_rank(self) -> None:
        """Starts the traceback of one of the ranks that the message names."""
        if not self.of and (named := _OF_RANKS.search(self.chain[-1].message)):
            self.of = tuple(map(int, named[1].split(", ")))
            self.chain.clear()
        self.lines = 0
        if len(self.chain) < _MOST_OF_RANKS:
            self.link()

    def _settle(self) -> None:
        if self.detail and self.chain:
            self.chain[-1] = replace(self.chain[-1], detail=tuple(self.detail))
        if self.child and self.frames and self.chain:
            omitted = self.count - len(self.frames)
            self.chain[-1] = replace(self.chain[-1], frames=tuple(self.frames), omitted=omitted, inner=self.inner)
        self.detail = []


class Traces:
    """Collects the tracebacks of one log."""

    def __init__(self, first_line: int = 1) -> None:
        """`first_line` is the number of the log's first line."""
        self._open: dict[Origin, _Open] = {}
        self._touched = 0
        self._first_line = first_line
        #: Streams whose next traceback is of another thread (True) or ignored (False), and the line before it.
        self._announced: dict[Origin, tuple[bool, int]] = {}
        #: Ranks print the same frames: each is kept once.
        self._known: dict[tuple[str, int, str, str], Frame] = {}
        self._first: list[Trace] = []
        self._unfinished: deque[Unfinished] = deque(maxlen=MAX_UNFINISHED)
        self._last: deque[Trace] = deque(maxlen=MAX_LAST)

    def open_near(self, line_no: int) -> bool:
        """Like `open_at`, without closing any."""
        return bool(self._open) and line_no - self._touched <= _PATIENCE

    def open_at(self, line_no: int) -> bool:
        """Whether a line may belong to a traceback: one is open, and its last line is not too far back."""
        if self._open and line_no - self._touched > _PATIENCE:
            for item in list(self._open.values()):
                self._close(item)
        return bool(self._open)

    def feed(self, origin: Origin, text: str, line_no: int, time: Moment | None) -> bool:
        """Takes a line without its prefixes; True if it is part of a traceback."""
        current = self._open.get(origin)
        if current is not None and current.group:
            if _MEMBER.match(text):
                current.link()
                self._touched = line_no
                return True
            if margin := _MARGIN.match(text):
                text = text[margin.end() :]
                if text.startswith((HEADER, _GROUP_HEADER)):
                    current.link()
                    self._touched = line_no
                    return True
        if "Traceback (most recent call last)" in text and (
            _BOX.match(text) if HEADER not in text else not _GLOG.match(text)
        ):
            self._header(origin, current, text, line_no, time)
            self._touched = line_no
            return True
        if text.startswith((_THREAD, *_IGNORED)) and (current is None or current.in_message):
            if current is not None:
                self._close(current)
            if len(self._announced) < MAX_STREAMS:
                self._announced[origin] = text.startswith(_THREAD), line_no
            return True
        if current is None:
            if line_no - self._first_line >= CUT_TOP or frame_of(text) is None:
                return False
            # A log that was cut at its top begins in the middle of a traceback.
            current = self._open[origin] = _Open(origin, line_no, time, thread=False, logged=False)
        if current.in_message:
            current.lines += 1
            taken = self._message_line(current, text)
        else:
            taken = self._frame_line(current, text, line_no)
        if taken:
            self._touched = line_no
        return taken

    def take(self, origin: Origin, lines: Iterable[str], line_no: int, time: Moment | None) -> None:
        """Takes a whole traceback from one line of the log."""
        apart = Traces(line_no)
        apart._known = self._known
        for line in lines:
            apart.feed(origin, line, line_no, time)
        for trace in apart.found():
            self._keep(trace)

    def found(self) -> list[Trace]:
        """All tracebacks in log order, including unfinished ones."""
        rest = [trace for item in self._open.values() if (trace := item.trace())]
        twins = [twin for item in self._open.values() if (twin := self._twin(item))]
        kept = [trace for trace in (*self._first, *self._last) if trace not in twins]
        return sorted([*kept, *rest], key=lambda trace: trace.line_no)

    def unfinished(self) -> list[Unfinished]:
        """Tracebacks whose exceptions are missing, in log order."""
        rest = [made for item in self._open.values() if (made := item.unfinished())]
        return sorted([*self._unfinished, *rest], key=lambda item: item.line_no)

    def _header(self, origin: Origin, current: _Open | None, text: str, line_no: int, time: Moment | None) -> None:
        start = max(text.find(HEADER), 0)
        if current is not None and current.in_message and text[:start].endswith("Original "):
            current.start_child()
            return  # of a DataLoader's child: part of the message
        if current is not None and current.connected:
            current.link()
            return
        if current is not None and current.in_message and _OF_RANK.match(text, start + len(HEADER)):
            current.start_of_rank()
            return
        if current is not None:
            self._close(current)
        if origin in self._open or len(self._open) < MAX_STREAMS:
            thread, since = self._announced.pop(origin, (None, 0))
            if line_no - since > _SOON:
                thread = None
            group = _GROUP_HEADER in text
            logged = not group and (start > 4 or text[:start].strip() != "")
            self._open[origin] = _Open(
                origin, line_no, time, thread is True, logged, boxed=0 if HEADER in text else len(text.strip()),
                ignored=thread is False, group=group,
            )  # fmt: skip

    def _frame_line(self, current: _Open, text: str, line_no: int) -> bool:
        boxed = text.lstrip()[:1] in _SIDES
        frame = boxed_frame_of(text) if boxed else frame_of(text)
        if frame is not None:
            if frame.path.endswith("torch/distributed/distributed_c10d.py"):
                current.operation = frame.function
            if frame.own:
                current.frame = frame
            current.add_frame(frame)
            current.agent = current.agent or any(part in frame.path for part in _AGENT_FRAMES)
        elif name := exception_name(text):
            message = text.rstrip()[:_MESSAGE_LIMIT]
            frames = self._kept(current.frames)
            omitted = current.count - len(frames)
            raised = Raised(name, message, (), current.frame, line_no, current.operation, frames, omitted)
            current.chain.append(replace(raised, of=current.of) if current.of else raised)
            current.in_message, current.lines = True, 0
            current.wrapped, current.filled = _WRAPPED if current.boxed else 0, len(text.rstrip())
        elif text[:1].strip() and text[:1] not in _SIDES:
            current.foreign += 1
            if current.foreign > _MAX_FOREIGN:
                self._close(current)
            return False
        else:
            current.add_source(text)
        return True

    def _kept(self, frames: Iterable[Frame]) -> tuple[Frame, ...]:
        if len(self._known) > _MAX_KNOWN:
            return ()
        return tuple(self._known.setdefault((f.path, f.line, f.function, f.source), f) for f in frames)

    def _message_line(self, current: _Open, text: str) -> bool:
        if text.strip() in _CONNECTORS:
            current.connected = True
            return True
        if not text.strip():
            current.wrapped = 0
            return True
        if current.child:
            if (frame := frame_of(text)) is not None:
                current.add_frame(frame)
            elif text[:1].isspace() and current.frames:
                current.add_source(text)
            elif not current.inner and current.frames and exception_name(text):
                current.inner = text.rstrip()[:_MESSAGE_LIMIT]
        log_line = _LOG_LINE.match(text) is not None
        if current.lines > _LINGER or (log_line and current.lines > 3):
            self._close(current)
        if log_line or len(current.detail) >= MAX_DETAIL:
            return False
        if current.wrapped and current.chain and current.filled + len(text.split(maxsplit=1)[0]) >= current.boxed:
            # The word did not fit into the line before.
            current.wrapped, current.filled = current.wrapped - 1, len(text.rstrip())
            end = current.chain[-1]
            current.chain[-1] = replace(end, message=f"{end.message} {text.strip()}"[:_MESSAGE_LIMIT])
            return True
        current.wrapped = 0
        current.detail.append(text.rstrip()[:_MESSAGE_LIMIT])
        return True

    def _close(self, current: _Open) -> None:
        self._open.pop(current.origin, None)
        if (trace := current.trace()) is not None:
            self._keep(trace)
        elif self._twin(current) is not None:
            (self._last or self._first).pop()
        elif (unfinished := current.unfinished()) is not None:
            self._unfinished.append(unfinished)

    def _twin(self, current: _Open) -> Trace | None:
        """The traceback in front of an ignored one, if it is the same: Cython prints those twice."""
        kept = self._last or self._first
        if not current.ignored or not current.chain or not kept or kept[-1].origin != current.origin:
            return None
        one, other = kept[-1].last, current.chain[-1]
        return kept[-1] if (one.message, one.frames) == (other.message, other.frames) else None

    def _keep(self, trace: Trace) -> None:
        if len(self._first) < MAX_FIRST:
            self._first.append(trace)
        else:
            self._last.append(trace)


def read_chain(text: str, line_no: int = 0) -> tuple[Raised, ...]:
    """The chain of exceptions in a traceback's text (of a summary or an error file); empty if there is none."""
    traces = Traces(line_no)
    lines = text.splitlines()
    if not text.startswith(HEADER):
        lines.insert(0, HEADER)
    for line in lines:
        traces.feed(NOBODY, line, line_no, None)
    if found := traces.found():
        return found[0].chain
    words = [line.strip() for line in lines[1:] if line.strip()]
    return (Raised("", words[0][:_MESSAGE_LIMIT], tuple(words[1 : MAX_DETAIL + 1]), None, line_no),) if words else ()


#: Depth of nested objects that are searched for texts.
_DEPTH = 2
_RANK_KEYS = ("global_rank", "rank")
_MAX_RANK = 10_000_000


@dataclass(frozen=True, slots=True)
class Embedded:
    """The fields of a JSON line besides its message. `rank` is the global one, None if no field has it."""

    rank: int | None
    tracebacks: tuple[tuple[str, ...], ...]


def read_embedded(text: str) -> Embedded | None:
    """The tracebacks in a line that begins with a JSON object; None if there are none. Never raises."""
    if text[:1] != "{" or HEADER not in text:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return embedded_in(found) if isinstance(found, dict) else None


def embedded_in(found: Mapping[str, object]) -> Embedded | None:
    """The tracebacks in a decoded JSON object; None if there are none."""
    texts = [without_surrogates(text) for text in _texts(found, _DEPTH) if HEADER in text]
    if not texts:
        return None
    return Embedded(rank_in(found), tuple(tuple(text[text.find(HEADER) :].splitlines()) for text in texts))


def rank_in(found: Mapping[str, object]) -> int | None:
    """The global rank that a field names."""
    for key in _RANK_KEYS:
        value = found.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_RANK:
            return value
    return None


def _texts(found: Mapping[str, object], depth: int) -> Iterator[str]:
    for value in found.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict) and depth > 0:
            yield from _texts(value, depth - 1)
