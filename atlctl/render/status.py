"""The status line at the bottom of a terminal: the current wait of a command.

    ⠹ reading the logs of train-7  [████░░░░] 12/24  3s

`Writer.show` draws it and takes it away; here is its text. Without rich, which would cost a start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from atlctl.i18n import Message, language, translated
from atlctl.render.palette import Tone, painted
from atlctl.render.sanitize import clean
from atlctl.render.table import human_age, human_bytes
from atlctl.render.width import cut, display_width

_SPINNER, _BAR = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "█░"
_ASCII_SPINNER, _ASCII_BAR = "|/-\\", "#-"
_BAR_CELLS = 12
#: Cells that what is waited for keeps: the bar is left out first, then the other figures.
_TEXT = 24
#: Seconds for which a text that is computed is used again, and over which a rate is measured.
_FRESH, _WINDOW = 0.5, 5.0
_GAP = "  "

_AT_MOST = Message("{time} of {limit} at most")
_WORKING = Message("working")

Text = str | Callable[[], str]


@dataclass(slots=True, eq=False)
class Wait:
    """The current wait. Callables are called in another thread, a few times a second.

    `total`: how much there is to be `done`, for a bar; `size`: in bytes, for a rate. `limit`: seconds, at most.
    """

    what: Text
    done: Callable[[], float] | None = None
    total: float | None = None
    size: bool = False
    limit: float | None = None
    begun: float = field(default_factory=time.monotonic)
    _looked: float = float("-inf")
    _said: str = ""
    _reached: float = 0.0
    _marks: list[tuple[float, float]] = field(default_factory=list)

    def text(self, now: float) -> str:
        """The text, safe to show; recomputed with the progress at most every few refreshes."""
        if now - self._looked >= _FRESH:
            self._looked = now
            self._said = clean(translated(self.what if isinstance(self.what, str) else self.what()))
            self._reached = self.done() if self.done is not None else 0.0
        return self._said

    @property
    def part(self) -> float | None:
        """How much of the total was done at the last look, from 0 to 1; None if that is not known."""
        return None if self.done is None or not self.total else min(1.0, max(0.0, self._reached / self.total))

    def figures(self, now: float) -> list[str]:
        """The figures after the bar: amount, rate, elapsed time."""
        found, done = [], self._reached
        if self.done is not None:
            if self.size:
                of = "" if self.total is None else f"/{human_bytes(self.total)}"
                found += [human_bytes(done) + of, f"{human_bytes(self._rate(now, done))}/s"]
            else:
                found.append(f"{done:.0f}" if self.total is None else f"{done:.0f}/{self.total:.0f}")
        spent = human_age(now - self.begun)
        found.append(
            spent if self.limit is None else translated(_AT_MOST.filled(time=spent, limit=human_age(self.limit)))
        )
        return found

    def _rate(self, now: float, done: float) -> float:
        marks = self._marks
        marks.append((now, done))
        while len(marks) > 2 and now - marks[1][0] > _WINDOW:
            del marks[0]
        at, before = marks[0] if len(marks) > 1 else (self.begun, 0.0)
        return max(0.0, done - before) / max(now - at, 0.001)


class StatusLine:
    """The steps that a command is in, the innermost last; `line` shows that one."""

    def __init__(self, color: bool, env: Mapping[str, str]) -> None:
        said = next((env[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if env.get(name)), "")
        plain = said in ("C", "POSIX")
        self._color = color
        self._spinner, self._bar = (_ASCII_SPINNER, _ASCII_BAR) if plain else (_SPINNER, _BAR)
        # Terminals of Chinese, Japanese and Korean may draw these characters two cells wide (UAX #11: ambiguous).
        self._bar_room = 1 if plain or language(env) == "en" else 2
        self._steps = [Wait(_WORKING)]
        self._idle_since = time.monotonic()
        self._frame = 0

    @contextmanager
    def doing(self, step: Wait) -> Iterator[None]:
        """Shows `step` while the block runs."""
        self._steps.append(step)
        try:
            yield
        finally:
            self._steps.remove(step)
            self._idle_since = time.monotonic()

    def line(self, columns: int) -> bytes:
        """Narrower than `columns`, so that no terminal begins another line for it. Empty for a moment between steps:
        as a rule the command is about to end."""
        step, now, room = self._steps[-1], time.monotonic(), columns - 1
        if step.what is _WORKING and now - self._idle_since < _FRESH:
            return b""
        spinner = self._spinner[self._frame % len(self._spinner)]
        self._frame += 1
        text, figures, bar = step.text(now), step.figures(now), self._bar_of(step)
        room -= 2
        tail = _GAP.join(figures)
        wide = display_width(tail) + len(_GAP)
        spare = room - wide - max(min(display_width(text), _TEXT), 1)
        if spare < 0:
            text, tail = cut(text, max(room, 0)), ""
        else:
            needed = len(_GAP) + len(bar) * self._bar_room
            tail = painted(tail, Tone.DIM, self._color)
            if bar and room - wide - needed >= min(display_width(text), _TEXT):
                tail, wide = f"{painted(bar, Tone.ACTIVE, self._color)} {tail}", wide + needed
            text = cut(text, room - wide)
        shown = f"{painted(spinner, Tone.ACTIVE, self._color)} {text}"
        return (f"{shown}{_GAP}{tail}" if tail else shown if room > 0 else "").encode()

    def _bar_of(self, step: Wait) -> str:
        part = step.part
        if part is None:
            return ""
        full = round(_BAR_CELLS * part)
        return self._bar[0] * full + self._bar[1] * (_BAR_CELLS - full)
