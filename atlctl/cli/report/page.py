"""The data of a report's page: verdict, excerpts, waits, stacks, consequences, workers, states, events, environment,
files; and the document of a smoke test, of which nothing is trusted since it comes from a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from atlctl.cli import say
from atlctl.cli.evidence.steps import steps_chart
from atlctl.diagnosis.clockskew import Clocks
from atlctl.diagnosis.consequence import consequence_of
from atlctl.diagnosis.evidence import JobEvidence, WorkerEvidence
from atlctl.diagnosis.hang import HANG, START, Scene
from atlctl.diagnosis.logline import When, split_stamp
from atlctl.diagnosis.platform import Event
from atlctl.diagnosis.result import Cause, Diagnosis, Proof, Verdict, WorkerReport
from atlctl.diagnosis.steps import StepTrack
from atlctl.diagnosis.telling.data import utc
from atlctl.diagnosis.telling.guide import Manner
from atlctl.diagnosis.telling.people import tell_people
from atlctl.diagnosis.telling.timeline import Waiting, base_of, offset, pending_of, waiting_ranks
from atlctl.diagnosis.telling.who import in_short, name_of, ranks_of, what_of
from atlctl.diagnosis.torchelastic import NoteKind
from atlctl.diagnosis.tracebacks import frame_of
from atlctl.i18n import Language, Message, about, from_data, joined, translated
from atlctl.jobs.fields import entries, mapping, number
from atlctl.jobs.model import State
from atlctl.jobs.naming import fold_names, fold_numbers
from atlctl.recording.excerpts import Passage
from atlctl.recording.manifest import Manifest, WorkerInfo
from atlctl.recording.recorder.store import StateChange
from atlctl.render.heatmap import Heat, figure, shares_of, worst_of
from atlctl.render.page import (
    Chip,
    Coloured,
    Excerpt,
    Excerpts,
    Fact,
    Facts,
    Heading,
    HeatTable,
    Lane,
    LaneMark,
    Level,
    Linked,
    Numbered,
    PageTable,
    Part,
    ReportPage,
    Sentences,
    Sort,
    Timeline,
)
from atlctl.render.palette import Tone
from atlctl.render.redact import redact_text
from atlctl.render.table import human_bytes, rfc3339

#: The most pieces of evidence for root causes, and for consequences.
MAX_PROOFS, MAX_FOLLOWED = 12, 4
_MAX_ROWS = 200
_SAID = 300
#: Groups of workers that are open at once.
_OPEN_GROUPS = 40
#: Above this many workers, similar ones are grouped.
_TABLE = 24
_TYPED = "kubectl cordon "
#: Rows of a table of states, events, versions, machines or files, and those that are open at once.
_MOST_ROWS, _OPEN_ROWS = 500, 30
_TEXT = 500
#: Shown in the environment also if unknown.
_ALWAYS = ("torch", "CUDA", "NCCL", "driver", "GPU", "Python", "command", "nodes")
_SMOKE_VERSIONS = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "driver": "driver", "gpus": "GPU"}
#: Workers in one map; of more those whose cells are the lowest.
MOST_IN_MAP = 64
#: More, and the cells show shares of the median: figures take too much room.
_FIGURES = 20
_MOST_FINDINGS = 300
_LEVELS: Mapping[str, Level] = {"fail": "bad", "warn": "odd", "pass": "good"}
#: Of the parts of workers, and of verdicts of checks.
_TONES: Mapping[str, Tone] = {
    "initiator": Tone.FAIL,
    "victim": Tone.WARN,
    "ended": Tone.DIM,
    "silent": Tone.DIM,
    "agent": Tone.WARN,
    "no log": Tone.UNKNOWN,
    "fail": Tone.FAIL,
    "warn": Tone.WARN,
    "pass": Tone.OK,
    "not_judged": Tone.NOTE,
}
_ORDER = ("fail", "warn", "not_judged")
_MAPS = (
    ("throughput", "matrix_mb_per_s", "heat throughput", "MB/s", True),
    ("mesh", "matrix_rtt_ms", "heat round trips", "ms", False),
)


@dataclass(slots=True)
class Material:
    """The input of a report. `passages`: lines around proofs, by file and line. `tracebacks`: those of error files.

    Paths are relative to the folder. `scene`: the activity of the ranks, if they were inspected.
    """

    found: Diagnosis
    job: JobEvidence
    manifest: Manifest | None
    states: Sequence[StateChange]
    passages: Mapping[tuple[str, int], Passage]
    tracebacks: Mapping[str, Sequence[str]]
    versions: Mapping[str, Mapping[str, str]]
    files: Sequence[tuple[str, int]]
    missing: Sequence[tuple[str, str]]
    remarks: Sequence[str]
    made: Sequence[tuple[str, str]]
    about: Mapping[str, Any]
    scene: Scene | None = None
    smoke: Sequence[Part] = ()
    smoke_workers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    steps: Mapping[str, Sequence[StepTrack]] = field(default_factory=dict)


def proofs_of(found: Diagnosis) -> list[Proof]:
    """Proofs to show with the lines around them: one of each cause, the others, those of consequences."""
    causes = found.root_causes or found.candidates
    waiting = [list(cause.proofs) for cause in causes]
    chosen: dict[Proof, None] = {}
    while any(waiting):
        for proofs in waiting:
            if proofs:
                chosen[proofs.pop(0)] = None
    followed = [item.proof for item in found.cascade if item.proof is not None][:MAX_FOLLOWED]
    return list(dict.fromkeys([*list(chosen)[:MAX_PROOFS], *followed]))


def page(material: Material, manner: Manner, words: Mapping[str, str]) -> ReportPage:
    """The page. Times are UTC."""
    found, manifest = material.found, material.manifest
    telling = tell_people(found, manner)
    kept = [row for row in telling.rows if not row.proofs]
    commands = {manner.next_command(cause) for cause in (*found.root_causes, *found.candidates)}
    name = str(material.about.get("job") or words["saved logs"])
    events = material.job.events
    missing = [manner.word(Message("{what}: {why}", what=what, why=why)) for what, why in material.missing]
    stacks = {str(frame) for rank in (material.scene.ranks if material.scene else ()) for frame in rank.frames}
    proofs = [proof for proof in proofs_of(found) if proof.file or proof.text not in stacks]
    sections: list[tuple[str, Sequence[Part | None]]] = [
        ("evidence", [Excerpts(_excerpts(proofs, material, manner, words))]),
        ("stacks", [Excerpts(_stacks(material.scene, manner, words))]),
        ("timeline", _timelines(material, manner, words)),
        ("steps", [steps_chart(material.steps, manner, words)]),
        ("cascade", [_cascade(found, manner, words)]),
        ("earlier", [_earlier(found.earlier, manner, words)]),
        ("workers", _workers(material, manner, words)),
        ("states", [_states(material.states, manner, words)]),
        ("events", [_events(events, words)]),
        ("smoke", material.smoke),
        ("environment", [Facts(_environment(material, words)), _machines(manifest, words)]),
        ("remarks", [Sentences([*map(manner.word, found.remarks), *map(manner.word, material.remarks)])]),
        ("missing", [Sentences(missing)]),
        ("files", [_files(material.files, words)]),
    ]
    return ReportPage(
        manner.language if manner.language == "en" else "zh-CN",
        words,
        words["title"].format(name=name),
        _job(material, manner, words),
        [(piece.text, piece.tone) for piece in telling.title],
        _level(found),
        [Fact(row.label, row.lines, _typed(row.lines, commands), row.tone) for row in kept],
        [Fact(label, [text]) for label, text in material.made],
        sections,
    )


def _typed(lines: Sequence[str], commands: set[str | None]) -> frozenset[int]:
    return frozenset(at for at, line in enumerate(lines) if line in commands or line.startswith(_TYPED))


def _level(found: Diagnosis) -> Level:
    if found.verdict is Verdict.NONE:
        return "good"
    return "bad" if found.root_causes else "odd"


def _job(material: Material, manner: Manner, words: Mapping[str, str]) -> list[Fact]:
    about = material.about
    job = material.manifest.job if material.manifest else None
    expected = material.job.expected
    seen = len(material.job.workers)
    facts = [
        (words["job"], about.get("job")),
        (words["kind of job"], job.kind if job else None),
        (words["namespace"], job.namespace if job else None),
        (words["state"], _state(about.get("state") or (job.state if job else State.UNKNOWN), "", manner)),
        (words["workers with logs"], str(seen) if expected in (None, seen) else f"{seen} / {expected}"),
        (words["uid"], about.get("uid")),
    ]
    return [Fact(label, [value]) for label, value in facts if value]


def _excerpts(proofs: Sequence[Proof], material: Material, manner: Manner, words: Mapping[str, str]) -> list[Excerpt]:
    """Each proof with the lines around it; one that is in the lines of another is marked there."""
    drawn: list[Excerpt] = []
    places: dict[str, list[int]] = {}
    for proof in proofs:
        name, number = proof.file or "", proof.line_no or 0
        passage = material.passages.get((name, number))
        if passage is None:
            trace = list(enumerate(material.tracebacks.get(name, ()), 1))
            said = manner.word(proof.text)[:_SAID]
            drawn.append(Excerpt(_place(proof, manner), said, (), _coloured(trace), _folded_trace(trace, words)))
            continue
        at = next((at for at in places.get(name, ()) if any(line.number == number for line in drawn[at].lines)), None)
        if at is not None:
            marked = [replace(line, tone="at") if line.number == number else line for line in drawn[at].lines]
            drawn[at] = replace(drawn[at], lines=marked)
            continue
        places.setdefault(name, []).append(len(drawn))
        around = enumerate(passage.lines, passage.first)
        shown = [_stamped(at, text, "at" if at == number else "") for at, text in around]
        more = _coloured(passage.trace)
        drawn.append(Excerpt(_place(proof, manner), "", shown, more, _folded_trace(passage.trace, words)))
    return drawn


def _place(proof: Proof, manner: Manner) -> str:
    place = manner.place(proof)
    return Linked(place, proof.file) if proof.file else place


def _stamped(number: int, line: str, tone: Literal["at", ""]) -> Numbered:
    _, text = split_stamp(line.encode("utf-8", "replace"))
    shown = text.decode()
    return Numbered(number, shown, tone, line[: len(line) - len(shown)].rstrip())


def _folded_trace(trace: Sequence[object], words: Mapping[str, str]) -> str:
    return words["whole traceback"].format(count=len(trace))


def _coloured(trace: Sequence[tuple[int, str]]) -> list[Numbered]:
    """The lines of a traceback: frames in the user's code are highlighted."""
    made = []
    tone: Literal["own", "faint", ""] = ""
    for at, line in trace:
        frame = frame_of(line)
        if frame is not None:
            tone = "own" if frame.own else "faint"
        elif not line.startswith(" "):
            tone = ""
        made.append(Numbered(at, line, tone))
    return made


