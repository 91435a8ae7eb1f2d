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
from typing import Literal

from atlctl.render.sanitize import clean, clean_lines

#: How a mark stands out. The shape tells it as well as the colour.
Sort = Literal["root", "failure", "victim", "ended", "agent", "earlier", "restart", "signal", "state", "event"]
Tone = Literal["culprit", "strong", "plain", "faint"]
Level = Literal["bad", "odd", "good", "none"]
#: Evidence that is open at once.
_OPEN_EXCERPTS = 4
#: Texts longer than this take the room that they need, shorter ones stay on one line.
_SHORT = 26
_LONG = 40
#: Shares of the median below which a cell of a map is marked, as on the terminal.
_LOW_SHARE, _WORST_SHARE = 0.8, 0.6
_HEIGHT, _LOW, _MANY = 30, 18, 20
#: Percent at both sides, so that a shape at an end is whole.
_MARGIN = 2.0
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
}
#: What is drawn on top of what.
_ORDER: tuple[Sort, ...] = (
    *("event", "state", "restart", "ended", "agent", "victim", "earlier", "signal", "failure", "root"),
)
#: Elements without an end.
_VOID = frozenset(("meta", "br"))
_NAME = re.compile(r"[a-z][a-zA-Z0-9]{0,30}")
_ATTRIBUTE = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{0,30}")
#: Attributes that could lead away from the page, load something or run something are never made.
_ALLOWED = frozenset(
    (
        *("aria-hidden", "aria-label", "charset", "class", "colspan", "content", "cx", "cy", "d", "height", "href"),
        *("http-equiv", "id", "lang", "name", "open", "overflow", "r", "role", "rx", "scope", "tabindex"),
        *("text-anchor", "title", "transform", "viewBox", "width", "x", "x1", "x2", "y", "y1", "y2"),
    )
)
Child = str | Iterable["Child"] | None


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and what is to be said under it. `code`: those of its lines that are typed into a shell."""

    label: str
    lines: Sequence[str]
    code: frozenset[int] = frozenset()
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of a file around those that are meant. `first` is the number of the first line, `at` are those meant."""

    place: str
    said: str = ""
    first: int = 0
    at: frozenset[int] = frozenset()
    lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LaneMark:
    """Something in a lane. Times in seconds of one clock; `until`: of several. `told`: for its title."""

    sort: Sort
    time: float
    told: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """One worker, or several alike. `begin` and `end`: its first and its last line, None where not known."""

    name: str
    begin: float | None
    end: float | None
    marks: Sequence[LaneMark]
    note: str = ""
    culprit: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """`zero` is the moment that counts as 0. `focus`: from and to when the failure and what followed took place.

    `notes` stand below it.
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
    """Column heads and rows of as many cells. `numbers`: columns that stand right. `marked`: rows of culprits.

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
class SmokeResults:
    """The results of a smoke test."""

    verdict: str
    level: Level
    facts: Sequence[Fact]
    checks: PageTable
    findings: PageTable | None
    heats: Sequence[HeatTable] = ()


@dataclass(frozen=True, slots=True)
class ReportPage:
    """All of a report. `words` are the page's own texts by key, in `language`."""

    language: str
    words: Mapping[str, str]
    title: str
    job: Sequence[Fact]
    headline: Sequence[tuple[str, Tone]]
    level: Level
    verdict: Sequence[Fact]
    evidence: Sequence[Excerpt]
    made: Sequence[Fact]
    remarks: Sequence[str] = ()
    timeline: Timeline | None = None
    cascade: PageTable | None = None
    earlier: PageTable | None = None
    workers: PageTable | None = None
    everyone: PageTable | None = None
    states: PageTable | None = None
    events: PageTable | None = None
    smoke: SmokeResults | None = None
    environment: PageTable | None = None
    machines: PageTable | None = None
    missing: Sequence[str] = ()
    files: PageTable | None = None


def render(page: ReportPage) -> str:
    """The whole document. Needs nothing beside it: no script, no image, no font, no network."""
    words, style = page.words, css()
    sections = [section for section in _sections(page) if section[2]]
    links = [element("a", words[key], href=f"#{name}") for name, key, _ in sections if name != "verdict"]
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
    body = [_section(name, words[key], content) for name, key, content in sections]
    main = element("main", body[0], element("nav", links, aria_label=words["contents"]), body[1:])
    foot = element("footer", element("h2", words["made"]), _facts(page.made))
    document = element("html", head, element("body", top, main, foot), lang=page.language)
    return f"<!DOCTYPE html>\n{document}\n"


