"""The lists below the panel: tracebacks or last lines, consequences, workers or ranks, earlier rounds, remarks; and
which ranks wait since when."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from atlctl.diagnosis.clockskew import Clocks
from atlctl.diagnosis.consequence import Sort, consequence_of, own_text
from atlctl.diagnosis.evidence import WorkerEvidence
from atlctl.diagnosis.flightrecorder import DEFAULT_GROUP
from atlctl.diagnosis.logfacts import Says
from atlctl.diagnosis.logline import Moment, When
from atlctl.diagnosis.result import Cause, Diagnosis, Followed, RankEnd, Traceback, Verdict, WorkerReport
from atlctl.diagnosis.telling.data import utc
from atlctl.diagnosis.telling.guide import Manner
from atlctl.diagnosis.telling.who import (
    crowd,
    ended,
    frame_text,
    in_short,
    name_of,
    names_of,
    ranks_of,
    shortened,
    what_of,
    wordless,
    workers_of,
)
from atlctl.diagnosis.torchelastic import parse_note
from atlctl.diagnosis.tracebacks import Frame, Raised
from atlctl.i18n import COMMA, Message, joined, plural
from atlctl.jobs.panel import Line, PanelTone, Section

if TYPE_CHECKING:
    from atlctl.diagnosis.hang import Scene

#: Most lines without -v.
MAX_FOLLOWED = 10
MAX_WORKERS = 12
MAX_EARLIER = 3
MAX_RANKS = 40
#: Lines of frames; exceptions before the last of a chain; lines of a log; tracebacks.
MAX_TRACE = 12
MAX_CHAIN = 3
MAX_LAST_LINES = 8
MAX_TRACES = 2
#: Ends whose reason is not in the log.
_FROM_OUTSIDE = frozenset({"preemption", "interrupted", "terminal_hangup", "time_limit"})
#: The message in torchrun's summary for a process killed by a signal.
_RECEIVED = re.compile(r"Signal \d{1,3} \((SIG\w{1,12})\) received by PID")
#: Most screen lines of each remark in a list.
_FOLD_FOLLOWED = 2

#: The roles of workers, the most important first, and the phrases that count them.
_OTHERS = Message("{count} others")
_PARTS = {
    "no log": Message("{count} without a log"),
    "silent": Message("{count} with logs that end abruptly"),
    "initiator": Message("{count} failed by themselves"),
    "agent": Message("torchrun itself ended on {count}"),
    "ended": Message("{count} ended by their agents"),
    "victim": Message("{count} lost their peer"),
}


def listings(diagnosis: Diagnosis, manner: Manner) -> tuple[Section, ...]:
    """The lists that are not empty."""
    base = base_of(diagnosis)
    found = [
        *_last_words(diagnosis, manner),
        _followed(diagnosis.cascade, base, manner),
        _ranks(diagnosis, base, manner) if manner.ranks else _workers(diagnosis, base, manner),
        _earlier(diagnosis.earlier, base, manner),
        Section(Message("remarks"), tuple(Line((text,)) for text in diagnosis.remarks)),
    ]
    return tuple(listing for listing in found if listing.lines)


def offset(when: When | None, base: When | None) -> str:
    """The time since `base`: `+1.4 s`, without fraction for clocks of whole seconds. `-` if unknown."""
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
    # Never -0.0.
    return f"{seconds if size >= 0.05 else 0.0:+.1f} s"


def _apart(when: When, base: When) -> float:
    """Seconds from `base` to `when`; 0 if their order is unknown."""
    seconds = when.seconds - base.seconds
    step = max(when.resolution, base.resolution)
    if step < 1:
        return seconds
    return 0.0 if abs(seconds) < step else float(int(seconds))


def base_of(diagnosis: Diagnosis) -> When | None:
    """The time of offset 0: the root cause's time, else the first failure's. For a hang only the end has a time."""
    causes = [cause.time for cause in diagnosis.root_causes if cause.time is not None]
    if causes:
        if all(cause.category == "hang" for cause in diagnosis.root_causes):
            causes += [item.first for item in diagnosis.cascade if item.first is not None]
        return min(causes, key=lambda when: when.seconds)
    if diagnosis.verdict is Verdict.NONE:
        return None
    told = [
        item.first for item in diagnosis.workers if item.first is not None and item.part not in ("silent", "no log")
    ]
    return min(told, key=lambda when: when.seconds, default=None)


def _last_words(diagnosis: Diagnosis, manner: Manner) -> Iterator[Section]:
    """The tracebacks of the root causes, or the last lines of a log before an end without one, without repetition."""
    groups: dict[tuple[Frame, ...] | Cause, list[Cause]] = {}
    causes = diagnosis.root_causes
    if len(diagnosis.candidates) == 1 or manner.verbose:
        causes += diagnosis.candidates
    for cause in causes:
        if cause.traceback is not None:
            groups.setdefault(cause.traceback.frames, []).append(cause)
        elif diagnosis.root_causes and cause.last_lines and _tells_nothing(cause):
            groups[cause] = [cause]
    limit = len(groups) if manner.verbose else MAX_TRACES
    for group in list(groups.values())[:limit]:
        trace = group[0].traceback
        if trace is not None:
            yield _traceback(trace, group, manner)
        else:
            yield _last_lines(group[0], manner)


def _tells_nothing(cause: Cause) -> bool:
    """Whether the log has no reason for this end: then its last lines may help."""
    return cause.category not in _FROM_OUTSIDE and (wordless(cause) or isinstance(cause.message, Message))


def _traceback(trace: Traceback, causes: Sequence[Cause], manner: Manner) -> Section:
    ranks = [cause.rank for cause in causes if cause.rank is not None]
    who = ranks_of(ranks) if ranks else names_of(causes)
    proof = trace.proof
    if proof and not ranks and causes[0].worker is None:
        label = Message("traceback ({place})", place=manner.place(proof))
    elif not trace.exception:
        label = Message("Python stack of {who}, innermost call last", who=who)
    elif proof is None:
        label = Message("traceback of {who}", who=who)
    else:
        label = Message("traceback of {who} ({place})", who=who, place=manner.place(proof))
    limit = len(trace.earlier) if manner.verbose else MAX_CHAIN
    lines = [_raised_before(item) for item in trace.earlier[-limit:]] if limit else []
    lines += _frames(trace, manner)
    if trace.exception:
        lines.append(Line((shortened(in_short(trace.message, manner), manner),), "culprit"))
    return Section(label, tuple(lines), manner.fold(1))


def _raised_before(item: Raised) -> Line:
    place = item.frame or (item.frames[-1] if item.frames else None)
    text = Message("{message} ({place})", message=item.message, place=frame_text(place)) if place else item.message
    return Line((Message("raised before: {error}", error=text),), "faint")


def _frames(trace: Traceback, manner: Manner) -> list[Line]:
    """The innermost frames, with code for the user's own; only the first and the last of a run of library frames."""
    frames = trace.frames
    if manner.verbose:
        shown = [[*_frame(frame, frame.own or frame.source != "")] for frame in frames]
        return [*_above(trace.omitted), *(line for block in shown for line in block)]
    blocks: list[tuple[list[Line], int]] = []
    for own, group in groupby(frames, key=lambda frame: frame.own):
        run = list(group)
        if own:
            blocks += [(_frame(frame, True), 1) for frame in run]
            continue
        last = run[-1] is frames[-1]
        if len(run) > 3:
            blocks += [(_frame(run[0], False), 1), ([_between(len(run) - 2)], len(run) - 2)]
            run = run[-1:]
        blocks += [(_frame(frame, last and frame is run[-1]), 1) for frame in run]
    room = MAX_TRACE
    at = len(blocks)
    kept = max((number for number, (lines, _) in enumerate(blocks) if lines[0].tone == "strong"), default=at)
    while at and (len(blocks[at - 1][0]) <= room or at > kept):
        at -= 1
        room -= len(blocks[at][0])
    left = trace.omitted + sum(count for _, count in blocks[:at])
    return [*_above(left), *(line for lines, _ in blocks[at:] for line in lines)]


