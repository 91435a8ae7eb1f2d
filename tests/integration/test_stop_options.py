"""Options of `stop` on local jobs: options for clusters are rejected, evidence is saved on request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local import Registry, problem, registry
from tests.support import proc


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.start("stays", 2)
        yield own


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("stop", "stays", "--delete"), "--delete is for jobs of a cluster"),
        (("stop", "stays", "--out", "x", "--no-save"), "--out and --no-save exclude each other"),
        (("resume", "stays"), "a job of this machine cannot be resumed: its processes are gone"),
    ],
)
def test_what_only_a_cluster_has_is_2(jobs: Registry, words: tuple[str, ...], text: str) -> None:
    run = jobs.cli(*words, "--yes")
    assert (run.stdout, run.code) == (b"", 2)
    assert problem(run.stderr)[0] == text
    assert set(jobs.states("stays")) == {"Running"}


def test_the_logs_of_a_local_job_are_saved_where_it_is_asked_for(jobs: Registry, tmp_path: Path) -> None:
    jobs.start("noted", 2, "sh", "-c", "echo here; sleep 987")
    assert proc.wait_until(lambda: jobs.cli("logs", "noted").stdout.count(b"here") == 2)
    run = jobs.cli("stop", "noted", "--yes", "--out", str(tmp_path / "kept"))
    assert run.code == 0
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == ["atlctl.json", "worker-0.ts.log", "worker-1.ts.log"]
    assert (tmp_path / "kept/worker-1.ts.log").read_bytes().endswith(b"Z here\n")
    assert jobs.cli("errors", "--from", str(tmp_path / "kept")).code == 0


def test_a_stop_that_takes_longer_than_the_timeout_is_1(jobs: Registry) -> None:
    jobs.start("slow", 1, "sh", "-c", "trap '' TERM; touch up; while :; do sleep 0.1; done")
    assert proc.wait_until(lambda: (jobs.folder("slow") / "workers/worker-0/work/up").exists())
    run = jobs.cli("stop", "slow", "--yes", "--grace", "4", "--timeout", "2")
    assert run.code == 1
    assert b"  worker-0: not ended after 2 s\n" in run.stderr
    jobs.until("slow", "Stopped")
