"""The table of `top`: a row for each GPU or for several that are alike, in the order that was asked for; whole for a
pipe, for a terminal a page of it, and the pages on one worker and on the keys."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from statistics import fmean, median
from typing import Literal, NamedTuple

from atlctl.cli import say
from atlctl.cli.top.reading import Compute
from atlctl.cli.top.view import UNKNOWN, Kind, Mark, SeenGpu, View, judge
from atlctl.i18n import COMMA, LIST, Message, about, joined, plural, translated
from atlctl.jobs.naming import fold_names, fold_numbers
from atlctl.render.palette import Tone, Toned
from atlctl.render.screen import Line, bar, fitted, sparkline
from atlctl.render.table import Column
from atlctl.render.width import cut, display_width, wrapped

TITLES = (
    "WORKER",
    "GPU",
    Message("NAME"),
    Message("UTIL %"),
    Message("LAST MINUTE"),
    Message("MEMORY GiB"),
    Message("MEMORY MiB"),
    Message("POWER W"),
    Message("TEMP C"),
    "ECC",
    "CPU",
    Message("RAM GiB"),
    Message("SCOPE"),
    Message("MARKS"),
)
_LEFT = frozenset({"WORKER", "NAME", "LAST MINUTE", "SCOPE", "MARKS"})
#: Those of GPUs, and those that only a terminal or only a pipe has.
_ON_GPUS = frozenset(TITLES[1:10])
_DRAWN, _PIPED = frozenset({"LAST MINUTE", "MEMORY GiB"}), frozenset({"MEMORY MiB"})
#: Columns that are dropped if a terminal is too narrow, the last one first.
_SPARE = ("LAST MINUTE", "MEMORY GiB", "POWER W", "TEMP C", "ECC", "CPU", "RAM GiB", "SCOPE", "NAME")
#: The least cells of marks (more on wide terminals), for which other columns are dropped, and of names.
_MARKS, _NAME = 24, 12
#: Cells of bars and of sparklines, by the least width of a terminal.
_CELLS = ((160, 10, 20), (100, 5, 20), (0, 5, 10))
#: Rows of a terminal that has room for totals and keys.
_TALL = 8
_GIB = 1 << 30
_NOTHING = "-"

_GENERAL = {
    Kind.ECC: Message("uncorrected ECC"),
    Kind.SLOWED: Message("slowed"),
    Kind.LOW_POWER: Message("low power?"),
    Kind.LOW_UTILIZATION: Message("low use?"),
    Kind.HIGH_POWER: Message("others wait?"),
}
_TONES = {Kind.ECC: Tone.FAIL, Kind.SLOWED: Tone.FAIL, Kind.EMPTY: Tone.DIM}
_PHASES = {"asking": Tone.WAITING, "lost": Tone.LOST, "live": Tone.WARN, "ended": Tone.DIM}
#: Weights in the order of marks, beside the numbers of kinds: trouble of the worker, nothing odd, ended well.
_TROUBLED, _PLAIN, _DONE = 0, 90, 99
#: Whose CPU and RAM it is, by scope.
SCOPES = {
    "container": Message("of the worker's container (its cgroup)"),
    "machine": Message("of the whole machine"),
    "processes": Message("of the worker's processes"),
}
_SCOPE = {"container": Message("container"), "machine": about("scope", "machine"), "processes": Message("processes")}
Judged = Sequence[tuple[SeenGpu, tuple[Mark, ...]]]


# Rows


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """Workers, most often one, with their GPUs and what is wrong with each of the workers."""

    views: tuple[View, ...]
    judged: Judged
    troubles: tuple[str, ...]

    @property
    def done(self) -> bool:
        """It has ended well."""
        return all(view.phase == "ended" and not view.wanting for view in self.views)


class GpuRow(NamedTuple):
    """One or several GPUs of a place, or none. `views`: the workers that it names."""

    place: GpuPlace
    views: tuple[View, ...]
    gpus: Judged

    @property
    def weight(self) -> int:
        """Workers that do not answer come first, then the gravest mark; workers that ended well last."""
        if self.place.done:
            return _DONE
        if any(self.place.troubles):
            return _TROUBLED
        return min((mark.kind for _, found in self.gpus for mark in found), default=_PLAIN)

    @property
    def key(self) -> tuple[str, int]:
        return self.views[0].worker.name, self.gpus[0][0].gpu.index if self.gpus else -1


def _places(views: Sequence[View], troubles: Mapping[str, str]) -> list[GpuPlace]:
    judged = judge(views)
    groups: dict[object, list[View]] = {}
    for view in views:
        uuids = frozenset(one.gpu.uuid for one, _ in judged[view.worker.name])
        known = bool(uuids) and None not in uuids
        groups.setdefault(uuids if known else view.worker.name, []).append(view)
    return [
        GpuPlace(
            tuple(group), judged[group[0].worker.name], tuple(troubles.get(view.worker.name, "") for view in group)
        )
        for group in groups.values()
    ]


def _rows(place: GpuPlace, folded: bool) -> list[GpuRow]:
    """A row for each GPU; folded: one for all that have the same marks. Always one that names each worker."""
    groups: Sequence[Judged] = [[one] for one in place.judged]
    if folded or any(place.troubles):
        groups = [list(group) for _, group in groupby(sorted(place.judged, key=_kinds), key=_kinds)]
    own = [GpuRow(place, (view,), ()) for view in place.views] if len(place.views) > 1 or not groups else []
    # All of its workers see the same GPUs, which are shown once.
    return own + [GpuRow(place, place.views, group) for group in groups]


def _kinds(one: tuple[SeenGpu, tuple[Mark, ...]]) -> tuple[int, ...]:
    """Sorts GPUs with marks before those without."""
    return tuple(mark.kind for mark in one[1]) or (_PLAIN,)


def _by(value: Callable[[GpuRow], Iterable[float | None]], sign: int = -1) -> Callable[[GpuRow], float]:
    """By the highest of the values, or with 1 the lowest; rows that have none come last."""
    return lambda row: min((sign * one for one in value(row) if one is not None), default=float("inf"))


#: The orders of `--sort`, in the footer's words. The key `s` goes through those of `_AFTER`.
_ORDERS: Mapping[str, tuple[Message, Callable[[GpuRow], float]]] = {
    "odd": (about("order", "marks"), lambda row: row.weight),
    "util": (about("order", "use"), _by(lambda row: [one.gpu.utilization for one, _ in row.gpus], 1)),
    "memory": (about("order", "memory"), _by(lambda row: [one.gpu.memory_used for one, _ in row.gpus])),
    "temp": (about("order", "temperature"), _by(lambda row: [one.gpu.temperature for one, _ in row.gpus])),
    "worker": (about("order", "worker"), lambda row: row.views[0].worker.index),
    "power": (about("order", "power"), _by(lambda row: [one.gpu.power for one, _ in row.gpus], 1)),
    "cpu": (about("order", "CPU"), _by(lambda row: [view.use.cpu for view in row.place.views if view.use])),
}
_AFTER = {"odd": "util", "util": "memory", "memory": "temp", "temp": "worker"}


def whole(views: Sequence[View], order: str) -> list[str]:
    """Every row, in any width; no row for a worker that reported nothing."""
    rows = [row for place in _places(_reported(views), {}) for row in _rows(place, False)]
    rows.sort(key=_ORDERS[order][1])
    if not rows:
        return []
    lines, _ = _table(rows, _firsts(rows), None, _DRAWN)
    return ["".join(cell.text for cell in line).rstrip(" ") for line in lines]


def _reported(views: Sequence[View]) -> list[View]:
    return [view for view in views if view.use is not None or view.readout.gpus]


def _firsts(rows: Sequence[GpuRow]) -> list[bool]:
    """Which rows are the first of a worker: they have its CPU, its memory and what is wrong with it."""
    seen: set[str] = set()
    firsts = []
    for row in rows:
        name = row.views[0].worker.name
        firsts.append(len(row.views) == 1 and name not in seen)
        seen.add(name)
    return firsts


# Cells


def _table(
    rows: Sequence[GpuRow], firsts: Sequence[bool], width: int | None, hidden: frozenset[str]
) -> tuple[list[Line], list[str]]:
    """`width`: cells of a terminal, where figures have bars; None for a pipe. No columns for GPUs if there are none."""
    if not any(row.gpus for row in rows):
        hidden |= _ON_GPUS
    kept = [number for number, title in enumerate(TITLES) if title not in hidden]
    columns = [
        Column(title, "left" if title in _LEFT else "right", spare=_SPARE.index(title) + 1 if title in _SPARE else 0)
        for title in map(TITLES.__getitem__, kept)
    ]
    columns[-1] = replace(columns[-1], least=max(_MARKS, min(44, 2 * (width or 0) // 5)))
    cells = [_cells(row, first, width) for row, first in zip(rows, firsts, strict=True)]
    return fitted(columns, [[row[n] for n in kept] for row in cells], width)


def _cells(row: GpuRow, first: bool, width: int | None) -> list[Toned]:
    own = row.views[0]
    use, trouble = (own.use, row.place.troubles[row.place.views.index(own)]) if first else (None, "")
    tone = _tone(row, trouble)
    marks: str = joined(text for text in (trouble, _told(row.gpus)) if text)
    if width is not None and not marks and not row.place.judged:
        marks, tone = own.bare, Tone.DIM
    name = fold_names(view.worker.name for view in row.views)
    if width is not None and display_width(name) > (most := max(_NAME, width // 3)):
        name = cut(name, most // 3) + name[most // 3 - most :]  # its end differs from those of others
    gpus: list[str] = _gpus(row.gpus, width) if row.gpus else [_NOTHING] * 9
    if not row.gpus and row.place.judged:
        gpus[0] = Message("shared")
    cells = [Toned(text, Tone.PLAIN) for text in (name, *gpus, *(_use(use) if first else ("", "", "")))]
    if marks:
        cells[:2] = [Toned(cell.text, tone) for cell in cells[:2]]
    if width is not None:
        cells[3:6] = [Toned(cell.text, Tone.ACTIVE, cell.text.partition(" ")[0]) for cell in cells[3:6]]
        cells[4] = Toned(gpus[3], Tone.ACTIVE)
    return [*cells, Toned(marks, tone)]


def _tone(row: GpuRow, trouble: str) -> Tone:
    if trouble:
        return Tone.FAIL if row.views[0].wanting else _PHASES[row.views[0].phase]
    kinds = [mark.kind for _, found in row.gpus for mark in found]
    return _TONES.get(min(kinds), Tone.WARN) if kinds else Tone.PLAIN


def _told(group: Judged) -> str:
    if not group:
        return ""
    texts = {tuple(mark.text for mark in found) for _, found in group}
    if len(texts) == 1:
        return joined(texts.pop(), COMMA)
    return joined((_GENERAL[mark.kind] for mark in group[0][1]), COMMA)


def _gpus(group: Judged, width: int | None) -> list[str]:
    gpus = [one.gpu for one, _ in group]
    names = {gpu.name for gpu in gpus}
    util, trend, memory = _span([gpu.utilization for gpu in gpus]), "", ""
    if width is not None:
        bars, sparks = next((bars, sparks) for least, bars, sparks in _CELLS if width >= least - 1)
        util = f"{bar(_mean(gpu.utilization for gpu in gpus), 100, bars)} {util:>3}"
        trend = sparkline(_trend(group), 100, sparks)
        used, total = _mean(gpu.memory_used for gpu in gpus), _mean(gpu.memory_total for gpu in gpus)
        memory = f"{bar(used, total, bars)} {_in_gib(used):>3}/{_in_gib(total)}"
    used_mib, total_mib = _span([gpu.memory_used for gpu in gpus]), _span([gpu.memory_total for gpu in gpus])
    return [
        fold_numbers([gpu.index for gpu in gpus]),
        (names.pop() or _NOTHING) if len(names) == 1 else Message("several"),
        util,
        trend,
        memory,
        f"{used_mib}/{total_mib}",
        _span([gpu.power for gpu in gpus]),
        _span([gpu.temperature for gpu in gpus]),
        _span([gpu.ecc_uncorrected for gpu in gpus]),
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _trend(group: Judged) -> list[float | None]:
    """Of several GPUs the mean, for each look; the newest at the end."""
    looks = zip_longest(*(reversed(one.trend) for one, _ in group), fillvalue=UNKNOWN)
    return [_mean(None if use == UNKNOWN else use for use in look) for look in looks][::-1]


def _in_gib(mib: float | None) -> str:
    return _NOTHING if mib is None else f"{mib / 1024:.0f}"


def _span(values: Sequence[float | None]) -> str:
    told = [value for value in values if value is not None]
    if not told:
        return _NOTHING
    low, high = f"{min(told):.0f}", f"{max(told):.0f}"
    return low if low == high else f"{low}-{high}"


def _use(use: Compute | None) -> tuple[str, str, str]:
    if use is None:
        return _NOTHING, _NOTHING, _NOTHING
    return (_of(use.cpu, use.cpu_limit, 1), _of(use.memory, use.memory_limit, _GIB), _SCOPE[use.scope])


def _of(value: float | None, limit: float | None, unit: float) -> str:
    """`1.5/32`: in use, of what may be used."""
    used, may = (_NOTHING if one is None else _short(one / unit) for one in (value, limit))
    return _NOTHING if value is None and limit is None else f"{used}/{may}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 100 else f"{value:.0f}"


# A page of a terminal


@dataclass(slots=True)
class Browsing:
    """The user's view of the table. `only`: rows with marks. `needle`: the filter, `typing` while it is typed."""

    order: str
    only: bool = False
    needle: str = ""
    typing: bool = False
    pane: Literal["table", "worker", "help"] = "table"
    #: Number of the chosen row and, once the user has moved, its key; of the first row that is shown.
    at: int = 0
    key: tuple[str, int] | None = None
    first: int = 0
    #: The rows of the last page, and how many of them it had room for.
    rows: Sequence[GpuRow] = ()
    room: int = 1

    def move(self, by: int) -> None:
        if self.pane != "table":
            self.first = max(0, self.first + by)
        elif self.rows:
            self.at = max(0, min(len(self.rows) - 1, self.at + by))
            self.key = self.rows[self.at].key

    def show(self, pane: Literal["table", "worker", "help"]) -> None:
        self.pane, self.first = pane, 0

    def sort(self) -> None:
        self.order = _AFTER.get(self.order, "odd")
        self.at, self.key, self.first = 0, None, 0