def _sections(page: ReportPage) -> list[tuple[str, str, Html | None]]:
    """Id, key of the heading, content; None where there is nothing to tell."""
    words = page.words
    return [
        ("verdict", "verdict", _verdict(page)),
        ("evidence", "evidence", _evidence(page.evidence, words)),
        ("timeline", "timeline", draw(page.timeline, words) if page.timeline else None),
        ("cascade", "cascade", _tables(page.cascade)),
        ("earlier", "earlier", _tables(page.earlier)),
        ("workers", "workers", _tables(page.workers, page.everyone)),
        ("states", "states", _tables(page.states)),
        ("events", "events", _tables(page.events)),
        ("smoke", "smoke", _smoke(page.smoke, words) if page.smoke else None),
        ("environment", "environment", _tables(page.environment, page.machines)),
        ("remarks", "remarks", _list(page.remarks)),
        ("missing", "missing", _list(page.missing)),
        ("files", "files", _tables(page.files)),
    ]


def _section(name: str, title: str, content: Html | None) -> Html:
    heading = None if name == "verdict" else element("h2", title)
    return element("section", heading, content, id=name, aria_label=title)


def _facts_line(facts: Sequence[Fact]) -> Html | None:
    shown = [element("span", f"{fact.label} ", element("b", ", ".join(fact.lines))) for fact in facts]
    return element("div", shown, class_="facts") if shown else None


def _verdict(page: ReportPage) -> Html:
    pieces = [element("span", text, class_=tone) for text, tone in page.headline]
    return element(
        "div",
        element("h2", pieces, class_="headline"),
        _facts(page.verdict),
        class_=f"verdict {page.level}",
    )


def _facts(facts: Sequence[Fact]) -> Html | None:
    items = []
    for fact in facts:
        told = [
            element("div", element("code", line) if at in fact.code else line) for at, line in enumerate(fact.lines)
        ]
        items += [element("dt", fact.label), element("dd", told, class_="strong" if fact.tone == "strong" else None)]
    return element("dl", items) if items else None


def _evidence(items: Sequence[Excerpt], words: Mapping[str, str]) -> Html | None:
    if not items:
        return None
    drawn = list(map(_excerpt, items))
    more = None
    if len(drawn) > _OPEN_EXCERPTS:
        summary = element("summary", words["more evidence"].format(count=len(drawn) - _OPEN_EXCERPTS))
        more = element("details", summary, drawn[_OPEN_EXCERPTS:])
    return joined([*drawn[:_OPEN_EXCERPTS], more])


def _excerpt(item: Excerpt) -> Html:
    said = [": ", element("span", item.said)] if item.said and not item.lines else []
    caption = element("figcaption", element("code", item.place), said)
    if not item.lines:
        return element("figure", caption)
    shown = []
    for number, line in enumerate(item.lines, item.first):
        numbered = [element("i", str(number), aria_hidden="true"), lines(line)]
        shown.append(element("span", numbered, class_="at" if number in item.at else None))
    return element("figure", caption, element("pre", shown, tabindex=0))


def _tables(*tables: PageTable | None) -> Html | None:
    drawn = [_table(table) for table in tables if table is not None and table.rows]
    return joined(drawn) if drawn else None


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


def _list(items: Sequence[str]) -> Html | None:
    return element("ul", [element("li", item) for item in items]) if items else None


def _smoke(smoke: SmokeResults, words: Mapping[str, str]) -> Html:
    parts: list[Html | None] = [
        element("p", element("span", smoke.verdict, class_=f"chip {smoke.level}")),
        _facts(smoke.facts),
    ]
    if smoke.findings is not None and smoke.findings.rows:
        parts += [element("h3", words["smoke findings"]), _table(smoke.findings)]
    parts += [element("h3", words["smoke checks"]), _table(smoke.checks)]
    parts += [_heat(heat, words) for heat in smoke.heats]
    return joined(parts)


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
    note = element("p", heat.note, class_="soft") if heat.note else None
    title = element("h3", f"{heat.title} ({heat.unit})")
    return joined(
        [
            title,
            element("p", words["heat key"], class_="soft"),
            element("div", table, class_="scroll", tabindex=0),
            note,
        ]
    )


