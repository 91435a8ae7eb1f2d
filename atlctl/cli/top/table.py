"""The table of `top` as lines: whole for a pipe, for a terminal as much of it as fits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from atlctl.cli.top.rows import LEFT, TITLES, Block, Row, blocks
from atlctl.cli.top.view import View, judge
from atlctl.jobs.naming import counted
from atlctl.render.screen import fitted
from atlctl.render.table import Column

#: Columns that go where a terminal is narrow, the first one first.
_SPARE = ("NAME", "SCOPE", "TEMP C", "ECC", "RAM GiB", "CPU", "POWER W", "MEMORY MiB")
#: Cells of the marks that must be seen before columns go.
_MARKS = 24
#: Rows of a terminal that has room for what the numbers are.
_TALL = 8
#: What the numbers of CPU and RAM are, by their scope.
SCOPES = {
    "container": "of the worker's container (its cgroup)",
    "machine": "of the whole machine",
    "processes": "of the worker's processes",
}
_ON_GPUS = slice(TITLES.index("GPU"), TITLES.index("CPU"))


def whole(views: Sequence[View], order: str) -> list[str]:
    """Every row, in any width; no row for a worker that told nothing."""
    told = [view for view in views if view.use is not None or view.readout.gpus]
    rows = [row for block in blocks(told, judge(told), {}, order) for row in block.rows]
    return _table(rows, None)[0] if rows else []


def page(
    job: str, views: Sequence[View], now: float, stale: float, order: str, size: tuple[int, int]
) -> tuple[list[str], int]:
    """What fits on a terminal: one or two lines about all, the table, and what is not shown; and which of the lines is
    the table's heading."""
    columns, height = size
    judged = judge(views)
    troubles = {view.worker.name: view.troubles(now, stale) for view in views}
    shown = blocks(views, judged, troubles, order)
    names = {one.gpu.name for own in judged.values() for one, _ in own}
    scopes = {view.use.scope for view in views if view.use is not None}
    one_name, one_scope = len(names) < 2, len(scopes) < 2
    heading = [_summary(job, views, shown, str(next(iter(names), None) or "") if one_name else "")]
    if scopes and height >= _TALL:
        what = "; ".join(f"{scope}: {SCOPES[scope]}" for scope in sorted(scopes))
        heading.append(
            f"CPU (cores in use/allowed) and RAM {SCOPES[next(iter(scopes))] if one_scope else 'by ' + what}"
        )
    hidden = ({"NAME"} if one_name else set()) | ({"SCOPE"} if one_scope else set())
    # The cursor's line and the table's own heading are no rows.
    room = max(1, height - 1 - len(heading) - 1)
    rows, rest = _fill(shown, room)
    lines, left = _table(rows, columns, hidden)
    if left or rest:
        if not rest and len(rows) == room:
            rows, rest = _fill(shown, room - 1)
            lines, left = _table(rows, columns, hidden)
        lines.append("; ".join(text for text in (rest, f"too narrow for {', '.join(left)}" if left else "") if text))
    return [*heading, *lines], len(heading)


def _fill(shown: Sequence[Block], room: int) -> tuple[list[Row], str]:
    """The rows that fit, GPUs that are alike folded into one where not all do, and a word on those that do not."""
    rows = [row for block in shown for row in block.rows]
    if len(rows) <= room:
        return rows, ""
    rows = [row for block in shown for row in block.folded]
    if len(rows) <= room:
        return rows, ""
    rows, used = [], 0
    for block in shown:
        if len(rows) + len(block.folded) > max(1, room - 1) and rows:
            break
        rows += block.folded[: max(1, room - 1)]
        used += 1
    rest = shown[used:]
    workers, gpus = sum(block.workers for block in rest), sum(block.gpus for block in rest)
    odd = sum(block.marked for block in rest)
    troubled = sum(block.trouble for block in rest)
    what = [f"{counted(odd, 'GPU')} with marks" if odd else "", f"{troubled} with something wrong" if troubled else ""]
    words = ", ".join(text for text in what if text) or "nothing odd about them"
    return rows, f"… {counted(workers, 'more worker')} with {counted(gpus, 'GPU')}, {words}"


def _summary(job: str, views: Sequence[View], shown: Sequence[Block], name: str) -> str:
    phases = Counter(view.phase for view in views)
    counts = [
        (phases["asking"], "not heard of yet"),
        (phases["lost"], "lost"),
        (phases["ended"], "ended"),
    ]
    marked = sum(block.marked for block in shown)
    gpus = sum(block.gpus for block in shown)
    text = f"{job}  {time.strftime('%H:%M:%S')}  {counted(len(views), 'worker')}, {counted(gpus, 'GPU')}"
    text += f" ({name})" if name else ""
    text += "".join(f", {number} {word}" for number, word in counts if number)
    return text + (f", {counted(marked, 'GPU')} with marks" if marked else "")


def _table(
    rows: Sequence[Row], width: int | None, hidden: set[str] | frozenset[str] = frozenset()
) -> tuple[list[str], list[str]]:
    """Without GPUs there are no columns for them, and without marks none for those on a terminal."""
    gpus = any(cell != "-" for row in rows for cell in row[_ON_GPUS])
    if not gpus:
        hidden = hidden | set(TITLES[_ON_GPUS])
    kept = [number for number, title in enumerate(TITLES) if title not in hidden]
    columns = [Column(TITLES[n], "left" if TITLES[n] in LEFT else "right") for n in kept]
    spare = [title for title in _SPARE if title not in hidden]
    return fitted(columns, [[row[n] for n in kept] for row in rows], width, spare, _MARKS)