class Picture:
    """All workers at one moment; pages of it are made on demand."""

    def __init__(self, job: str, views: Sequence[View], troubles: Mapping[str, str] | None) -> None:
        """`troubles`: by worker's name; None for a single look, where workers without data have no rows."""
        self.job = job
        self.views = views
        self.places = _places(_reported(views) if troubles is None else views, troubles or {})
        self._at = time.strftime("%H:%M:%S")
        self._models = {one.gpu.name for place in self.places for one, _ in place.judged}

    def page(self, choice: Browsing, size: tuple[int, int], keys: bool = True) -> tuple[list[Line], int]:
        """The lines of a terminal, and the number of the line of the chosen row. `keys`: the last line names them."""
        columns, height = size
        lines = [*self._summary(columns), *(self._totals(columns) if height >= _TALL else ())]
        footer = [_footer(choice, columns)] if keys and height >= _TALL else []
        room = max(1, height - len(lines) - len(footer))
        if choice.pane == "table":
            body, chosen = self._body(choice, columns, room)
            chosen += len(lines) if keys else -height
        else:
            text = _help() if choice.pane == "help" else self._worker(choice)
            body, chosen = [(), *(line for cell in text for line in _wrapped(cell, columns - 1))], -1
            choice.room, choice.first = room, max(0, min(choice.first, len(body) - room))
            body = body[choice.first : choice.first + room]
        body = [*body, *[()] * (room - len(body))] if keys else [line for line in body if line]
        return [*lines, *body, *footer][:height], chosen

    def _summary(self, columns: int) -> list[Line]:
        phases = Counter(view.phase for view in self.views)
        counts = [
            (phases["asking"], Message("{count} not heard of yet")),
            (phases["lost"], Message("{count} lost")),
            (phases["ended"], Message("{count} ended")),
        ]
        gpus = sum(len(place.judged) for place in self.places)
        marked = sum(bool(found) for place in self.places for _, found in place.judged)
        model = next(iter(self._models), None) if len(self._models) == 1 else None
        parts = [
            say.workers(len(self.views)),
            Message("{gpus} ({name})", gpus=_count(gpus), name=model) if model else _count(gpus),
            *([Message("{gpus} with marks", gpus=_count(marked))] if marked else []),
            *(text.filled(count=number) for number, text in counts if number),
        ]
        head = f"{self.job}  {self._at}  "
        if model and display_width(head + translated(joined(parts, COMMA))) >= columns:
            parts[1] = _count(gpus)
        return [(Toned(head + _fitting(parts, columns, head), Tone.STRONG, self.job),)]

    def _totals(self, columns: int) -> list[Line]:
        gpus = [one for place in self.places for one, _ in place.judged]
        if not gpus:
            found = Counter(view.bare for view in self.views if view.bare)
            parts: list[str] = [
                Message("{text} ({workers})", text=why, workers=say.workers(n)) for why, n in found.items()
            ]
        else:
            known = [one.utilization for one in gpus if one.utilization is not None]
            power = [one.gpu.power for one in gpus if one.gpu.power is not None]
            held = [(one.gpu.memory_used, one.gpu.memory_total) for one in gpus]
            parts = [
                Message("{busy:,} of {gpus} busy", busy=sum(one.busy for one in gpus), gpus=_count(len(gpus))),
                *([Message("median use {median:.0f} %", median=median(known))] if known else []),
                *([Message("power {power:,.1f} kW", power=sum(power) / 1000)] if power else []),
                *([Message("memory {share:.0f} %", share=100 * share)] if (share := _share(held)) is not None else []),
            ]
        return [(Toned(_fitting(parts, columns), Tone.PLAIN),)]

    def _body(self, choice: Browsing, columns: int, room: int) -> tuple[list[Line], int]:
        """The table's heading, its rows, and a line on what is not shown; the number of the chosen one among them."""
        room = max(1, room - 2)
        rows, folded = self._arranged(choice, room)
        choice.rows, choice.room = rows, room
        if choice.key is not None:
            choice.at = next((at for at, row in enumerate(rows) if row.key == choice.key), choice.at)
        choice.at = max(0, min(choice.at, len(rows) - 1))
        choice.first = max(choice.at - room + 1, min(choice.first, choice.at, len(rows) - room), 0)
        shown = slice(choice.first, choice.first + room)
        hidden = _PIPED | ({"NAME"} if len(self._models) < 2 else frozenset())
        if len({view.use.scope for view in self.views if view.use is not None}) < 2:
            hidden |= {"SCOPE"}
        if all(len(one.trend) < 2 for place in self.places for one, _ in place.judged):
            hidden |= {"LAST MINUTE"}
        lines, left = _table(rows[shown], _firsts(rows)[shown], columns - 1, hidden)
        notes = [_rest([*rows[: choice.first], *rows[shown.stop :], *folded])]
        if not rows:
            notes.append(Message("nothing matches") if choice.needle or not choice.only else Message("no marks"))
        if left:
            notes.append(Message("too narrow for {columns}", columns=joined(left, LIST)))
        note = joined(note for note in notes if note)
        line = (Toned(note, Tone.DIM),) if note else ()
        return [*lines, line], choice.at - choice.first + 1 if rows else -columns

    def _arranged(self, choice: Browsing, room: int) -> tuple[list[GpuRow], list[GpuRow]]:
        """The rows in the order that was asked for, GPUs that are alike folded into one if not all fit. In the order of
        marks: those with marks, and those for which there is no room at all."""
        together = choice.order in ("odd", "worker", "cpu")
        rows: list[GpuRow] = []
        for folded in (False, True):
            rows = [row for place in self.places for row in _rows(place, folded)]
            if choice.only:
                rows = [row for row in rows if row.weight < _PLAIN]
            if choice.needle:
                rows = [row for row in rows if _matches(row, choice.needle.casefold())]
            rows.sort(key=_ORDERS[choice.order][1])
            if len(rows) <= room or not together:
                return rows, []
        if choice.order != "odd":
            return rows, []
        odd = [row for row in rows if row.weight < _PLAIN]
        return (odd, rows[len(odd) :]) if odd else (rows, [])

    def _worker(self, choice: Browsing) -> Iterator[Toned]:
        """All about the worker that was chosen."""
        name = choice.key[0] if choice.key else ""
        place, at = next(
            (place, at) for place in self.places for at, view in enumerate(place.views) if view.worker.name == name
        )
        view, trouble, worker = place.views[at], place.troubles[at], place.views[at].worker
        facts = [say.state(worker.state, worker.reason)]
        if where := worker.node or worker.host:
            facts.append(Message("on {place}", place=where))
        if worker.pod and worker.pod != name:
            facts.append(Message("pod {name}", name=worker.pod))
        if worker.node_rank is not None:
            facts.append(Message("node rank {rank}", rank=worker.node_rank))
        if worker.pid is not None:
            facts.append(Message("PID {pid}", pid=worker.pid))
        yield Toned(f"{name}  {translated(joined(facts, COMMA))}", Tone.STRONG, name)
        if view.use is not None:
            cpu, memory, _ = _use(view.use)
            what = SCOPES[view.use.scope]
            yield Toned(
                Message("CPU {cpu} cores, RAM {memory} GiB {what}", cpu=cpu, memory=memory, what=what), Tone.PLAIN
            )
        if trouble or view.bare:
            yield Toned(trouble or view.bare, _tone(GpuRow(place, (view,), ()), trouble))
        for one in place.judged:
            row, bits = GpuRow(place, place.views, (one,)), one[0].gpu.clock_reasons
            index, model, use, trend, _, memory, power, temp, ecc = _gpus(row.gpus, _CELLS[0][0])
            yield Toned("", Tone.PLAIN)
            yield Toned(f"GPU {index}  {model}  {one[0].gpu.uuid or _NOTHING}", Tone.STRONG, f"GPU {index}")
            yield Toned(Message("  use {use} %  last minute {trend}", use=use, trend=trend), Tone.PLAIN)
            yield Toned(
                Message(
                    "  memory {memory} MiB  power {power} W  {temp} C  ECC {ecc}  clock reasons {bits}",
                    memory=memory,
                    power=power,
                    temp=temp,
                    ecc=ecc,
                    bits=_NOTHING if bits is None else f"0x{bits:x}",
                ),
                Tone.PLAIN,
            )
            if marks := _told(row.gpus):
                yield Toned(f"  {translated(marks)}", _tone(row, ""))


