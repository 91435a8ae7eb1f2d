"""The page of a report: plain data in, one HTML file without scripts out.

Every text may be hostile. A text becomes markup in one place only (`text`), and is made harmless there.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, Self
from urllib.parse import quote

from atlctl.jobs.panel import PanelTone
from atlctl.render.palette import Tone as PaletteTone
from atlctl.render.sanitize import clean, clean_lines

#: The kind of a mark, shown by shape as well as colour.
Sort = Literal[
    "root", "failure", "victim", "ended", "agent", "earlier", "restart", "signal", "state", "event", "waits", "absent"
]
Level = Literal["bad", "odd", "good", "none"]
#: Evidence that is open at once.
_OPEN_EXCERPTS = 4
#: Texts longer than this take the room that they need, shorter ones stay on one line.
_SHORT = 26
_LONG = 40
#: Shares of the median below which a cell of a map is marked, as on the terminal.
_LOW_SHARE, _WORST_SHARE = 0.8, 0.6
_HEIGHT, _LOW, _MANY, _CURVE = 30, 18, 20, 60
#: Percent at both sides, so that a shape at an end is whole.
_MARGIN = 2.0
#: Percent from an end within which a label is not centred on its tick.
_EDGE = 8.0
_MOST_TICKS = 6
#: A whole run that is so many times as long as its failure is drawn beside it.
_WORTH_BOTH = 4.0
#: Lanes of a whole run that are open at once.
_OPEN_LANES = 24
_LABEL = 400
_STEPS = (
    *(base * 10**power for power in range(-3, 1) for base in (1, 2, 5)),
    *(10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800),
    *(86400 * days for days in (1, 2, 5, 10, 20, 50, 100, 500, 2000, 10000)),
)
_PATHS: Mapping[Sort, str] = {
    "root": "M0-8L8 0L0 8L-8 0Z",
    "failure": "M0-7L7 6L-7 6Z",
    "victim": "M-5.5 0A5.5 5.5 0 1 0 5.5 0A5.5 5.5 0 1 0-5.5 0Z",
    "ended": "M-4.5-4.5H4.5V4.5H-4.5Z",
    "agent": "M-5-5H5V5H-5Z",
    "earlier": "M0-7L7 0L0 7L-7 0Z",
    "restart": "M-2.5-8V8M2.5-8V8",
    "signal": "M-6-6L6 6M-6 6L6-6",
    "state": "M-5.5-5H5.5L0 5Z",
    "event": "M-6 0H6M0-6V6",
    "waits": "M-8-4H8V4H-8Z",
    "absent": "M-8-4H8V4H-8Z",
}
#: Marks in the order of drawing: later ones cover earlier ones.
_ORDER: tuple[Sort, ...] = (
    *("absent", "waits", "event", "state", "restart", "ended"),
    *("agent", "victim", "earlier", "signal", "failure", "root"),
)
#: Files that browsers show as text.
_SHOWN = (".log", ".json", ".jsonl")
#: To a place of the page, or to a file beside it.
_HREF = re.compile(r"#[a-z]{1,30}|\./(?!\.\.?(?:/|$)|/)[\w.~%-]+(?:/(?!\.\.?(?:/|$)|/)[\w.~%-]+)*", re.ASCII)
#: Elements without an end.
_VOID = frozenset(("meta", "br"))
_NAME = re.compile(r"[a-z][a-zA-Z0-9]{0,30}")
_ATTRIBUTE = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{0,30}")
#: Attributes that could lead away from the page, load something or run something are never made.
_ALLOWED = frozenset(
    (
        *("aria-hidden", "aria-label", "charset", "class", "colspan", "content", "cx", "cy", "d", "height", "href"),
        *("http-equiv", "id", "lang", "name", "open", "overflow", "preserveAspectRatio", "r", "role", "rx", "scope"),
        *("tabindex", "text-anchor", "title", "transform", "viewBox", "width", "x", "x1", "x2", "y", "y1", "y2"),
    )
)
Child = str | Iterable["Child"] | None


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and its lines. `code`: those lines that are typed into a shell."""

    label: str
    lines: Sequence[str]
    code: frozenset[int] = frozenset()
    tone: PanelTone = "plain"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A line of a file, or of a stack (`number` 0). `tone`: the one that is meant, the user's own code, other code.

    `stamp`: the node's time, which stood in front of it; not shown on a phone.
    """

    number: int
    text: str
    tone: Literal["at", "own", "faint", ""] = ""
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of a file around those that are meant. `more` are shown on demand, under the label `folded`."""

    place: str
    said: str = ""
    lines: Sequence[Numbered] = ()
    more: Sequence[Numbered] = ()
    folded: str = ""


