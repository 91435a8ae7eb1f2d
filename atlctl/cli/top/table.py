"""The table of `top`: a row for each GPU or for many that are alike, the odd ones first; whole for a pipe, for a
terminal as much of it as fits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from atlctl.cli import say
from atlctl.cli.top.reading import Compute
from atlctl.cli.top.view import Kind, Mark, SeenGpu, View, judge
from atlctl.i18n import COMMA, LIST, Message, about, joined, plural, translated
from atlctl.jobs.naming import fold_names, fold_numbers
from atlctl.render.screen import fitted
from atlctl.render.table import Column

TITLES = (
    "WORKER",
    "GPU",
    Message("NAME"),
    Message("UTIL %"),
    Message("MEMORY MiB"),
    Message("POWER W"),
    Message("TEMP C"),
    "ECC",
    "CPU",
    Message("RAM GiB"),
    Message("SCOPE"),
    Message("MARKS"),
)
LEFT = frozenset({"WORKER", "NAME", "SCOPE", "MARKS"})

Judged = Sequence[tuple[SeenGpu, tuple[Mark, ...]]]
Row = tuple[str, ...]

_GENERAL = {
    Kind.ECC: Message("uncorrected ECC"),
    Kind.SLOWED: Message("slowed"),
    Kind.LOW_POWER: Message("low power?"),
    Kind.LOW_UTILIZATION: Message("low use?"),
    Kind.HIGH_POWER: Message("others wait?"),
}
_GIB = 1 << 30
_NOTHING = "-"
#: Columns that go where a terminal is narrow, the first one first.
_SPARE = ("NAME", "SCOPE", "TEMP C", "ECC", "RAM GiB", "CPU", "POWER W", "MEMORY MiB")
#: Cells of the marks that must be seen before columns go.
_MARKS = 24
#: Rows of a terminal that has room for what the numbers are.
_TALL = 8
#: What the numbers of CPU and RAM are, by their scope.
SCOPES = {
    "container": Message("of the worker's container (its cgroup)"),
    "machine": Message("of the whole machine"),
    "processes": Message("of the worker's processes"),
}
_SCOPE = {
    "container": Message("container"),
    "machine": about("scope", "machine"),
    "processes": Message("processes"),
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
        by = Message(
            "by {scopes}",
            scopes=joined(
                Message("{label}: {text}", label=_SCOPE[scope], text=SCOPES[scope]) for scope in sorted(scopes)
            ),
        )
        what = SCOPES[next(iter(scopes))] if one_scope else by
        heading.append(translated(Message("CPU (cores in use/allowed) and RAM {what}", what=what)))
    hidden = ({"NAME"} if one_name else set()) | ({"SCOPE"} if one_scope else set())
    # The cursor's line and the table's own heading are no rows.
    room = max(1, height - 1 - len(heading) - 1)
    rows, rest = _fill(shown, room)
    lines, left = _table(rows, columns, hidden)
    if left or rest:
        if not rest and len(rows) == room:
            rows, rest = _fill(shown, room - 1)
            lines, left = _table(rows, columns, hidden)
        narrow = Message("too narrow for {columns}", columns=joined(left, LIST))
        lines.append(translated(joined(text for text in (rest, narrow if left else "") if text)))
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
    what = [
        *([_marked(odd)] if odd else []),
        *([Message("{count} with something wrong", count=troubled)] if troubled else []),
    ]
    return rows, Message(
        "… {workers} with {gpus}, {what}",
        workers=plural("{n} more worker", "{n} more workers", workers),
        gpus=_count(gpus),
        what=joined(what, COMMA) if what else Message("nothing odd about them"),
    )


def _count(gpus: int) -> Message:
    return plural("{n} GPU", "{n} GPUs", gpus)


def _marked(gpus: int) -> Message:
    return Message("{gpus} with marks", gpus=_count(gpus))


def _summary(job: str, views: Sequence[View], shown: Sequence[Block], name: str) -> str:
    phases = Counter(view.phase for view in views)
    counts = [
        (phases["asking"], Message("{count} not heard of yet")),
        (phases["lost"], Message("{count} lost")),
        (phases["ended"], Message("{count} ended")),
    ]
    marked = sum(block.marked for block in shown)
    gpus = sum(block.gpus for block in shown)
    parts = [
        say.workers(len(views)),
        Message("{gpus} ({name})", gpus=_count(gpus), name=name) if name else _count(gpus),
        *(text.filled(count=number) for number, text in counts if number),
        *([_marked(marked)] if marked else []),
    ]
    return f"{job}  {time.strftime('%H:%M:%S')}  {translated(joined(parts, COMMA))}"


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


# Rows


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of one worker, or of several that see the same GPUs: one for each GPU, and folded."""

    rows: tuple[Row, ...]
    folded: tuple[Row, ...]
    workers: int
    gpus: int
    #: How many of its GPUs have a mark; whether something is wrong with a worker itself.
    marked: int
    trouble: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Workers, most often one, with their GPUs and what is wrong with each."""

    views: tuple[View, ...]
    judged: Judged
    troubles: tuple[tuple[str, ...], ...]


def blocks(
    views: Sequence[View],
    judged: Mapping[str, Judged],
    troubles: Mapping[str, Sequence[str]],
    order: str,
) -> list[Block]:
    """In the order that was asked for; `troubles`: by worker's name, what is wrong with it."""
    groups: dict[object, list[View]] = {}
    for view in views:
        uuids = frozenset(one.gpu.uuid for one, _ in judged[view.worker.name])
        known = bool(uuids) and None not in uuids
        groups.setdefault(uuids if known else view.worker.name, []).append(view)
    places = [
        _Place(
            tuple(group),
            judged[group[0].worker.name],
            tuple(tuple(troubles.get(view.worker.name, ())) for view in group),
        )
        for group in groups.values()
    ]
    return [_block(place) for place in sorted(places, key=_ORDERS[order])]


