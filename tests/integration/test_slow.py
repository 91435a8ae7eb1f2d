"""`atlctl slow` on a real job: the rank that is late is named, with the cause, and the job goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.slowjob import SlowJob, wrong
from tests.integration.local import Registry, registry
from tests.integration.plain_ranks import SLEEP, script
from tests.integration.test_stacks import PYTHON
from tests.support import proc
from tests.support.pace import within


@pytest.fixture(scope="module")
def own() -> Iterator[Registry]:
    with registry() as made:
        yield made


@pytest.mark.torch
def test_slow_names_the_late_rank_of_a_real_job(own: Registry) -> None:
    with SlowJob(own, "real", None) as job:
        assert job.trains(150), own.cli("logs", "real", "--tail", "20").stdout.decode()
        assert proc.wait_until(lambda: job.step() >= 80)
        for kind, rank, words in (("sleep", 1, ()), ("storage", 2, ("--no-pyspy",))):
            job.slow(kind, rank)
            data = job.look(*words)
            assert wrong(data, kind, rank) == "", data
            assert data["confidence"] == ("likely" if words else "certain")
            if kind == "sleep":
                assert data["culprits"][0]["frame"]["function"] == "wait_for_lease"
                assert data["since"]["first_step"] > 60
                assert data["since"]["factor"] > 1.5
            assert job.trains()
        job.heal()
        lines = own.cli("slow", "real").stdout.decode().splitlines()
        assert lines[0].startswith("no worker is slower than the others (") or "short of CPUs" in lines[0], lines
        assert sum(line.split()[0] in "0123" for line in lines if line.strip()) >= 4


def test_slow_without_torch_and_without_a_group(own: Registry) -> None:
    """Ranks that never meet: no rank is named, and the table shows them all."""
    own.start("sleeps", 2, "sh", "-c", script({2: SLEEP}, 2, python=PYTHON))
    assert proc.wait_until(lambda: len(own.running("time.sleep")) + len(own.running("Event")) >= 6)
    run = own.cli("slow", "sleeps", "--no-pyspy", "--net")
    assert run.code == 0, run
    assert run.stdout.decode().startswith("no worker is slower than the others (")
    assert b"py-spy" not in run.stderr
    assert b"note: network test: " in run.stderr
    assert b"loopback" in run.stderr


def test_slow_leaves_nothing_behind_if_it_is_killed(own: Registry) -> None:
    own.start("killed", 1, "sh", "-c", script({}, 1, python=PYTHON))
    assert proc.wait_until(lambda: len(own.running("Event")) >= 2)
    client = own.popen("slow", "killed")
    assert proc.wait_until(lambda: bool(own.running("py-spy record")))
    client.kill()
    client.communicate()
    assert proc.wait_until(lambda: not own.running("atlctl-stacks") and not own.running("py-spy record"))


def test_slow_reports_a_worker_that_cannot_be_asked(own: Registry) -> None:
    own.start("ended", 2, "sh", "-c", '[ "$RANK" = 1 ] && exit 3; exec sleep 1000')
    assert proc.wait_until(lambda: "Failed" in own.states("ended"))
    begun = time.monotonic()
    run = own.cli("slow", "ended", "-o", "json")
    document = json.loads(run.stdout)
    assert (document["status"], run.code) == ("partial", 1)
    assert [one["worker"] for one in document["errors"]] == ["worker-1"]
    assert document["data"]["why"].startswith("no rank process was found")
    assert within(time.monotonic() - begun, 60)


def test_slow_from_saved_logs_shows_when(own: Registry, tmp_path: Path) -> None:
    def line(step: int) -> str:
        seconds = step * 0.5 if step < 120 else 60 + (step - 120) * 1.6
        return f"2026-11-28T10:{int(seconds) // 60:02}:{seconds % 60:06.3f}Z step {step}/900 loss 2.3\n"

    tmp_path.joinpath("worker-0.log").write_text("".join(map(line, range(1, 260))))
    data = own.data("slow", "--from", str(tmp_path))
    assert data["slow"]
    ((phase,),) = [one["slowdowns"] for one in data["steps"]]
    assert abs(phase["first_step"] - 121) <= 2
    assert abs(phase["factor"] - 3.2) < 0.2
    lines = own.cli("slow", "--from", str(tmp_path)).stdout.decode().splitlines()
    assert [one.split()[0] for one in lines] == ["WORKER", "worker-0"]
    tmp_path.joinpath("worker-0.log").write_text("hello\n")
    run = own.cli("slow", "--from", str(tmp_path))
    assert (run.code, run.stderr) == (0, b"note: no training steps were found in the logs\n")


def test_slow_bad_use(own: Registry) -> None:
    assert own.cli("slow", "nowhere").code == 3
    for words in (("nowhere", "--timeout", "0"), ("nowhere", "--from", "x"), ("--from", "x", "-w", "1")):
        assert own.cli("slow", *words).code == 2
