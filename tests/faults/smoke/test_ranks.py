"""Rank faults on plain hosts with real gloo ranks: named culprits, other findings, leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atlctl.smoke.findings import Severity, SmokeVerdict
from tests.faults.smoke import rankfaults
from tests.faults.smoke.rankfaults import driven
from tests.support.pace import within

pytestmark = pytest.mark.torch

_ROOT = Path(__file__).parents[3]


def test_wrong_values_of_four_kinds_name_four_workers() -> None:
    """Each in a separate check, the last two in one; all confirmed by a second test."""
    faults = {1: ["computes wrong"], 2: ["sends wrong"], 3: ["diverges"], 4: ["wrong gradients"]}
    told = driven(5, faults, ("device", "collectives", "ddp"))
    found = [(f.check, f.culprit and f.culprit.worker, f.severity, f.confirmed) for f in told.report.findings]
    assert sorted(found) == [
        ("collectives", "worker-2", Severity.FAIL, True),
        ("ddp", "worker-3", Severity.FAIL, True),
        ("ddp", "worker-4", Severity.FAIL, True),
        ("device", "worker-1", Severity.FAIL, True),
    ], told.lines()
    assert all(f.culprit and f.culprit.kind == "rank" and f.culprit.rank is not None for f in told.report.findings)


def test_senders_of_wrong_sums_are_named_and_not_the_receivers() -> None:
    """Each rank but those is right in all collectives in which a value names its sender."""
    told = driven(5, {1: ["sums wrong"], 3: ["scatters wrong"]}, ("collectives", "ddp", "allreduce"))
    found = [(f.check, f.culprit and f.culprit.worker, f.severity, f.confirmed) for f in told.report.findings]
    assert sorted(found) == [
        ("allreduce", "worker-1", Severity.FAIL, True),
        ("collectives", "worker-1", Severity.FAIL, True),
        ("collectives", "worker-3", Severity.FAIL, True),
        ("ddp", "worker-1", Severity.FAIL, True),
    ], told.lines()


def test_a_rank_that_comes_late_to_a_collective_is_named() -> None:
    told = driven(4, {2: ["comes late"]})
    (finding,) = told.report.findings
    assert (finding.culprit and finding.culprit.worker, finding.severity) == ("worker-2", Severity.WARN), told.lines()
    assert "s late to all_gather" in finding.evidence


def test_three_that_end_or_hang_are_named_and_the_others_are_still_tested() -> None:
    """All three in one stage. The next stage continues without them."""
    told = driven(5, {0: ["hangs"], 1: ["segfaults"], 3: ["exits"]}, ["collectives"] * 2, idle=2)
    evidence = {f.culprit.worker: f.evidence for f in told.report.findings if f.culprit}
    assert set(evidence) == {"worker-0", "worker-1", "worker-3"}, told.lines()
    assert "hangs in all_gather: <lambda> (" in evidence["worker-0"]
    assert "SIGSEGV" in evidence["worker-1"]
    assert "exit 17 in all_gather" in evidence["worker-3"]
    assert all(finding.confirmed for finding in told.report.findings), told.lines()
    assert [check.note for check in told.report.checks] == ["2 of 5 ranks, gloo", "2 ranks, gloo"], told.lines()


def test_ranks_that_never_start_and_one_that_is_stopped() -> None:
    faults = {3: ["never forks"], 2: ["never comes up"], 0: ["stops"]}
    told = driven(4, faults, ("device", "collectives"), idle=2)
    found = [(f.check, f.culprit and f.culprit.worker, f.evidence, f.severity) for f in told.report.findings]
    assert {one[:2] for one in found if one[3] is Severity.FAIL} == {
        ("device", "worker-3"),
        ("device", "worker-2"),
        ("collectives", "worker-0"),
    }, told.lines()
    # The fourth rank has no partner left.
    untested = {one[:2] for one in found if one[3] is Severity.INCOMPLETE}
    assert untested == {("collectives", f"worker-{at}") for at in (1, 2, 3)}, told.lines()
    assert any("cannot be started: Resource temporarily unavailable" in one[2] for one in found)
    assert any("does not start: <lambda> (" in one[2] for one in found)
    assert any("stopped by a signal" in one[2] for one in found)


def test_two_slow_ranks_are_named_once_they_were_slow_alone() -> None:
    told = driven(5, {1: ["sleeps"], 3: ["burns"]})
    warned = {f.culprit.worker for f in told.report.findings if f.culprit and f.severity is Severity.WARN}
    # With other tests running, a rank may be starved even alone: then it is not judged, and the note reports it.
    judged = "also alone" not in told.report.checks[0].note
    assert warned == {"worker-1", "worker-3"} or (not judged and warned < {"worker-1", "worker-3"}), told.lines()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nobody can be starved alone")
def test_a_starved_rank_is_not_called_slow() -> None:
    told = driven(4, {1: ["starved"]})
    assert not [f for f in told.report.findings if f.severity is not Severity.NOT_JUDGED], told.lines()
    assert "had to wait for a CPU" in told.report.checks[0].note


def test_a_worker_without_torch_is_said_and_one_that_never_forks_is_named_at_once() -> None:
    """The first is not accused. After the import of torch there is no further wait."""
    told = driven(4, {1: ["no torch"], 3: ["never forks"]}, ("device", "collectives"))
    found = {(f.check, f.severity, f.culprit and f.culprit.worker): f.evidence for f in told.report.findings}
    assert set(found) == {
        ("device", Severity.FAIL, "worker-3"),
        *((check, Severity.INCOMPLETE, "worker-1") for check in ("device", "collectives")),
        ("collectives", Severity.INCOMPLETE, "worker-3"),
    }, told.lines()
    assert "libcudart.so.12" in found["device", Severity.INCOMPLETE, "worker-1"]
    assert [(c.name, c.verdict, c.note) for c in told.report.checks] == [
        ("device", SmokeVerdict.FAIL, "3 ranks on CPUs"),
        ("collectives", SmokeVerdict.INCOMPLETE, "2 ranks, gloo"),
    ]
    assert within(told.report.timings["collectives"], 5)


def test_one_worker_has_a_device_and_nobody_to_talk_to() -> None:
    told = driven(1, {}, ("device", "collectives", "ddp", "stragglers"))
    verdicts = [check.verdict for check in told.report.checks]
    assert verdicts == [SmokeVerdict.PASS, *[SmokeVerdict.NOT_JUDGED] * 3], told.lines()
    assert not told.report.findings


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_client_that_is_ended(how: signal.Signals, tmp_path: Path) -> None:
    """The client is killed while one rank hangs and the others wait for it."""
    mark = os.urandom(8).hex()
    there = tmp_path / "hangs"
    extra = f"_before(Collectives, 'all_gather', lambda *_: open({str(there)!r}, 'w'))"
    text = f"""
import asyncio
from tests.faults.smoke.rankfaults import drive
asyncio.run(drive(2, {{1: ["hangs"]}}, mark={mark!r}, extra={extra!r}))
"""
    client = subprocess.Popen([sys.executable, "-c", text], cwd=_ROOT, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not there.exists() and time.monotonic() < end:
        time.sleep(0.05)
    ranks = rankfaults.marked(mark)
    client.send_signal(how)
    client.wait(20)
    end = time.monotonic() + 30
    while rankfaults.marked(mark) and time.monotonic() < end:
        time.sleep(0.05)
    assert len(ranks) >= 4  # agents, zygotes and at least one rank
    assert not rankfaults.marked(mark)
