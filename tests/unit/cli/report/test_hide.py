"""Secrets in the verdict of a report."""

from __future__ import annotations

import json
from dataclasses import replace

from atlctl.cli.report.making import hide
from atlctl.diagnosis.result import Proof, Traceback, Verdict
from atlctl.diagnosis.telling.data import to_data
from atlctl.diagnosis.tracebacks import Frame, Raised
from tests.unit.diagnosis.causes import CAUSE, GUIDE, found

SECRET = "hunter2hunter2"


def test_tracebacks_and_last_lines_are_redacted() -> None:
    text = f"password={SECRET}"
    proof = Proof("worker-1", 12, text)
    trace = Traceback((Frame("a.py", 1, "f", text),), 0, "E", text, (Raised("E", text, (), None, 3),), proof)
    cause = replace(CAUSE, message=text, detail=text, traceback=trace, last_lines=(proof,))
    diagnosis = found(Verdict.RANK, cause)
    assert SECRET in json.dumps(to_data(diagnosis, GUIDE))
    shown = json.dumps(to_data(hide(diagnosis), GUIDE))
    assert SECRET not in shown
    assert "a.py" in shown
