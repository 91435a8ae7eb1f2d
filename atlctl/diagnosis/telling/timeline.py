"""Below the panel: consequences, a line for each worker, earlier rounds, remarks; and which ranks wait since when."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atlctl.diagnosis.clockskew import Clocks
from atlctl.diagnosis.consequence import Sort, consequence_of
from atlctl.diagnosis.evidence import WorkerEvidence
from atlctl.diagnosis.flightrecorder import DEFAULT_GROUP
from atlctl.diagnosis.logfacts import Says
from atlctl.diagnosis.logline import Moment, When
from atlctl.diagnosis.result import Cause, Diagnosis, Followed, Verdict, WorkerReport
from atlctl.diagnosis.telling.data import utc
from atlctl.diagnosis.telling.told import Line, Manner, Section, Tone
from atlctl.diagnosis.telling.who import crowd, in_short, name_of, what_of, workers_of
from atlctl.i18n import COMMA, Message, joined

if TYPE_CHECKING:
    from atlctl.diagnosis.hang import Scene

#: Lines without -v.
MAX_FOLLOWED = 10
MAX_WORKERS = 12
MAX_EARLIER = 3
#: Of several lines with one remark each: the most that is shown of it on a screen.
_FOLD_FOLLOWED = 2

#: The parts that workers play, the most telling first, and the words that count them.
_OTHERS = Message("{count} others")
_PARTS = {
    "no log": Message("{count} without a log"),
    "silent": Message("{count} whose logs just end"),
    "initiator": Message("{count} failed of their own"),
    "agent": Message("{count} where torchrun itself ended"),
    "ended": Message("{count} ended by their agents"),
    "victim": Message("{count} only lost a peer"),
}


def listings(diagnosis: Diagnosis, manner: Manner) -> tuple[Section, ...]:
    """The lists that have something in them."""
    base = base_of(diagnosis)
    found = [
        _followed(diagnosis.cascade, base, manner),
        _workers(diagnosis, base, manner),
        _earlier(diagnosis.earlier, base, manner),
        Section(Message("remarks"), tuple(Line((text,)) for text in diagnosis.remarks)),
    ]
    return tuple(listing for listing in found if listing.lines)


def offset(when: When | None, base: When | None) -> str:
    """How long after `base`: `+1.4 s`. Clocks that tell whole seconds give no fraction. `-` where it is not known."""
    if when is None or base is None:
        return "-"
    seconds = _apart(when, base)
    size = abs(seconds)
    if size >= 7200:
        return f"{seconds / 3600:+.1f} h"
    if size >= 600:
        return f"{seconds / 60:+.0f} min"
    if max(when.resolution, base.resolution) >= 1:
        return f"{seconds:+.0f} s"
    # No minus in front of nothing.
    return f"{seconds if size >= 0.05 else 0.0:+.1f} s"


def _apart(when: When, base: When) -> float:
    """Seconds from `base` to `when`; 0 where their clocks do not tell which was first."""
    seconds = when.seconds - base.seconds
    step = max(when.resolution, base.resolution)
    if step < 1:
        return seconds
    return 0.0 if abs(seconds) < step else float(int(seconds))


def base_of(diagnosis: Diagnosis) -> When | None:
    """The moment that counts as 0: the root cause's time, else the first failure's."""
    causes = [cause.time for cause in diagnosis.root_causes if cause.time is not None]
    if causes:
        return min(causes, key=lambda when: when.seconds)
    if diagnosis.verdict is Verdict.NONE:
        return None
    told = [
        item.first for item in diagnosis.workers if item.first is not None and item.part not in ("silent", "no log")
    ]
    return min(told, key=lambda when: when.seconds, default=None)


def _followed(groups: Sequence[Followed], base: When | None, manner: Manner) -> Section:
    limit = len(groups) if manner.verbose or len(groups) <= MAX_FOLLOWED else MAX_FOLLOWED - 1
    lines = []
    for group in groups[:limit]:
        # Of some processes only the worker may be known.
        who = crowd(group.workers, group.ranks if len(group.ranks) == group.count else (), manner)
        text = Message("{count}x {reason} ({who})", count=group.count, reason=group.reason, who=who)
        lines.append(Line((offset(group.first, base), text)))
        if manner.verbose and group.proof is not None:
            lines.append(Line(("", f"{manner.place(group.proof)}: {group.proof.text.strip()}"), "faint"))
    if len(groups) > limit:
        count = sum(group.count for group in groups[limit:])
        lines.append(Line(("", Message("and {count} more: -v", count=count)), "faint"))
    return Section(Message("followed"), tuple(lines), manner.fold(_FOLD_FOLLOWED))


def _workers(diagnosis: Diagnosis, base: When | None, manner: Manner) -> Section:
    none = diagnosis.verdict is Verdict.NONE
    label, fold = _heading(diagnosis, base), manner.fold(1)
    if not manner.verbose and (diagnosis.earlier if none else len(diagnosis.workers) == 1):
        return Section(label, ())  # the rest has said it
    blamed = {cause.worker: cause for cause in reversed(diagnosis.root_causes) if cause.worker is not None}
    order = {part: place for place, part in enumerate(_PARTS)}

    def interest(group: Sequence[WorkerReport]) -> tuple[bool, int, float, int]:
        item = group[0]
        return (item.worker not in blamed, order.get(item.part, len(order)), _place(item, blamed, base), item.index)

    def order_of(group: Sequence[WorkerReport]) -> tuple[float, bool, int]:
        item = group[0]
        return (_place(item, blamed, base), item.worker not in blamed, item.index)

    items = sorted(diagnosis.workers, key=lambda item: order_of([item]))
    many = len(items) > MAX_WORKERS and not manner.verbose
    groups = _alike(items, blamed, manner) if many else [[item] for item in items]
    ranked = sorted(groups, key=interest)
    limit = MAX_WORKERS - 1 if many and len(ranked) > MAX_WORKERS else len(ranked)
    shown = sorted(ranked[:limit], key=order_of)
    lines = []
    for group in shown:
        item = group[0]
        cause = blamed.get(item.worker)
        when = cause.time if cause and cause.time else item.first
        moment = (utc(when) or "-") if none else offset(when, base)
        tone: Tone = "culprit" if cause else "plain"
        names = workers_of([item.worker for item in group], manner) if len(group) > 1 else item.worker
        lines.append(Line((moment, names, _said(item, cause, manner)), tone))
    if len(ranked) > limit:
        lines.append(Line(("", "", _rest([item for group in ranked[limit:] for item in group])), "faint"))
    return Section(label, tuple(lines), fold)


def _alike(items: Sequence[WorkerReport], blamed: dict[str, Cause], manner: Manner) -> list[list[WorkerReport]]:
    """Workers that say the same, the first of them in front; culprits stand alone."""
    groups: dict[tuple[str, str], list[WorkerReport]] = {}
    for item in items:
        cause = blamed.get(item.worker)
        said = _said(item, cause, manner)
        groups.setdefault((item.worker if cause else item.part, said), []).append(item)
    return list(groups.values())


def _place(item: WorkerReport, blamed: dict[str, Cause], base: When | None) -> float:
    cause = blamed.get(item.worker)
    when = cause.time if cause and cause.time else item.first
    if when is None:
        return 0.0 if cause else float("inf")
    return when.seconds if base is None else _apart(when, base)


def _heading(diagnosis: Diagnosis, base: When | None) -> str:
    told = any(cause.time is not None for cause in diagnosis.root_causes)
    if told or base is None or (time := utc(base)) is None:
        return Message("workers")
    return Message("workers (+0.0 s is {time})", time=time)


def _said(item: WorkerReport, cause: Cause | None, manner: Manner) -> str:
    if cause is not None:
        text = what_of(cause, manner)
    elif item.part == "no log":
        text = Message("no log")
    elif item.part == "silent":
        line = item.said.strip()
        text = Message("last line: {line}", line=line) if line else Message("its log is empty")
    elif item.part == "agent":
        text = Message("torchrun: {said}", said=_short(item, manner))
    else:
        text = _short(item, manner)
    numbers = _numbers(item, manner) if manner.verbose else ""
    return joined((text, " (", numbers, ")"), "") if numbers else text


def _short(item: WorkerReport, manner: Manner) -> str:
    """What a victim says, in short: the sort of it, unless everything is asked for."""
    found = None if manner.verbose or item.part == "initiator" else consequence_of(item.said)
    return found.reason if found else in_short(item.said, manner)


def _numbers(item: WorkerReport, manner: Manner) -> str:
    parts: list[str] = []
    if item.processes:
        parts.append(Message("{failed} of {processes} processes failed", failed=item.failed, processes=item.processes))
    if item.rounds > 1:
        parts.append(Message("{count} rounds", count=item.rounds))
    if item.skew:
        parts.append(Message("clock {skew:+.1f} s", skew=item.skew))
    if item.proof is not None:
        parts.append(manner.place(item.proof))
    return joined(parts, COMMA)


def _rest(items: Sequence[WorkerReport]) -> str:
    counts = Counter(_PARTS.get(item.part, _OTHERS) for item in items)
    kinds = joined((part.filled(count=count) for part, count in counts.most_common()), COMMA)
    return Message("{count} more (-v): {kinds}", count=len(items), kinds=kinds)


def _earlier(causes: Sequence[Cause], base: When | None, manner: Manner) -> Section:
    limit = len(causes) if manner.verbose else MAX_EARLIER
    lines = []
    for cause in causes[:limit]:
        moment = (utc(cause.time) or "-") if base is None else offset(cause.time, base)
        place = (f"({manner.place(cause.proofs[0])})",) if cause.proofs else ()
        lines.append(Line((moment, name_of(cause), joined((what_of(cause, manner), *place), " "))))
    if len(causes) > limit:
        lines.append(Line(("", "", Message("and {count} more: -v", count=len(causes) - limit)), "faint"))
    return Section(Message("earlier rounds"), tuple(lines), manner.fold(2))


#: How long a rank had waited when it printed that it gave up.
_WAITED = re.compile(r"(?:waiting|ran for|timeout after|out after|Barrier in) (\d{1,12}) ?(ms|milliseconds|seconds)\b")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank that waits for its peers: in what (empty if unknown), since when and until when.

    `until` is None if it still waited at the end of the evidence. `least`: it may have waited for longer. `frame`: the
    place in the user's code, if a log or the recorder has it.
    """

    rank: int | None
    worker: str
    what: str
    since: When
    until: float | None
    least: bool = False
    frame: str = ""


