"""`atlctl slow` on a real job: the rank that is late is named, with the cause, and the job goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        assert not lines[0].startswith("rank"), lines
        assert sum(line.split()[0] in "0123" for line in lines if line.strip()) >= 4


def test_slow_without_torch_and_without_a_group(own: Registry) -> None:
    """Ranks that never meet, of which one sleeps: no rank is named, and the table shows them all."""
    own.start("sleeps", 2, "sh", "-c", script({2: SLEEP}, 2, python=PYTHON))
    assert proc.wait_until(lambda: len(own.running("time.sleep")) + len(own.running("Event")) >= 6)
    run = own.cli("slow", "sleeps", "--no-pyspy", "--net")
    assert run.code == 0, run
    assert run.stdout.decode().startswith("nothing shows which rank the others wait for (")
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


def _recording(folder: Path, seconds: float, **facts: Any) -> None:
    """A recording of two workers, with an own time for a step."""
    folder.mkdir()
    nodes = facts.pop("nodes", ("node-1", "node-2"))
    environment = {"NCCL_DEBUG": "WARN", **facts.pop("environment", {})}
    workers = [
        {"name": f"worker-{index}", "index": index, "node": node, "image": "train:1", "restarts": 0}
        | {"environment": environment, **facts}
        for index, node in enumerate(nodes)
    ]
    job = {"name": "train", "command": "python train.py --api-key sk-proj-abcdefghijklmnop1234567890ABCDEFGH"}
    (folder / "atlctl.json").write_text(json.dumps({"version": 1, "job": job, "workers": workers}))
    (folder / "worker-0.log").write_text("PyTorch version: 2.13.0\n")
    steps = [
        {"worker": "worker-0", "loop": "plain step", "step": step, "first": step, "time": 1795196705.5 + step * seconds,
         "seconds": seconds}
        for step in range(1, 60)
    ]  # fmt: skip
    (folder / "steps.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in steps))


def test_slow_against_an_earlier_recording_shows_the_differences(own: Registry, tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    _recording(new, 1.6, nodes=("node-1", "node-7"), environment={"NCCL_IB_DISABLE": "1"}, image="train:2")
    _recording(old, 0.5)
    words = ("slow", "--from", str(new), "--against", str(old))
    found = own.data(*words)["against"]
    assert found["source"] == str(old)
    assert found["step_seconds"] == {"now": 1.6, "before": 0.5, "factor": 3.2}
    assert [(one["what"], one["now"], one["before"]) for one in found["differences"]] == [
        ("nodes", "node-[1,7]", "node-[1-2]"),
        ("image", "train:2", "train:1"),
        ("NCCL_IB_DISABLE", "1", "-"),
    ]
    assert found["same"] == ["workers", "command", "restarts", "torch", "NCCL_DEBUG"]
    lines = own.cli(*words).stdout.decode().splitlines()
    table = [line.split() for line in lines[lines.index("") + 1 :]]
    assert [row[0] for row in table] == ["NOW", "time", "nodes", "image", "NCCL_IB_DISABLE", "the"]
    assert "1.6 s, 3.20 times" in "\n".join(lines)


def test_slow_against_hides_secrets(own: Registry, tmp_path: Path) -> None:
    secret = "sk-proj-abcdefghijklmnop1234567890ABCDEFGH"
    _recording(tmp_path / "new", 0.5, environment={"NCCL_TOKEN": secret})
    _recording(tmp_path / "old", 0.5)
    (tmp_path / "old" / "atlctl.json").write_text(json.dumps({
        "version": 1, "job": {"command": f"python other.py --api-key {secret}"},
        "workers": [{"name": "w", "environment": {"A": "1"}}],
    }))  # fmt: skip
    run = own.cli("slow", "--from", str(tmp_path / "new"), "--against", str(tmp_path / "old"), "-o", "json")
    assert b"other.py" in run.stdout
    assert b"NCCL_TOKEN" in run.stdout
    assert secret.encode() not in run.stdout


def test_slow_against_logs_alone_compares_steps_and_versions(own: Registry, tmp_path: Path) -> None:
    for name, version, seconds in (("new", "2.13.0", 2), ("old", "2.12.1", 1)):
        text = [f"2026-11-28T10:{step * seconds // 60:02}:{step * seconds % 60:02}Z step {step}/900 loss 2.3\n"
                for step in range(1, 60)]  # fmt: skip
        (tmp_path / f"{name}.log").write_text(f"PyTorch version: {version}\n" + "".join(text))
    found = own.data("slow", "--from", str(tmp_path / "new.log"), "--against", str(tmp_path / "old.log"))["against"]
    assert found["step_seconds"]["factor"] == 2.0
    assert found["differences"] == [{"what": "torch", "now": "2.13.0", "before": "2.12.1"}]


def test_slow_against_logs_without_a_common_fact_prints_no_table(own: Registry, tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / f"{name}.log").write_text("loading\n")
    run = own.cli("slow", "--from", str(tmp_path / "new.log"), "--against", str(tmp_path / "old.log"))
    assert run.stdout == b""
    assert b"no facts to compare with" in run.stderr


def test_slow_against_an_earlier_job_of_the_same_name(own: Registry) -> None:
    own.start("again", 1, "sh", "-c", "for i in $(seq 40); do echo step $i/40 loss 1; sleep 0.05; done")
    assert own.cli("record", "again").code == 0
    assert own.cli("slow", "again", "--against").code == 3
    assert own.cli("local", "rm", "again", "--yes").code == 0
    own.start("again", 1, "sh", "-c", "for i in $(seq 4000); do echo step $i/4000 loss 1; sleep 0.2; done")
    assert proc.wait_until(lambda: b"step 30/" in own.cli("logs", "again").stdout)
    found = own.data("slow", "again", "--no-pyspy", "--against")["against"]
    assert found["step_seconds"]["factor"] > 1.5
    assert "recordings" in found["source"]
    assert "workers" in found["same"]
    assert "command" in [one["what"] for one in found["differences"]]


def test_slow_bad_use(own: Registry) -> None:
    assert own.cli("slow", "nowhere").code == 3
    for words in (
        ("nowhere", "--timeout", "0"),
        ("nowhere", "--from", "x"),
        ("--from", "x", "-w", "1"),
        ("--from", ".", "--against"),
    ):
        assert own.cli("slow", *words).code == 2
