"""`stacks` as text: the verdict, then equal ranks under their folded range, the odd ones first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atlctl.diagnosis.hang.judge import Judged, What
from atlctl.diagnosis.hang.repeat import Change
from atlctl.diagnosis.hang.report import Moment
from atlctl.diagnosis.hang.scene import Group, Scene
from atlctl.diagnosis.tracebacks import Frame
from atlctl.jobs.naming import fold_names, fold_numbers
from atlctl.render.sanitize import clean
from atlctl.render.streams import Streams

_FRAMES = 30
_HOW = {
    "still": "stood still",
    "same": "ran, and were at the same place of the code both times",
    "moved": "moved",
    "ran": "ran, or cannot be seen into",
    "new": "are other processes than before",
    "gone": "are gone",
}


def text(scene: Scene, changed: Sequence[Change] | None, streams: Streams, *, verbose: bool) -> str:
    """All of it, ending in a newline. `verbose`: every Python thread of the first rank of each group."""
    lines = [_strong(headline(scene), streams), f"  {clean(scene.why)}"]
    for group in scene.groups:
        lines += ["", _strong(_title(group), streams), *(f"  {line}" for line in _body(group, scene, verbose))]
    if changed is not None:
        lines += ["", _strong("between the two looks", streams)]
        for how, said in _HOW.items():
            numbers = [change.rank for change in changed if change.how == how and change.rank is not None]
            if numbers:
                lines.append(f"  {said}: {ranks_text(numbers)}")
    return "\n".join(lines) + "\n"


def headline(scene: Scene) -> str:
    """Who and what, in one line."""
    who = f"{_who(scene.culprits)}: " if scene.culprits else ""
    sure = f", {scene.confidence}" if scene.confidence else ""
    if len({rank.what for rank in scene.culprits}) > 1:
        kinds = dict.fromkeys(str(rank.what) for rank in scene.culprits)
        return f"{who}{', '.join(kinds)}{sure}"
    return f"{who}{scene.what}{sure}"


def ranks_text(numbers: Iterable[int | None]) -> str:
    """`rank 3`, `ranks 0-2,5`, `a rank of unknown number`."""
    known = sorted({number for number in numbers if number is not None})
    if not known:
        return "a rank of unknown number"
    return f"rank {known[0]}" if len(known) == 1 else f"ranks {fold_numbers(known)}"


def _who(ranks: Sequence[Judged]) -> str:
    names = [rank.worker for rank in ranks if rank.worker is not None]
    where = f" on {fold_names(names)}" if names else ""
    return clean(ranks_text(rank.rank for rank in ranks) + where)


def _title(group: Group) -> str:
    first = group.first
    what = str(first.what)
    if first.pending is not None and first.what is What.COLLECTIVE:
        what = clean(f"waiting in collective {first.pending.seq} ({first.pending.operation}, {first.pending.group})")
    many = f" ({len(group.ranks)} ranks)" if len(group.ranks) > 1 else ""
    return f"{_who(group.ranks)}{many}: {what}{f', {first.confidence}' if first.confidence else ''}"


def _body(group: Group, scene: Scene, verbose: bool) -> list[str]:
    first = group.first
    lines = [clean(first.why)]
    reports = [rank.report for rank in group.ranks if rank.report is not None]
    if not reports:
        return lines
    if first.report is not None and first.report.looks:
        main = _range(report.main_ticks for report in reports)
        whole = _range(report.ticks for report in reports)
        moments = dict.fromkeys(moment_text(report.looks[-1]) for report in reports if report.looks)
        shown = "; ".join(list(moments)[:3]) + ("; ..." if len(moments) > 3 else "")
        lines.append(clean(f"main thread: {shown}; {main} CPU ticks in {scene.seconds:.1f} s, all threads {whole}"))
    pids = ", ".join(str(report.pid) for report in reports[:4]) + (", ..." if len(reports) > 4 else "")
    commands = dict.fromkeys(report.command for report in reports)
    more = f" (and {len(commands) - 1} other command lines)" if len(commands) > 1 else ""
    lines.append(clean(f"pid {pids}: {next(iter(commands))}{more}"))
    if first.report is not None and first.report.children:
        states = dict.fromkeys(f"{child.at.name} {moment_text(child.at)}" for child in first.report.children)
        lines.append(clean(f"processes below it: {len(first.report.children)}: {'; '.join(list(states)[:3])}"))
    stack = first.report.stack if first.report is not None else None
    if stack is not None and first.report is not None:
        lines.append(f"main thread's stack, innermost first (from {_source(first)}):")
        lines += _frames(stack.frames)
        if verbose:
            for thread in first.report.threads:
                if not thread.main:
                    lines += [f"thread {clean(thread.name or '?')}:", *_frames(thread.frames)]
    return lines


def _source(rank: Judged) -> str:
    source = rank.report.source if rank.report is not None else None
    return "torch's worker server" if source == "torch" else clean(source or "?")


def moment_text(at: Moment) -> str:
    """`S in futex`, `D in read /data/x`, `R`."""
    call = at.syscall if at.syscall not in (None, "none", "running") else at.wchan
    return at.state + (f" in {call}" if call else "") + (f" {at.target}" if at.target else "")


def _frames(frames: Sequence[Frame]) -> list[str]:
    shown = [clean(f"  {frame.function} ({_short(frame.path)}:{frame.line})") for frame in frames[:_FRAMES]]
    left = len(frames) - len(shown)
    return [*shown, f"  ({left} more)"] if left else shown


def _short(path: str) -> str:
    return path.rpartition("/site-packages/")[2]


def _range(values: Iterable[int]) -> str:
    found = list(values)
    low, high = min(found), max(found)
    return str(low) if low == high else f"{low}-{high}"


def _strong(line: str, streams: Streams) -> str:
    return f"\x1b[1m{line}\x1b[0m" if streams.stdout_color else line
