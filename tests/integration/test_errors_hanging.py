"""`atlctl errors` on a running job without a failure in its logs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.hanging import packages
from tests.integration.local import Registry, registry
from tests.integration.plain_ranks import SLEEP, STARTING, script
from tests.support import proc

LOOKING = b"inspecting the ranks for 2 s"


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    """sleeps: rank 2 sleeps, the others wait for a lock. plain: no ranks. over: succeeded. imports: all ranks are in
    `import torch`, which reads a module from a dead mount. unseen: the same, to be looked at without py-spy."""
    with registry() as made:
        modules = made.home / "modules"
        modules.mkdir()
        os.mkfifo(modules / "dead")
        (modules / "typing_extensions.py").write_text(f"open({str(modules / 'dead')!r}).read()")
        for name in ("imports", "unseen"):
            text = script({}, 1, usual=STARTING)
            made.start(name, 1, "sh", "-c", f"echo begun; export PYTHONPATH={modules}:{packages()}; {text}")
        # It prints something now and then: a job that is silent for long is more than a guess.
        talks = "while :; do echo begun; sleep 5; done &"
        made.start("sleeps", 2, "sh", "-c", f"{talks} {script({2: SLEEP}, 2)}")
        made.start("plain", 1, "sh", "-c", "echo begun; sleep 4001")
        made.start("over", 1, "sh", "-c", "echo begun")
        assert proc.wait_until(lambda: len(made.running("time.sleep")) + len(made.running("Event")) >= 6)
        assert proc.wait_until(lambda: sum("python" in one.command for one in made.running(STARTING)) >= 4)
        yield made


def test_a_hang_is_an_answer_of_its_own(jobs: Registry) -> None:
    data = jobs.data("errors", "sleeps")
    assert data["verdict"] == "rank"
    [cause] = data["root_causes"]
    assert (cause["rank"], cause["worker"], cause["category"]) == (2, "worker-1", "hang")
    assert cause["message"] == "hung in user code"
    assert cause["confidence"] == "guess", "the log has just talked"
    assert "/proc/" in cause["evidence"][-1]["text"]
    assert cause["advice"].startswith("atlctl stacks")
    assert any("it may only be slow" in text for text in data["remarks"])


def test_for_people(jobs: Registry) -> None:
    run = jobs.cli("errors", "sleeps", "--exit-code")
    text = run.stdout.decode()
    assert "rank 2 (local rank 0) on worker-1, a guess" in text
    assert "atlctl stacks sleeps" in text
    assert LOOKING in run.stderr
    assert run.code == 1


def test_for_people_in_chinese(jobs: Registry) -> None:
    text = jobs.cli("errors", "sleeps", env={"LANG": "zh_CN.UTF-8", "LC_ALL": None}).stdout.decode()
    assert "卡在用户代码中" in text
    assert "可能只是慢" in text


def test_no_ranks_are_said_to_be_none(jobs: Registry) -> None:
    data = jobs.data("errors", "plain")
    assert (data["verdict"], data["root_causes"]) == ("none", [])
    assert data["remarks"] == ["no rank process was found: no process with torch has a rank in its environment"]


def test_a_job_that_has_ended_is_not_looked_at(jobs: Registry) -> None:
    run = jobs.cli("errors", "over")
    assert LOOKING not in run.stderr
    assert run.code == 0


@pytest.mark.parametrize("job", ["imports", "unseen"])
def test_a_start_is_not_a_hang(jobs: Registry, job: str) -> None:
    """A young process without a process group is starting, whatever it waits for."""
    words = ("--no-pyspy",) if job == "unseen" else ()
    data = jobs.data("stacks", job, *words)
    assert (data["verdict"], data["culprits"]) == ("starting", [])
    assert {group["why"] for group in data["groups"]} == {
        "its stack imports a module" if job == "imports" else "it has not loaded torch yet"
    }
    data = jobs.data("errors", job, *words)
    assert (data["verdict"], data["root_causes"]) == ("none", [])
    assert "; starting; 2 of 2 ranks are starting, " in data["remarks"][0]
