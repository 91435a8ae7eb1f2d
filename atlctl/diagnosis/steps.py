"""Training steps from lines of logs, and the moments at which a training became slow.

`read_steps` reads one line by the formats of `steps.toml`. A `StepTrack` takes the lines of one loop of one process and
computes the duration of each step: the printed one if it is that of these steps, else the time between lines.

The baseline, `usual`, is the median of recent healthy steps. Training is slow if four of the last five steps, and
their mean, are above it by more than noise explains. That forgives a single long step (a checkpoint, an evaluation),
slow growth and noise; the first steps, and those after the border of an epoch or a long pause, start no slowdown.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

from atlctl.diagnosis.logline import LINE_LIMIT, NOBODY, Origin, clean_line, split_origin, split_stamp, told_time
from atlctl.diagnosis.scanner import Sieve, sieve_for
from atlctl.jobs.config import read_toml

# --- reading lines --------------------------------------------------------------------------------------------------

_FILE = os.path.join(os.path.dirname(__file__), "steps.toml")
_NUMBERS = {"{int}": r"\d{1,12}", "{float}": r"[-+]?\d{1,15}(?:\.\d{0,15})?(?:[eE][-+]?\d{1,3})?"}
#: Redraws of a progress bar in one line that are read.
_REDRAWS = 64
#: Characters of a line that are searched: dictionaries of reinforcement learning are long.
_SEARCHED = 4_096
_LABEL = 40
#: Words of loops that do not train, in front of a step or a bar, and those of bars alone.
_OTHER_LOOP = re.compile(
    r"\b(?:eval|valid|val\b|test|predict|infer|sanity|checkpoint|sav(?:e|ing)|load|resum|restor|generat|warm-?up\b)",
    re.IGNORECASE,
)
_OTHER_BAR = re.compile(
    r"\b(?:map\b|download|token|filter|fetch|quantiz|process|pack|prepar|comput|calibrat|export|convert|merg|upload"
    r"|collect|check|extract|build|index|cach|encod|decod|sampl|rollout|calculat|read|writ|import)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of progress lines, see `steps.toml`."""

    id: str
    holds: tuple[bytes, ...]
    pattern: re.Pattern[str]
    also: tuple[re.Pattern[str], ...] = ()
    unless: tuple[str, ...] = ()
    milliseconds: bool = False
    exact: bool = False
    bar: bool = False


@cache
def formats() -> tuple[Format, ...]:
    """All formats, by descending priority."""
    return tuple(_format(entry) for entry in read_toml(_FILE, "steps file")["format"])


def _format(entry: Mapping[str, Any]) -> Format:
    return Format(
        entry["id"],
        tuple(text.encode() for text in entry["holds"]),
        _compiled(entry["pattern"]),
        tuple(map(_compiled, entry.get("also", ()))),
        tuple(entry.get("unless", ())),
        entry.get("unit") == "ms",
        entry.get("exact", False),
        entry.get("bar", False),
    )


def _compiled(pattern: str) -> re.Pattern[str]:
    for word, number in _NUMBERS.items():
        pattern = pattern.replace(word, number)
    return re.compile(pattern)


@cache
def step_literals() -> frozenset[bytes]:
    """Byte strings of which every line with a step contains one."""
    return frozenset(text for form in formats() for text in form.holds)