def waiting_ranks(workers: Sequence[WorkerEvidence], scene: Scene | None) -> list[Waiting]:
    """Ranks that wait, by their flight recorders, by what they printed at a timeout, or by a look at them.

    Of each rank the first of these that has it.
    """
    found: dict[object, Waiting] = {}
    clocks = Clocks(workers)
    for one in (*_recorded(workers, clocks), *_timed_out(workers, clocks), *_seen(scene)):
        found.setdefault((one.rank, one.worker), one)
    return list(found.values())


def pending_of(operation: str, number: int, group: str) -> Message:
    """A collective that has not ended."""
    return Message("{operation} number {number} of group {group}", operation=operation, number=number, group=group)


def _recorded(workers: Sequence[WorkerEvidence], clocks: Clocks) -> Iterator[Waiting]:
    for item in workers:
        last = clocks.when(item.worker, item.log.last) if item.log else None
        for dump in item.dumps:
            for group in dump.groups:
                call = next((call for call in group.pending if call.created_ns is not None), None)
                if call is not None and call.created_ns is not None:
                    what = pending_of(call.operation, call.seq, group.description or group.name)
                    since = When(call.created_ns / 1e9, 0.001)
                    yield Waiting(
                        dump.rank, item.worker, what, since, last.seconds if last else None, frame=call.frame or ""
                    )