def _stacks(scene: Scene | None, manner: Manner, words: Mapping[str, str]) -> list[Excerpt]:
    """The stack of each group of ranks that do the same, the culprits first."""
    made = []
    for group in scene.groups if scene else ():
        first, pending = group.first, group.first.pending
        who = _ranks_and_workers([(rank.rank, rank.worker) for rank in group.ranks])
        # As in a traceback, the innermost last.
        frames = [Numbered(0, str(frame), "own" if frame.own else "faint") for frame in first.frames[::-1]]
        said = [first.what, first.why, pending and pending_of(pending.operation, pending.seq, pending.group)]
        text = translated(joined([part for part in said if part]), manner.language)
        made.append(
            Excerpt(translated(who, manner.language), redact_text(text), frames or [Numbered(0, words["no stack"])])
        )
    return made


def _ranks_and_workers(who: Sequence[tuple[int | None, str | None]]) -> str:
    ranks = sorted({rank for rank, _ in who if rank is not None})
    names = fold_names(worker for _, worker in who if worker)
    if not ranks:
        return names
    shown = ranks_of(ranks)
    return Message("{what} on {worker}", what=shown, worker=names) if names else shown


def _cascade(found: Diagnosis, manner: Manner, words: Mapping[str, str]) -> PageTable | None:
    base = base_of(found)
    rows = [
        (
            offset(item.first, base),
            str(item.count),
            manner.word(item.reason),
            fold_names(item.workers),
            fold_numbers(item.ranks),
            utc(item.first) or "-",
            _place(item.proof, manner) if item.proof else "",
        )
        for item in found.cascade[:_MAX_ROWS]
    ]
    keys = ("after", "count", "message", "workers", "ranks", "first", "location")
    heads = [words[f"head {key}"] for key in keys]
    return without_empty(PageTable(heads, rows, frozenset((0, 1)), caption=words["cascade caption"])) if rows else None


