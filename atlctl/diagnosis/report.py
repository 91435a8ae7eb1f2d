"""A finding for programs (`to_data`) and for people (`to_text`). The text is raw: the caller sanitises it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from atlctl.diagnosis.finding import Candidate, Finding

#: Failures behind the first that the text names one by one.
SHOWN_FOLLOWED = 5
_MESSAGE_WIDTH = 300


def verdict(finding: Finding) -> str:
    """`first_observed`, `tie`, `consequences_only` (the first failure is not among what was seen) or `none`."""
    if finding.nothing_found or not finding.candidates:
        return "none"
    if finding.only_consequences:
        return "consequences_only"
    return "tie" if len(finding.candidates) > 1 else "first_observed"


def to_data(finding: Finding) -> dict[str, Any]:
    """JSON-ready. `rank` is global; `time` is RFC 3339 in UTC, null where unknown; lines count from 1."""
    return {
        "verdict": verdict(finding),
        "label": finding.label,
        "candidates": [_candidate_data(item) for item in finding.candidates],
        "followed": [_candidate_data(item) for item in finding.followed],
        "silent_workers": list(finding.silent),
    }


def to_text(finding: Finding) -> list[str]:
    """Plain English lines. Texts from the job are in them as they came: sanitise before printing."""
    kind = verdict(finding)
    if kind == "none":
        return _none_text(finding)
    if kind == "consequences_only":
        lines = [
            "Every failure that was seen is a peer's consequence.",
            "The first one left no trace here: a rank that hangs, leaves with exit code 0 or is lost with its host.",
            "Earliest of them:",
        ]
    elif kind == "tie":
        lines = [
            f"{finding.label}: {len(finding.candidates)} failures in the same second; which was first is not known"
        ]
        if finding.candidates[0].time is None:
            lines = [
                f"{finding.label}: {len(finding.candidates)} failures without a time; which was first is not known"
            ]
    else:
        lines = [f"{finding.label}:"]
    for item in finding.candidates:
        lines += _candidate_text(item)
    return lines + _silent_text(finding) + _followed_text(finding)


def _none_text(finding: Finding) -> list[str]:
    lines = ["No failure of torchrun's was found."]
    if finding.followed:
        lines = ["All workers succeeded. Earlier attempts failed and were restarted:"]
        lines += [f"  {_headline(item)}" for item in finding.followed[:SHOWN_FOLLOWED]]
        lines += _more(finding)
    return lines + _silent_text(finding)


def _candidate_text(item: Candidate) -> list[str]:
    lines = [f"  {_headline(item)}"]
    if item.consequence:
        lines.append(f"    consequence: {item.consequence}")
    if item.frame:
        lines.append(f"    at {item.frame}")
    if item.earlier_attempt:
        lines.append(f"    in an earlier attempt (number {item.attempt} of this agent); it was restarted since")
    for proof in item.evidence:
        where = proof.file if proof.line_no is None else f"line {proof.line_no} of its log"
        lines.append(f"    evidence: {proof.worker}, {where}")
    return lines


def _followed_text(finding: Finding) -> list[str]:
    if not finding.followed:
        return []
    caused = sum(item.consequence is not None for item in finding.followed)
    head = f"Followed by {len(finding.followed)} more, {caused} of them a peer's consequence:"
    shown = [f"  {_headline(item)}" for item in finding.followed[:SHOWN_FOLLOWED]]
    return [head, *shown, *_more(finding)]


def _more(finding: Finding) -> list[str]:
    left = len(finding.followed) - SHOWN_FOLLOWED
    return [f"  and {left} more"] if left > 0 else []


def _silent_text(finding: Finding) -> list[str]:
    if not finding.silent:
        return []
    return [f"Ended in failure, or lost, without a word of torchrun's: {', '.join(finding.silent)}"]


def _headline(item: Candidate) -> str:
    who = [item.worker]
    if item.rank is not None:
        who.append(f"rank {item.rank}")
    if item.local_rank is not None:
        who.append(f"local rank {item.local_rank}")
    if item.rank is None and item.local_rank is None:
        who.append("agent")
    head = ", ".join(who)
    if when := item.time_text or _rfc3339(item.time):
        head += f", {when}"
    return f"{head}: {_what(item)}"


def _what(item: Candidate) -> str:
    """The process's own words, or how it ended. A death by signal is named even beside a text."""
    ended = item.signal or (f"exit code {item.exit_code}" if item.exit_code is not None else "")
    if not item.exception:
        stands_for_text = not item.message or item.message.startswith(("Signal ", "To enable traceback"))
        return (f"ended by {ended}" if item.signal else ended) if stands_for_text and ended else _short(item.message)
    return f"{_short(item.message)} ({ended})" if ended else _short(item.message)


def _short(text: str) -> str:
    return text if len(text) <= _MESSAGE_WIDTH else text[: _MESSAGE_WIDTH - 3] + "..."


def _candidate_data(item: Candidate) -> dict[str, Any]:
    return {
        "worker": item.worker,
        "rank": item.rank,
        "local_rank": item.local_rank,
        "attempt": item.attempt,
        "earlier_attempt": item.earlier_attempt,
        "exit_code": item.exit_code,
        "signal": item.signal,
        "exception": item.exception,
        "message": item.message,
        "frame": None
        if item.frame is None
        else {"file": item.frame.path, "line": item.frame.line, "function": item.frame.function},
        "time": _rfc3339(item.time),
        "time_text": item.time_text or None,
        "consequence": item.consequence,
        "tie": item.tie,
        "evidence": [
            {"worker": proof.worker, "line": proof.line_no, "text": proof.text, "file": proof.file}
            for proof in item.evidence
        ],
    }


def _rfc3339(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
