"""Made-up reports in the checks' format."""

from __future__ import annotations

from typing import Any

from atlctl.i18n import Message
from atlctl.smoke.findings import Check, Culprit, Finding, Kind, Report, Severity, SmokeVerdict


def report(words: str = "words of a worker", name: str = "worker-") -> Report:
    """A report with every element. `words` is in all texts from workers, and in each name."""
    names = [f"{name}{at}" for at in range(4)]

    def find(kind: Kind, severity: Severity, **who: Any) -> Finding:
        return Finding(
            "mesh",
            severity,
            Culprit(kind, names[1], **who),
            f"{words} {kind}",
            True,
            Message("advice {words}", words=words),
        )

    made = Report("standard")
    made.checks = [
        Check("roll-call", SmokeVerdict.FAIL, "3 of 4 workers answer", 4.0),
        Check("facts", SmokeVerdict.PASS, words, 0.21),
        Check("mesh", SmokeVerdict.WARN, "12 of 12 connections", 0.3),
        Check("ddp", SmokeVerdict.NOT_JUDGED, words),
    ]
    made.findings = [
        find("worker", Severity.FAIL),
        find("link", Severity.FAIL, peer=names[2]),
        find("gpu", Severity.WARN, gpu=2, rank=5),
        find("rank", Severity.WARN, rank=3),
        find("mount", Severity.WARN, path=f"/data/{words}"),
        find("facts", Severity.WARN),
        *(Finding("ddp", Severity.NOT_JUDGED, Culprit("worker", one), f"no torch: {words}") for one in names),
        Finding("facts", Severity.WARN, None, words),
    ]
    made.workers = {one: {"index": at, "answered": True, "host": words} for at, one in enumerate(names)}
    made.timings = {"mesh": 0.3, "total": 4.6}
    values = [[None if at == to else 900.0 - 100 * at for to in range(4)] for at in range(4)]
    made.data = {
        "mesh": {"workers": names, "loopback": False, "matrix_rtt_ms": values},
        "throughput": {"workers": names, "matrix_mb_per_s": values},
        "facts": {"odd": {words: {1, 2}}, "never": float("nan")},
        "ranks": {"inner": object()},
    }
    return made