@dataclass(frozen=True, slots=True)
class LaneMark:
    """Something in a lane. Times in seconds of one clock; `until`: the end, if it spans several. `told`: title."""

    sort: Sort
    time: float
    told: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """One worker or rank, or several alike. `begin` and `end`: its first and its last line, None if not known.

    `said` is a sentence below the lane, `alike` what lanes have in common that may be folded into one.
    """

    name: str
    begin: float | None
    end: float | None
    marks: Sequence[LaneMark]
    note: str = ""
    culprit: bool = False
    said: str = ""
    alike: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """`zero` is the moment that counts as 0. `focus`: begin and end of the failure and its consequences.

    `notes` are below it.
    """

    zero: float
    zero_utc: str
    begin: float
    end: float
    focus: tuple[float, float]
    lanes: Sequence[Lane]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PageTable:
    """Column heads and rows of as many cells. `numbers`: right-aligned columns. `marked`: rows of culprits.

    `folded`: the rows behind it are shown on demand only, under that label.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    marked: frozenset[int] = frozenset()
    caption: str = ""
    shown: int | None = None
    folded: str = ""


@dataclass(frozen=True, slots=True)
class HeatTable:
    """A matrix of figures from row to column. `shares`: of the median, by which cells are coloured; less is worse.

    `exact`: figures for the cells' titles, where the cells show something shorter.
    """

    title: str
    unit: str
    names: Sequence[str]
    figures: Sequence[Sequence[str]]
    shares: Sequence[Sequence[float | None]]
    note: str = ""
    exact: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels and their lines."""

    items: Sequence[Fact]


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Excerpts:
    """Excerpts; those behind the first few are shown on demand."""

    items: Sequence[Excerpt]


@dataclass(frozen=True, slots=True)
class Chip:
    """A verdict in a word or two."""

    text: str
    level: Level


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True, slots=True)
class StepCurve:
    """Seconds of a step over time or steps: `points` are both. `changes`: where it became slow, and the words on it."""

    name: str
    points: Sequence[tuple[float, float]]
    top: float
    changes: Sequence[tuple[float, str]] = ()
    said: str = ""


@dataclass(frozen=True, slots=True)
class StepChart:
    """Curves over one axis."""

    curves: Sequence[StepCurve]
    note: str = ""


Part = Facts | Sentences | Excerpts | Chip | Heading | Timeline | PageTable | HeatTable | StepChart


@dataclass(frozen=True, slots=True)
class ReportPage:
    """All of a report. `words` are the page's own texts by key, in `language`.

    `sections`: the key of each heading, and what is below it; one without parts is left out.
    """

    language: str
    words: Mapping[str, str]
    title: str
    job: Sequence[Fact]
    headline: Sequence[tuple[str, PanelTone]]
    level: Level
    verdict: Sequence[Fact]
    made: Sequence[Fact]
    sections: Sequence[tuple[str, Sequence[Part | None]]] = ()


def render(page: ReportPage) -> str:
    """The whole document. Needs nothing beside it: no script, no image, no font, no network."""
    words, style = page.words, css()
    drawn = [(key, [_part(part, words) for part in parts if part is not None]) for key, parts in page.sections]
    shown = [(key, parts) for key, parts in drawn if any(parts)]
    links = [element("a", words[key], href=f"#{key}") for key, _ in shown]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy(style)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", page.title),
        element("style", Html(style)),
    )
    top = element("header", element("h1", page.title), _facts_line(page.job))
    verdict = element("section", _verdict(page), id="verdict", aria_label=words["verdict"])
    body = [element("section", element("h2", words[key]), parts, id=key, aria_label=words[key]) for key, parts in shown]
    main = element("main", verdict, element("nav", links, aria_label=words["contents"]), body)
    foot = element("footer", element("h2", words["made"]), _facts(page.made))
    document = element("html", head, element("body", top, main, foot), lang=page.language)
    return f"<!DOCTYPE html>\n{document}\n"


