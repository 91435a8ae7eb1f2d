"""One failure summary of torchelastic (`ChildFailedError`), read line by line.

The layout changed in torch 1.10 (`host`, `traceback`) and the exit code's row in 2.12 (signal's
name); both are read. Lines of a block may carry any prefix: it is learnt from the block's own
section lines, with the digits of times in it left open, so lines of other processes in between
are told apart and skipped.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from atlctl.diagnosis.agentnotes import signal_name
from atlctl.diagnosis.text import naive_seconds
from atlctl.diagnosis.tracebacks import HEADER, Frame, exception_type, read_exception, user_frame

#: Entries that are kept of one summary (its root entry always is).
MAX_ENTRIES = 512
#: Lines in a row that belong to no block before an unfinished one counts as cut off.
MAX_FOREIGN_LINES = 400
#: Characters kept of a traceback: half of its start, half of its end.
TRACEBACK_LIMIT = 8_192
_MESSAGE_LIMIT = 2_000
_PREFIX_LIMIT = 300

_SECTION = r"(Failures|Other Failures|Root Cause(?: \(first observed failure\))?):\s*$"
#: Indented by two, as printed; without its indent, as some tools paste it, only in the padded form.
_ROW = (
    r"(?:  (?P<row>time|host|rank|exitcode|error_file|traceback|msg)\s*"
    r"|(?P<flat>time      |host      |rank      |exitcode  |error_file|traceback )):(?: |$)"
)
_LEARN = re.compile(rf"(.{{0,{_PREFIX_LIMIT}}}?)(?:{_SECTION}|{_ROW})")
_SECTION_ANYWHERE = re.compile(rf"(.{{0,{_PREFIX_LIMIT}}}?){_SECTION}")
_SECTION_LINE = re.compile(_SECTION)
_ROW_LINE = re.compile(_ROW)
_INDEX_LINE = re.compile(r"\[(\d{1,7})\]:\s*$")
_BORDER_LINE = re.compile(r"([=*-])\1{2,}\s*$")
_VOLATILE = re.compile(
    r"(\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d:\d\d:\d\d(?:[.,]\d+)?|(?<!\d)\d+\.\d+s\t\d+\t|\b\d{10}\.\d+)"
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[_ T]\d\d:\d\d:\d\d$")
_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,7})\)$")
_EXIT = re.compile(r"(-?\d{1,10}) \(pid: (\d{1,10})\)(?:\s+\(([^)]{1,20})\))?$")
#: torch 1.9 printed the error file's dict as Python shows it.
_MSG_DICT = re.compile(r"'message': (['\"])(.{0,2000}?)\1(?:, '|\})")


@dataclass(frozen=True, slots=True)
class Entry:
    """One failed process in a summary.

    `time` are whole seconds of the worker's *local* time, read as if it were UTC: comparing it over
    workers assumes that they share a zone and a clock. It is the exception's own time where the
    process left an error file, otherwise the moment its agent noticed. `rank` is the global rank
    of that attempt; `exit_code` is minus the signal's number for a death by signal; `host` is
    the *agent's* name for itself.
    """

    index: int
    time: float | None
    time_text: str
    host: str
    rank: int | None
    local_rank: int | None
    exit_code: int | None
    signal: str | None
    pid: int | None
    error_file: str | None
    traceback: str
    message_last_line: str
    exception: str | None
    frame: Frame | None
    line_no: int


@dataclass(frozen=True, slots=True)
class Summary:
    """One agent's summary: only processes of its own worker.

    `root_index` is the place in `entries` of what the agent calls its root cause: the smallest
    time, the lowest local rank among equals. None where the log was cut before it.
    """

    title: str
    entries: tuple[Entry, ...]
    root_index: int | None
    line_no: int
    omitted: int = 0


class _Clipped:
    """Lines of a text, of which a long one keeps its start and its end."""

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
    index: int
    line_no: int
    rows: dict[str, str] = field(default_factory=dict)
    stack: _Clipped | None = None

    def entry(self) -> Entry:
        rank = _RANK.match(self.rows.get("rank", ""))
        left = _EXIT.match(self.rows.get("exitcode", ""))
        code = int(left[1]) if left else None
        name = signal_name(left[3]) if left and left[3] else None
        time_text = self.rows.get("time", "").replace("_", " ").replace("T", " ")
        path = self.rows.get("error_file")
        lines = self.stack.lines() if self.stack else []
        message, exception = _message(self.rows["msg"]) if "msg" in self.rows else read_exception(lines)
        return Entry(
            index=self.index,
            time=naive_seconds(time_text) if time_text else None,
            time_text=time_text,
            host=self.rows.get("host", ""),
            rank=int(rank[1]) if rank else None,
            local_rank=int(rank[2]) if rank else None,
            exit_code=code,
            signal=name or (signal_name(str(-code)) if code is not None and code < 0 else None),
            pid=int(left[2]) if left else None,
            error_file=None if path in (None, "", "<N/A>") else path,
            traceback="\n".join(lines).rstrip(),
            message_last_line=message[:_MESSAGE_LIMIT],
            exception=exception,
            frame=user_frame(lines),
            line_no=self.line_no,
        )


def _message(value: str) -> tuple[str, str | None]:
    """Message and exception type of torch 1.9's `msg: "..."` row."""
    text = value.strip().removeprefix('"').removesuffix('"')
    if match := _MSG_DICT.search(text):
        text = match[2].partition("\\n")[0]
    return text, exception_type(text)


