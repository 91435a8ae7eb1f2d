"""Parses one line of a worker's log: its text, the process that printed it, its time, and signs of training progress.

Three clocks occur: the node's stamp in front of a line (`kubectl logs --timestamps`: UTC, nanoseconds), the process's
own log time (local time without a zone, milliseconds), and whole seconds (torchelastic's summaries, error files). C++
stamps of PyTorch are read to the second only: their fraction comes from another clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

#: Bytes of a line that are parsed; a longer line is cut (10 MB lines exist).
LINE_LIMIT = 16_384

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_REPLACEMENT = "�"


#: The beginning of the lines that `atlctl run` prints into the log of its worker. They quote other lines.
WRAPPER = "atlctl: "
#: The lines with which `atlctl rerun` begins and ends an attempt in a container's log.
ATTEMPT = re.compile(rf"{WRAPPER}attempt (\d{{1,6}})(?:: | ended: (?:exit code (\d{{1,3}})|signal (\d{{1,3}}))$)")
ATTEMPT_LITERAL = b"atlctl: attempt "


def decode(data: bytes) -> str:
    """Decodes UTF-8, or GB 18030 if that fits the whole text and UTF-8 little of it.

    Mostly valid UTF-8 (with a cut character) stays UTF-8, with U+FFFD for the rest. A few pairs of GBK bytes are valid
    UTF-8 by chance, hence the comparison. Never raises.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    broken = text.count(_REPLACEMENT)
    if sum(char > "\x7f" for char in text) - broken >= broken:
        return text
    try:
        return data.decode("gb18030")
    except UnicodeDecodeError:
        return text


def clean_line(line: bytes) -> str:
    """One line as text: cut, decoded, without terminal codes and without text overwritten after a carriage return."""
    text = decode(line[:LINE_LIMIT].rstrip(b"\r\n"))
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        text = text.rpartition("\r")[2]
    return text


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


#: The most nested prefixes that are parsed in one line.
_DEPTH = 6

#: `[rank3]: ` of torch's excepthook, `[rank3]:[E1120 ...` of its C++ log: the GLOBAL rank.
_RANK = re.compile(r"\[rank(\d{1,7})\]: ?")
#: `[default0]:` of `--tee`: role and LOCAL rank. `[gpu187:0]:` of accelerate: host and local rank.
_TEE = re.compile(r"\[(?!rank\d)[A-Za-z_][\w.-]{0,60}?(?::)?(\d{1,4})\]:")
#: A user's template that names both (`[default rank=1 local=1] `).
_TEMPLATE = re.compile(
    r"\[[^\]\[]{0,60}\brank[=: ](\d{1,7})[^\]\[]{1,40}?local(?:_rank)?[=: ](\d{1,4})[^\]\[]{0,30}\]:? ?"
)
#: Prefixes of other tools, without information about a rank.
_NOISE = re.compile(
    r"(?:std(?:err|out): |> |\d{1,9}(?:\.\d{1,9})?s\t\d{1,9}\t|\([A-Za-z_]\w{0,60} pid=\d{1,9}[^)]{0,80}\) ?"
    r"|20\d\d-[^ |]{1,40} \w{1,64} \|\| )"
)
#: `[Rank 3]` and `[PG ID 0 PG GUID 0(default_pg) Rank 3]` of the C++ log, after the file's name. In a group other than
#: the default one (number 0) it is the rank in that group, which is not useful here.
_CPP_RANK = re.compile(r"\[(?:PG (?:ID )?0 [^\]]{0,120}?)?Rank (\d{1,7})\]")
_CPP_LINE = re.compile(r"(?:\[[EWIF](?:\d{3,4} [\d:.]{8,20})? ?[\w.]{1,60}:\d{1,6}\]|  what\(\): ) ?")


@dataclass(frozen=True, slots=True)
class Origin:
    """The process that printed a line: global rank, local rank, each None if no prefix shows it.

    `stream` separates lines of unknown processes: the host in front of the line, if a launcher adds it.
    """

    rank: int | None = None
    local_rank: int | None = None
    stream: str = ""

    @property
    def known(self) -> bool:
        return self.rank is not None or self.local_rank is not None


NOBODY = Origin()


def split_origin(text: str) -> tuple[Origin, str]:
    """The origin of a line, and its text without prefixes. A progress bar in front is skipped."""
    rank: int | None = None
    local: int | None = None
    at = 0
    for _ in range(_DEPTH):
        if text[at : at + 1] != "[":
            if not (match := _NOISE.match(text, at)):
                break
        elif match := _RANK.match(text, at):
            rank = int(match[1])
        elif match := _TEMPLATE.match(text, at):
            rank, local = int(match[1]), int(match[2])
        elif match := _TEE.match(text, at):
            local = int(match[1])
        else:
            break
        at = match.end()
    if at == 0 and "[rank" in text[:600] and (match := _RANK.search(text, 0, 600)) and text[match.end() :].strip():
        rank, at = int(match[1]), match.end()
    rest = text[at:] if at else text
    if rank is None and (line := _CPP_LINE.match(rest)) and (match := _CPP_RANK.match(rest, line.end())):
        rank = int(match[1])
    return (_origin(rank, local) if rank is not None or local is not None else NOBODY), rest


@lru_cache(maxsize=4096)
def _origin(rank: int | None, local_rank: int | None) -> Origin:
    return Origin(rank, local_rank)


#: RFC 3339 with any fraction, as `kubectl logs --timestamps` and the kubelet prepend it.
_STAMP = re.compile(rb"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d) ")