def _part(part: Part, words: Mapping[str, str]) -> Html | None:
    match part:
        case Facts(items):
            return _facts(items)
        case Sentences(items):
            return element("ul", [element("li", item) for item in items]) if items else None
        case Excerpts(items):
            return _excerpts(items, words)
        case Chip(shown, level):
            return element("p", element("span", shown, class_=f"chip {level}"))
        case Heading(shown):
            return element("h3", shown)
        case Timeline():
            return draw(part, words)
        case PageTable():
            return _table(part) if part.rows else None
        case HeatTable():
            return _heat(part, words)
        case StepChart():
            return _steps(part) if part.curves else None


def _facts_line(facts: Sequence[Fact]) -> Html | None:
    shown = [element("span", f"{fact.label} ", element("b", fact.lines)) for fact in facts]
    return element("div", shown, class_="facts") if shown else None


def _verdict(page: ReportPage) -> Html:
    pieces = [element("span", text, class_=tone) for text, tone in page.headline]
    return element(
        "div", element("h2", pieces, class_="headline"), _facts(page.verdict), class_=f"verdict {page.level}"
    )


def _facts(facts: Sequence[Fact]) -> Html | None:
    items = []
    for fact in facts:
        told = [
            element("div", element("code", line) if at in fact.code else line) for at, line in enumerate(fact.lines)
        ]
        items += [element("dt", fact.label), element("dd", told, class_="strong" if fact.tone == "strong" else None)]
    return element("dl", items) if items else None


def _excerpts(items: Sequence[Excerpt], words: Mapping[str, str]) -> Html | None:
    if not items:
        return None
    drawn = list(map(_excerpt, items))
    more = None
    if len(drawn) > _OPEN_EXCERPTS:
        summary = element("summary", words["more evidence"].format(count=len(drawn) - _OPEN_EXCERPTS))
        more = element("details", summary, drawn[_OPEN_EXCERPTS:])
    return joined([*drawn[:_OPEN_EXCERPTS], more])


def _excerpt(item: Excerpt) -> Html:
    said = [": ", element("span", item.said)] if item.said else []
    caption = element("figcaption", element("code", item.place), said)
    more = element("details", element("summary", item.folded), _numbered(item.more)) if item.more else None
    return element("figure", caption, _numbered(item.lines) if item.lines else None, more)


def _numbered(items: Sequence[Numbered]) -> Html:
    shown = [
        element(
            "span",
            element("i", str(item.number), aria_hidden="true") if item.number else None,
            element("small", f"{item.stamp} ") if item.stamp else None,
            lines(item.text),
            class_=item.tone or None,
        )
        for item in items
    ]
    return element("pre", shown, tabindex=0)


def _table(table: PageTable) -> Html:
    shown = len(table.rows) if table.shown is None else table.shown
    first = _rows(table, 0, shown) if shown else None
    if shown >= len(table.rows):
        return first or joined([])
    rest = element("details", element("summary", table.folded), _rows(table, shown, len(table.rows)))
    return joined([first, rest])


