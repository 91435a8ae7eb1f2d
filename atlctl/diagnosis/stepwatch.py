"""Watches the lines of a running job for training steps, and notices when the training becomes slow."""

from __future__ import annotations

import time as clocks
from typing import Any

from atlctl.diagnosis.logline import When, split_stamp
from atlctl.diagnosis.steps import MeasuredStep, Slowdown, StepTrack, Tracks, joined, step_sieve
from atlctl.i18n import Message

#: Lines with steps that are read in a second, and at most at once.
_RATE, _MOST = 300.0, 600.0
#: A slow phase is worth a warning from this factor on if it lasts so many seconds: twice as slow, less some noise.
WARNED, WARNED_SECONDS = 1.9, 10.0
#: A phase that is so many times slower than the one that was warned of is another one.
_WORSE = 1.5
#: Seconds after which a worker that prints no steps any more does not count as slow.
_FORGOTTEN = 600.0
#: Seconds between two entries of one loop.
_APART = 1.0


def seconds_text(seconds: float) -> str:
    """A duration of steps, in the unit that fits."""
    value, unit = (seconds * 1000, "ms") if seconds < 0.9995 else (seconds, "s")
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"


def slow_text(slow: Slowdown) -> Message:
    """A slow phase as a sentence."""
    from atlctl.diagnosis.telling.data import utc  # a wrapper of `run` is small as long as nothing is slow

    about = {
        "factor": slow.factor,
        "first": slow.first,
        "now": seconds_text(slow.now),
        "usual": seconds_text(slow.usual),
    }
    if slow.last is not None:
        return Message(
            "training was {factor:.1f} times slower from step {first} to {last}: {now} a step instead of {usual}",
            last=slow.last,
            **about,
        )
    since = None if slow.start is None else utc(When(slow.start, 1.0))
    if since is None:
        return Message(
            "training is {factor:.1f} times slower from step {first} on: {now} a step instead of {usual}", **about
        )
    return Message(
        "training is {factor:.1f} times slower since {time}, from step {first} on: {now} a step instead of {usual}",
        time=since,
        **about,
    )


class LogPace:
    """Bounds how many lines are looked at in a second, by the lines' own clock: old lines may come in at any speed."""

    def __init__(self) -> None:
        self._left = _MOST
        self._at: float | None = None

    def allows(self, now: float) -> bool:
        if self._at is None or now > self._at:
            self._left = min(_MOST, self._left + _RATE * (0.0 if self._at is None else now - self._at))
            self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class StepWatch:
    """Takes the lines of a job's workers as they come, and notices when the training becomes slow."""

    def __init__(self) -> None:
        self.workers: dict[str, Tracks] = {}
        self._paces: dict[str, LogPace] = {}
        self._all = LogPace()
        #: By worker and track: the phase that was warned of, its factor and its time.
        self._judged: dict[tuple[str, int], tuple[int, float, float]] = {}
        #: The steps that wait for their second to be over, and the time of the last entry, by the log's and by this
        #: machine's clock.
        self._held: dict[tuple[str, int], tuple[StepTrack, MeasuredStep | None, float, float]] = {}
        self._fresh: list[dict[str, Any]] = []
        self._warned: list[tuple[StepTrack, int]] = []

    def feed(self, worker: str, line: bytes, time: float | None = None) -> Slowdown | None:
        """Takes one line; returns a slow phase that is worth a warning, once for the job.

        `time` in seconds since the epoch; by default that in the line.
        """
        if not step_sieve()(line):
            return None
        if time is None:
            stamp, line = split_stamp(line)
            time = None if stamp is None else stamp.seconds
        now = clocks.time() if time is None else time
        if not self._paces.setdefault(worker, LogPace()).allows(now) or not self._all.allows(now):
            return None
        found = None
        for track, step in self.workers.setdefault(worker, Tracks()).feed(line, time):
            self._keep(worker, track, step)
            found = self._judge(worker, track) or found
        return found

    def fresh(self) -> list[dict[str, Any]]:
        """The entries of `steps.jsonl` since the last call, without those that wait for their second to be over."""
        self._let_go(_APART)
        fresh, self._fresh = self._fresh, []
        return fresh

    def rest(self) -> list[dict[str, Any]]:
        """The same at the end, with all entries."""
        self._let_go(0.0)
        return self.fresh()

    def _let_go(self, seconds: float) -> None:
        """Makes entries of the steps that have waited for so long."""
        now = clocks.monotonic()
        for key, (track, held, written, since) in self._held.items():
            if held is not None and now - since >= seconds:
                self._fresh.append(step_entry(key[0], track, held))
                self._held[key] = track, None, written, now

    def _keep(self, worker: str, track: StepTrack, step: MeasuredStep) -> None:
        now = clocks.time() if step.at is None else step.at
        key = worker, id(track)
        _, held, written, since = self._held.get(key, (track, None, -1.0, 0.0))
        if held is not None and step.first > held.number:
            step = joined(held, step)
        elif held is not None:  # a restart
            self._fresh.append(step_entry(worker, track, held))
        wait = 0 <= now - written < _APART
        if not wait:
            self._fresh.append(step_entry(worker, track, step))
        if wait:
            self._held[key] = track, step, written, since
        else:
            self._held[key] = track, None, now, clocks.monotonic()

    def _judge(self, worker: str, track: StepTrack) -> Slowdown | None:
        key = worker, id(track)
        since = track.slow_since
        if since is None:
            self._judged.pop(key, None)
            return None
        known = self._judged.get(key)
        if known is not None and known[0] == since:
            return None
        slow = track.current_slowdown
        if slow is None or slow.factor < WARNED or slow.seconds < WARNED_SECONDS:
            return None
        at = track.last or 0.0
        before = max((factor for _, factor, last in self._judged.values() if at - last < _FORGOTTEN), default=0.0)
        self._judged[key] = since, slow.factor, at
        if slow.factor < _WORSE * before:
            return None
        self._warned.append((track, since))
        return slow

    def warned(self) -> list[Slowdown]:
        """The slow phases that `feed` has returned, as they are now."""
        return [slow for track, first in self._warned for slow in track.slowdowns if slow.first == first]


def step_entry(worker: str, track: StepTrack, step: MeasuredStep) -> dict[str, Any]:
    known = {
        "worker": worker,
        "loop": track.loop,
        "rank": track.origin.rank,
        "local_rank": track.origin.local_rank,
        "step": step.number,
        "first": step.first,
        "time": None if step.at is None else round(step.at, 3),
        "seconds": float(f"{step.seconds:.5g}"),
        "loss": step.loss,
        "border": step.border or None,
    }
    return {name: value for name, value in known.items() if value is not None}
