"""The check over real agents: one worker of four is made otherwise."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from atlctl.jobs.model import Worker
from atlctl.smoke.care import look_before
from atlctl.smoke.context import Options, Run
from atlctl.smoke.facts.check import check_facts
from atlctl.smoke.findings import Report, Severity, Verdict
from atlctl.smoke.session import Session
from tests.support.plainhosts import PlainHosts, workers

MARKS = {"ATLCTL_STATE_DIR": "/nowhere", "ATLCTL_JOB": "check-facts-test"}


def over(env: Callable[[Worker], Mapping[str, str]], count: int = 4, *, words: tuple[str, ...] = ()) -> Run:
    async def main() -> Run:
        hosts = workers(count)
        config = {"seconds": 60, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
        own = PlainHosts(
            lambda worker: words if worker.index == 2 else (),
            lambda worker: {**MARKS, "ATLCTL_WORKER": worker.name, **env(worker)},
        )
        async with Session(own, hosts, config) as session:
            assert await session.roll_call(20) == {}
            run = Run(session, tuple(hosts), Options(), Report("quick"))
            await look_before(run)
            await check_facts(run)
        return run

    return asyncio.run(main())


def site(folder: Path, version: str) -> str:
    """A folder to import from that seems to hold this torch."""
    (folder / version / "torch").mkdir(parents=True)
    (folder / version / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda = None\n")
    return str(folder / version)


def test_alike(tmp_path: Path) -> None:
    path = site(tmp_path, "2.5.1")
    run = over(lambda _: {"PYTHONPATH": path, "RANK": "3"})
    assert (run.report.findings, run.quiet) == ([], "")
    (check,) = run.report.checks
    assert check.verdict is Verdict.PASS
    assert check.note.startswith("torch 2.5.1")
    # What the platform sets for its own purposes is told, and is nobody's fault.
    assert run.report.data["facts"]["place"]["worker-0"]["RANK"] == "3"


@pytest.mark.parametrize("odd", ["2.4.0", ""])
def test_another_torch_or_none(tmp_path: Path, odd: str) -> None:
    most, other = site(tmp_path, "2.5.1"), site(tmp_path, odd) if odd else ""
    run = over(lambda worker: {"PYTHONPATH": other if worker.index == 2 else most})
    (finding,) = run.report.findings
    assert finding.culprit is not None
    assert (finding.culprit.kind, finding.culprit.worker, finding.confirmed) == ("facts", "worker-2", True)
    assert finding.severity is Severity.WARN
    assert finding.evidence == f"torch: {odd or 'none'} (the others: 2.5.1)"


def test_settings_and_limits_at_once() -> None:
    words = ("sh", "-c", 'ulimit -l 1000 && exec "$@"', "sh")
    run = over(lambda worker: {"NCCL_IB_DISABLE": "1"} if worker.index == 2 else {}, words=words)
    (finding,) = run.report.findings
    assert finding.culprit is not None
    assert finding.culprit.worker == "worker-2"
    assert "memlock: 1000 KiB" in finding.evidence
    assert "setting NCCL_IB_DISABLE: 1 (the others: not set)" in finding.evidence


def test_one_worker_is_not_judged() -> None:
    (check,) = over(lambda _: {}, 1).report.checks
    assert check.verdict is Verdict.NOT_JUDGED
    assert check.note.startswith("one worker, nothing to compare with")


def test_a_training_in_progress_makes_the_run_quiet() -> None:
    environ = {**os.environ, **MARKS, "ATLCTL_WORKER": "worker-1", "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    rank = subprocess.Popen([sys.executable, "-c", "input()"], env=environ, stdin=subprocess.PIPE)
    try:
        assert over(lambda _: {}).quiet == "somebody trains: worker-1: ranks run there (1)"
    finally:
        rank.communicate(b"\n")