def _earlier(causes: Sequence[Cause], manner: Manner, words: Mapping[str, str]) -> PageTable | None:
    rows = [
        (
            utc(cause.time) or "-",
            manner.word(name_of(cause)),
            manner.word(what_of(cause, manner))[:_SAID],
            _place(cause.proofs[0], manner) if cause.proofs else "",
        )
        for cause in causes[:_MAX_ROWS]
    ]
    heads = [words[f"head {key}"] for key in ("time", "who", "message", "location")]
    return without_empty(PageTable(heads, rows, caption=words["earlier caption"])) if rows else None


def _workers(material: Material, manner: Manner, words: Mapping[str, str]) -> list[PageTable | None]:
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
        state = _state(info.state, info.platform.reason, manner) if info else ""
        shown = f"mark {_PARTS[item.part]}" if item.part in _PARTS else f"part {item.part}"
        part = Coloured(words.get(shown, item.part), _TONES.get(item.part, Tone.PLAIN))
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
        (name, *("", "", Coloured(words["part never seen"], Tone.LOST)), *[""] * 6) for name in material.job.missing
    ]
    if not rows:
        return []
    keys = ("worker", "state", "exit", "part", "message", "after", "last line", "restarts", "rounds", "clock")
    marked = frozenset(at for at, row in enumerate(rows) if row[0] in blamed)
    whole = PageTable([words[f"head {key}"] for key in keys], rows, frozenset((5, 7, 8, 9)), marked)
    if len(rows) <= _TABLE:
        return [without_empty(whole)]
    groups = [(fold_names(names), str(len(names)), *key[1:]) for key, names in alike.items()]
    groups.sort(key=lambda row: (row[0] not in blamed, -int(row[1])))
    heads = [words[f"head {key}"] for key in ("workers", "count", "state", "part", "message")]
    first = frozenset(at for at, row in enumerate(groups) if row[0] in blamed)
    more = words["rows more"].format(count=len(groups[:_MAX_ROWS]) - _OPEN_GROUPS)
    few = PageTable(heads, groups[:_MAX_ROWS], frozenset((1,)), first, shown=_OPEN_GROUPS, folded=more)
    behind = replace(whole, shown=0, folded=words["all rows"].format(count=len(rows)))
    return [without_empty(few), without_empty(behind)]


def _state(state: str, reason: str, manner: Manner) -> str:
    """A state in words and colour; empty if it is unknown. One that atlctl does not have stays as it is."""
    if state == State.UNKNOWN or state not in list(State):
        return "" if state == State.UNKNOWN else state
    return Coloured(manner.word(say.state(State(state), reason)), say.STATE_TONES[State(state)])


def _ended(info: WorkerInfo | None) -> str:
    if info is None:
        return ""
    if info.platform.signal:
        return f"signal {info.platform.signal}"
    return str(info.platform.exit_code) if info.platform.exit_code is not None else ""


