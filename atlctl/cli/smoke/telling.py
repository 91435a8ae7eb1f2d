"""The report for people: the verdict, a line for each check, what was found, the map of the network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from atlctl.cli.hosts import settings
from atlctl.i18n import LIST, Language, Message, about, as_data, translated
from atlctl.jobs.config import read_toml
from atlctl.jobs.errors import UsageError
from atlctl.jobs.naming import fold_names
from atlctl.render.heatmap import Heat, draw, figure
from atlctl.render.palette import Tone, Toned, painted_head
from atlctl.render.sanitize import clean
from atlctl.render.streams import Streams
from atlctl.render.table import Column, Table, render_table
from atlctl.render.width import wrapped
from atlctl.smoke.findings import Culprit, Finding, Report, Severity, SmokeVerdict
from atlctl.smoke.ranks.expected import BusbwRow, rows
from atlctl.smoke.run import TITLES

_TONES = {
    SmokeVerdict.FAIL: Tone.FAIL,
    SmokeVerdict.INCOMPLETE: Tone.LOST,
    SmokeVerdict.WARN: Tone.WARN,
    SmokeVerdict.NOT_JUDGED: Tone.NOTE,
    SmokeVerdict.SKIPPED: Tone.DIM,
    SmokeVerdict.PASS: Tone.OK,
}
_ORDER = tuple(Severity)
#: Severities that accuse no worker.
_NO_FAULT = (Severity.INCOMPLETE, Severity.NOT_JUDGED)
#: The most findings that are shown one by one; the rest is counted, and complete in `-o json`.
_TOLD = 40
_THROUGHPUT = Message("throughput, row sends to column: median {median}, least {least} % of it")
_ROUND_TRIPS = Message("round trips, row calls column: median {median}, worst at {least} % of that speed")
#: Narrower terminals get no table.
_NARROW = 60
_INDENT = 6
_VERDICTS = {
    SmokeVerdict.FAIL: about("smoke", "FAIL"),
    SmokeVerdict.INCOMPLETE: Message("INCOMPLETE"),
    SmokeVerdict.WARN: Message("WARN"),
    SmokeVerdict.NOT_JUDGED: Message("NOT JUDGED"),
    SmokeVerdict.SKIPPED: Message("SKIPPED"),
    SmokeVerdict.PASS: Message("PASS"),
}
_WHOLE = {
    SmokeVerdict.FAIL: Message("FAIL: a fault was found"),
    SmokeVerdict.INCOMPLETE: Message("INCOMPLETE: no fault was found, but not everything was tested"),
    SmokeVerdict.WARN: Message("WARN: nothing is broken, something is odd"),
    SmokeVerdict.NOT_JUDGED: Message("NOT JUDGED: nothing could be judged"),
    SmokeVerdict.PASS: Message("PASS: no fault was found"),
}


class Words:
    """`words(Message(...))` is the text in that language."""

    def __init__(self, lang: Language) -> None:
        self.lang = lang

    def __call__(self, text: str) -> str:
        return translated(text, self.lang)

    def verdict(self, verdict: SmokeVerdict) -> str:
        return self(_VERDICTS[verdict])

    def whole(self, verdict: SmokeVerdict) -> str:
        return self(_WHOLE[verdict])

    def check(self, name: str) -> str:
        """A short description of a check."""
        return self(TITLES.get(name, name))

    def named(self, name: str) -> str:
        """A check's name, which is English; for a reader of another language with what it looks at."""
        return name if self.lang == "en" else f"{name} {self.check(name)}"

    def sentence(self, text: str) -> str:
        """A note or evidence in the reader's language, harmless and one line."""
        return clean(translated(text, self.lang))

    def aside(self, text: str) -> str:
        """Behind a text, in brackets."""
        return f" ({text})" if self.lang == "en" else f"（{text}）"

    def culprit(self, culprit: Culprit | None, names: str) -> str:
        """Who is at fault. `names`: the worker, or several of them, folded."""
        if culprit is None:
            return self(Message("culprit unknown"))
        match culprit.kind:
            case "gpu" if culprit.gpu is not None:
                return self(Message("GPU {gpu} of {names}", gpu=culprit.gpu, names=names))
            case "rank" if culprit.rank is not None:
                return self(Message("rank {rank} on {names}", rank=culprit.rank, names=names))
            case "link":
                return f"{names} <-> {culprit.peer or '?'}"
            case "mount" if culprit.path is not None:
                return self(Message("{path} on {names}", path=culprit.path, names=names)) if names else culprit.path
        return names or self(Message("culprit unknown"))


def report_text(report: Report, words: Words, streams: Streams) -> str:
    """All of it, ending in a newline. Hostile texts are made harmless."""
    lines = [*_headline(report, words, streams), ""]
    text = "".join(f"{line}\n" for line in lines) + _table(report, words, streams)
    told = _findings(report.findings, words, streams)
    if told:
        text += "\n" + "".join(f"{line}\n" for line in told)
    return text + _network(report, words, streams)