def _above(count: int) -> list[Line]:
    return [Line((plural("({n} more frame above)", "({n} more frames above)", count),), "faint")] if count else []


def _between(count: int) -> Line:
    return Line((plural("({n} library frame)", "({n} library frames)", count),), "faint")


def _frame(frame: Frame, code: bool) -> list[Line]:
    tone: PanelTone = "strong" if frame.own else "faint"
    lines = [Line((frame_text(frame),), tone)]
    if code and frame.source:
        lines.append(Line((f"    {frame.source}",), "plain" if frame.own else "faint"))
    return lines


def _last_lines(cause: Cause, manner: Manner) -> Section:
    limit = len(cause.last_lines) if manner.verbose else MAX_LAST_LINES
    shown = cause.last_lines[-limit:]
    if cause.rank is not None or cause.local_rank is not None:
        label = Message("last log lines before the end of {who} ({place})")
    elif cause.worker is not None:
        label = Message("last log lines of {who} ({place})")
    else:
        label = Message("last log lines ({place})")
    numbers = [str(line.line_no) if line.line_no is not None else "" for line in shown]
    lines = tuple(Line((number, line.text.strip())) for number, line in zip(numbers, shown, strict=True))
    who = ranks_of([cause.rank]) if cause.rank is not None else name_of(cause)
    return Section(label.filled(who=who, place=manner.place(shown[-1])), lines, manner.fold(1))