def _said(item: WorkerReport, cause: Cause | None, manner: Manner) -> str:
    if cause is not None:
        return manner.word(what_of(cause, manner))[:_SAID]
    reason = consequence_of(item.said) if item.part != "initiator" else None
    return manner.word(reason.reason if reason else in_short(item.said, manner))[:_SAID]


def _states(changes: Sequence[StateChange], manner: Manner, words: Mapping[str, str]) -> PageTable | None:
    """Each change, alike ones of one second together."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for item in changes:
        key = (rfc3339(item.time), _state(item.state, "", manner), item.reason, item.message[:_TEXT])
        groups.setdefault(key, []).append(item.worker)
    rows = [(key[0], fold_names(names), *key[1:]) for key, names in groups.items()]
    return _table(("time", "workers", "state", "reason", "message"), rows, words)


def _events(items: Sequence[Event], words: Mapping[str, str]) -> PageTable | None:
    """Events of the platform; equal ones of one second share a row."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for item in sorted(items, key=lambda item: item.time or 0.0):
        key = (rfc3339(item.time) if item.time is not None else "", item.reason, item.message[:_TEXT])
        found.setdefault(key, []).append(item.worker or item.node or item.kind)
    rows = [(key[0], fold_names(who), *key[1:], str(len(who)) if len(who) > 1 else "") for key, who in found.items()]
    return _table(("time", "about", "reason", "message", "count"), rows, words, numbers=frozenset((4,)))


def _environment(material: Material, words: Mapping[str, str]) -> list[Fact]:
    """Versions, command line and nodes, with the workers that have them; unknown ones are named."""
    found: dict[str, dict[str, list[str]]] = {key: {} for key in _ALWAYS}

    def add(key: str, value: str, worker: str) -> None:
        if value and worker not in (names := found.setdefault(key, {}).setdefault(value, [])):
            names.append(worker)

    for worker, told in material.versions.items():
        for name, value in told.items():
            add(name, value[:_TEXT], worker)
    for worker, own in material.smoke_workers.items():
        for key, name in _SMOKE_VERSIONS.items():
            if own.get(key) not in (None, "", [], {}):
                add(name, _value(own[key]), worker)
    manifest = material.manifest
    for item in manifest.workers if manifest else ():
        add("nodes", item.platform.node or "", item.name)
    for rank in material.scene.ranks if material.scene else ():
        if rank.report is not None and rank.worker:
            add("command", redact_text(rank.report.command)[:_TEXT], rank.worker)
    if manifest and manifest.job.command:
        found["command"] = {manifest.job.command[:_TEXT]: []}
    everyone = {worker for values in found.values() for names in values.values() for worker in names}
    facts: list[Fact] = []
    if found["nodes"]:
        found["nodes"] = {fold_names(found["nodes"]): []}
    for key, values in found.items():
        lines = [
            value
            if everyone <= set(names) or not names
            else words["of workers"].format(value=value, workers=fold_names(names))
            for value, names in values.items()
        ]
        if len(lines) > _OPEN_ROWS:
            lines[_OPEN_ROWS:] = [words["rows more"].format(count=len(lines) - _OPEN_ROWS)]
        if lines:
            facts.append(Fact(words.get(f"env {key}", key), lines))
    unknown = [words.get(f"env {key}", key) for key, values in found.items() if not values]
    return [*facts, *([Fact(words["unknown"], [", ".join(unknown)])] if unknown else [])]


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        counted = Counter(map(str, value))
        return ", ".join(f"{count} x {item}" for item, count in counted.items())[:_TEXT]
    return str(value)[:_TEXT]


def _machines(manifest: Manifest | None, words: Mapping[str, str]) -> PageTable | None:
    """Where each worker ran, if the platform reported it."""
    rows = []
    for item in manifest.workers if manifest else ():
        platform = item.platform
        gpus = ", ".join(gpu.uuid or gpu.pci or str(gpu.index) for gpu in platform.gpus)
        addresses = ", ".join(filter(None, [platform.host_ip, *platform.addresses]))
        rank = "" if item.node_rank is None else str(item.node_rank)
        times = [rfc3339(time) if time else "" for time in (item.started, item.ended)]
        rows.append((item.name, rank, platform.node or "", item.pod or "", addresses, gpus[:_TEXT], *times))
    if not any(any(row[2:6]) for row in rows):
        return None
    keys = ("worker", "node rank", "node", "pod", "address", "GPUs", "started", "ended")
    return _table(keys, rows, words, most=4 * _MOST_ROWS)


def _files(items: Sequence[tuple[str, int]], words: Mapping[str, str]) -> PageTable | None:
    """The files of the folder, as links."""
    rows = [(Linked(name, name), human_bytes(count)) for name, count in items]
    return _table(("file", "size"), rows, words, numbers=frozenset((1,)), most=4 * _MOST_ROWS)


def _table(
    keys: Sequence[str],
    rows: Sequence[Sequence[str]],
    words: Mapping[str, str],
    *,
    numbers: frozenset[int] = frozenset(),
    most: int = _MOST_ROWS,
) -> PageTable | None:
    if not rows:
        return None
    folded = words["rows more"].format(count=len(rows[-most:]) - _OPEN_ROWS)
    caption = words["rows left out"].format(count=len(rows) - most) if len(rows) > most else ""
    shown = _OPEN_ROWS if len(rows) > _OPEN_ROWS else None
    heads = [words[f"head {key}"] for key in keys]
    return without_empty(PageTable(heads, rows[-most:], numbers, caption=caption, shown=shown, folded=folded))


