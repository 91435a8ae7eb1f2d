"""What a report tells, as plain data. Every text may be hostile: whoever draws it makes it harmless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

#: How a mark stands out. The shape tells it as well as the colour.
Sort = Literal["root", "failure", "victim", "ended", "agent", "earlier", "restart", "signal", "state", "event"]
Tone = Literal["culprit", "strong", "plain", "faint"]
Level = Literal["bad", "odd", "good", "none"]


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
class Mark:
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
    marks: Sequence[Mark]
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
class Table:
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
class Heat:
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
class Smoke:
    """The results of a smoke test."""

    verdict: str
    level: Level
    facts: Sequence[Fact]
    checks: Table
    findings: Table | None
    heats: Sequence[Heat] = ()


@dataclass(frozen=True, slots=True)
class Page:
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
    cascade: Table | None = None
    earlier: Table | None = None
    workers: Table | None = None
    everyone: Table | None = None
    states: Table | None = None
    events: Table | None = None
    smoke: Smoke | None = None
    environment: Table | None = None
    machines: Table | None = None
    missing: Sequence[str] = ()
    files: Table | None = None