#: Texts for the end of a rank, and their colours.
_ENDS: dict[str, tuple[Message, PanelTone]] = {
    "cause": (Message("root cause"), "culprit"),
    "initiator": (Message("failed by itself"), "culprit"),
    "victim": (Message("consequence"), "victim"),
    "ended": (Message("ended by its agent"), "faint"),
    "silent": (Message("end not in the logs"), "plain"),
}


def _ranks(diagnosis: Diagnosis, base: When | None, manner: Manner) -> Section:
    """The end of each rank; ranks with the same end share a line."""
    groups: dict[tuple[str, str, str], list[RankEnd]] = {}
    blamed = {(cause.worker, cause.rank, cause.local_rank): cause for cause in diagnosis.root_causes}
    for item in diagnosis.ranks:
        cause = blamed.get((item.worker, item.rank, item.local_rank))
        said = _said_by(item, manner) if cause is None else _what_in_list(cause, manner)
        key = (item.part, item.signal or ended(item), said)
        groups.setdefault(key, []).append(item)
    order = list(_ENDS)
    ranked = sorted(groups.items(), key=lambda pair: order.index(pair[0][0]))
    limit = len(ranked) if manner.verbose else MAX_RANKS
    lines = []
    for (part, how, said), group in ranked[:limit]:
        word, tone = _ENDS[part]
        first = min((item.time for item in group if item.time), key=lambda when: when.seconds, default=None)
        ranks = [item.rank for item in group if item.rank is not None]
        workers = list(dict.fromkeys(item.worker for item in group))
        known = len(ranks) == len(group)
        name = crowd(workers, ranks, manner) if known else _nameless(group, manner)
        state = joined(filter(None, (word, how)), COMMA)
        lines.append(Line((offset(first, base), name, state, said), tone))
    if len(ranked) > limit:
        count = sum(len(group) for _, group in ranked[limit:])
        lines.append(Line(("", "", "", Message("and {count} more: -v", count=count)), "faint"))
    return Section(Message("ranks"), tuple(lines), manner.fold(1))


def _nameless(group: Sequence[RankEnd], manner: Manner) -> str:
    """The text for processes without a known global rank."""
    local = group[0].local_rank
    if len(group) == 1 and local is not None:
        return Message("local rank {local} on {worker}", local=local, worker=group[0].worker)
    names = workers_of(list(dict.fromkeys(item.worker for item in group)), manner)
    return Message("{count} processes on {worker}", count=len(group), worker=names)


def _said_by(item: RankEnd, manner: Manner) -> str:
    """The rank's own message, shortened; empty if there is only torchrun's report."""
    if own_text(item.said.strip()) is None or parse_note(item.said.encode("utf-8", "replace"), 0):
        return ""
    found = consequence_of(item.said) if item.part == "victim" and not manner.verbose else None
    return found.reason if found else in_short(item.said, manner)


def _what_in_list(cause: Cause, manner: Manner) -> str:
    """The message of a root cause, shortened; empty if there is only its end."""
    return "" if wordless(cause) else shortened(what_of(cause, manner), manner)


def _followed(groups: Sequence[Followed], base: When | None, manner: Manner) -> Section:
    limit = len(groups) if manner.verbose or len(groups) <= MAX_FOLLOWED else MAX_FOLLOWED - 1
    lines = []
    for group in groups[:limit]:
        # For some processes only the worker may be known.
        who = crowd(group.workers, group.ranks if len(group.ranks) == group.count else (), manner)
        text = Message("{count}x {reason} ({who})", count=group.count, reason=group.reason, who=who)
        lines.append(Line((offset(group.first, base), text)))
        if manner.verbose and group.proof is not None:
            lines.append(Line(("", f"{manner.place(group.proof)}: {group.proof.text.strip()}"), "faint"))
    if len(groups) > limit:
        count = sum(group.count for group in groups[limit:])
        lines.append(Line(("", Message("and {count} more: -v", count=count)), "faint"))
    return Section(Message("consequences"), tuple(lines), manner.fold(_FOLD_FOLLOWED))


