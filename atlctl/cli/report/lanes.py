"""The timeline of a report: for each worker what its log and its platform say happened, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atlctl.diagnosis.clockskew import Clocks
from atlctl.diagnosis.evidence import WorkerEvidence
from atlctl.diagnosis.logline import When
from atlctl.diagnosis.platform import Event
from atlctl.diagnosis.result import Diagnosis, WorkerReport
from atlctl.diagnosis.telling.data import utc
from atlctl.diagnosis.telling.timeline import base_of, offset
from atlctl.diagnosis.telling.told import Manner
from atlctl.diagnosis.telling.who import in_short, what_of
from atlctl.diagnosis.torchelastic import NoteKind
from atlctl.jobs.naming import fold_names
from atlctl.recording.recorder.store import StateChange
from atlctl.render.page import Lane, LaneMark, Sort, Timeline

#: More lanes are folded where they are alike; more than this are not drawn.
FOLD_ABOVE = 64
MOST_LANES = 96
#: Marks of one lane that come from its platform, or from agents.
_MOST_MARKS = 24
_TEXT = 300
_PARTS: Mapping[str, Sort] = {"initiator": "failure", "victim": "victim", "ended": "ended", "agent": "agent"}
_NOTES: Mapping[NoteKind, Sort] = {NoteKind.RESTART: "restart", NoteKind.SIGNALLED: "signal"}
#: Of the span from the first failure to the last one, so much is shown before and behind; seconds at least.
_BEFORE, _BEHIND, _LEAST = 0.3, 0.2, 0.6


@dataclass(frozen=True, slots=True)
class Around:
    """What the platform tells of the time: changes of states, and events."""

    states: Sequence[StateChange]
    events: Sequence[Event]


def timeline(
    found: Diagnosis, workers: Sequence[WorkerEvidence], around: Around, manner: Manner, words: Mapping[str, str]
) -> Timeline | None:
    """None where no time is known at all."""
    clocks = Clocks(workers)
    base = base_of(found)
    drawn = [_lane(item, report, found, clocks, base, manner, words) for item, report in _pairs(workers, found)]
    lanes = _with_platform(drawn, around, base, words)
    times = [time for lane in lanes for time in _times(lane)]
    if not times:
        return None
    zero = base or When(min(times), 1.0)
    told = [
        time
        for lane in lanes
        for mark in lane.marks
        if mark.sort in ("root", "failure", "victim", "ended", "agent", "signal")
        for time in (mark.time, mark.until or mark.time)
        if base is None or time >= base.seconds - 1
    ]
    begin, end = (min(told), max(told)) if told else (min(times), max(times))
    span = max(end - begin, _LEAST)
    notes = []
    unknown = [item.worker for item in found.workers if item.skew is None and item.part != "no log"]
    if unknown and len(found.workers) > 1:
        notes.append(words["clocks unknown"].format(names=fold_names(unknown)))
    count = len(lanes)
    if count > FOLD_ABOVE:
        lanes = _folded(lanes, words)
        notes.append(words["lanes folded"].format(count=count, lanes=len(lanes)))
    if len(lanes) > MOST_LANES:
        notes.append(words["lanes left out"].format(count=len(lanes) - MOST_LANES))
        lanes = lanes[:MOST_LANES]
    return Timeline(
        zero.seconds,
        (utc(base) if base else utc(zero)) or "",
        min(times),
        max(times),
        (begin - _BEFORE * span, end + _BEHIND * span),
        [_Keyed.lane_of(lane) for lane in lanes],
        notes,
    )


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A lane, and what it has in common with those alike."""

    name: str
    begin: float | None
    end: float | None
    marks: tuple[LaneMark, ...]
    culprit: bool
    alike: str
    note: str = ""

    def lane_of(self) -> Lane:
        return Lane(self.name, self.begin, self.end, self.marks, self.note, self.culprit)


def _pairs(workers: Sequence[WorkerEvidence], found: Diagnosis) -> list[tuple[WorkerEvidence, WorkerReport | None]]:
    reports = {report.worker: report for report in found.workers}
    return [(item, reports.get(item.worker)) for item in workers]


