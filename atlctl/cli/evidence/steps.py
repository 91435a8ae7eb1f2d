"""Training steps of a job, shown: when it became slow, and whether it stands still."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from atlctl.diagnosis.logline import When
from atlctl.diagnosis.steps import Slowdown, Standstill, StepTrack, Tracks, standstill
from atlctl.diagnosis.stepwatch import seconds_text, slow_text
from atlctl.diagnosis.telling.data import utc
from atlctl.i18n import LIST, Message, joined
from atlctl.jobs.naming import fold_names
from atlctl.render.table import Column, Table

if TYPE_CHECKING:
    from atlctl.diagnosis.telling.guide import Manner
    from atlctl.render.page import StepChart


#: Curves of a report and points of each; points that are worth one; texts on slow phases beside it.
_MOST_CURVES, _MOST_POINTS, _LEAST_POINTS, _MOST_TOLD = 24, 400, 5, 3
#: How many times the usual time fits into a curve at least.
_ROOM = 3.0


@dataclass(frozen=True, slots=True)
class SlowWhen:
    """When a training was slow: a table for people, and the same for JSON. `slow`: whether it was."""

    table: Table
    data: Sequence[Mapping[str, Any]]
    slow: bool


def when_of(workers: Mapping[str, Sequence[StepTrack]]) -> SlowWhen:
    """The slow phases of all workers' tracks. Workers with the same ones share their rows."""
    alike: dict[tuple[object, ...], list[tuple[str, StepTrack]]] = {}
    data = []
    for worker, tracks in workers.items():
        for track in tracks:
            found = track.slowdowns
            phases = tuple((slow.first, slow.last, round(slow.factor, 1)) for slow in found)
            alike.setdefault((track.origin.rank is None, *phases), []).append((worker, track))
            data.append({"worker": worker, **track_data(track, found)})
    ranked = any(track.origin.known for _, track in (item for group in alike.values() for item in group))
    columns = [
        Column(Message("WORKER")),
        *([Column(Message("RANKS"), "right")] if ranked else []),
        Column(Message("STEPS"), "right", spare=3),
        Column(Message("USUAL"), "right"),
        Column(Message("SLOW FROM"), "right"),
        Column(Message("TO"), "right"),
        Column(Message("SINCE"), spare=1),
        Column(Message("NOW"), "right", spare=2),
        Column(Message("FACTOR"), "right"),
    ]
    rows = [row for group in alike.values() for row in _rows(group, ranked=ranked)]
    return SlowWhen(Table(columns, rows), data, any(item["slowdowns"] for item in data))


def _rows(group: Sequence[tuple[str, StepTrack]], *, ranked: bool) -> list[list[str]]:
    names = fold_names(dict.fromkeys(worker for worker, _ in group))
    ranks = [str(item.rank if item.rank is not None else item.local_rank) for _, t in group if (item := t.origin).known]
    usual = [track.usual for _, track in group if track.usual is not None]
    head = [
        names,
        *([fold_names(ranks) if ranks else "-"] if ranked else []),
        str(max(track.number or 0 for _, track in group)),
        seconds_text(median(usual)) if usual else "-",
    ]
    phases = group[0][1].slowdowns
    if not phases:
        return [[*head, "-", "-", "-", "-", "-"]]
    blank = [""] * len(head)
    return [[*(blank if place else head), *_phase(slow)] for place, slow in enumerate(phases)]


def _phase(slow: Slowdown) -> list[str]:
    return [
        str(slow.first),
        "-" if slow.last is None else str(slow.last),
        _utc(slow.start) or "-",
        seconds_text(slow.now),
        f"{slow.factor:.2f}",
    ]


def _utc(moment: float | None) -> str | None:
    return None if moment is None else utc(When(moment, 1.0))


def track_data(track: StepTrack, found: Sequence[Slowdown]) -> dict[str, Any]:
    """A track with its slow phases, for JSON. Times are RFC 3339, durations seconds."""
    return {
        "rank": track.origin.rank,
        "local_rank": track.origin.local_rank,
        "loop": track.loop,
        "step": track.number,
        "time": _utc(track.last),
        "usual_seconds": track.usual,
        "slowdowns": [
            {
                "first_step": slow.first,
                "last_step": slow.last,
                "start": _utc(slow.start),
                "end": _utc(slow.end),
                "factor": round(slow.factor, 3),
                "usual_seconds": slow.usual,
                "seconds": slow.now,
            }
            for slow in found
        ],
    }


def steps_chart(
    workers: Mapping[str, Sequence[StepTrack]], manner: Manner, words: Mapping[str, str]
) -> StepChart | None:
    """The curve of each track, slow ones first; None without enough steps. `words` are those of a report's page."""
    from atlctl.render.page import StepChart, StepCurve

    found = [
        (name, track) for name, tracks in workers.items() for track in tracks if len(track.points) >= _LEAST_POINTS
    ]
    found.sort(key=lambda item: -max((slow.factor for slow in item[1].slowdowns), default=0.0))
    if not found:
        return None
    timed = all(point.at is not None for _, track in found for point in track.points)
    curves = []
    for name, track in found[:_MOST_CURVES]:
        slow = track.slowdowns
        told = [manner.word(slow_text(one)) for one in slow]
        usual = track.usual or median(point.seconds for point in track.points)
        said = [words["steps usual"].format(usual=seconds_text(usual)), *told[:_MOST_TOLD]]
        rank = next((rank for rank in (track.origin.rank, track.origin.local_rank) if rank is not None), None)
        curves.append(
            StepCurve(
                name if rank is None else f"{name}, rank {rank}",
                _curve(track, timed=timed),
                max(_ROOM * usual, *(1.2 * one.now for one in slow), 0.0),
                [
                    (one.start if timed and one.start else float(one.first), text)
                    for one, text in zip(slow, told, strict=True)
                ],
                manner.word(joined(said, LIST)),
            )
        )
    return StepChart(curves, words["steps over time" if timed else "steps over steps"])


def _curve(track: StepTrack, *, timed: bool) -> list[tuple[float, float]]:
    """At most `_MOST_POINTS` points, each the mean of its neighbours."""
    size = -(-len(track.points) // _MOST_POINTS)
    parts = [track.points[at : at + size] for at in range(0, len(track.points), size)]
    return [
        (part[-1].at if timed and part[-1].at else float(part[-1].number), sum(one.seconds for one in part) / len(part))
        for part in parts
    ]


def still_of(latest: Mapping[str, Iterable[tuple[bytes, float]]], now: float) -> Standstill | None:
    """Whether no worker makes a step any more, by the last lines of their logs; the latest of their last steps."""
    found = []
    for lines in latest.values():
        tracks = Tracks()
        for line, at in lines:
            tracks.feed(line, at)
        found += [standstill(track, now) for track in tracks.main()]
    if not found or not all(found):
        return None
    return min((item for item in found if item is not None), key=lambda item: item.seconds)


def still_text(still: Standstill) -> Message:
    return Message(
        "no training step for {minutes:.0f} min (step {step} was the last one; the usual step takes {usual})",
        minutes=still.seconds / 60,
        step=still.step,
        usual=seconds_text(still.usual),
    )


def still_data(still: Standstill | None) -> dict[str, Any] | None:
    return None if still is None else {"step": still.step, "seconds": still.seconds, "usual_seconds": still.usual}