def _rows(table: PageTable, start: int, end: int) -> Html:
    heads = [
        element("th", head, scope="col", class_="num" if at in table.numbers else None)
        for at, head in enumerate(table.heads)
    ]
    kinds = [_kind(table, column) for column in range(len(table.heads))]
    rows = []
    for at, row in enumerate(table.rows[start:end], start):
        cells = [element("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)]
        rows.append(element("tr", cells, class_="culprit" if at in table.marked else None))
    caption = element("caption", table.caption) if table.caption and not start else None
    whole = element("table", caption, element("thead", element("tr", heads)), element("tbody", rows))
    return element("div", whole, class_="scroll", tabindex=0)


def _kind(table: PageTable, column: int) -> str | None:
    if column in table.numbers:
        return "num"
    longest = max((len(row[column]) for row in table.rows), default=0)
    return "short" if longest <= _SHORT else "long" if longest > _LONG else None


def _heat(heat: HeatTable, words: Mapping[str, str]) -> Html:
    """Figures stand in the cells, and a sign beside those that are low: colour only repeats it."""
    corner = element("th", element("span", words["heat corner"]), scope="col")
    numbers = [element("th", str(at), scope="col", title=name) for at, name in enumerate(heat.names)]
    rows = []
    for one, (name, figures) in enumerate(zip(heat.names, heat.figures, strict=True)):
        cells = []
        for other, shown in enumerate(figures):
            share = heat.shares[one][other]
            told = f"{name} → {heat.names[other]}"
            told += f": {heat.exact[one][other]}" if heat.exact else ""
            cells.append(_cell(shown, share, told) if one != other else element("td", class_="own"))
        rows.append(element("tr", element("th", f"{one} {name}", scope="row"), cells))
    table = element(
        "table",
        element("thead", element("tr", corner, numbers)),
        element("tbody", rows),
        class_="heat dense" if heat.exact else "heat",
    )
    title, key = element("h3", f"{heat.title} ({heat.unit})"), element("p", words["heat key"], class_="soft")
    note = element("p", heat.note, class_="soft") if heat.note else None
    return joined([title, key, element("div", table, class_="scroll", tabindex=0), note])


def _cell(shown: str, share: float | None, told: str) -> Html:
    if share is None:
        shown, kind = "x", "worst"
    elif share < _LOW_SHARE:
        shown, kind = (f"{shown} !", "worst") if share < _WORST_SHARE else (f"{shown} -", "low")
    else:
        kind = "ok"
    return element("td", shown, class_=kind, title=told)


def draw(timeline: Timeline, words: Mapping[str, str]) -> Html:
    """The failure and its consequences; also the whole run, if it was much longer."""
    begin, end = timeline.focus
    whole = max(timeline.end - timeline.begin, 0.0)
    both = whole > _WORTH_BOTH * (end - begin)
    if not both:
        begin, end = min(begin, timeline.begin), max(end, timeline.end)
    parts: list[Html | None] = [_legend(timeline.lanes, words)]
    zero = words["zero"].format(time=timeline.zero_utc) if timeline.zero_utc else words["zero unknown"]
    parts.append(element("p", zero, class_="soft"))
    if both:
        parts.append(element("h3", words["around the failure"]))
    parts.append(_strips(timeline, begin, end, _HEIGHT if len(timeline.lanes) <= _OPEN_LANES else _MANY))
    if both:
        strips = _strips(timeline, timeline.begin, timeline.end, _LOW)
        opened = "open" if len(timeline.lanes) <= _OPEN_LANES else None
        parts.append(element("details", element("summary", words["whole run"]), strips, open=opened))
    parts.append(element("ul", [element("li", note) for note in timeline.notes]) if timeline.notes else None)
    return joined(parts)


def _steps(chart: StepChart) -> Html:
    times = [time for curve in chart.curves for time, _ in curve.points]
    scale = _Scale(min(times), max(times))
    lanes = [_curve(curve, scale) for curve in chart.curves]
    note = element("p", chart.note, class_="soft") if chart.note else None
    return joined([note, element("div", lanes, class_="strips")])


def _curve(curve: StepCurve, scale: _Scale) -> Html:
    """One lane: its drawing has 1000 x 100 units, which are stretched to the lane."""

    def x(time: float) -> str:
        return f"{scale(time) * 10:.1f}"

    line = "".join(
        f"{'L' if place else 'M'}{x(time)} {100 - 98 * min(seconds / curve.top, 1):.1f}"
        for place, (time, seconds) in enumerate(curve.points)
    )
    drawn = [element("path", d=line, class_="curve")]
    for time, told in curve.changes:
        mark = element("path", d=f"M{x(time)} 0V100", class_="change")
        drawn.append(element("g", element("title", told), mark))
    svg = element(
        "svg",
        drawn,
        viewBox="0 0 1000 100",
        preserveAspectRatio="none",
        width="100%",
        height=_CURVE,
        role="img",
        aria_label=f"{curve.name}: {curve.said}"[:_LABEL],
    )
    who = element("div", curve.name, class_="who", title=curve.name)
    said = element("div", curve.said, class_="said") if curve.said else None
    return element("div", who, svg, said, class_="lane culprit" if curve.changes else "lane")


class _Scale:
    """From seconds to percent."""

    def __init__(self, begin: float, end: float) -> None:
        if end - begin < 0.01:  # one moment: it stands in the middle
            begin, end = begin - 0.5, end + 0.5
        self.begin, self.end = begin, end

    def __call__(self, time: float) -> float:
        share = (min(max(time, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return round(_MARGIN + share * (100 - 2 * _MARGIN), 3)

    def holds(self, time: float) -> bool:
        return self.begin <= time <= self.end


def _strips(timeline: Timeline, begin: float, end: float, height: int) -> Html:
    scale = _Scale(begin, end)
    ticks = ticks_of(scale.begin - timeline.zero, scale.end - timeline.zero)
    gap = ticks[1][0] - ticks[0][0] if len(ticks) > 1 else 1.0
    labels = [_label(scale(timeline.zero + at), shown, round(at / gap) % 2 == 1) for at, shown in ticks]
    places = [f"{scale(timeline.zero + at)}%" for at, _ in ticks]
    axis = element(
        "svg",
        labels,
        [element("line", x1=at, x2=at, y1=19, y2=24, class_="grid") for at in places],
        width="100%",
        height=24,
        aria_hidden="true",
    )
    grid = joined(element("line", x1=at, x2=at, y1=0, y2=height, class_="grid") for at in places)
    if scale.holds(timeline.zero):
        at = f"{scale(timeline.zero)}%"
        grid = joined([grid, element("line", x1=at, x2=at, y1=0, y2=height, class_="zero")])
    head = element("div", element("div", class_="who"), axis, class_="lane axis")
    return element("div", head, [_lane(lane, scale, grid, height) for lane in timeline.lanes], class_="strips")


def _label(at: float, shown: str, second: bool) -> Html:
    """The label of a tick, within the axis. Every second one is shown on wide screens only."""
    anchor = "start" if at < _EDGE else "end" if at > 100 - _EDGE else "middle"
    return element("text", shown, x=f"{at}%", y=15, text_anchor=anchor, class_="tick second" if second else "tick")


def _lane(lane: Lane, scale: _Scale, grid: Html, height: int) -> Html:
    middle = height / 2
    drawn: list[Html] = []
    if lane.begin is not None and lane.end is not None and lane.begin <= scale.end and lane.end >= scale.begin:
        left, right = scale(lane.begin), scale(lane.end)
        thick = height / 5
        width = f"{max(right - left, 0.3):g}%"
        drawn.append(element("rect", x=f"{left}%", y=middle - thick / 2, width=width, height=thick, rx=2, class_="bar"))
        if scale.holds(lane.end):
            x = f"{right}%"
            drawn.append(element("line", x1=x, x2=x, y1=middle - thick, y2=middle + thick, class_="stop"))
    shown = [mark for mark in lane.marks if mark.time <= scale.end and (mark.until or mark.time) >= scale.begin]
    shown.sort(key=lambda mark: (_ORDER.index(mark.sort), mark.time))
    drawn += [_mark(mark, scale, height) for mark in shown]
    told = "; ".join(mark.told for mark in sorted(lane.marks, key=lambda mark: mark.time))
    svg = element(
        "svg", grid, drawn, width="100%", height=height, role="img", aria_label=f"{lane.name}: {told}"[:_LABEL]
    )
    note = element("small", lane.note) if lane.note else None
    who = element("div", lane.name, note, class_="who", title=lane.name)
    said = element("div", lane.said, class_="said") if lane.said else None
    return element("div", who, svg, said, class_="lane culprit" if lane.culprit else "lane")


def _mark(mark: LaneMark, scale: _Scale, height: int) -> Html:
    at, until = scale(mark.time), scale(mark.time if mark.until is None else mark.until)
    middle = height / 2
    if mark.sort in ("waits", "absent"):
        x, y, width = f"{at}%", middle - height / 5, f"{max(until - at, 0.3):g}%"
        band = element("rect", x=x, y=y, width=width, height=height / 2.5, rx=2, class_=f"m {mark.sort}")
        return element("g", element("title", mark.told), band)
    span = None
    if until - at > 0.2:
        span = element("line", x1=f"{at}%", x2=f"{until}%", y1=middle, y2=middle, class_="span")
    size = "" if height == _HEIGHT else "0.8" if height == _MANY else "0.7"
    shape = element("path", d=_PATHS[mark.sort], class_=f"m {mark.sort}", transform=f"scale({size})" if size else None)
    place = element("svg", shape, x=f"{at}%", y=middle, overflow="visible") if scale.holds(mark.time) else None
    return element("g", element("title", mark.told), span, place)


def _legend(lanes: Sequence[Lane], words: Mapping[str, str]) -> Html:
    used = {mark.sort for lane in lanes for mark in lane.marks}
    items = []
    for sort in reversed(_ORDER):
        if sort in used:
            path = element("path", d=_PATHS[sort], class_=f"m {sort}")
            icon = element("svg", path, viewBox="-10 -10 20 20", width=18, height=18, aria_hidden="true")
            items.append(element("li", icon, words[f"mark {sort}"]))
    if any(lane.end is not None for lane in lanes):
        line = element("line", x1=0, x2=0, y1=-6, y2=6, class_="stop")
        icon = element("svg", line, viewBox="-10 -10 20 20", width=18, height=18, aria_hidden="true")
        items.append(element("li", icon, words["mark last"]))
    return element("ul", items, class_="legend")


def ticks_of(begin: float, end: float) -> list[tuple[float, str]]:
    """Round offsets in seconds between the two, and their labels."""
    step = next((step for step in _STEPS if (end - begin) / step <= _MOST_TICKS), _STEPS[-1])
    first, last = math.ceil(begin / step - 1e-9), math.floor(end / step + 1e-9)
    if last - first > 2 * _MOST_TICKS:
        return []
    return [(count * step, _offset(count * step, step)) for count in range(first, last + 1)]


def _offset(seconds: float, step: float) -> str:
    if abs(seconds) < step / 2:
        return "0"
    if step < 60:
        digits = max(0, math.ceil(-math.log10(step) - 1e-9))
        return f"{seconds:+.{digits}f} s"
    if step < 3600:
        return f"{seconds / 60:+.0f} min"
    return f"{seconds / 3600:+.0f} h" if step < 86400 else f"{seconds / 86400:+.0f} d"


def css() -> str:
    """How a report looks: quiet, light or dark as the reader's system is, and on paper."""
    with open(os.path.join(os.path.dirname(__file__), "page.css"), encoding="utf-8") as file:
        return file.read()


def policy(css: str) -> str:
    """Nothing may be loaded, run or sent; this style alone is allowed."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


class Html(str):
    """Markup: the only text that is not escaped."""

    __slots__ = ()


class Coloured(str):
    """A text in the colour of a meaning."""

    __slots__ = ("tone",)
    tone: PaletteTone

    def __new__(cls, shown: str, tone: PaletteTone) -> Self:
        made = super().__new__(cls, shown)
        made.tone = tone
        return made


class Linked(str):
    """A text that leads to `file`, a path beside the page, if a browser shows that file as text."""

    __slots__ = ("file",)
    file: str

    def __new__(cls, shown: str, file: str) -> Self:
        made = super().__new__(cls, shown)
        made.file = file
        return made

    def target(self) -> str | None:
        """Where the link leads to; None for a name that may be read otherwise, or for a file that may be run."""
        safe = clean(self.file) == self.file and "\\" not in self.file and self.file.endswith(_SHOWN)
        if not safe or any(part in ("", ".", "..") for part in self.file.split("/")):
            return None
        return f"./{quote(self.file)}"


def text(value: str) -> Html:
    """One line of any origin: control characters and what reorders text show as escapes."""
    return Html(escape(clean(value)))


def lines(value: str) -> Html:
    """The same for text whose newlines and tabs stay."""
    return Html(escape(clean_lines(value)))


def element(tag: str, /, *children: Child, **attributes: str | float | None) -> Html:
    """`<tag ...>children</tag>`. Children that are not `Html` are text.

    Attributes: `class_` is class, `_` is `-`, None is left out; links lead to places of the page and files beside it.
    Raises ValueError for any other attribute than those that a report needs.
    """
    if not _NAME.fullmatch(tag):
        raise ValueError(f"no element: {tag!r}")
    made = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if tag in _VOID:
        return Html(f"<{tag}{made}>")
    return Html(f"<{tag}{made}>{joined(children)}</{tag}>")


def joined(children: Iterable[Child]) -> Html:
    """One behind the other."""
    return Html("".join(map(_child, children)))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, Coloured):
        return element("span", str(child), class_=child.tone.name.lower())
    if isinstance(child, Linked) and (target := child.target()):
        return element("a", str(child), href=target)
    return text(child) if isinstance(child, str) else joined(child)


def _attribute(key: str, value: str | float) -> str:
    name = key.rstrip("_").replace("_", "-")
    if not _ATTRIBUTE.fullmatch(name) or name not in _ALLOWED:
        raise ValueError(f"no attribute of a report: {name!r}")
    shown = value if isinstance(value, str) else f"{value:g}"
    if name == "href" and not _HREF.fullmatch(shown):
        raise ValueError(f"a link that leads away from the page: {shown!r}")
    return f' {name}="{escape(clean(shown))}"'