@cache
def step_sieve() -> Sieve:
    """Returns quickly whether a line may contain a step."""
    return sieve_for(step_literals())


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step as one line shows it.

    `number` is None if the line has none. `at`: seconds since the epoch, with the `resolution` of its clock in seconds;
    `elapsed`: seconds on the clock of a progress bar. `seconds`: of one step, as printed.
    """

    form: Format
    origin: Origin
    label: str
    number: int | None
    at: float | None = None
    resolution: float = 0.001
    elapsed: float | None = None
    seconds: float | None = None
    loss: float | None = None
    total: int | None = None
    epoch: float | None = None


def read_steps(line: bytes, at: float | None = None) -> Sequence[StepLine]:
    """The training steps in one line of a log: several if a progress bar was redrawn in it. Never raises.

    `at`: the time of the line, seconds since the epoch; by default that in the line.
    """
    if not step_sieve()(line[:LINE_LIMIT]):
        return ()
    if at is None:
        stamp, line = split_stamp(line)
        at = None if stamp is None else stamp.seconds
    if b"\r" not in (line := line.rstrip(b"\r")):
        found = _read(line, at)
        return () if found is None else (found,)
    parts = [part for part in line[:LINE_LIMIT].split(b"\r") if part]
    parts = parts[:: -(-len(parts) // _REDRAWS)] if len(parts) > _REDRAWS else parts
    drawn = [found for part in parts if (found := _read(part, None)) is not None]
    last = drawn[-1].elapsed if drawn else None
    if at is None or last is None:
        return drawn
    return [_drawn(found, at - last) for found in drawn]


def _drawn(found: StepLine, start: float) -> StepLine:
    """A redraw of a bar that began at `start`: the line has the time of its end only."""
    return StepLine(
        found.form, found.origin, found.label, found.number, start + (found.elapsed or 0.0), 1.0, found.elapsed,
        found.seconds, found.loss, found.total, found.epoch,
    )  # fmt: skip


def _read(line: bytes, at: float | None) -> StepLine | None:
    text = ""
    origin = NOBODY
    for form in formats():
        for literal in form.holds:
            if literal in line:
                break
        else:
            continue
        if not text:
            origin, text = split_origin(clean_line(line))
        match = form.pattern.search(text, 0, _SEARCHED)
        if match is None or any(word in text for word in form.unless):
            continue
        return _step(form, match, text, origin, at)
    return None


def _step(form: Format, match: re.Match[str], text: str, origin: Origin, at: float | None) -> StepLine | None:
    got = {name: value for name, value in match.groupdict().items() if value is not None}
    head = text[: match.end()]
    label = got.get("label", "").lower()
    if form.bar:
        head = text[: match.start()]
        label = head.partition("%|")[0].rstrip("0123456789 ")[-_LABEL:].strip(": ")
        if _OTHER_BAR.search(label):
            return None
        label = label.translate(_NO_DIGITS).strip()
    if _OTHER_LOOP.search(head):
        return None
    for pattern in form.also:
        if (more := pattern.search(text, 0, _SEARCHED)) and not more.groupdict().keys() & got.keys() - {"unit"}:
            got |= {name: value for name, value in more.groupdict().items() if value is not None}
    unit = got.get("unit", "ms" if form.milliseconds else "s")
    seconds = _number(got, "seconds")
    if seconds is not None and unit == "ms":
        seconds /= 1000
    if seconds is None and (rate := _number(got, "rate")):
        seconds = rate if unit.startswith("s/") else 1 / rate
    if "rank" in got and not origin.known:
        origin = Origin(int(got["rank"]))
    resolution = 0.001
    if at is None and (told := told_time(text)) is not None and told.dated:
        at, resolution = told.seconds, told.resolution
    return StepLine(
        form,
        origin,
        label,
        int(got["step"]) if "step" in got else None,
        at,
        resolution,
        _clock(got["elapsed"]) if "elapsed" in got else None,
        seconds if seconds is not None and 0 < seconds < _LONGEST else None,
        _number(got, "loss"),
        int(got["total"]) if "total" in got else None,
        _number(got, "epoch"),
    )


_NO_DIGITS = dict.fromkeys(range(ord("0"), ord("9") + 1))


def _number(got: Mapping[str, str], name: str) -> float | None:
    return float(got[name]) if name in got else None


def _clock(text: str) -> float:
    """Seconds of `H:MM:SS` or `MM:SS`."""
    seconds = 0.0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part or 0)
    return seconds


# --- tracks ---------------------------------------------------------------------------------------------------------

#: Points of a track that are kept; above that, two neighbours become one.
MAX_POINTS = 4_096
#: Tracks of one worker.
MAX_TRACKS = 256
#: Steps are measured together until they have taken so many seconds, and so many times the clock's resolution.
_SHORTEST, _FINE = 0.05, 10
#: A step that takes so many seconds and so many times the usual time is a pause: perhaps a restart.
_PAUSE, _PAUSE_TIMES = 60.0, 20
#: Seconds that steps together take at most: more is a number of another kind.
_LONGEST = 1e8
#: Seconds without a line after which a smaller number is that of a restart, not of another process's line.
_GAP = 30.0
#: The share of an epoch's steps after which a smaller number begins the next epoch.
_ALMOST = 0.9


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Measured steps up to `number`, each of which took `seconds`.

    `first`: the first of them. `at`: the time of the line, seconds since the epoch (local time read as UTC if the log
    has no other), None if unknown. `border`: an epoch, or a run after a pause, begins with them.
    """

    number: int
    first: int
    at: float | None
    seconds: float
    loss: float | None = None
    border: bool = False

    @property
    def began(self) -> float | None:
        return None if self.at is None else self.at - min(_LONGEST, self.seconds * (self.number - self.first + 1))


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A slow phase: steps `first` to `last` (None: it goes on), from the time `start` on.

    `usual` and `now` are seconds for a step before and in it, and `factor` is their ratio. `seconds`: how long it
    lasted so far. Times are None if the log has none.
    """

    first: int
    last: int | None
    start: float | None
    end: float | None
    factor: float
    usual: float
    now: float
    seconds: float


@dataclass(slots=True)
class StepTrack:
    """The steps of one loop of one process. `points` are thinned out in long runs; slow phases are found before.

    `number`: the last step; `last`: the time of its line. `longest`: the longest time between two lines, `increment`:
    the steps between the last two.
    """

    origin: Origin = NOBODY
    loop: str = ""
    points: list[MeasuredStep] = field(default_factory=list)
    number: int | None = None
    total: int | None = None
    last: float | None = None
    longest: float = 0.0
    lines: int = 0
    increment: int = 1
    _raw: int = -1
    _offset: int = 0
    _epoch: float | None = None
    _anchor: tuple[int, float] | None = None
    _border: bool = False
    _paces: list[_Pace] = field(default_factory=list)

    @property
    def usual(self) -> float | None:
        """Seconds that a step usually takes; None before enough steps."""
        return self._paces[-1].usual if self._paces else None

    @property
    def ended(self) -> bool:
        """Whether its last step is the last one of the training, as far as its lines show it."""
        return self.total is not None and self._raw >= self.total - 1

    def take(self, line: StepLine) -> MeasuredStep | None:
        """Takes the next line; returns the steps that it completes a measurement of."""
        raw = line.number if line.number is not None else self._raw + 1
        clock = line.at if line.at is not None else line.elapsed
        border = self._go_on(raw, line)
        if border is None:
            return None
        self._border |= border
        number = raw + self._offset
        gap = None if line.at is None or self.last is None else line.at - self.last
        if self.lines and number > (self.number or 0):
            self.increment = number - (self.number or 0)
        self.lines += 1
        self.number, self._raw, self.total, self._epoch = number, raw, line.total, line.epoch
        if gap is not None and self.lines > 3:
            self.longest = max(self.longest, gap)
        self.last = line.at if line.at is not None else self.last
        return self._measure(number, clock, line)

    def put(self, step: MeasuredStep) -> None:
        """Takes a step that was measured before, by the track of a recorder."""
        if self.last is not None and step.at is not None and self.lines > 3:
            self.longest = max(self.longest, step.at - self.last)
        if self.number is None or step.number <= self.number:
            self._paces.append(_Pace())
        self.lines += 1
        self.increment = step.number - step.first + 1
        self.number = self._raw = step.number
        self.last = step.at
        self._add(step)

    def _go_on(self, raw: int, line: StepLine) -> bool | None:
        """Whether the line begins an epoch or a restart; None if it is a copy of an earlier one."""
        if not self.lines:
            self._paces.append(_Pace())
            return False
        later = line.epoch is not None and self._epoch is not None and line.epoch > self._epoch
        if line.number is None:
            if line.epoch is not None and self._epoch is not None and line.epoch < self._epoch:
                self._restart()
                return True
            return bool(later and line.epoch and self._epoch is not None and int(line.epoch) > int(self._epoch))
        if raw > self._raw:
            return later
        whole = line.total is not None and self._raw >= _ALMOST * line.total and raw < _ALMOST * self._raw
        if later or whole:
            self._offset += self._raw + (1 if raw == 0 else 0)
            return True
        silent = line.at is not None and self.last is not None and line.at - self.last > _GAP
        if raw == self._raw or (self._raw - raw <= 2 * self.increment and not silent):
            return None
        self._restart()
        return True

    def _restart(self) -> None:
        self._offset = 0
        self._anchor = None
        self._paces.append(_Pace())

    def _measure(self, number: int, clock: float | None, line: StepLine) -> MeasuredStep | None:
        before, began = self._anchor or (number - 1, None)
        if line.seconds is not None and (line.form.exact or clock is None):
            self._anchor = number, 0.0
            seconds = line.seconds
        elif clock is None:
            return None
        elif began is None or clock < began:
            self._anchor = number, clock
            return None
        else:
            span = clock - began
            resolution = line.resolution if line.at is not None else 1.0
            if number <= before or span < max(_SHORTEST, _FINE * resolution):
                return None
            self._anchor = number, clock
            seconds = span / (number - before)
        step = MeasuredStep(number, min(before + 1, number), line.at, seconds, line.loss, self._border)
        self._border = False
        self._add(step)
        return step

    def _add(self, step: MeasuredStep) -> None:
        pace = self._paces[-1]
        paused = pace.usual and step.seconds * (step.number - step.first + 1) > max(_PAUSE, _PAUSE_TIMES * pace.usual)
        if step.border or paused:
            pace.border()
        pace.feed(step, self.lines)
        self.points.append(step)
        if len(self.points) > MAX_POINTS:
            odd = [] if len(self.points) % 2 == 0 else [self.points[-1]]
            self.points = [joined(one, other) for one, other in zip(self.points[::2], self.points[1::2], strict=False)]
            self.points += odd

    @property
    def slow_since(self) -> int | None:
        """The first step of the slow phase that it is in, None if it is not slow. Costs nothing."""
        return self._paces[-1].slow_since if self._paces else None

    @property
    def slowdowns(self) -> list[Slowdown]:
        """Its slow phases, in order. The last one may go on."""
        return [slow for pace in self._paces for slow in pace.found()]

    @property
    def current_slowdown(self) -> Slowdown | None:
        """The slow phase that it is in, if its factor is worth a line."""
        found = self._paces[-1].found() if self.slow_since is not None else []
        return found[-1] if found and found[-1].last is None else None


def joined(one: MeasuredStep, other: MeasuredStep) -> MeasuredStep:
    """Both as one; of the last steps before a restart and the first ones behind it, the latter."""
    if other.first <= one.number:
        return other
    first, second = one.number - one.first + 1, other.number - other.first + 1
    seconds = (one.seconds * first + other.seconds * second) / (first + second)
    return MeasuredStep(other.number, one.first, other.at, seconds, other.loss, one.border or other.border)


@dataclass(frozen=True, slots=True)
class Standstill:
    """No step for `seconds`, where one usually takes `usual` seconds; the last one was `step`."""

    seconds: float
    usual: float
    step: int


#: A training stands still after so many seconds without a line, times the usual time between lines, and times the
#: longest time without a line before.
_STILL, _STILL_USUAL, _STILL_LONGEST = 120.0, 10, 2
_LEAST_LINES = 5


def standstill(track: StepTrack, now: float) -> Standstill | None:
    """Whether the training made no step for longer than ever before. `now`: seconds since the epoch."""
    if track.last is None or track.number is None or track.ended or track.lines < _LEAST_LINES or not track.points:
        return None
    usual = track.usual or median(point.seconds for point in track.points[-_WINDOW:])
    quiet = now - track.last
    if quiet <= max(_STILL, _STILL_USUAL * usual * track.increment, _STILL_LONGEST * track.longest):
        return None
    return Standstill(quiet, usual, track.number)


@dataclass(slots=True)
class Tracks:
    """The tracks of one worker's log."""

    found: dict[tuple[Origin, str], StepTrack] = field(default_factory=dict)

    def feed(self, line: bytes, at: float | None = None) -> list[tuple[StepTrack, MeasuredStep]]:
        """Takes one line; returns the steps that it completes a measurement of. `at` as for `read_steps`."""
        done = []
        for item in read_steps(line, at):
            loop = f"{item.form.id} {item.label}" if item.label else item.form.id
            if item.form.bar:  # that of an evaluation may have no text either
                loop = f"{loop} of {item.total}"
            track = self.found.get((item.origin, loop))
            if track is None:
                if len(self.found) >= MAX_TRACKS:
                    continue
                track = self.found[item.origin, loop] = StepTrack(item.origin, loop)
            if (step := track.take(item)) is not None:
                done.append((track, step))
        return done

    def main(self) -> list[StepTrack]:
        """For each process the loop that it spent most time in, ranks in order."""
        return main_tracks(self.found.values())