def _cell(shown: str, share: float | None, told: str) -> Html:
    if share is None:
        return element("td", "x", class_="worst", title=told)
    if share < _WORST_SHARE:
        return element("td", f"{shown} !", class_="worst", title=told)
    if share < _LOW_SHARE:
        return element("td", f"{shown} -", class_="low", title=told)
    return element("td", shown, class_="ok", title=told)


def draw(timeline: Timeline, words: Mapping[str, str]) -> Html:
    """The failure and what followed; where the run was much longer, the whole of it as well."""
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
    lines = [(scale(timeline.zero + at), shown) for at, shown in ticks]
    axis = element(
        "svg",
        [element("text", shown, x=f"{at}%", y=15, text_anchor="middle", class_="tick") for at, shown in lines],
        [element("line", x1=f"{at}%", x2=f"{at}%", y1=19, y2=24, class_="grid") for at, _ in lines],
        width="100%",
        height=24,
        aria_hidden="true",
    )
    grid = joined(element("line", x1=f"{at}%", x2=f"{at}%", y1=0, y2=height, class_="grid") for at, _ in lines)
    if scale.holds(timeline.zero):
        at = f"{scale(timeline.zero)}%"
        grid = joined([grid, element("line", x1=at, x2=at, y1=0, y2=height, class_="zero")])
    head = element("div", element("div", class_="who"), axis, class_="lane axis")
    return element("div", head, [_lane(lane, scale, grid, height) for lane in timeline.lanes], class_="strips")


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
    return element("div", who, svg, class_="lane culprit" if lane.culprit else "lane")


def _mark(mark: LaneMark, scale: _Scale, height: int) -> Html:
    at = scale(mark.time)
    span = None
    if mark.until is not None and scale(mark.until) - at > 0.2:
        span = element("line", x1=f"{at}%", x2=f"{scale(mark.until)}%", y1=height / 2, y2=height / 2, class_="span")
    size = "" if height == _HEIGHT else "0.8" if height == _MANY else "0.7"
    shape = element("path", d=_PATHS[mark.sort], class_=f"m {mark.sort}", transform=f"scale({size})" if size else None)
    place = element("svg", shape, x=f"{at}%", y=height / 2, overflow="visible") if scale.holds(mark.time) else None
    return element("g", element("title", mark.told), span, place)


def _legend(lanes: Sequence[Lane], words: Mapping[str, str]) -> Html:
    used = {mark.sort for lane in lanes for mark in lane.marks}
    items = []
    for sort in reversed(_ORDER):
        if sort in used:
            path = element("path", d=_PATHS[sort], class_=f"m {sort}")
            icon = element("svg", path, viewBox="-10 -10 20 20", width=18, height=18, aria_hidden="true")
            items.append(element("li", icon, words[f"mark {sort}"]))
    line = element("line", x1=0, x2=0, y1=-6, y2=6, class_="stop")
    icon = element("svg", line, viewBox="-10 -10 20 20", width=18, height=18, aria_hidden="true")
    items.append(element("li", icon, words["mark last"]))
    return element("ul", items, class_="legend")


def ticks_of(begin: float, end: float) -> list[tuple[float, str]]:
    """Round offsets in seconds between the two, and what to write at them."""
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


def text(value: str) -> Html:
    """One line of any origin: control characters and what reorders text show as escapes."""
    return Html(escape(clean(value)))


def lines(value: str) -> Html:
    """The same for text whose newlines and tabs stay."""
    return Html(escape(clean_lines(value)))


def element(tag: str, /, *children: Child, **attributes: str | float | None) -> Html:
    """`<tag ...>children</tag>`. Children that are no `Html` are text.

    Attributes: `class_` is class, `_` is `-`, None is left out; links lead to places of the page. Raises ValueError for
    any other attribute than those that a report needs.
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
    return text(child) if isinstance(child, str) else joined(child)


def _attribute(key: str, value: str | float) -> str:
    name = key.rstrip("_").replace("_", "-")
    if not _ATTRIBUTE.fullmatch(name) or name not in _ALLOWED:
        raise ValueError(f"no attribute of a report: {name!r}")
    shown = value if isinstance(value, str) else f"{value:g}"
    if name == "href" and not shown.startswith("#"):
        raise ValueError(f"a link that leads away from the page: {shown!r}")
    return f' {name}="{escape(clean(shown))}"'