def _lane(
    item: WorkerEvidence,
    report: WorkerReport | None,
    found: Diagnosis,
    clocks: Clocks,
    base: When | None,
    manner: Manner,
    words: Mapping[str, str],
) -> _Keyed:
    log = item.log
    begin = clocks.when(item.worker, log.first) if log else None
    end = clocks.when(item.worker, log.last) if log else None
    marks: list[LaneMark] = []

    def mark(sort: Sort, when: When | None, text: str) -> None:
        if when is not None:
            told = " ".join(part for part in (utc(when), f"({offset(when, base)})" if base else None) if part)
            marks.append(
                LaneMark(sort, when.seconds, f"{item.worker}: {words[f'mark {sort}']}, {told}: {text[:_TEXT]}")
            )

    causes = [cause for cause in found.root_causes if cause.worker == item.worker]
    for cause in causes:
        mark("root", cause.time or (report.first if report else None) or end, what_of(cause, manner))
    alike = ""
    if report is not None:
        alike = report.part
        if not causes and report.part in _PARTS:
            mark(_PARTS[report.part], report.first, in_short(report.said, manner))
    for cause in found.earlier:
        if cause.worker == item.worker:
            mark("earlier", cause.time, what_of(cause, manner))
    if log is not None:
        notes = [note for note in log.notes if note.kind in _NOTES][-_MOST_MARKS:]
        for note in notes:
            mark(_NOTES[note.kind], clocks.when(item.worker, log.moments.get(note.line_no)), note.text.strip())
        starts = [note for note in log.notes if note.kind is NoteKind.STARTED][1:][-_MOST_MARKS:]
        for note in starts:
            mark("restart", clocks.when(item.worker, log.moments.get(note.line_no)), note.text.strip())
    return _Keyed(
        item.worker, begin.seconds if begin else None, end.seconds if end else None, tuple(marks), bool(causes), alike
    )


def _with_platform(
    lanes: Sequence[_Keyed], around: Around, base: When | None, words: Mapping[str, str]
) -> list[_Keyed]:
    """The lanes with changes of states and events, culprits first, then as they failed."""
    more: dict[str, list[LaneMark]] = {}

    def add(worker: str, sort: Sort, time: float, text: str) -> None:
        when = When(time, 1.0)
        told = f"{utc(when) or ''}{f' ({offset(when, base)})' if base else ''}"
        more.setdefault(worker, []).append(
            LaneMark(sort, time, f"{worker}: {words[f'mark {sort}']}, {told}: {text[:_TEXT]}")
        )

    for change in around.states:
        reason = f" ({change.reason})" if change.reason else ""
        add(change.worker, "state", change.time, f"{change.state}{reason}")
    for event in around.events:
        if event.worker is not None and event.time is not None:
            add(event.worker, "event", event.time, f"{event.reason}: {event.message}")
    made = [replace(lane, marks=(*lane.marks, *more.get(lane.name, [])[-_MOST_MARKS:])) for lane in lanes]

    def order(at: int) -> tuple[bool, float, int]:
        own = [mark.time for mark in made[at].marks if mark.sort not in ("state", "event", "restart", "earlier")]
        return (not made[at].culprit, min(own, default=float("inf")), at)

    return [made[at] for at in sorted(range(len(made)), key=order)]


def _times(lane: _Keyed) -> list[float]:
    ends = [time for time in (lane.begin, lane.end) if time is not None]
    return [*ends, *(mark.time for mark in lane.marks)]


def _folded(lanes: Sequence[_Keyed], words: Mapping[str, str]) -> list[_Keyed]:
    """Those alike as one lane: the same part, and the same sorts of marks. Culprits stand alone."""
    groups: dict[tuple[str, ...], list[_Keyed]] = {}
    for lane in lanes:
        sorts = sorted({mark.sort for mark in lane.marks})
        groups.setdefault((lane.name,) if lane.culprit else ("", lane.alike, *sorts), []).append(lane)
    return [group[0] if len(group) == 1 else _one_of(group, words) for group in groups.values()]


def _one_of(group: Sequence[_Keyed], words: Mapping[str, str]) -> _Keyed:
    names = fold_names(lane.name for lane in group)
    marks = []
    by_sort: dict[Sort, list[LaneMark]] = {}
    for mark in (mark for lane in group for mark in lane.marks):
        by_sort.setdefault(mark.sort, []).append(mark)
    for sort, alike in by_sort.items():
        first = min(alike, key=lambda mark: mark.time)
        told = words["mark folded"].format(count=len(alike), told=first.told)
        marks.append(LaneMark(sort, first.time, told, max(mark.time for mark in alike)))
    begins = [lane.begin for lane in group if lane.begin is not None]
    ends = [lane.end for lane in group if lane.end is not None]
    note = words["lane count"].format(count=len(group))
    return _Keyed(names, min(begins, default=None), max(ends, default=None), tuple(marks), False, group[0].alike, note)