def last_step(tracks: Iterable[StepTrack]) -> tuple[int, float] | None:
    """Number and time of the last step, None without one whose time is known."""
    known = [(track.last, track.number) for track in tracks if track.last and track.number is not None]
    at, number = max(known, default=(0.0, 0))
    return (number, at) if known else None


def main_tracks(tracks: Iterable[StepTrack]) -> list[StepTrack]:
    """For each process the loop that it spent most time in, ranks in order."""
    best: dict[Origin, tuple[tuple[bool, float, int], StepTrack]] = {}
    for track in tracks:
        if not track.points:
            continue
        spent = sum(point.seconds * (point.number - point.first + 1) for point in track.points)
        # Two formats of one loop take the same time: the one with more lines shows more.
        weight = (len(track.points) >= _LEAST_LINES, float(f"{spent:.1g}"), len(track.points))
        if track.origin not in best or weight > best[track.origin][0]:
            best[track.origin] = weight, track
    return [best[origin][1] for origin in sorted(best, key=lambda o: (o.rank or -1, o.local_rank or -1, o.stream))]


# --- the pace -------------------------------------------------------------------------------------------------------

#: The factor from which a slow phase is one: a little less than 1.5, because of noise.
LISTED = 1.4
#: Numbers of points of which the mean is compared, each with the share of healthy points above the limit up to which
#: it is used: rare long steps also come in groups. Four of five of these points must be slow.
_SPANS = ((5, 0.03), (10, 0.12), (20, 1.0))
_SHORT, _LONG = _SPANS[0][0], _SPANS[-1][0]
#: The first points of a section that do not count, and the lines before which a change is a part of the warm-up; the
#: least points of a baseline, those that it is made of, and those of which the share of long steps is known.
_WARM, _EARLY, _BASE, _WINDOW, _MEMORY = 3, 20, 12, 60, 300
#: If more than three of ten steps take this much longer, it is the usual time.
_UPPER, _UPPER_SHARE = 1.25, 0.7
#: Points after a border that start no slowdown; less if epochs are short.
_GRACE, _GRACE_SHARE = 10, 4
#: How many times its own deviation a mean must be above the usual time.
_DEVIATIONS = 8
#: Points in which the begin of a slow phase is searched.
_TAIL = 64
#: Values of a phase that its mean is of: the last ones.
_PHASE = 100
#: A value above so many medians is a checkpoint, and not the pace.
_OUTLIER = 3.0
#: Short slow phases at equal distances belong to the training: how many, points of each, and how equal.
_PERIODS, _PERIOD_POINTS, _PERIOD_SLACK = 3, 30, 0.15