#: Python's logging and most loggers: the date, then the time with milliseconds or less.
_LOGGING = re.compile(r"(20\d\d)[-/](\d\d)[-/](\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
#: torch's Python loggers `W1120 17:45:05.757000 1 file.py:12]`: month and day, microseconds; the year is missing.
_TORCH = re.compile(r"(?<![\w\[])[DIWECF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) ")
#: PyTorch's C++ log `[W1120 17:44:40.665371319 file.cpp:207]`: the month is not padded (`E321` is 21 March).
_CPP = re.compile(r"\[[DIWECF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.\d{1,9} ")

#: Characters of a line within which a time may begin.
_WHERE = 200


@dataclass(frozen=True, slots=True)
class When:
    """A time that is comparable across workers. `resolution` in seconds: the order of closer times is unknown."""

    seconds: float
    resolution: float


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time.

    `seconds` since the epoch; `resolution` is the step of its clock in seconds. `absolute`: UTC by the node's clock;
    otherwise local time read as if it were UTC, of which the year may be missing (`dated` is False then).
    """

    seconds: float
    resolution: float
    absolute: bool
    dated: bool = True


def split_stamp(line: bytes) -> tuple[Moment | None, bytes]:
    """The node's stamp in front of a line, and the rest."""
    if line[:2] != b"20" or line[10:11] != b"T" or (match := _STAMP.match(line)) is None:
        return None, line
    try:
        moment = datetime.fromisoformat(match[1].decode() + match[3].decode().replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None, line
    step = 0.001 if match[2] else 1.0
    return Moment(moment + float(match[2] or 0), step, absolute=True), line[match.end() :]


def told_time(text: str) -> Moment | None:
    """The process's own time in a line of a log, None if there is none near its start."""
    head = text[:_WHERE]
    if head.count(":") < 2:
        return None
    if match := _LOGGING.search(head):
        *parts, fraction = match.groups()
        return _moment(parts, fraction, dated=True)
    if match := _TORCH.search(head):
        *parts, fraction = match.groups()
        return _moment(["2000", *parts], fraction, dated=False)
    if match := _CPP.search(head):
        return _moment(["2000", *match.groups()], None, dated=False)
    return None


def dated_near(seconds: float, reference: float) -> float | None:
    """A time without a year, in the year that is closest to the reference; None if the day does not exist."""
    told = datetime.fromtimestamp(seconds, UTC)
    year = datetime.fromtimestamp(reference, UTC).year
    found = []
    for number in (year - 1, year, year + 1):
        try:
            found.append(told.replace(year=number).timestamp())
        except ValueError:  # 29 February
            continue
    return min(found, key=lambda moment: abs(moment - reference), default=None)


def zone_of(ahead: float) -> float | None:
    """Seconds by which local time is ahead of UTC, from a line that has both; None if no time zone fits."""
    zone = round(ahead / 900) * 900  # zones are multiples of a quarter of an hour
    return float(zone) if abs(ahead - zone) <= 30 and abs(zone) <= 14 * 3600 else None


def _moment(parts: Sequence[str], fraction: str | None, *, dated: bool) -> Moment | None:
    """`parts` are year, month, day, hour, minute and second."""
    try:
        year, month, day, hour, minute, second = map(int, parts)
        whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None
    if fraction is None:
        return Moment(whole, 1.0, absolute=False, dated=dated)
    return Moment(whole + float(f"0.{fraction}"), 0.001, absolute=False, dated=dated)


#: A number of a step, an iteration or an epoch, and a progress bar: a text, and the pattern in which it is.
_PROGRESS = (
    (b"tep", rb"tep(?<=\b[Ss]tep)[ =:#]{1,3}\d"),
    (b"ter", rb"ter(?<=\b[Ii]ter)(?:ation)?[ =:#]{1,8}\d"),
    (b"poch", rb"poch(?<=\b[Ee]poch)[ =:#\[]{1,3}\d"),
    (b" [", rb"\b\d{1,9}/\d{1,9} \[[\d:]{4,9}"),
)
PROGRESS = b"|".join(pattern for _, pattern in _PROGRESS)
#: Bytes at the start of a line that are searched for it.
PROGRESS_HEAD = 160
#: The same, and levels of loggers below an error.
_LEVELS = ((b"INFO", rb"INFO\b(?<=\bINFO)(?<!NCCL INFO)"), (b"DEBUG", rb"DEBUG\b(?<=\bDEBUG)(?<!NCCL DEBUG)"))
_GOES_ON = tuple((text, re.compile(pattern)) for text, pattern in (*_LEVELS, *_PROGRESS))


def goes_on(line: bytes) -> bool:
    """Whether a line shows that its program continued: a level below ERROR, a training step, a progress bar."""
    head = line[:PROGRESS_HEAD]
    for text, pattern in _GOES_ON:  # noqa: SIM110 - a generator costs more than the search
        if text in head and pattern.search(head):
            return True
    return False


#: A step of a training loop.
_STEP = re.compile(r"\b(step|iter(?:ation)?|epoch|batch)[ =:#\[]{1,6}(\d{1,9}(?: ?/ *\d{1,9})?)\b", re.IGNORECASE)
_STEP_WHERE = 300


def mark_of(text: str) -> str | None:
    """The part of a line about a training step that is the same on every rank; None if it names no step.

    The step's number is required (`step 12/100`, `iteration 300/ 1000`, `Epoch 3`): it makes the line unique.
    """
    match = _STEP.search(text[:_STEP_WHERE])
    return f"{match[1].lower()} {match[2]}" if match else None