def _workers(diagnosis: Diagnosis, base: When | None, manner: Manner) -> Section:
    none = diagnosis.verdict is Verdict.NONE
    label, fold = _heading(diagnosis, base), manner.fold(1)
    if not manner.verbose and (diagnosis.earlier if none else len(diagnosis.workers) == 1):
        return Section(label, ())  # already shown above
    blamed = _blamed(diagnosis)
    order = {part: place for place, part in enumerate(_PARTS)}

    def interest(group: Sequence[WorkerReport]) -> tuple[bool, int, float, int]:
        item = group[0]
        return (item.worker not in blamed, order.get(item.part, len(order)), _place(item, blamed, base), item.index)

    def order_of(group: Sequence[WorkerReport]) -> tuple[float, bool, int]:
        item = group[0]
        return (round(_place(item, blamed, base), 1), item.worker not in blamed, item.index)

    items = sorted(diagnosis.workers, key=lambda item: order_of([item]))
    many = len(items) > MAX_WORKERS and not manner.verbose
    groups = _alike(items, diagnosis, manner) if many else [[item] for item in items]
    ranked = sorted(groups, key=interest)
    limit = MAX_WORKERS - 1 if many and len(ranked) > MAX_WORKERS else len(ranked)
    shown = sorted(ranked[:limit], key=order_of)
    lines = []
    for group in shown:
        item = group[0]
        cause = blamed.get(item.worker)
        when = cause.time if cause and cause.time else item.first
        moment = (utc(when) or "-") if none else offset(when, base)
        tone: PanelTone = "culprit" if cause else "plain"
        names = workers_of([item.worker for item in group], manner) if len(group) > 1 else item.worker
        lines.append(Line((moment, names, _said(item, diagnosis, manner)), tone))
    if len(ranked) > limit:
        lines.append(Line(("", "", _rest([item for group in ranked[limit:] for item in group])), "faint"))
    return Section(label, tuple(lines), fold)


def _blamed(diagnosis: Diagnosis) -> dict[str, Cause]:
    return {cause.worker: cause for cause in reversed(diagnosis.root_causes) if cause.worker is not None}


def _alike(items: Sequence[WorkerReport], diagnosis: Diagnosis, manner: Manner) -> list[list[WorkerReport]]:
    """Groups workers with the same message, in the order of the first; culprits are not grouped."""
    groups: dict[tuple[str, str], list[WorkerReport]] = {}
    blamed = _blamed(diagnosis)
    for item in items:
        said = _said(item, diagnosis, manner)
        groups.setdefault((item.worker if item.worker in blamed else item.part, said), []).append(item)
    return list(groups.values())


def _place(item: WorkerReport, blamed: dict[str, Cause], base: When | None) -> float:
    cause = blamed.get(item.worker)
    when = cause.time if cause and cause.time else item.first
    if when is None:
        return 0.0 if cause else float("inf")
    return when.seconds if base is None else _apart(when, base)


def _heading(diagnosis: Diagnosis, base: When | None) -> str:
    told = any(cause.time == base for cause in diagnosis.root_causes)
    if told or base is None or (time := utc(base)) is None:
        return Message("workers")
    return Message("workers (+0.0 s is {time})", time=time)


def _said(item: WorkerReport, diagnosis: Diagnosis, manner: Manner) -> str:
    cause = _blamed(diagnosis).get(item.worker)
    if cause is not None:
        text = shortened(what_of(cause, manner), manner)
    elif any((item.worker, item.said) == (before.worker, before.message) for before in diagnosis.earlier):
        text = Message("in an earlier round: {said}", said=shortened(_short(item, manner), manner))
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
    """A victim's message, shortened to its kind unless verbose."""
    if manner.verbose:
        return item.said.strip()
    found = None if item.part == "initiator" else consequence_of(item.said)
    if ended := _RECEIVED.match(item.said):
        return Message("ended by {signal}", signal=ended[1])
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
        what = shortened(what_of(cause, manner), manner)
        if cause.proofs:
            what = Message("{what} ({place})", what=what, place=manner.place(cause.proofs[0]))
        lines.append(Line((moment, name_of(cause), what)))
    if len(causes) > limit:
        lines.append(Line(("", "", Message("and {count} more: -v", count=len(causes) - limit)), "faint"))
    return Section(Message("earlier rounds"), tuple(lines), manner.fold(2))


#: The waiting time in the message of a timeout.
_WAITED = re.compile(r"(?:waiting|ran for|timeout after|out after|Barrier in) (\d{1,12}) ?(ms|milliseconds|seconds)\b")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank that waits for its peers: the operation (empty if unknown), start and end of the wait.

    `until` is None if it still waited at the end of the evidence. `least`: it may have waited longer. `frame`: the
    place in the user's code, if a log or the flight recorder has it.
    """

    rank: int | None
    worker: str
    what: str
    since: When
    until: float | None
    least: bool = False
    frame: str = ""


def waiting_ranks(workers: Sequence[WorkerEvidence], scene: Scene | None) -> list[Waiting]:
    """Ranks that wait, from their flight recorders, their messages at a timeout, or an inspection.

    For each rank, the first of these sources that has it.
    """
    found: dict[object, Waiting] = {}
    clocks = Clocks(workers)
    for one in (*_recorded(workers, clocks), *_timed_out(workers, clocks), *_seen(scene)):
        found.setdefault((one.rank, one.worker), one)
    return list(found.values())


def pending_of(operation: str, number: int, group: str) -> Message:
    """The text for a collective that has not ended."""
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
        # Ranks that wait for a GPU may use a CPU: then the flight recorder shows that they wait.
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