def _headline(report: Report, words: Words, streams: Streams) -> list[str]:
    keys = {
        SmokeVerdict.FAIL: Message("faults: {count}"),
        SmokeVerdict.INCOMPLETE: Message("checks incomplete: {count}"),
        SmokeVerdict.WARN: Message("warnings: {count}"),
        SmokeVerdict.NOT_JUDGED: Message("checks not judged: {count}"),
        SmokeVerdict.SKIPPED: Message("checks skipped: {count}"),
    }
    # These two are counted by checks: one reason may stand for many workers.
    checks = Counter(check.verdict for check in report.checks)
    found = Counter(SmokeVerdict(one.severity) for one in report.findings if one.severity not in _NO_FAULT)
    counts = {one: (found if one in (SmokeVerdict.FAIL, SmokeVerdict.WARN) else checks)[one] for one in keys}
    parts = [words(keys[verdict].filled(count=count)) for verdict, count in counts.items() if count]
    verdict = report.verdict
    whole = words.whole(verdict)
    more = words(Message(" ({counts})", counts=words(LIST).join(parts))) if parts else ""
    lines = _folded(whole + more, streams, 0)
    lines[0] = painted_head(lines[0], whole, _TONES[verdict], streams.stdout_color)
    return lines


def _table(report: Report, words: Words, streams: Streams) -> str:
    if streams.stdout_tty and streams.width < _NARROW:
        return "".join(f"{line}\n" for line in _narrow(report, words, streams))
    columns = (
        Column(words(Message("VERDICT"))),
        Column(words(Message("CHECK"))),
        Column(words(Message("SECONDS")), "right", spare=1),
        Column(words(Message("NOTE")), least=30),
    )
    rows: list[list[str | Toned]] = [
        [
            Toned(words.verdict(check.verdict), _TONES[check.verdict]),
            words.named(check.name),
            f"{check.seconds:.1f}",
            words.sentence(check.note),
        ]
        for check in report.checks
    ]
    return render_table(Table(columns, rows), streams)


def _narrow(report: Report, words: Words, streams: Streams) -> list[str]:
    """Where columns beside each other would leave no room for a word."""
    lines = []
    for check in report.checks:
        verdict = words.verdict(check.verdict)
        first, *rest = _folded(f"{verdict}  {clean(words.named(check.name))} {check.seconds:.1f} s", streams, 0)
        lines += [painted_head(first, verdict, _TONES[check.verdict], streams.stdout_color), *rest]
        if check.note:
            lines += _folded(clean(words.sentence(check.note)), streams, _INDENT)
    return lines