def _timed_out(workers: Sequence[WorkerEvidence], clocks: Clocks) -> Iterator[Waiting]:
    for item in workers:
        said: list[tuple[int | None, str, str, Moment | None, str]] = []
        for line in item.log.collectives if item.log else ():
            if line.says is Says.TIMEOUT and line.seq is not None:
                call = pending_of(line.operation, line.seq, line.group or DEFAULT_GROUP)
                said.append((line.rank, call, line.text, line.time, ""))
        for trace in item.log.traces if item.log else ():
            why = consequence_of(trace.last.text)
            if why is not None and why.sort in (Sort.WAITED, Sort.STORE_WAITED) and not trace.agent:
                place = str(trace.last.frame or "")
                said.append((trace.origin.rank, trace.last.operation, trace.last.text, trace.time, place))
        for rank, what, text, moment, frame in said:
            when, lasted = clocks.when(item.worker, moment), _WAITED.search(text)
            if when is not None and lasted is not None:
                seconds = int(lasted[1]) / (1 if lasted[2] == "seconds" else 1000)
                since = When(when.seconds - seconds, when.resolution)
                yield Waiting(rank, item.worker, what, since, when.seconds, frame=frame)


def _seen(scene: Scene | None) -> Iterator[Waiting]:
    for rank in scene.ranks if scene else ():
        report = rank.report
        # Ranks that wait for a GPU may use a CPU: there the recorder says that they wait.
        waits = rank.waits and (rank.still or rank.pending is not None)
        if scene is None or not waits or report is None or report.started is None:
            continue
        now = report.started + (report.age or 0.0)
        calls = [call for group in (report.recorder.groups if report.recorder else ()) for call in group.pending]
        made = min((call.created_ns for call in calls if call.created_ns is not None), default=None)
        since = now - scene.seconds if made is None else made / 1e9
        pending = rank.pending
        what = rank.frames[0].function if rank.frames else ""
        if pending is not None:
            what = pending_of(pending.operation, pending.seq, pending.group)
        yield Waiting(rank.rank, rank.worker or "", what, When(since, 0.001), now, made is None)
