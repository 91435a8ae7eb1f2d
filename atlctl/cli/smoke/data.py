"""The document of `atlctl smoke -o json`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from atlctl.i18n import Message, as_data
from atlctl.smoke.findings import Finding, Report

#: What a check keeps for the checks behind it, and what is no figure.
_INNER = ("ranks",)
_DEEPEST = 12


def to_data(report: Report, may_still_run: Iterable[str]) -> dict[str, Any]:
    """Plain values; figures of workers that are no numbers of JSON are null."""
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
        "advice": finding.advice,
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
