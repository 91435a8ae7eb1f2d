"""A diagnosis and its evidence as the plain data of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from atlctl.cli.report import surroundings
from atlctl.cli.report.lanes import Around, timeline
from atlctl.cli.report.surroundings import without_empty
from atlctl.diagnosis.clocks import Clocks
from atlctl.diagnosis.consequence import consequence_of
from atlctl.diagnosis.evidence import JobEvidence
from atlctl.diagnosis.result import Cause, Diagnosis, Proof, Verdict, WorkerReport
from atlctl.diagnosis.telling.data import utc
from atlctl.diagnosis.telling.people import tell_people
from atlctl.diagnosis.telling.timeline import base_of, offset
from atlctl.diagnosis.telling.told import Manner
from atlctl.diagnosis.telling.who import in_short, name_of, what_of
from atlctl.jobs.model import State
from atlctl.jobs.naming import fold_names, fold_numbers
from atlctl.recording.manifest import Manifest, WorkerInfo
from atlctl.recording.report.excerpts import Passage
from atlctl.recording.report.states import Change
from atlctl.render.html.model import Excerpt, Fact, Level, Page, Smoke, Table

#: Pieces of evidence of root causes, and of what followed.
MAX_PROOFS, MAX_FOLLOWED = 12, 4
_MAX_ROWS = 200
_SAID = 300
#: Rows of a table that are open at once.
_OPEN = 40
#: More workers are told in groups of those alike, and one by one below that.
_TABLE = 24
_TYPED = ("atlctl ", "kubectl ", "less ")


@dataclass(slots=True)
class Material:
    """All that a report is made of. `passages`: lines around proofs, by file and line. Paths count from the folder."""

    found: Diagnosis
    job: JobEvidence
    manifest: Manifest | None
    states: Sequence[Change]
    passages: Mapping[tuple[str, int], Passage]
    versions: Mapping[str, Mapping[str, str]]
    files: Sequence[tuple[str, int]]
    missing: Sequence[tuple[str, str]]
    remarks: Sequence[str]
    made: Sequence[tuple[str, str]]
    about: Mapping[str, Any]
    smoke: Smoke | None = None
    smoke_workers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def proofs_of(found: Diagnosis) -> list[Proof]:
    """What is shown with the lines around it: first one proof of each cause, then the others, then of what followed."""
    causes = found.root_causes or found.candidates
    waiting = [list(cause.proofs) for cause in causes]
    chosen: dict[Proof, None] = {}
    while any(waiting):
        for proofs in waiting:
            if proofs:
                chosen[proofs.pop(0)] = None
    followed = [item.proof for item in found.cascade if item.proof is not None][:MAX_FOLLOWED]
    return list(dict.fromkeys([*list(chosen)[:MAX_PROOFS], *followed]))


def page(material: Material, manner: Manner, words: Mapping[str, str]) -> Page:
    """The page. Times are UTC."""
    found, manifest = material.found, material.manifest
    telling = tell_people(found, manner)
    kept = [row for row in telling.rows if row.label != manner.word("evidence")]
    name = str(material.about.get("job") or words["saved logs"])
    events = material.job.events
    workers, everyone = _workers(material, manner, words)
    return Page(
        manner.language if manner.language == "en" else "zh-CN",
        words,
        words["title"].format(name=name),
        _job(material, words),
        [(piece.text, piece.tone) for piece in telling.title],
        _level(found),
        [Fact(row.label, row.lines, _typed(row.lines), row.tone) for row in kept],
        _excerpts(proofs_of(found), material.passages, manner),
        [Fact(label, [text]) for label, text in material.made],
        remarks=[*map(manner.phrase, found.remarks), *material.remarks],
        timeline=timeline(found, material.job.workers, Around(material.states, events), manner, words),
        cascade=_cascade(found, manner, words),
        earlier=_earlier(found.earlier, manner, words),
        workers=workers,
        everyone=everyone,
        states=surroundings.states(material.states, words),
        events=surroundings.events(events, words),
        smoke=material.smoke,
        environment=surroundings.environment(material.versions, material.smoke_workers, words),
        machines=surroundings.machines(manifest, words),
        missing=[f"{what}: {why}" for what, why in material.missing],
        files=surroundings.files(material.files, words),
    )


def _typed(lines: Sequence[str]) -> frozenset[int]:
    return frozenset(at for at, line in enumerate(lines) if line.startswith(_TYPED))


def _level(found: Diagnosis) -> Level:
    if found.verdict is Verdict.NONE:
        return "good"
    return "bad" if found.root_causes else "odd"


def _job(material: Material, words: Mapping[str, str]) -> list[Fact]:
    about = material.about
    job = material.manifest.job if material.manifest else None
    expected = material.job.expected
    seen = len(material.job.workers)
    facts = [
        (words["job"], about.get("job")),
        (words["kind of job"], job.kind if job else None),
        (words["namespace"], job.namespace if job else None),
        (words["state"], about.get("state") or (str(job.state) if job and job.state is not State.UNKNOWN else None)),
        (words["workers with logs"], str(seen) if expected in (None, seen) else f"{seen} / {expected}"),
        (words["uid"], about.get("uid")),
    ]
    return [Fact(label, [str(value)]) for label, value in facts if value]


def _excerpts(proofs: Sequence[Proof], passages: Mapping[tuple[str, int], Passage], manner: Manner) -> list[Excerpt]:
    """Each proof with the lines around it; one that stands in the lines of another is marked there."""
    drawn: list[Excerpt] = []
    places: dict[str, list[int]] = {}
    for proof in proofs:
        name, number = proof.file or "", proof.line_no or 0
        passage = passages.get((name, number))
        if passage is None:
            drawn.append(Excerpt(manner.place(proof), proof.text[:_SAID]))
            continue
        same = next((at for at in places.get(name, ()) if 0 <= number - drawn[at].first < len(drawn[at].lines)), None)
        if same is not None:
            drawn[same] = replace(drawn[same], at=drawn[same].at | {number})
            continue
        places.setdefault(name, []).append(len(drawn))
        drawn.append(Excerpt(manner.place(proof), "", passage.first, frozenset((number,)), passage.lines))
    return drawn


def _cascade(found: Diagnosis, manner: Manner, words: Mapping[str, str]) -> Table | None:
    base = base_of(found)
    rows = [
        (
            offset(item.first, base),
            str(item.count),
            manner.phrase(item.reason),
            fold_names(item.workers),
            fold_numbers(item.ranks),
            utc(item.first) or "-",
            manner.place(item.proof) if item.proof else "",
        )
        for item in found.cascade[:_MAX_ROWS]
    ]
    keys = ("after", "count", "what they say", "workers", "ranks", "first time", "place")
    heads = [words[f"head {key}"] for key in keys]
    return without_empty(Table(heads, rows, frozenset((0, 1)), caption=words["cascade caption"])) if rows else None


def _earlier(causes: Sequence[Cause], manner: Manner, words: Mapping[str, str]) -> Table | None:
    rows = [
        (
            utc(cause.time) or "-",
            name_of(cause, manner),
            what_of(cause, manner)[:_SAID],
            manner.place(cause.proofs[0]) if cause.proofs else "",
        )
        for cause in causes[:_MAX_ROWS]
    ]
    heads = [words[f"head {key}"] for key in ("time", "who", "what they say", "place")]
    return without_empty(Table(heads, rows, caption=words["earlier caption"])) if rows else None


def _workers(material: Material, manner: Manner, words: Mapping[str, str]) -> tuple[Table | None, Table | None]:
    """The table of workers; of many a table of those alike, and behind it the whole."""
    found = material.found
    known = {item.name: item for item in material.manifest.workers} if material.manifest else {}
    clocks, base = Clocks(material.job.workers), base_of(found)
    logs = {item.worker: item.log for item in material.job.workers}
    blamed = {cause.worker: cause for cause in reversed(found.root_causes)}
    rows: list[tuple[str, ...]] = []
    alike: dict[tuple[str, ...], list[str]] = {}
    for item in found.workers:
        info, log, cause = known.get(item.worker), logs.get(item.worker), blamed.get(item.worker)
        last = clocks.when(item.worker, log.last) if log else None
        state = _state(info)
        part = words.get(f"part {item.part}", item.part)
        said = _said(item, cause, manner)
        rows.append(
            (
                *(item.worker, state, _ended(info), part, said, offset(cause.time if cause else item.first, base)),
                *(utc(last) or "", str(info.platform.restarts) if info and info.platform.restarts else ""),
                *(str(item.rounds) if item.rounds > 1 else "", f"{item.skew:+.1f} s" if item.skew else ""),
            )
        )
        alike.setdefault((item.worker if cause else "", state, part, said), []).append(item.worker)
    rows += [
        (name, *(_state(known.get(name)), "", words["part never seen"]), *[""] * 6) for name in material.job.missing
    ]
    if not rows:
        return None, None
    keys = ("worker", "state", "ended", "part", "what it said", "after", "last line", "restarts", "rounds", "clock")
    marked = frozenset(at for at, row in enumerate(rows) if row[0] in blamed)
    whole = Table([words[f"head {key}"] for key in keys], rows, frozenset((5, 7, 8, 9)), marked)
    if len(rows) <= _TABLE:
        return without_empty(whole), None
    groups = [(fold_names(names), str(len(names)), *key[1:]) for key, names in alike.items()]
    groups.sort(key=lambda row: (row[0] not in blamed, -int(row[1])))
    heads = [words[f"head {key}"] for key in ("workers", "count", "state", "part", "what it said")]
    first = frozenset(at for at, row in enumerate(groups) if row[0] in blamed)
    folded = words["all rows"].format(count=len(rows))
    few = without_empty(
        Table(
            heads,
            groups[:_MAX_ROWS],
            frozenset((1,)),
            first,
            shown=_OPEN,
            folded=words["rows more"].format(count=len(groups[:_MAX_ROWS]) - _OPEN),
        )
    )
    return few, without_empty(Table(whole.heads, rows, whole.numbers, marked, shown=0, folded=folded))


def _state(info: WorkerInfo | None) -> str:
    if info is None or info.state is State.UNKNOWN:
        return ""
    return f"{info.state} ({info.platform.reason})" if info.platform.reason else str(info.state)


def _ended(info: WorkerInfo | None) -> str:
    if info is None:
        return ""
    if info.platform.signal:
        return f"signal {info.platform.signal}"
    return str(info.platform.exit_code) if info.platform.exit_code is not None else ""


def _said(item: WorkerReport, cause: Cause | None, manner: Manner) -> str:
    if cause is not None:
        return what_of(cause, manner)[:_SAID]
    reason = consequence_of(item.said) if item.part != "initiator" else None
    return manner.phrase(reason.reason if reason else in_short(item.said, manner))[:_SAID]