def _oddness(place: _Place) -> tuple[int, int]:
    """Workers that do not tell come first, then by their gravest mark; those that ended well last."""
    index = place.views[0].worker.index
    if all(view.phase == "ended" and not view.wanting for view in place.views):
        return 99, index
    if any(place.troubles):
        return 0, index
    return min((mark.kind for _, found in place.judged for mark in found), default=90), index


def _by(
    value: Callable[[_Place], Sequence[float | None]], *, low: bool = False
) -> Callable[[_Place], tuple[float, int]]:
    """By the highest of the values, or the lowest; places that do not tell come last."""

    def key(place: _Place) -> tuple[float, int]:
        told = [one for one in value(place) if one is not None]
        if not told:
            return float("inf"), place.views[0].worker.index
        return (min(told) if low else -max(told)), place.views[0].worker.index

    return key


_ORDERS: Mapping[str, Callable[[_Place], tuple[float, int]]] = {
    "odd": _oddness,
    "worker": lambda place: (0, place.views[0].worker.index),
    "util": _by(lambda place: [one.gpu.utilization for one, _ in place.judged], low=True),
    "power": _by(lambda place: [one.gpu.power for one, _ in place.judged], low=True),
    "memory": _by(lambda place: [one.gpu.memory_used for one, _ in place.judged]),
    "temp": _by(lambda place: [one.gpu.temperature for one, _ in place.judged]),
    "cpu": _by(lambda place: [use.cpu for view in place.views if (use := view.use) is not None]),
}


def _block(place: _Place) -> Block:
    alike = [list(group) for _, group in groupby(sorted(place.judged, key=_kinds), key=_kinds)]
    return Block(
        _rows(place, [[one] for one in place.judged]),
        _rows(place, alike),
        len(place.views),
        len(place.judged),
        sum(bool(found) for _, found in place.judged),
        any(place.troubles),
    )


def _kinds(one: tuple[SeenGpu, tuple[Mark, ...]]) -> tuple[int, ...]:
    """Sorts GPUs with marks before those without."""
    return tuple(mark.kind for mark in one[1]) or (99,)


def _rows(place: _Place, groups: Sequence[Judged]) -> tuple[Row, ...]:
    if len(place.views) == 1:
        (view,) = place.views
        own = (*_use(view.use), joined(place.troubles[0]))
        told = [_gpus(view.worker.name, group) for group in groups] or [(view.worker.name, *[_NOTHING] * 7)]
        return tuple(
            (*cells, *_with(("", "", "", "") if number else own, group))
            for number, (cells, group) in enumerate(zip(told, groups or [()], strict=True))
        )
    # All of them see the same GPUs, which are shown once.
    rows = [
        (view.worker.name, Message("shared"), *[_NOTHING] * 6, *_use(view.use), joined(trouble))
        for view, trouble in zip(place.views, place.troubles, strict=True)
    ]
    names = fold_names(view.worker.name for view in place.views)
    return (*rows, *((*_gpus(names, group), *_with(("", "", "", ""), group)) for group in groups))


def _with(own: tuple[str, str, str, str], group: Judged) -> Row:
    """CPU, memory and scope of the worker, and the marks of its GPUs behind what is wrong with itself."""
    *use, trouble = own
    return (*use, joined(text for text in (trouble, _told(group)) if text))


def _told(group: Judged) -> str:
    if not group:
        return ""
    texts = {tuple(mark.text for mark in found) for _, found in group}
    if len(texts) == 1:
        return joined(texts.pop(), COMMA)
    return joined((_GENERAL[mark.kind] for mark in group[0][1]), COMMA)


def _gpus(name: str, group: Judged) -> Row:
    gpus = [one.gpu for one, _ in group]
    names = {gpu.name for gpu in gpus}
    used, total = _span([gpu.memory_used for gpu in gpus]), _span([gpu.memory_total for gpu in gpus])
    return (
        name,
        fold_numbers([gpu.index for gpu in gpus]),
        (names.pop() or _NOTHING) if len(names) == 1 else Message("several"),
        _span([gpu.utilization for gpu in gpus]),
        f"{used}/{total}",
        _span([gpu.power for gpu in gpus]),
        _span([gpu.temperature for gpu in gpus]),
        _span([gpu.ecc_uncorrected for gpu in gpus]),
    )


def _span(values: Sequence[float | None]) -> str:
    told = [value for value in values if value is not None]
    if not told:
        return _NOTHING
    low, high = f"{min(told):.0f}", f"{max(told):.0f}"
    return low if low == high else f"{low}-{high}"


def _use(use: Compute | None) -> tuple[str, str, str]:
    if use is None:
        return _NOTHING, _NOTHING, _NOTHING
    return (
        _of(use.cpu, use.cpu_limit, 1),
        _of(use.memory, use.memory_limit, _GIB),
        _SCOPE[use.scope],
    )


def _of(value: float | None, limit: float | None, unit: float) -> str:
    """`1.5/32`: in use, of what may be used."""
    used, may = (_NOTHING if one is None else _short(one / unit) for one in (value, limit))
    return _NOTHING if value is None and limit is None else f"{used}/{may}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 100 else f"{value:.0f}"