def without_empty(table: PageTable) -> PageTable:
    """The table without the columns that say nothing in any row."""
    kept = [at for at in range(len(table.heads)) if any(row[at] not in ("", "-") for row in table.rows)]
    return replace(
        table,
        heads=[table.heads[at] for at in kept],
        rows=[[row[at] for at in kept] for row in table.rows],
        numbers=frozenset(kept.index(at) for at in table.numbers if at in kept),
    )


def smoke_results(data: Mapping[str, Any], words: Mapping[str, str], tell: Callable[[str], str]) -> list[Part]:
    """The page's section on a smoke test. Malformed parts are omitted.

    `tell` renders a note or evidence for the reader.
    """
    verdict = _cut(data.get("verdict"))
    total = mapping(data.get("timings")).get("total")
    facts = [
        (words["smoke tier"], _cut(data.get("tier"))),
        (words["job"], _cut(data.get("job"))),
        (words["smoke time"], f"{total:.1f} s" if isinstance(total, int | float) else ""),
    ]
    checks = [
        (
            _severity(item.get("verdict"), words),
            _cut(item.get("check")),
            f"{item['seconds']:.1f}" if isinstance(item.get("seconds"), int | float) else "",
            tell(from_data(item.get("message"), _cut(item.get("note")))),
        )
        for item in entries(data.get("checks"))
    ]
    findings = sorted(entries(data.get("findings")), key=_worth)
    told = [
        (
            _severity(item.get("severity"), words),
            _cut(item.get("check")),
            _culprit(mapping(item.get("culprit"))),
            tell(from_data(item.get("message"), _cut(item.get("evidence")))),
            words["yes"] if item.get("confirmed") is True else "",
            _cut(item.get("advice")),
        )
        for item in findings[:_MOST_FINDINGS]
    ]
    heads = [words[f"head {key}"] for key in ("verdict", "check", "who", "evidence", "confirmed", "next step")]
    marked = frozenset(at for at, item in enumerate(findings[:_MOST_FINDINGS]) if item.get("severity") == "fail")
    noted = PageTable(
        [words[f"head {key}"] for key in ("verdict", "check", "seconds", "note")], checks, frozenset((2,))
    )
    made: list[Part] = [
        Chip(_severity(verdict, words), _LEVELS.get(verdict, "none")),
        Facts([Fact(label, [text]) for label, text in facts if text]),
    ]
    if told:
        made += [Heading(words["smoke findings"]), PageTable(heads, told, marked=marked)]
    made += [Heading(words["smoke checks"]), noted]
    return made + [heat for one in _MAPS if (heat := _heat(data, one, words)) is not None]


