"""Verdicts from a check's own state and from its findings."""

from __future__ import annotations

from typing import Any

import pytest

from atlctl.smoke.context import Options, Run
from atlctl.smoke.findings import Culprit, Finding, Report, Severity, SmokeVerdict, worst

F, W, N, U = Severity.FAIL, Severity.WARN, Severity.NOT_JUDGED, Severity.INCOMPLETE


class There:
    """A session with both workers, or with some of them `gone`."""

    def __init__(self, *gone: str) -> None:
        self._gone = gone

    def living(self) -> list[str]:
        return ["worker-0", "worker-1"]

    def gone(self) -> dict[str, str]:
        return dict.fromkeys(self._gone, "killed")


def a_run(*gone: str) -> Run:
    session: Any = There(*gone)
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
        ([W, U], False, SmokeVerdict.INCOMPLETE),
    ],
)
def test_the_verdict_of_a_check(found: list[Severity], unjudged: bool, verdict: SmokeVerdict) -> None:
    run = a_run()
    run.find(find(F, "facts"))
    with run.check("mesh") as stage:
        run.find(*map(find, found))
        stage.tested = set(run.session.living())
        if unjudged:
            stage.not_judged("nobody to talk to")
    (check,) = run.report.checks
    assert check.verdict is verdict
    assert check.note == ("nobody to talk to" if unjudged else "")
    assert run.report.timings["mesh"] == check.seconds


def untested(run: Run) -> dict[str | None, str]:
    return {f.culprit.worker: f.evidence for f in run.report.findings if f.severity is U and f.culprit is not None}


def test_a_check_that_does_not_say_whom_it_tested_has_tested_nobody() -> None:
    run = a_run()
    with run.check("mesh"):
        pass
    assert run.report.checks[0].verdict is SmokeVerdict.INCOMPLETE
    assert untested(run) == dict.fromkeys(["worker-0", "worker-1"], "it gave no result")


def test_who_is_accused_or_gone_is_not_said_twice_and_makes_no_pass() -> None:
    run = a_run("worker-1")
    with run.check("mesh"):
        run.find(find(W))
    assert untested(run) == {}
    assert run.report.checks[0].verdict is SmokeVerdict.INCOMPLETE


def test_what_does_not_apply_is_not_due_but_a_worker_with_a_reason_is() -> None:
    run = a_run()
    with run.check("mesh") as stage:
        stage.not_judged("one rank")
        stage.untested = {"worker-1": "no torch"}
    assert run.report.checks[0].verdict is SmokeVerdict.INCOMPLETE
    assert untested(run) == {"worker-1": "no torch"}


def test_the_verdict_of_the_whole() -> None:
    assert worst([]) is SmokeVerdict.NOT_JUDGED
    assert worst([SmokeVerdict.NOT_JUDGED]) is SmokeVerdict.NOT_JUDGED
    assert worst([SmokeVerdict.NOT_JUDGED, SmokeVerdict.PASS]) is SmokeVerdict.PASS
    assert worst([SmokeVerdict.PASS, SmokeVerdict.WARN]) is SmokeVerdict.WARN
    assert worst([SmokeVerdict.WARN, SmokeVerdict.INCOMPLETE]) is SmokeVerdict.INCOMPLETE
    assert worst([SmokeVerdict.WARN, SmokeVerdict.INCOMPLETE, SmokeVerdict.FAIL]) is SmokeVerdict.FAIL
    assert worst([SmokeVerdict.SKIPPED]) is SmokeVerdict.NOT_JUDGED
    # A finding counts even before its check has a line.
    report = Report("quick", findings=[find(F)])
    assert report.verdict is SmokeVerdict.FAIL