def _wrapped(cell: Toned, columns: int) -> Iterator[Line]:
    """The lines of a text, broken between words. The head is on the first one."""
    text, tone, head = translated(cell.text), cell.tone, cell.head
    for number, part in enumerate(wrapped(text, columns, 2)):
        yield (Toned(part, Tone.PLAIN if head and number else tone, "" if number else head),)


def _matches(row: GpuRow, needle: str) -> bool:
    """The name or the place of one of its workers, the model of its GPUs, or its marks."""
    words = [name for view in row.views for name in (view.worker.name, view.worker.host, view.worker.node)]
    words += [one.gpu.name for one, _ in row.gpus]
    words += [translated(_told(row.gpus)), *map(translated, row.place.troubles)]
    return any(needle in word.casefold() for word in words if word)


def _rest(rows: Sequence[GpuRow]) -> str:
    """One sentence on rows that are not shown."""
    plain = [one for row in rows for one, found in row.gpus if not found]
    marked = sum(len(row.gpus) for row in rows) - len(plain)
    troubled = len({row.views[0].worker.name for row in rows if row.weight == _TROUBLED})
    bare = sum(not row.place.judged and row.weight == _PLAIN for row in rows)
    ended = sum(row.weight == _DONE for row in rows)
    known = [one.utilization for one in plain if one.utilization is not None]
    use = Message(": median use {median:.0f} %", median=median(known)) if known else ""
    what = [
        *([Message("{gpus} with marks", gpus=_count(marked))] if marked else []),
        *([Message("{workers} with trouble", workers=say.workers(troubled))] if troubled else []),
        *([Message("{gpus} unremarkable{use}", gpus=_count(len(plain)), use=use)] if plain else []),
        *([Message("{workers} without GPUs", workers=say.workers(bare))] if bare else []),
        *([Message("{count} ended", count=ended)] if ended else []),
    ]
    return joined(("…", joined(what, COMMA)), " ") if what else ""


