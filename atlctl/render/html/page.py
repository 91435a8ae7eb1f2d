"""The page: what happened first, then the evidence for it, then all that stands around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atlctl.render.html import timeline
from atlctl.render.html.markup import Html, element, joined, lines
from atlctl.render.html.model import Excerpt, Fact, Heat, Page, Smoke, Table
from atlctl.render.html.style import CSS, policy

#: Evidence that is open at once.
_OPEN = 4
#: Texts longer than this take the room that they need, shorter ones stay on one line.
_SHORT = 26
_LONG = 40
#: Shares of the median below which a cell of a map is marked, as on the terminal.
_LOW, _WORST = 0.8, 0.6


def render(page: Page) -> str:
    """The whole document. Needs nothing beside it: no script, no image, no font, no network."""
    words = page.words
    sections = [section for section in _sections(page) if section[2]]
    links = [element("a", words[key], href=f"#{name}") for name, key, _ in sections if name != "verdict"]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", page.title),
        element("style", Html(CSS)),
    )
    top = element("header", element("h1", page.title), _facts_line(page.job))
    body = [_section(name, words[key], content) for name, key, content in sections]
    main = element("main", body[0], element("nav", links, aria_label=words["contents"]), body[1:])
    foot = element("footer", element("h2", words["made"]), _facts(page.made))
    document = element("html", head, element("body", top, main, foot), lang=page.language)
    return f"<!DOCTYPE html>\n{document}\n"


def _sections(page: Page) -> list[tuple[str, str, Html | None]]:
    """Id, key of the heading, content; None where there is nothing to tell."""
    words = page.words
    return [
        ("verdict", "verdict", _verdict(page)),
        ("evidence", "evidence", _evidence(page.evidence, words)),
        ("timeline", "timeline", timeline.draw(page.timeline, words) if page.timeline else None),
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


def _verdict(page: Page) -> Html:
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
    if len(drawn) > _OPEN:
        summary = element("summary", words["more evidence"].format(count=len(drawn) - _OPEN))
        more = element("details", summary, drawn[_OPEN:])
    return joined([*drawn[:_OPEN], more])


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


def _tables(*tables: Table | None) -> Html | None:
    drawn = [_table(table) for table in tables if table is not None and table.rows]
    return joined(drawn) if drawn else None


def _table(table: Table) -> Html:
    shown = len(table.rows) if table.shown is None else table.shown
    first = _rows(table, 0, shown) if shown else None
    if shown >= len(table.rows):
        return first or joined([])
    rest = element("details", element("summary", table.folded), _rows(table, shown, len(table.rows)))
    return joined([first, rest])


def _rows(table: Table, start: int, end: int) -> Html:
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


def _kind(table: Table, column: int) -> str | None:
    if column in table.numbers:
        return "num"
    longest = max((len(row[column]) for row in table.rows), default=0)
    return "short" if longest <= _SHORT else "long" if longest > _LONG else None


def _list(items: Sequence[str]) -> Html | None:
    return element("ul", [element("li", item) for item in items]) if items else None


def _smoke(smoke: Smoke, words: Mapping[str, str]) -> Html:
    parts: list[Html | None] = [
        element("p", element("span", smoke.verdict, class_=f"chip {smoke.level}")),
        _facts(smoke.facts),
    ]
    if smoke.findings is not None and smoke.findings.rows:
        parts += [element("h3", words["smoke findings"]), _table(smoke.findings)]
    parts += [element("h3", words["smoke checks"]), _table(smoke.checks)]
    parts += [_heat(heat, words) for heat in smoke.heats]
    return joined(parts)


def _heat(heat: Heat, words: Mapping[str, str]) -> Html:
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
    if share < _WORST:
        return element("td", f"{shown} !", class_="worst", title=told)
    if share < _LOW:
        return element("td", f"{shown} -", class_="low", title=told)
    return element("td", shown, class_="ok", title=told)