@dataclass(slots=True)
class _Phase:
    usual: float
    first: int
    start: float | None
    values: list[float]
    points: int
    last: int | None = None
    end: float | None = None

    def add(self, step: MeasuredStep) -> None:
        self.points += 1
        self.values.append(step.seconds)
        if len(self.values) > 2 * _PHASE:
            del self.values[:_PHASE]

    @property
    def level(self) -> float:
        return _level(self.values)


def _level(values: Sequence[float]) -> float:
    """The mean, without single long steps."""
    most = _OUTLIER * sorted(values)[len(values) // 2]
    kept = [value for value in values if value <= most]
    return sum(kept) / len(kept)


class _Pace:
    """The baseline and the slow phases of one section. Each step costs the same, however long the section is."""

    def __init__(self) -> None:
        self.usual: float | None = None
        self._seen = self._begin = 0
        self._grace = 0
        self._since_border = 0
        self._tail: deque[tuple[MeasuredStep, int, bool]] = deque(maxlen=_TAIL)
        self._healthy: deque[float] = deque()
        self._sorted: list[float] = []
        self._above: deque[bool] = deque(maxlen=_MEMORY)
        self._phases: list[_Phase] = []
        self._open: _Phase | None = None
        #: For each of `_SPANS`: the least factor of a mean, and of four of five points.
        self._limits: list[tuple[float, float]] = []

    @property
    def slow_since(self) -> int | None:
        return None if self._open is None else self._open.first

    def border(self) -> None:
        """The next points are the first ones of an epoch, or after a pause."""
        self._grace = min(_GRACE, self._since_border // _GRACE_SHARE)
        self._since_border = 0

    def feed(self, step: MeasuredStep, line: int) -> None:
        """Takes the next step, which ends at this line of the track."""
        self._seen += 1
        if self._seen == 1:
            self._begin = line
        self._since_border += 1
        if self._seen <= _WARM:
            return
        forgiven = self._grace > 0
        self._grace -= forgiven
        self._tail.append((step, line, forgiven))
        if self._open is not None:
            self._open.add(step)
        elif len(self._tail) > _SHORT:
            settled, _, early = self._tail[-_SHORT - 1]
            if not early:
                self._learn(settled.seconds)
        if self.usual is not None and not forgiven and len(self._sorted) >= _BASE:
            self._judge(self.usual)

    def _learn(self, seconds: float) -> None:
        self._healthy.append(seconds)
        insort(self._sorted, seconds)
        if len(self._healthy) > _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._healthy.popleft())]
        count = len(self._sorted)
        middle = self._sorted[count // 2]
        self.usual = max(middle, self._sorted[int(count * _UPPER_SHARE)] / _UPPER)
        spread = 1 - self._sorted[count // 6] / middle
        self._limits = []
        for span, _ in _SPANS:
            least = max(LISTED, 1 + _DEVIATIONS * spread / span**0.5)
            self._limits.append((least, 1 + (least - 1) * 0.6))
        self._above.append(seconds > self._limits[-1][1] * self.usual)

    def _judge(self, usual: float) -> None:
        long = sum(self._above) / len(self._above)
        values = [step.seconds for step, *_ in list(self._tail)[-_LONG:]]
        for (span, most), (least, each) in zip(_SPANS, self._limits, strict=True):
            if long > most or len(values) < span:
                continue
            if self._changed(usual, values[-span:], least, each):
                return

    def _changed(self, usual: float, recent: list[float], least: float, each: float) -> bool:
        level = usual
        if self._open is not None:
            before = self._open.values[: -len(recent)]
            if len(before) < 2:
                return False
            level = _level(before)
        ordered = sorted(recent)
        slow, fast = ordered[len(recent) // 5], ordered[-len(recent) // 5 - 1]
        now = _level(recent)
        if slow >= each * level and now >= least * level:
            return self._change(usual, level, now, least)
        if self._open is None:
            return False
        healthy = fast <= max(each, (level / usual) ** 0.5) * usual and now < least * usual
        if healthy or (fast <= level / each and now <= level / least):
            return self._change(usual, level, now, least)
        return False

    def _change(self, usual: float, level: float, now: float, least: float) -> bool:
        """The pace is another one than before: ends the open phase, and opens the next if it is slow."""
        middle = (level * now) ** 0.5
        steps = [step for step, *_ in self._tail]
        count = 1  # also if the last steps are on the other side
        for place, step in enumerate(reversed(steps)):
            if (step.seconds > middle) is (now > level):
                count = place + 1
            elif place > count + 1 or place >= _LONG:
                break
        if self._open is None and self._tail[-count][1] - self._begin < _EARLY:
            self._healthy.clear()
            self._sorted.clear()
            self._above.clear()
            self._tail.clear()
            return True
        if self._open is not None:
            count = min(count, self._open.points - 1)
            phase, self._open = self._open, None
            del phase.values[-count:]
            phase.points -= count
            before = steps[-count - 1] if count < len(steps) else steps[0]
            phase.last, phase.end = before.number, before.at
        if now >= least * usual:
            new = steps[-count:]
            values = [step.seconds for step in new]
            self._open = _Phase(usual, new[0].first, new[0].began, values, len(new))
            self._phases.append(self._open)
        return True

    def found(self) -> list[Slowdown]:
        """The slow phases, without those that are a part of the training's rhythm."""
        phases = [phase for phase in self._phases if phase.level >= LISTED * phase.usual]
        rhythm = _rhythm([phase for phase in phases if phase.last is not None and phase.points <= _PERIOD_POINTS])
        return [self._slowdown(phase) for phase in phases if phase.first not in rhythm]

    def _slowdown(self, phase: _Phase) -> Slowdown:
        level = phase.level
        end = phase.end if phase.last is not None else (self._tail[-1][0].at if self._tail else None)
        last = phase.last if phase.last is not None else self._tail[-1][0].number
        seconds = level * (last - phase.first + 1)
        if end is not None and phase.start is not None:
            seconds = max(seconds, end - phase.start)  # lines may come late, all at once
        return Slowdown(
            phase.first, phase.last, phase.start, phase.end, level / phase.usual, phase.usual, level, seconds
        )


def _rhythm(phases: Sequence[_Phase]) -> set[int]:
    """The first steps of phases at equal distances."""
    if len(phases) < _PERIODS:
        return set()
    gaps = [other.first - one.first for one, other in pairwise(phases)]
    usual = median(gaps)
    even = sum(abs(gap - usual) <= _PERIOD_SLACK * usual for gap in gaps)
    return {phase.first for phase in phases} if even >= max(_PERIODS - 1, 0.7 * len(gaps)) else set()