def _findings(findings: Sequence[Finding], words: Words, streams: Streams) -> list[str]:
    """Equal ones of several workers are one."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in sorted(_by_worker(findings), key=lambda one: _ORDER.index(one.severity)):
        groups.setdefault(_key(finding), []).append(finding)
    lines: list[str] = []
    advised: set[str] = set()
    for group in list(groups.values())[:_TOLD]:
        lines += _told(group, words, streams, advised)
    rest = list(groups.values())[_TOLD:]
    if rest:
        lines.append(words(Message("and {count} more, all of them in -o json", count=sum(map(len, rest)))))
    return lines


def _by_worker(findings: Sequence[Finding]) -> Iterable[Finding]:
    """Merge findings that a worker was not tested in several checks for the same reason."""
    checks: dict[tuple[object, ...], list[str]] = {}
    for finding in findings:
        if finding.severity is Severity.INCOMPLETE:
            checks.setdefault((finding.culprit, finding.evidence), []).append(finding.check)
    for finding in findings:
        if finding.severity is not Severity.INCOMPLETE:
            yield finding
        elif mine := checks.pop((finding.culprit, finding.evidence), None):
            yield replace(finding, check=", ".join(mine))


def _key(finding: Finding) -> tuple[object, ...]:
    culprit = finding.culprit
    who: tuple[object, ...] = ()
    if culprit is not None:
        gpu = culprit.gpu if culprit.kind != "rank" else None
        who = culprit.kind, culprit.peer, gpu, culprit.rank if culprit.kind == "rank" else None, culprit.path
    return finding.check, finding.severity, who, finding.evidence, finding.confirmed, finding.advice


def _told(group: Sequence[Finding], words: Words, streams: Streams, advised: set[str]) -> list[str]:
    first = group[0]
    verdict = SmokeVerdict(first.severity)
    names = fold_names(f.culprit.worker for f in group if f.culprit is not None and f.culprit.worker is not None)
    many = words.aside(str(len(group))) if len(group) > 1 else ""
    who = clean(words.culprit(first.culprit, names)) + many
    head = f"{words.verdict(verdict)}  {clean(first.check)}: {who}"
    sure = words(Message("seen again at a second look")) if first.confirmed and first.severity not in _NO_FAULT else ""
    body = [clean(words.sentence(first.evidence)) + (words.aside(sure) if sure else "")]
    advice = words(first.advice or "")
    if advice and advice not in advised:
        advised.add(advice)
        body.append(words(Message("next: {advice}", advice=clean(advice))))
    lines = _folded(head, streams, 0)
    lines[0] = painted_head(lines[0], words.verdict(verdict), _TONES[verdict], streams.stdout_color)
    for text in body:
        lines += _folded(text, streams, _INDENT)
    return lines


def _folded(text: str, streams: Streams, indent: int) -> list[str]:
    """The lines of a text; on a pipe it is one."""
    lead = " " * indent
    if not streams.stdout_tty:
        return [lead + text]
    return [lead + line for line in wrapped(text, max(16, streams.width - indent))]


def _network(report: Report, words: Words, streams: Streams) -> str:
    """The matrix of throughput, or of round trips if it was not measured."""
    if report.data.get("mesh", {}).get("loopback"):
        return ""  # within one machine there is no network
    title, unit = _THROUGHPUT, "MB/s"
    heat = _matrix(report, "throughput", "matrix_mb_per_s", (0.8, 0.6))
    if heat is None:
        heat, title, unit = _matrix(report, "mesh", "matrix_rtt_ms", (0.4, 0.2)), _ROUND_TRIPS, "ms"
    if heat is None or len(heat.names) < 2:
        return ""
    drawn = draw(heat, streams)
    if drawn.middle is None or drawn.least is None:
        return ""
    count, low = len(heat.names), round(100 * heat.low)
    legend = [title.filled(median=f"{figure(drawn.middle)} {unit}", least=f"{100 * drawn.least:.0f}")]
    if drawn.text:
        tenths = Message("each digit is tenths of the median (9: all of it), x: none, columns by their number")
        marks = Message("- marks less than {low} % of the median, ! much less, x none", low=low)
        legend.append(tenths if drawn.shares else marks)
        if drawn.shown < count:
            text = Message("{shown} of {count} workers are shown, those that explain what is low")
            legend.append(text.filled(shown=drawn.shown, count=count))
    elif streams.stdout_tty:
        legend.append(Message("{count} workers, no link below {low} % of the median", count=count, low=low))
    lines = [line for text in legend for line in _folded(words(text), streams, 0)]
    return "\n" + "".join(f"{line}\n" for line in lines) + drawn.text


def _matrix(report: Report, check: str, field: str, limits: tuple[float, float]) -> Heat | None:
    told = report.data.get(check, {})
    return Heat(told["workers"], told[field], check == "throughput", *limits) if told.get(field) else None


# The document of `atlctl smoke -o json`.

#: Keys that a check keeps for later checks, which are not figures.
_INNER = ("ranks",)
_DEEPEST = 12


def to_data(report: Report, may_still_run: Iterable[str]) -> dict[str, Any]:
    """Plain values for JSON; figures that are not finite are null."""
    return {
        "tier": report.tier,
        "verdict": str(report.verdict),
        "findings": [_finding(finding) for finding in report.findings],
        "checks": [
            {
                "check": check.name,
                "verdict": str(check.verdict),
                "note": check.note,
                "seconds": check.seconds,
                "message": _message(check.note),
            }
            for check in report.checks
        ],
        "workers": [{"worker": name, **plain(known)} for name, known in report.workers.items()],
        "timings": plain(report.timings),
        "figures": {name: plain(value) for name, value in report.data.items() if name not in _INNER},
        "may_still_run": list(may_still_run),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "severity": str(finding.severity),
        "culprit": None if finding.culprit is None else asdict(finding.culprit),
        "evidence": finding.evidence,
        "confirmed": finding.confirmed,
        "advice": finding.advice or "",
        "message": _message(finding.evidence),
    }


def _message(text: str) -> Any:
    """Template and values of a note or evidence, for a reader of another language; null if it has none."""
    return as_data(text) if isinstance(text, Message) else None


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON can hold it: words of workers come from programs that may say anything."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if depth >= _DEEPEST:
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return [plain(item, depth + 1) for item in sorted(value, key=str)]
    if isinstance(value, Iterable):
        return [plain(item, depth + 1) for item in value]
    return str(value)


# Figures of hardware that the user has added to those of the package.

_SEE = Message("see the page of smoke")


def own_busbw() -> tuple[BusbwRow, ...]:
    """The rows of all files that `[smoke] busbw` names. Raises UsageError if a file is missing or invalid."""
    found: list[BusbwRow] = []
    for path in settings().busbw:
        try:
            tables = read_toml(path, Message("file of busbw figures"))
        except FileNotFoundError as error:
            raise UsageError(
                Message("{path} is not there", path=path), Message("it is named by [smoke] busbw, or ATLCTL_BUSBW")
            ) from error
        row = tables.pop("row", None)
        if tables or not isinstance(row, list) or not all(isinstance(table, dict) for table in row):
            raise UsageError(Message("{path}: tables [[row]] are wanted, and nothing else", path=path), _SEE)
        try:
            found += rows(row)
        except ValueError as error:
            raise UsageError(Message("{path}: {why}", path=path, why=error.args[0]), _SEE) from error
    return tuple(found)
