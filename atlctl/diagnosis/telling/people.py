"""A diagnosis as a panel: a headline, rows, and sections below them. Texts of the job are not sanitised."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Proof, Verdict
from atlctl.diagnosis.telling.data import utc
from atlctl.diagnosis.telling.guide import Manner
from atlctl.diagnosis.telling.timeline import listings
from atlctl.diagnosis.telling.who import (
    ended,
    frame_text,
    in_short,
    name_of,
    names_of,
    shape_of,
    shortened,
    what_of,
    wordless,
)
from atlctl.i18n import COMMA, Message, about, joined
from atlctl.jobs.panel import Panel, Piece, Row

#: Without -v: candidates, proofs, further lines of a message, and lines of the screen for each text.
MAX_CANDIDATES = 5
MAX_PROOFS = 3
MAX_DETAIL = 3
_FOLD = 9
_FOLD_PROOF = 2
#: The most culprits with different messages that are shown separately.
_MAX_GROUPS = 4

_MORE_ROWS = Message("and {count} more: -v")
#: Texts for the confidence levels.
SURE = {
    Confidence.CERTAIN: Message("certain"),
    Confidence.LIKELY: Message("likely"),
    Confidence.GUESS: Message("a guess"),
}
_ORDER = (Confidence.CERTAIN, Confidence.LIKELY, Confidence.GUESS)


def tell_people(diagnosis: Diagnosis, manner: Manner) -> Panel:
    """Makes the panel of `diagnosis`. Its texts are sanitised later, when it is drawn."""
    if diagnosis.verdict is Verdict.NONE:
        rows = _none(diagnosis)
    elif diagnosis.root_causes:
        rows = _found(diagnosis.root_causes, manner)
    else:
        rows = _undecided(diagnosis.candidates, manner)
    cut = Message("cut; -v shows all")
    return Panel(_headline(diagnosis), tuple(rows), listings(diagnosis, manner), cut).into(manner.language)


def _headline(diagnosis: Diagnosis) -> tuple[Piece, ...]:
    causes = diagnosis.root_causes
    if diagnosis.verdict is Verdict.NONE:
        read = Message("no failure in what was read") if diagnosis.partial else Message("no failure in these logs")
        return (Piece(read, "strong"),)
    if not causes:
        return (Piece(Message("cannot be decided from these logs"), "strong"),)
    # Of several causes, the lowest confidence.
    sure = max((cause.confidence for cause in causes), key=_ORDER.index)
    word = Message(", {word}", word=SURE[sure])
    return (
        Piece(Message("root cause: "), "strong"),
        Piece(_culprit(diagnosis), "culprit"),
        Piece(word, "plain" if sure is Confidence.CERTAIN else "faint"),
    )


def _culprit(diagnosis: Diagnosis) -> str:
    first = diagnosis.root_causes[0]
    if diagnosis.verdict is Verdict.JOB:
        return Message("the whole job")
    if diagnosis.verdict is Verdict.EXTERNAL:
        return Message("outside of the job")
    if diagnosis.verdict is Verdict.WORKER and first.worker is not None and first.rank is not None:
        return Message("{worker} (rank {rank})", worker=first.worker, rank=first.rank)
    if diagnosis.verdict is Verdict.RANK and first.rank is None and first.local_rank is None:
        return Message("a process on {worker}", worker=name_of(first))
    return names_of(diagnosis.root_causes)


def _found(causes: Sequence[Cause], manner: Manner) -> list[Row]:
    """The rows for root causes. Causes with the same message are shown once."""
    frame = causes[0].frame
    where = frame_text(frame) if frame else ""
    meanings = [manner.guide.meaning(cause, manner.language) for cause in causes] if manner.verbose else []
    groups = _groups(causes, manner)
    what = _what(groups, manner)
    rows = [
        Row(Message("what"), what, manner.fold(_FOLD if len(groups) == 1 else _FOLD_PROOF), "strong"),
        Row(Message("where"), _distinct([where])),
        Row(about("diagnosis", "kind"), _distinct(_kind(cause, manner) for cause in causes)),
        Row(Message("means"), _distinct(meanings)),
        Row(Message("ended"), _distinct(ended(cause) for cause in causes if not wordless(cause))),
        Row(Message("when"), _distinct([_when(causes)])),
        Row(Message("node"), _distinct(_address(cause) for cause in causes)),
        Row(Message("why"), _distinct(cause.why for cause in causes)),
        Row(Message("evidence"), tuple(_evidence(causes, what, manner)), manner.fold(_FOLD_PROOF), proofs=True),
        Row(Message("next"), tuple(_next(causes, manner))),
    ]
    return [row for row in rows if row.lines]


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Texts without duplicates and empty ones."""
    return tuple(text for text in dict.fromkeys(texts) if text)


def _groups(causes: Sequence[Cause], manner: Manner) -> list[list[Cause]]:
    groups: dict[str, list[Cause]] = {}
    for cause in causes:
        groups.setdefault(what_of(cause, manner), []).append(cause)
    if len(groups) > _MAX_GROUPS and not manner.verbose:
        alike: dict[str, list[Cause]] = {}
        for text, group in groups.items():
            alike.setdefault(shape_of(text), []).extend(group)
        groups = alike
    return list(groups.values())


