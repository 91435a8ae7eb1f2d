"""The document of a smoke test as the plain data of a page. It comes from a file, so that nothing in it is trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atlctl.render.heatmap import Heat as Matrix
from atlctl.render.heatmap import figure, shares_of, worst_of
from atlctl.render.html.model import Fact, Heat, Level, Smoke, Table

#: Workers in one map; of more those whose cells are the lowest.
MOST = 64
#: More, and the cells show shares of the median: figures take too much room.
_FIGURES = 20
_ROWS = 300
_TEXT = 500
_LEVELS: Mapping[str, Level] = {"fail": "bad", "warn": "odd", "pass": "good"}
_ORDER = ("fail", "warn", "not_judged")
_MAPS = (
    ("throughput", "matrix_mb_per_s", "heat throughput", "MB/s", True),
    ("mesh", "matrix_rtt_ms", "heat round trips", "ms", False),
)


def smoke(data: Mapping[str, Any], words: Mapping[str, str], tell: Callable[[str], str]) -> Smoke:
    """What the page shows of it. Parts that have another form than atlctl writes are left out.

    `tell`: a note or evidence, which are English, for the reader.
    """
    verdict = _text(data.get("verdict"))
    total = _mapping(data.get("timings")).get("total")
    facts = [
        (words["smoke tier"], _text(data.get("tier"))),
        (words["job"], _text(data.get("job"))),
        (words["smoke time"], f"{total:.1f} s" if isinstance(total, int | float) else ""),
    ]
    checks = [
        (
            _verdict(item, words),
            _text(item.get("check")),
            f"{item['seconds']:.1f}" if isinstance(item.get("seconds"), int | float) else "",
            tell(_text(item.get("note"))),
        )
        for item in _items(data.get("checks"))
    ]
    findings = sorted(_items(data.get("findings")), key=_worth)
    told = [
        (
            _severity(item.get("severity"), words),
            _text(item.get("check")),
            _culprit(_mapping(item.get("culprit"))),
            tell(_text(item.get("evidence"))),
            words["yes"] if item.get("confirmed") is True else "",
            _text(item.get("advice")),
        )
        for item in findings[:_ROWS]
    ]
    heads = [words[f"head {key}"] for key in ("verdict", "check", "culprit", "evidence", "confirmed", "advice")]
    marked = frozenset(at for at, item in enumerate(findings[:_ROWS]) if item.get("severity") == "fail")
    return Smoke(
        _severity(verdict, words),
        _LEVELS.get(verdict, "none"),
        [Fact(label, [text]) for label, text in facts if text],
        Table([words[f"head {key}"] for key in ("verdict", "check", "seconds", "note")], checks, frozenset((2,))),
        Table(heads, told, marked=marked) if told else None,
        [heat for one in _MAPS if (heat := _heat(data, one, words)) is not None],
    )


def workers_of(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What each worker told of itself, by name."""
    return {_text(item.get("worker")): item for item in _items(data.get("workers")) if item.get("worker")}


def _heat(data: Mapping[str, Any], one: tuple[str, str, str, str, bool], words: Mapping[str, str]) -> Heat | None:
    check, key, title, unit, high = one
    figures = _mapping(_mapping(data.get("figures")).get(check))
    names, rows = figures.get("workers"), figures.get(key)
    if not isinstance(names, list) or not isinstance(rows, list) or len(rows) != len(names) or len(names) < 2:
        return None
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        return None
    values = [[_number(value) for value in row] for row in rows]
    matrix = Matrix([_text(name) for name in names], values, high)
    shares, middle = shares_of(matrix)
    if middle is None:
        return None
    kept = list(range(len(names)))
    note = words["heat median"].format(median=figure(middle), unit=unit)
    if len(kept) > MOST:
        kept = sorted(sorted(kept, key=lambda at: worst_of(shares, at))[:MOST])
        note += " " + words["heat left out"].format(shown=MOST, count=len(names))
    shown = [["" if (value := values[row][column]) is None else figure(value) for column in kept] for row in kept]
    parts = [[shares[row][column] for column in kept] for row in kept]
    names_shown = [matrix.names[at] for at in kept]
    if len(kept) <= _FIGURES:
        return Heat(words[title], unit, names_shown, shown, parts, note)
    exact = [[f"{value} {unit}" for value in row] for row in shown]
    short = [["" if share is None else f"{100 * share:.0f}" for share in row] for row in parts]
    return Heat(words[title], words["heat shares"], names_shown, short, parts, note, exact)


def _verdict(item: Mapping[str, Any], words: Mapping[str, str]) -> str:
    return _severity(item.get("verdict"), words)


def _severity(value: object, words: Mapping[str, str]) -> str:
    text = _text(value)
    return words.get(f"smoke {text}", text)


def _worth(item: Mapping[str, Any]) -> int:
    severity = item.get("severity")
    return _ORDER.index(severity) if severity in _ORDER else len(_ORDER)


def _culprit(found: Mapping[str, Any]) -> str:
    worker, peer = _text(found.get("worker")), _text(found.get("peer"))
    parts = [f"{worker} <-> {peer}" if peer else worker]
    parts += [f"{key} {_text(found[key])}" for key in ("gpu", "rank", "path") if found.get(key) is not None]
    return ", ".join(part for part in parts if part)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return "" if value is None or isinstance(value, dict | list) else str(value)[:_TEXT]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
