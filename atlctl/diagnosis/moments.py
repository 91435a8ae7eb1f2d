"""When a line was printed, as far as the line itself tells, and how far that can be trusted.

Three clocks occur: the node's stamp in front of a line (`kubectl logs --timestamps`: UTC, nanoseconds), the process's
own log time (local time without a zone, milliseconds), and whole seconds (torchelastic's summaries, error
files). C++ stamps of PyTorch are read to the second only: their fraction comes from another clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

#: RFC 3339 with any fraction, as `kubectl logs --timestamps` and the kubelet put it in front.
STAMP = re.compile(rb"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d) ")

#: Python's logging and most loggers: the date, then the time with milliseconds or less.
_LOGGING = re.compile(r"(20\d\d)[-/](\d\d)[-/](\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
#: torch's Python loggers `W1120 17:45:05.757000 1 file.py:12]`: month and day, microseconds; the year is missing.
_TORCH = re.compile(r"(?<![\w\[])[DIWECF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) ")
#: PyTorch's C++ log `[W1120 17:44:40.665371319 file.cpp:207]`: the month is not padded (`E321` is 21 March).
_CPP = re.compile(r"\[[DIWECF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.\d{1,9} ")

#: A step of a training loop.
_STEP = re.compile(r"\b(step|iter(?:ation)?|epoch|batch)[ =:#\[]{1,6}(\d{1,9}(?: ?/ *\d{1,9})?)\b", re.IGNORECASE)
_STEP_WHERE = 300
#: Where in a line a time may begin.
_WHERE = 200


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
    if line[:2] != b"20" or line[10:11] != b"T" or (match := STAMP.match(line)) is None:
        return None, line
    try:
        moment = datetime.fromisoformat(match[1].decode() + match[3].decode().replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None, line
    step = 0.001 if match[2] else 1.0
    return Moment(moment + float(match[2] or 0), step, absolute=True), line[match.end() :]


def told_time(text: str) -> Moment | None:
    """The process's own time in a line of a log, None where there is none near its start."""
    head = text[:_WHERE]
    if match := _LOGGING.search(head):
        *parts, fraction = match.groups()
        return _moment(parts, fraction, dated=True)
    if match := _TORCH.search(head):
        *parts, fraction = match.groups()
        return _moment(["2000", *parts], fraction, dated=False)
    if match := _CPP.search(head):
        return _moment(["2000", *match.groups()], None, dated=False)
    return None


def zone_of(told: Moment, stamp: Moment) -> float | None:
    """Seconds that local time is ahead of UTC, from a line that has both; None where the two do not fit."""
    ahead = told.seconds - stamp.seconds
    zone = round(ahead / 900) * 900  # zones are multiples of a quarter of an hour
    return float(zone) if abs(ahead - zone) <= 30 and abs(zone) <= 14 * 3600 else None


def mark_of(text: str) -> str | None:
    """What a line about a step of the training says on every rank alike; None where it names no step.

    The step's number must stand there (`step 12/100`, `iteration 300/ 1000`, `Epoch 3`): it makes the line unique.
    """
    match = _STEP.search(text[:_STEP_WHERE])
    return f"{match[1].lower()} {match[2]}" if match else None


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