def _what(groups: Sequence[Sequence[Cause]], manner: Manner) -> tuple[str, ...]:
    if len(groups) > 1:
        limit = len(groups) if manner.verbose else _MAX_GROUPS
        told = [
            Message("{who}: {what}", who=names_of(group), what=what_of(group[0], manner)) for group in groups[:limit]
        ]
        return (*told, *_more(len(groups) - limit, _MORE_ROWS))
    first = groups[0][0]
    lines = (
        [] if wordless(first) or first.brief else [line.strip() for line in first.detail.splitlines() if line.strip()]
    )
    limit = len(lines) if manner.verbose else MAX_DETAIL
    return (
        what_of(first, manner),
        *lines[:limit],
        *_more(len(lines) - limit, Message("(and {count} more lines: -v)")),
    )


def _more(count: int, text: Message) -> list[str]:
    return [text.filled(count=count)] if count > 0 else []


def _kind(cause: Cause, manner: Manner) -> str:
    title = manner.guide.title(cause, manner.language)
    return title if title == cause.category else joined((title, f"[{cause.category}]"), " ")


def _when(causes: Sequence[Cause]) -> str:
    timed = [cause for cause in causes if cause.time is not None]
    first = min(timed, key=lambda cause: cause.time.seconds if cause.time else 0.0, default=causes[0])
    parts = [
        utc(first.time),
        Message("attempt {number} (counted from 0)", number=first.attempt) if first.attempt else None,
    ]
    return joined(filter(None, parts), COMMA)


def _address(cause: Cause) -> str:
    """Node, address and GPU, as far as known."""
    parts = [cause.node, cause.host_ip if cause.host_ip != cause.node else None]
    if cause.gpu is not None:
        parts.append(Message("GPU {index}", index=cause.gpu.index) if cause.gpu.index is not None else None)
        parts.append(cause.gpu.uuid)
        parts.append(Message("PCI {pci}", pci=cause.gpu.pci) if cause.gpu.pci else None)
    return joined(filter(None, parts), COMMA)


def _evidence(causes: Iterable[Cause], told: Sequence[str], manner: Manner) -> list[str]:
    """The place and text of each proof, without repetition, first one proof of each cause. Skips texts shown above."""
    proofs: dict[Proof, None] = {}
    waiting = [list(cause.proofs) for cause in causes]
    while any(waiting):
        for left in waiting:
            if left:
                proofs[left.pop(0)] = None
    found = list(proofs)
    limit = len(found) if manner.verbose else MAX_PROOFS
    lines = []
    seen: set[str] = set()
    for proof in found[:limit]:
        text, place = in_short(proof.text, manner), manner.place(proof)
        shown = "" if text in seen and not manner.verbose else shortened(text, manner) if text in told else text
        seen.add(text)
        lines.append(joined((place, shown), "  ") if shown else place)
    return [*lines, *_more(len(found) - limit, _MORE_ROWS)]


def _next(causes: Sequence[Cause], manner: Manner) -> list[str]:
    advice = [manner.guide.advice(cause, manner.language) for cause in causes]
    lines = list(_distinct(advice))
    for cause in causes:
        if manner.guide.hardware(cause):
            lines += [line for line in _cordon(cause) if line not in lines]
    command = manner.next_command(causes[0])
    return [*lines, command] if command else lines


def _cordon(cause: Cause) -> list[str]:
    """The address of broken hardware, and the command that keeps other jobs off it."""
    if cause.node is None:
        return [
            Message(
                "Take the node out of service (these logs do not name it): kubectl cordon NODE",
            )
        ]
    return [
        Message("Take node {node} out of service:", node=_address(cause)),
        f"kubectl cordon {shlex.quote(cause.node)}",
    ]


def _undecided(candidates: Sequence[Cause], manner: Manner) -> list[Row]:
    groups: dict[tuple[str, str], list[Cause]] = {}
    for cause in candidates:
        what = what_of(cause, manner)
        groups.setdefault((what if manner.verbose else shape_of(what), cause.why), []).append(cause)
    reasons = _distinct(why for _, why in groups)
    fallback = (
        Message("the evidence does not decide between the candidates")
        if candidates
        else Message("the evidence names no process or worker")
    )
    limit = len(groups) if manner.verbose else MAX_CANDIDATES
    lines = [_candidate(group, manner) for group in list(groups.values())[:limit]]
    lines += _more(len(groups) - limit, Message("and {count} more: -v"))
    command = manner.next_command(candidates[0]) if candidates else None
    # Values that all of them share are known, even if the first is not.
    kinds = _distinct(_kind(cause, manner) for cause in candidates)
    kind = kinds if len(kinds) == 1 else ()
    advice = manner.guide.advice(candidates[0], manner.language) if kind else ""
    rows = [
        Row(Message("why"), reasons or (fallback,)),
        Row(Message("candidate"), tuple(lines), manner.fold(_FOLD_PROOF)),
        Row(about("diagnosis", "kind"), kind),
        Row(
            Message("next"),
            _distinct(
                [
                    advice,
                    Message(
                        "Collect more evidence: logs of all workers with time stamps (kubectl logs --timestamps), "
                        "error files, logs of previous instances."
                    ),
                    command or "",
                ]
            ),
        ),
    ]
    return [row for row in rows if row.lines]


def _candidate(group: Sequence[Cause], manner: Manner) -> str:
    first = group[0]
    who, what = names_of(group), what_of(first, manner)
    if not first.proofs:
        return Message("{who}: {what}", who=who, what=what)
    return Message("{who} ({place}): {what}", who=who, place=manner.place(first.proofs[0]), what=what)


def _none(diagnosis: Diagnosis) -> list[Row]:
    count = len(diagnosis.earlier)
    if not count:
        return []
    text = (
        Message("one failure in an earlier round; the job was restarted after it")
        if count == 1
        else Message("{count} failures in earlier rounds; the job was restarted after them", count=count)
    )
    return [Row(Message("earlier"), (text,))]
