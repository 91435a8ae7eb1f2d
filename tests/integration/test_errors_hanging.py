"""`atlctl errors` on a job that still runs and whose logs name no failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.local import Registry, registry
from tests.integration.plain_ranks import SLEEP, script
from tests.support import proc

LOOKING = b"looking for 2 s at what the ranks are doing"


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    """sleeps: rank 2 sleeps, the others wait for a lock. plain: no ranks. over: has ended well."""
    with registry() as made:
        made.start("sleeps", 2, "sh", "-c", f"echo begun; {script({2: SLEEP}, 2)}")
        made.start("plain", 1, "sh", "-c", "echo begun; sleep 4001")
        made.start("over", 1, "sh", "-c", "echo begun")
        assert proc.wait_until(lambda: len(made.running("time.sleep")) + len(made.running("Event")) >= 6)
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
    assert "挂在用户代码中" in text
    assert "可能只是慢" in text


def test_no_ranks_are_said_to_be_none(jobs: Registry) -> None:
    data = jobs.data("errors", "plain")
    assert (data["verdict"], data["root_causes"]) == ("none", [])
    assert data["remarks"] == ["no rank process was found: none has RANK and LOCAL_RANK in its environment"]


def test_a_job_that_has_ended_is_not_looked_at(jobs: Registry) -> None:
    run = jobs.cli("errors", "over")
    assert LOOKING not in run.stderr
    assert run.code == 0
