"""Verdicts: what a check says of itself, and what its findings say."""

from __future__ import annotations

from typing import Any

import pytest

from atlctl.smoke.context import Options, Run
from atlctl.smoke.findings import Culprit, Finding, Report, Severity, SmokeVerdict, worst

F, W, N = Severity.FAIL, Severity.WARN, Severity.NOT_JUDGED


def a_run() -> Run:
    session: Any = None
    return Run(session, (), Options(), Report("quick"))


def find(severity: Severity, check: str = "mesh") -> Finding:
    return Finding(check, severity, Culprit("worker", "worker-0"), "evidence")


@pytest.mark.parametrize(
    ("found", "unjudged", "verdict"),
    [
        ([], False, SmokeVerdict.PASS),
        ([], True, SmokeVerdict.NOT_JUDGED),
        ([N], False, SmokeVerdict.NOT_JUDGED),
        ([W, N], False, SmokeVerdict.WARN),
        ([N, W, F], False, SmokeVerdict.FAIL),
        ([F], True, SmokeVerdict.FAIL),
    ],
)
def test_the_verdict_of_a_check(found: list[Severity], unjudged: bool, verdict: SmokeVerdict) -> None:
    run = a_run()
    run.find(find(F, "facts"))
    with run.check("mesh") as stage:
        run.find(*map(find, found))
        if unjudged:
            stage.not_judged("nobody to talk to")
    (check,) = run.report.checks
    assert check.verdict is verdict
    assert check.note == ("nobody to talk to" if unjudged else "")
    assert run.report.timings["mesh"] == check.seconds


def test_the_verdict_of_the_whole() -> None:
    assert worst([]) is SmokeVerdict.NOT_JUDGED
    assert worst([SmokeVerdict.NOT_JUDGED]) is SmokeVerdict.NOT_JUDGED
    assert worst([SmokeVerdict.NOT_JUDGED, SmokeVerdict.PASS]) is SmokeVerdict.PASS
    assert worst([SmokeVerdict.PASS, SmokeVerdict.WARN]) is SmokeVerdict.WARN
    assert worst([SmokeVerdict.WARN, SmokeVerdict.FAIL]) is SmokeVerdict.FAIL
    # A finding counts also where its check has no line yet.
    report = Report("quick", findings=[find(F)])
    assert report.verdict is SmokeVerdict.FAIL