def _share(held: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Of pairs of a part and its whole, the share of all the wholes."""
    known = [(used, of) for used, of in held if used is not None and of]
    return sum(used for used, _ in known) / sum(of for _, of in known) if known else None


def _fitting(parts: Sequence[str], columns: int, head: str = "") -> str:
    """As many of the parts as fit behind the head, at least the first."""
    texts = [translated(joined(parts[:count], COMMA)) for count in range(len(parts), 0, -1)]
    return next((text for text in texts if display_width(head + text) < columns), texts[-1] if texts else "")


def _count(gpus: int) -> Message:
    return plural("{n:,} GPU", "{n:,} GPUs", gpus)


# Keys


def _footer(choice: Browsing, columns: int) -> Line:
    """The keys that count now, as many as fit; the last ones go first."""
    if choice.typing:
        keys = {f"/{choice.needle}_": Message(""), "enter": about("key", "keep"), "esc": about("key", "clear")}
    elif choice.pane != "table":
        keys = {"q": Message("quit"), "esc": about("key", "back"), "j k": about("key", "move")}
    else:
        keys = {
            "q": Message("quit"),
            "?": Message("help"),
            "s": Message("sort: {order}", order=_ORDERS[choice.order][0]),
            "/": Message("filter: {text}", text=choice.needle) if choice.needle else Message("filter"),
            "w": about("key", "all") if choice.only else about("key", "only marks"),
            "enter": Message("details"),
        }
    line: list[Toned] = []
    for key, text in keys.items():
        line.append(Toned(f"{key} {translated(text)}  ", Tone.NOTE, key))
        if sum(display_width(cell.text) for cell in line) - 2 >= columns:
            return line[:-1]
    return line


def _help() -> Iterator[Toned]:
    """The page on keys and figures."""
    keys = {
        "q": Message("quit; Ctrl-C, too"),
        "s": Message("the next order: marks, use, memory, temperature, worker"),
        "/": Message("filter by worker, host, model or mark; esc clears it"),
        "w": Message("only rows with marks; all again"),
        "enter": Message("all about the worker of this row; esc goes back"),
        "j k": Message("move, as the arrow keys, page up, page down, home and end do"),
        "?": Message("this page; esc goes back"),
    }
    for key, text in keys.items():
        yield Toned(f"{key:>6}  {translated(text)}", Tone.NOTE, f"{key:>6}")
    yield Toned("", Tone.PLAIN)
    yield Toned(Message("Marks that end in '?' are hints from comparing GPUs."), Tone.PLAIN)
    yield Toned(Message("CPU is cores in use/allowed. CPU and RAM are:"), Tone.PLAIN)
    for scope, text in SCOPES.items():
        yield Toned(Message("{label}: {text}", label=_SCOPE[scope], text=text), Tone.PLAIN)