class Block:
    """A summary in the making. Feed it lines until `closed`.

    `headed` is True where its first line was seen: then its prefix is that of its section lines, otherwise
    (a log cut at the top) that of the first row.
    """

    def __init__(self, line_no: int, *, headed: bool) -> None:
        self.closed = False
        self._learn = _SECTION_ANYWHERE if headed else _LEARN
        self._line_no = line_no
        self._prefix: re.Pattern[str] | None = None
        self._title = ""
        self._old = False
        self._in_root = False
        self._drafts: list[_Draft] = []
        self._current: _Draft | None = None
        self._root: _Draft | None = None
        self._omitted = 0
        self._foreign = 0
        self._foreign_traceback = False

    @property
    def empty(self) -> bool:
        """True while no row of any entry was seen."""
        return not any(draft.rows for draft in self._drafts)

    def feed(self, text: str, line_no: int) -> bool:
        """Takes one line, already without terminal codes; False where it is no line of this block."""
        body = self._body(text)
        if body is not None and self._take(body, line_no):
            self._foreign = 0
            return True
        self._foreign += 1
        self.closed = self._foreign >= MAX_FOREIGN_LINES
        return False

    def summary(self) -> Summary | None:
        """What was read so far, None where that is nothing."""
        drafts = [draft for draft in self._drafts if draft.rows]
        if not drafts:
            return None
        root = next((number for number, draft in enumerate(drafts) if draft is self._root), None)
        entries = tuple(draft.entry() for draft in drafts)
        return Summary(self._title, entries, root, self._line_no, self._omitted)

    def _body(self, text: str) -> str | None:
        """`text` without the block's prefix, None where it has another one."""
        if self._prefix is None:
            match = self._learn.match(text)
            if match is None:
                if text.rstrip().endswith("FAILED"):
                    self._title = text
                return None
            self._prefix = _prefix_pattern(match[1])
            self._title = self._prefix.sub("", self._title, count=1).strip().removesuffix("FAILED").strip()
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
        self._current.stack.add(body[2:] if body.startswith("  ") else body[1:])
        return True

    def _take_frame(self, body: str, line_no: int) -> bool:
        """Lines that are not indented: borders, sections, indexes, or somebody else's."""
        if section := _SECTION_LINE.match(body):
            self._in_root = section[1].startswith("Root")
            self._old = self._old or section[1] in ("Root Cause", "Other Failures")
            self._current = None
        elif border := _BORDER_LINE.match(body):
            self._end_at(border[1])
        elif index := _INDEX_LINE.match(body):
            self._start(int(index[1]), line_no)
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

    def _start(self, index: int, line_no: int) -> _Draft:
        draft = _Draft(index, line_no)
        self._current = draft
        if self._in_root and self._root is None:
            self._root = draft
            self._drafts.append(draft)
        elif len(self._drafts) < MAX_ENTRIES:
            self._drafts.append(draft)
        else:
            self._omitted += 1
        return draft

    def _take_row(self, key: str, value: str, line_no: int) -> bool:
        if not _valid(key, value):
            return False
        draft = self._current
        if draft is not None and draft.stack is not None and key != "time":
            return False  # a line of the traceback that looks like a row
        if draft is None or (key == "time" and "time" in draft.rows):
            draft = self._start(len(self._drafts), line_no)
        elif key in draft.rows:
            return False
        draft.rows[key] = value[:_MESSAGE_LIMIT] if key != "msg" else value[:TRACEBACK_LIMIT]
        if key == "traceback":
            draft.stack = _Clipped()
            draft.stack.add(value)
        return True


def _valid(key: str, value: str) -> bool:
    pattern = {"time": _TIME, "rank": _RANK, "exitcode": _EXIT}.get(key)
    return pattern is None or pattern.match(value) is not None


def _prefix_pattern(prefix: str) -> re.Pattern[str]:
    parts = _VOLATILE.split(prefix)
    return re.compile(
        "".join(re.sub(r"\d+", r"\\d+", part) if odd % 2 else re.escape(part) for odd, part in enumerate(parts))
    )
