"""Makes the times of different workers comparable, with the remaining uncertainty.

A node's stamp is UTC, a process's own time is local, and torch's has no year. If a worker's log has both, its time zone
is known; otherwise all workers are assumed to share one. Differing clocks are detected by lines that all workers print
in step: ranks that meet in a collective print the same step at the same moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from atlctl.diagnosis.evidence import WorkerEvidence
from atlctl.diagnosis.logline import Moment, When, dated_near

#: Zones are multiples of a quarter of an hour, up to 14 hours.
_QUARTER = 900
_FARTHEST = 14 * 3600
#: The middle of the year 2000: the reference if no line of any log has a year.
_UNDATED = 962_409_600.0
#: The least number of common lines to compare two clocks, and the most scatter of their differences in seconds.
_MIN_MARKS = 3
_SCATTER = 0.5
#: The most scatter of ranks that meet in a collective at each step.
_IN_STEP = 0.05
#: A smaller difference is one of the ranks, not of the clocks.
_NEGLIGIBLE = 0.1


class Clocks:
    """The clocks of a job's workers.

    `skew` is the seconds by which a worker is ahead of the first, if known; `loose` are workers with a rough skew,
    because ranks did not print in step. `adrift`: a worker's stamps are from another clock than its processes' times.
    """

    def __init__(self, workers: Sequence[WorkerEvidence]) -> None:
        self._zones = {item.worker: zone for item in workers if (zone := _zone(item)) is not None}
        told = (zone for item in workers if (zone := self._zones.get(item.worker)) is not None)
        self._common = next((zone for zone in told if zone % _QUARTER == 0), 0.0)
        self._reference = next((moment for item in workers if (moment := _dated(item))), _UNDATED)
        self.adrift = frozenset(item.worker for item in workers if item.log and item.log.adrift)
        self.skew, self.loose = _skews(workers)

    def when(self, worker: str, moment: Moment | None) -> When | None:
        """The comparable time of a worker's `moment`; None if there is none or the day does not exist."""
        if moment is None:
            return None
        seconds = moment.seconds if moment.dated else dated_near(moment.seconds, self._reference)
        if seconds is None:
            return None
        if not moment.absolute:
            seconds -= self._zones.get(worker, self._common)
        return When(seconds - self.skew.get(worker, 0.0), moment.resolution)

    def aligned(self, first: str, second: str) -> bool:
        """Whether the two workers' clocks were compared."""
        return first == second or (first in self.skew and second in self.skew)


def _zone(item: WorkerEvidence) -> float | None:
    if item.log and item.log.zone is not None:
        return item.log.zone
    times = {path.rpartition("/attempt_")[2]: record.time for path, record in item.error_files.items()}
    for summary in item.log.summaries if item.log else ():
        for entry in summary.entries:
            told = times.get((entry.error_file or "").rpartition("/attempt_")[2])
            if told is not None and entry.time is not None:
                zone = round((entry.time - told) / _QUARTER) * _QUARTER
                if abs(entry.time - told - zone) <= 2 and abs(zone) <= _FARTHEST:
                    return float(zone)
    return None


def _dated(item: WorkerEvidence) -> float | None:
    """Any time in the log that has a year."""
    for moment in [item.log.first, item.log.last] if item.log else []:
        if moment and moment.dated:
            return moment.seconds
    for summary in item.log.summaries if item.log else ():
        for entry in summary.entries:
            if entry.time is not None:
                return entry.time
    return None


def _skews(workers: Sequence[WorkerEvidence]) -> tuple[Mapping[str, float], frozenset[str]]:
    """The seconds by which each clock is ahead of the first comparable worker's, and the workers with a rough value."""
    marked = [(item.worker, item.log.marks) for item in workers if item.log and len(item.log.marks) >= _MIN_MARKS]
    if len(marked) < 2:
        return {}, frozenset()
    base_name, base = marked[0]
    skews = {base_name: 0.0}
    loose = set()
    for name, marks in marked[1:]:
        gaps = [marks[key] - base[key] for key in marks.keys() & base.keys()]
        if len(gaps) < _MIN_MARKS:
            continue
        middle = median(gaps)
        scatter = median(abs(gap - middle) for gap in gaps)
        if scatter <= _SCATTER:
            skews[name] = middle if abs(middle) >= _NEGLIGIBLE else 0.0
        if scatter > _IN_STEP:
            loose.add(name)
    return skews, frozenset(loose)