def smoke_workers(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The facts of each worker, by name."""
    return {_cut(item.get("worker")): item for item in entries(data.get("workers")) if item.get("worker")}


def _heat(data: Mapping[str, Any], one: tuple[str, str, str, str, bool], words: Mapping[str, str]) -> HeatTable | None:
    check, key, title, unit, high = one
    figures = mapping(mapping(data.get("figures")).get(check))
    names, rows = figures.get("workers"), figures.get(key)
    if not isinstance(names, list) or not isinstance(rows, list) or len(rows) != len(names) or len(names) < 2:
        return None
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        return None
    values = [[number(value) for value in row] for row in rows]
    matrix = Heat([_cut(name) for name in names], values, high)
    shares, middle = shares_of(matrix)
    if middle is None:
        return None
    kept = list(range(len(names)))
    note = words["heat median"].format(median=figure(middle), unit=unit)
    if len(kept) > MOST_IN_MAP:
        kept = sorted(sorted(kept, key=lambda at: worst_of(shares, at))[:MOST_IN_MAP])
        note += " " + words["heat left out"].format(shown=MOST_IN_MAP, count=len(names))
    shown = [["" if (value := values[row][column]) is None else figure(value) for column in kept] for row in kept]
    parts = [[shares[row][column] for column in kept] for row in kept]
    names_shown = [matrix.names[at] for at in kept]
    if len(kept) <= _FIGURES:
        return HeatTable(words[title], unit, names_shown, shown, parts, note)
    exact = [[f"{value} {unit}" for value in row] for row in shown]
    short = [["" if share is None else f"{100 * share:.0f}" for share in row] for row in parts]
    return HeatTable(words[title], words["heat shares"], names_shown, short, parts, note, exact)


def _severity(value: object, words: Mapping[str, str]) -> str:
    text = _cut(value)
    return Coloured(words.get(f"smoke {text}", text), _TONES.get(text, Tone.PLAIN))


def _worth(item: Mapping[str, Any]) -> int:
    severity = item.get("severity")
    return _ORDER.index(severity) if severity in _ORDER else len(_ORDER)


def _culprit(found: Mapping[str, Any]) -> str:
    worker, peer = _cut(found.get("worker")), _cut(found.get("peer"))
    parts = [f"{worker} <-> {peer}" if peer else worker]
    parts += [f"{key} {_cut(found[key])}" for key in ("gpu", "rank", "path") if found.get(key) is not None]
    return ", ".join(part for part in parts if part)


def _cut(value: object) -> str:
    return "" if value is None or isinstance(value, dict | list) else str(value)[:_TEXT]


# The timeline of a report: for each worker what its log and its platform say happened, and when.

#: Above this number similar lanes are folded; above the second, lanes are not drawn.
FOLD_ABOVE = 64
MOST_LANES = 96
#: Marks of one lane that come from its platform, or from agents.
_MOST_MARKS = 24
_MARK_TEXT = 300
_PARTS: Mapping[str, Sort] = {"initiator": "failure", "victim": "victim", "ended": "ended", "agent": "agent"}
_NOTES: Mapping[NoteKind, Sort] = {NoteKind.RESTART: "restart", NoteKind.SIGNALLED: "signal"}
#: Of the span from the first failure to the last one, so much is shown before and behind; seconds at least.
_BEFORE, _BEHIND, _LEAST = 0.3, 0.2, 0.6


#: More lanes of ranks are folded where they wait in the same.
_WAIT_LANES = 16


def _timelines(material: Material, manner: Manner, words: Mapping[str, str]) -> list[Part | None]:
    """The ranks that wait, if any do; then the events on each worker."""
    whole, waiting = timeline(material, manner, words), waits(material, manner, words)
    if waiting is None:
        return [whole]
    return [Heading(words["who waits"]), waiting, Heading(words["what happened"]) if whole else None, whole]


def waits(material: Material, manner: Manner, words: Mapping[str, str]) -> Timeline | None:
    """A lane for each rank that waits in a collective, and for each that did not arrive; None if nothing says so."""
    waiting = waiting_ranks(material.job.workers, material.scene)
    if not waiting:
        return None
    begin = min(wait.since.seconds for wait in waiting)
    end = max((wait.until for wait in waiting if wait.until is not None), default=begin)
    causes = [cause for cause in material.found.root_causes if cause.category in (HANG, START)]
    here = {(wait.rank, wait.worker) for wait in waiting}
    lanes = []
    for cause in causes:
        if (cause.rank, cause.worker) in here:
            continue
        said = [_TEXTS["never arrived"], cause.message if material.scene else "", str(cause.frame or "")]
        told = manner.word(joined(filter(None, said)))
        name = manner.word(_ranks_and_workers([(cause.rank, cause.worker)]))
        lanes.append(Lane(name, None, None, [LaneMark("absent", begin, f"{name}: {told}", end)], "", True, told))
    groups: dict[object, list[Waiting]] = {}
    for wait in sorted(waiting, key=lambda wait: (wait.since.seconds, wait.rank is None, wait.rank or 0)):
        groups.setdefault(wait.what if len(waiting) > _WAIT_LANES else wait, []).append(wait)
    for group in list(groups.values())[: MOST_LANES - len(lanes)]:
        first = group[0]
        until = max(first.since.seconds, *(end if wait.until is None else wait.until for wait in group))
        name = manner.word(_ranks_and_workers([(wait.rank, wait.worker) for wait in group]))
        time, begun = utc(first.since), first.since.seconds
        key = "waits at least" if first.least else "waits since" if time else "waits for"
        what = manner.word(first.what) or words["a peer"]
        said = [words[key].format(what=what, time=time, seconds=until - begun), first.frame]
        told = manner.word(joined(filter(None, said)))
        lanes.append(Lane(name, None, None, [LaneMark("waits", begun, f"{name}: {told}", until)], said=told))
    return Timeline(
        begin, utc(min(waiting, key=lambda wait: wait.since.seconds).since) or "", begin, end, (begin, end), lanes
    )


def timeline(material: Material, manner: Manner, words: Mapping[str, str]) -> Timeline | None:
    """None if no time is known at all."""
    found, workers = material.found, material.job.workers
    clocks = Clocks(workers)
    base = base_of(found)
    reports = {report.worker: report for report in found.workers}

    def mark(worker: str, sort: Sort, when: When | None, text: str) -> list[LaneMark]:
        if when is None:
            return []
        told = " ".join(part for part in (utc(when), f"({offset(when, base)})" if base else None) if part)
        said = manner.word(text)[:_MARK_TEXT]
        return [LaneMark(sort, when.seconds, f"{worker}: {words[f'mark {sort}']}, {told}: {said}")]

    drawn = [_lane(item, reports.get(item.worker), found, clocks, manner, mark) for item in workers]
    lanes = _with_platform(drawn, material, mark)
    ends = [time for lane in lanes for time in (lane.begin, lane.end) if time is not None]
    times = [*ends, *(one.time for lane in lanes for one in lane.marks)]
    if not times:
        return None
    zero = base or When(min(times), 1.0)
    told = [
        time
        for lane in lanes
        for one in lane.marks
        if one.sort in ("root", "failure", "victim", "ended", "agent", "signal")
        for time in (one.time, one.until or one.time)
        if base is None or time >= base.seconds - 1
    ]
    begin, end = min(told or times), max(told or times)
    if begin == end:  # nothing around it to look at
        begin, end = min(times), max(times)
    span = max(end - begin, _LEAST)
    notes = []
    unknown = [item.worker for item in found.workers if item.skew is None and item.part != "no log"]
    if unknown and len(found.workers) > 1:
        notes.append(words["clocks unknown"].format(names=fold_names(unknown)))
    count = len(lanes)
    if count > FOLD_ABOVE:
        lanes = _folded(lanes, words)
        notes.append(words["lanes folded"].format(count=count, lanes=len(lanes)))
    if len(lanes) > MOST_LANES:
        notes.append(words["lanes left out"].format(count=len(lanes) - MOST_LANES))
        lanes = lanes[:MOST_LANES]
    return Timeline(
        zero.seconds,
        (utc(base) if base else utc(zero)) or "",
        min(times),
        max(times),
        (begin - _BEFORE * span, end + _BEHIND * span),
        lanes,
        notes,
    )


def _lane(
    item: WorkerEvidence,
    report: WorkerReport | None,
    found: Diagnosis,
    clocks: Clocks,
    manner: Manner,
    mark: Callable[[str, Sort, When | None, str], list[LaneMark]],
) -> Lane:
    log, name = item.log, item.worker
    begin = clocks.when(name, log.first) if log else None
    end = clocks.when(name, log.last) if log else None
    causes = [cause for cause in found.root_causes if cause.worker == name]
    marks: list[LaneMark] = []
    for cause in causes:
        marks += mark(name, "root", cause.time or (report.first if report else None) or end, what_of(cause, manner))
    if report is not None and not causes and report.part in _PARTS:
        marks += mark(name, _PARTS[report.part], report.first, in_short(report.said, manner))
    for cause in found.earlier:
        if cause.worker == name:
            marks += mark(name, "earlier", cause.time, what_of(cause, manner))
    notes = log.notes if log else []
    starts = [note for note in notes if note.kind is NoteKind.STARTED][1:]
    for note in [*[note for note in notes if note.kind in _NOTES][-_MOST_MARKS:], *starts[-_MOST_MARKS:]]:
        when = clocks.when(name, log.moments.get(note.line_no)) if log else None
        marks += mark(name, _NOTES.get(note.kind, "restart"), when, note.text.strip())
    first, last = begin.seconds if begin else None, end.seconds if end else None
    return Lane(name, first, last, marks, culprit=bool(causes), alike=report.part if report else "")


def _with_platform(
    lanes: Sequence[Lane], material: Material, mark: Callable[[str, Sort, When | None, str], list[LaneMark]]
) -> list[Lane]:
    """The lanes with changes of states and events, culprits first, then as they failed."""
    more: dict[str, list[LaneMark]] = {}
    for change in material.states:
        said = f"{change.state} ({change.reason})" if change.reason else change.state
        more.setdefault(change.worker, []).extend(mark(change.worker, "state", When(change.time, 1.0), said))
    for event in material.job.events:
        if event.worker is not None and event.time is not None:
            said = f"{event.reason}: {event.message}"
            more.setdefault(event.worker, []).extend(mark(event.worker, "event", When(event.time, 1.0), said))
    made = [replace(lane, marks=(*lane.marks, *more.get(lane.name, [])[-_MOST_MARKS:])) for lane in lanes]

    def order(at: int) -> tuple[bool, float, int]:
        own = [one.time for one in made[at].marks if one.sort not in ("state", "event", "restart", "earlier")]
        return (not made[at].culprit, min(own, default=float("inf")), at)

    return [made[at] for at in sorted(range(len(made)), key=order)]


def _folded(lanes: Sequence[Lane], words: Mapping[str, str]) -> list[Lane]:
    """Fold similar lanes into one: the same part, and the same kinds of marks. Culprits are not folded."""
    groups: dict[tuple[str, ...], list[Lane]] = {}
    for lane in lanes:
        sorts = sorted({mark.sort for mark in lane.marks})
        groups.setdefault((lane.name,) if lane.culprit else ("", lane.alike, *sorts), []).append(lane)
    return [group[0] if len(group) == 1 else _one_of(group, words) for group in groups.values()]


def _one_of(group: Sequence[Lane], words: Mapping[str, str]) -> Lane:
    names = fold_names(lane.name for lane in group)
    marks = []
    by_sort: dict[Sort, list[LaneMark]] = {}
    for mark in (mark for lane in group for mark in lane.marks):
        by_sort.setdefault(mark.sort, []).append(mark)
    for sort, alike in by_sort.items():
        first = min(alike, key=lambda mark: mark.time)
        told = words["mark folded"].format(count=len(alike), mark=first.told)
        marks.append(LaneMark(sort, first.time, told, max(mark.time for mark in alike)))
    begins = [lane.begin for lane in group if lane.begin is not None]
    ends = [lane.end for lane in group if lane.end is not None]
    note = words["lane count"].format(count=len(group))
    return Lane(names, min(begins, default=None), max(ends, default=None), tuple(marks), note, alike=group[0].alike)


# Texts, by the names that tables and marks have

#: Heads of columns. The key of each is its English.
_HEADS = (
    *(Message("after"), Message("count"), Message("worker"), Message("who"), Message("ranks"), Message("first")),
    *(Message("time"), Message("location"), Message("state"), Message("exit"), Message("part"), Message("last line")),
    *(Message("restarts"), Message("rounds"), Message("clock"), Message("reason"), Message("message")),
    *(Message("about"), Message("node rank"), Message("node"), Message("pod"), Message("address"), Message("GPUs")),
    *(Message("started"), Message("ended"), Message("file"), Message("size"), Message("verdict"), Message("check")),
    *(Message("evidence"), Message("confirmed"), Message("next step"), Message("seconds"), Message("note")),
    about("report: head workers", "workers"),
)
_TEXTS = {
    **{f"head {head}": head for head in _HEADS},
    "title": Message("Report on {name}"),
    "saved logs": Message("saved logs"),
    "contents": Message("Contents"),
    # Headings.
    "verdict": Message("Verdict"),
    "evidence": Message("Evidence"),
    "timeline": Message("Timeline"),
    "steps": Message("Training steps"),
    "cascade": Message("Consequences"),
    "earlier": Message("Earlier rounds"),
    "workers": Message("Workers"),
    "states": Message("States"),
    "events": Message("Events"),
    "stacks": Message("Stacks"),
    "smoke": Message("Smoke test"),
    "environment": Message("Environment"),
    "remarks": Message("Remarks"),
    "missing": Message("Missing evidence"),
    "files": Message("Files in this folder"),
    "made": Message("How this report was made"),
    # The job.
    "job": Message("job"),
    "kind of job": Message("kind"),
    "namespace": Message("namespace"),
    "state": Message("state"),
    "workers with logs": about("report: workers with logs", "workers"),
    "uid": Message("uid"),
    # Evidence and timeline.
    "whole traceback": Message("The whole traceback: {count} lines"),
    "no stack": Message("no Python stack"),
    "more evidence": Message("{count} more pieces of evidence"),
    "zero": Message("0 is {time}."),
    "zero unknown": Message("0 is the first known time: no log line has a year."),
    "around the failure": Message("Around the failure"),
    "whole run": Message("The whole run"),
    "who waits": Message("Who waits for whom"),
    "what happened": Message("Course of events on each worker"),
    "never arrived": Message("never arrived"),
    "a peer": Message("waiting for a peer"),
    "waits since": Message("{what}: since {time}, for {seconds:.1f} s"),
    "waits for": Message("{what}: for {seconds:.1f} s"),
    "waits at least": Message("{what}: for at least {seconds:.0f} s"),
    "steps over time": Message("Seconds for a step over time; a dashed line marks the moment from which it was slow."),
    "steps over steps": Message("Seconds for a step over the steps; a dashed line marks the first slow one."),
    "steps usual": Message("usually {usual} for a step"),
    "mark root": Message("root cause"),
    "mark failure": Message("failed by itself"),
    "mark victim": Message("lost its peer"),
    "mark ended": Message("ended by its agent"),
    "mark agent": Message("torchrun itself ended"),
    "mark earlier": Message("failure of an earlier round"),
    "mark restart": Message("restart"),
    "mark signal": Message("signal from outside"),
    "mark state": Message("state changed"),
    "mark event": Message("event"),
    "mark last": Message("last line of the log"),
    "mark waits": Message("waiting"),
    "mark absent": Message("never arrived"),
    "mark folded": Message("{count} marks, first: {mark}"),
    "lane count": Message("{count} workers"),
    "lanes folded": Message(
        "{count} workers in {lanes} lanes: similar workers share a lane. A line beside a mark ends at the last of them."
    ),
    "lanes left out": Message("{count} more lanes are not shown; the table of workers is complete."),
    "clocks unknown": Message(
        "The clocks of {names} could not be compared with the others; their marks may be shifted."
    ),
    # The environment.
    "env command": Message("command line"),
    "env nodes": Message("nodes"),
    "env driver": Message("driver"),
    "of workers": Message("{value} ({workers})"),
    "unknown": about("report: nothing names it", "unknown"),
    "cascade caption": Message("These failures are consequences."),
    "earlier caption": Message("The job was restarted after these failures."),
    "part silent": Message("log ends without an error"),
    "part no log": Message("no log"),
    "part never seen": Message("never seen"),
    "all rows": Message("All {count}"),
    "rows more": Message("{count} more"),
    "rows left out": Message("The first {count} are not shown."),
    # The smoke test.
    "smoke tier": Message("tier"),
    "smoke time": Message("took"),
    "smoke findings": Message("Findings"),
    "smoke checks": Message("Checks"),
    "smoke fail": Message("FAIL"),
    "smoke warn": Message("WARN"),
    "smoke not_judged": Message("NOT JUDGED"),
    "smoke pass": Message("PASS"),
    "yes": Message("yes"),
    "heat throughput": Message("Throughput from row to column"),
    "heat round trips": Message("Round trips from row to column"),
    "heat corner": Message("from / to"),
    "heat key": Message("- below 80 % of the median, ! below 60 %, x no result. Round trips: longer is worse."),
    "heat median": Message("Median: {median} {unit}."),
    "heat shares": Message("% of the median"),
    "heat left out": Message("Shown: the {shown} of {count} workers with the worst results."),
    # How it was made.
    "made by": Message("by"),
    "made at": Message("at"),
    "made with": Message("command"),
    "made redacted": Message("secrets"),
    "made redacted text": Message(
        "Tokens, passwords and keys were replaced by [redacted], in {count} places. Patterns cannot find all of them: "
        "review this folder before you share it."
    ),
    "made read": Message("how to read it"),
    "made read text": Message(
        "verdict.json has the verdict for programs; 'atlctl errors --from FOLDER' reads the folder again"
    ),
    "looked": Message(
        "The logs do not show this: the ranks were inspected while the job ran. 'atlctl errors --from' on this folder "
        "shows less."
    ),
}


def words(language: Language) -> Mapping[str, str]:
    """All of them in one language."""
    return {name: translated(text, language) for name, text in _TEXTS.items()}
