"""`stop`: the plan, the confirmation, what it ends and leaves alone."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.integration.local import IDLE, Registry, problem, registry
from tests.integration.terminal import Terminal
from tests.support import proc
from tests.support.pace import within


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.start("stays", 3)
        yield own


def snapshot(jobs: Registry, job: str) -> dict[str, bytes]:
    """All files of a job's entry."""
    return {str(p): p.read_bytes() for p in sorted(jobs.folder(job).rglob("*")) if p.is_file()}


def test_without_a_terminal_and_without_yes_it_is_2_and_nothing_is_written(jobs: Registry) -> None:
    before = snapshot(jobs, "stays")
    for stdin in (None, b"y\n"):
        run = jobs.cli("stop", "stays", stdin=stdin)
        assert (run.stdout, run.code) == (b"", 2)
        *plan, error, hint = run.stderr.decode().splitlines()
        assert plan[0].startswith("stops job stays (Local, Running, since ")
        assert (error, hint) == (
            "error: this needs a yes, and there is no terminal to ask on",
            "hint: add --yes",
        )
    assert snapshot(jobs, "stays") == before
    assert set(jobs.states("stays")) == {"Running"}


def test_a_dry_run_writes_nothing(jobs: Registry) -> None:
    before = snapshot(jobs, "stays")
    run = jobs.cli("stop", "stays", "--dry-run", "--yes")
    assert (run.stdout, run.code) == (b"", 0)
    assert run.stderr.endswith(b"note: dry run: nothing was stopped\n")
    data = jobs.data("stop", "stays", "--dry-run")
    assert (data["dry_run"], data["workers"]) == (True, [])
    assert snapshot(jobs, "stays") == before
    assert set(jobs.states("stays")) == {"Running"}


@pytest.mark.parametrize("answer", [b"\r", b"n\r", b"no\r", b"yess\r", b"\x04", b"Y es\r"])
def test_a_declined_question_is_1_and_nothing_is_stopped(jobs: Registry, answer: bytes) -> None:
    with Terminal("stop", "stays", env=jobs.env) as terminal:
        terminal.wait_for(b"Stop job stays? [y/N] ")
        terminal.type(answer)
        assert terminal.code() == 1
        assert terminal.mode() == terminal.before
    assert b"nothing was stopped" in terminal.screen
    assert set(jobs.states("stays")) == {"Running"}


def test_ctrl_c_at_the_question_is_130_and_nothing_is_stopped(jobs: Registry) -> None:
    with Terminal("stop", "stays", env=jobs.env) as terminal:
        terminal.wait_for(b"[y/N] ")
        terminal.type(b"\x03")
        assert terminal.code() == 130
        assert terminal.mode() == terminal.before
    assert set(jobs.states("stays")) == {"Running"}


def test_the_question_names_job_state_time_and_uid(jobs: Registry) -> None:
    uid = jobs.data("ps", "stays")["job"]["uid"]
    run = jobs.cli("stop", "stays", "-w", "0,2", "--dry-run")
    lines = run.stderr.decode().splitlines()
    assert lines[0].startswith("stops worker-[0,2] of job stays (Local, Running, since 20")
    assert lines[0].endswith(f"uid {uid})")
    assert lines[1] == "  workers: worker-[0,2] (2 of 3)"


def test_yes_ends_everything_of_the_job_and_says_what(jobs: Registry) -> None:
    jobs.start("gone", 2, "sh", "-c", "sleep 987 & sleep 987 & wait")
    assert proc.wait_until(lambda: len(jobs.commands("sleep 987")) == 4)
    run = jobs.cli("stop", "gone", "--yes")
    assert run.code == 0
    assert run.stdout == b"ended after SIGTERM: worker-[0-1] (2, 6 processes)\n"
    assert not jobs.commands("sleep 987")
    assert jobs.states("gone") == ["Stopped", "Stopped"]
    assert not [p for p in jobs.running("supervisor") if "/gone" in p.command]


def test_a_second_stop_is_safe_and_says_there_is_nothing_to_do(jobs: Registry) -> None:
    jobs.start("twice", 1)
    assert jobs.cli("stop", "twice", "--yes").code == 0
    run = jobs.cli("stop", "twice")
    assert run == (b"", b"job twice is Stopped: nothing to stop\n", 0)
    assert jobs.data("stop", "twice")["workers"] == []


@pytest.mark.parametrize(("script", "state"), [("exit 0", "Succeeded"), ("exit 3", "Failed")])
def test_stop_of_a_finished_job_is_0(jobs: Registry, script: str, state: str) -> None:
    name = jobs.start(f"ended-{state.lower()}", 1, "sh", "-c", script)
    jobs.until(name, state)
    assert jobs.cli("stop", name) == (b"", f"job {name} is {state}: nothing to stop\n".encode(), 0)


def test_stop_of_a_lost_job_is_0(jobs: Registry) -> None:
    jobs.start("lost", 1)
    os.kill(jobs.supervisor("lost"), signal.SIGKILL)
    jobs.until("lost", "Lost")
    assert jobs.cli("stop", "lost", "--yes").code == 0
    assert jobs.states("lost") == ["Lost"]


def test_a_part_of_the_workers_can_be_stopped(jobs: Registry) -> None:
    jobs.start("part", 3)
    run = jobs.cli("stop", "part", "-w", "1", "--yes")
    assert (run.stdout, run.code) == (b"ended after SIGTERM: worker-1 (1, 1 process)\n", 0)
    assert jobs.states("part") == ["Running", "Stopped", "Running"]
    both = jobs.cli("stop", "part", "--all", "--yes")
    assert both.code == 0
    assert b"workers: worker-[0,2] (2 of 3)" in both.stderr
    assert set(jobs.states("part")) == {"Stopped"}


@pytest.mark.parametrize(
    ("words", "code"),
    [(("-w", ""), 2), (("-w", "9"), 3), (("-w", "x*"), 3), (("--all", "-x", "*"), 3), (("--failed",), 3)],
)
def test_a_selection_that_means_nobody_stops_nobody(jobs: Registry, words: tuple[str, ...], code: int) -> None:
    run = jobs.cli("stop", "stays", *words, "--yes")
    assert (run.stdout, run.code) == (b"", code)
    problem(run.stderr)
    assert set(jobs.states("stays")) == {"Running"}


def test_an_empty_job_name_stops_nothing(jobs: Registry) -> None:
    run = jobs.cli("stop", "", "--yes")
    assert run.code == 2
    assert problem(run.stderr)[0] == "the job's name is empty"


def test_who_ignores_sigterm_is_killed_after_the_grace_period(jobs: Registry) -> None:
    jobs.start("stubborn", 2, "sh", "-c", "trap '' TERM; touch ready; while :; do sleep 0.1; done")
    ready = [jobs.folder("stubborn") / f"workers/worker-{n}/work/ready" for n in range(2)]
    assert proc.wait_until(lambda: all(path.exists() for path in ready))
    begun = time.monotonic()
    run = jobs.cli("stop", "stubborn", "--grace", "0.5", "--yes", "-o", "json")
    assert (seconds := time.monotonic() - begun) > 0.5
    assert within(seconds, 9)
    workers = json.loads(run.stdout)["data"]["workers"]
    assert [(w["worker"], w["how"]) for w in workers] == [("worker-0", "killed"), ("worker-1", "killed")]
    assert run.code == 0


def test_a_worker_has_its_grace_period_to_save(jobs: Registry) -> None:
    script = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    jobs.start("saves", 1, "sh", "-c", script)
    assert proc.wait_until(lambda: jobs.cli("logs", "saves").stdout == b"up\n")
    assert jobs.cli("stop", "saves", "--yes").code == 0
    assert jobs.cli("logs", "saves").stdout.endswith(b"saved\n")


def test_a_job_of_the_same_name_that_was_started_after_the_plan_is_left_alone(jobs: Registry) -> None:
    jobs.start("reused", 1)
    with Terminal("stop", "reused", env=jobs.env) as terminal:
        terminal.wait_for(b"[y/N] ")
        assert jobs.cli("stop", "reused", "--yes", "-q").code == 0
        jobs.start("reused", 1)
        terminal.type(b"y\r")
        assert terminal.code() == 1
    assert b"job reused was replaced by another of the same name meanwhile" in terminal.screen
    assert jobs.states("reused") == ["Running"]


def test_rm_leaves_a_job_alone_that_was_started_after_its_question(jobs: Registry) -> None:
    jobs.start("renewed", 1, "true")
    jobs.until("renewed", "Succeeded")
    with Terminal("local", "rm", "renewed", env=jobs.env) as terminal:
        terminal.wait_for(b"[y/N] ")
        jobs.start("renewed", 1)
        terminal.type(b"y\r")
        assert terminal.code() != 0
    assert jobs.states("renewed") == ["Running"]


def test_ctrl_c_during_the_grace_period_does_not_undo_the_stop(jobs: Registry) -> None:
    end = "until [ -e go ]; do sleep 0.02; done; exit"
    jobs.start("slow", 1, "sh", "-c", f"trap '{end}' TERM; touch up; while :; do sleep 0.02; done")
    work = jobs.folder("slow") / "workers/worker-0/work"
    assert proc.wait_until(lambda: (work / "up").exists())
    with jobs.popen("stop", "slow", "--yes", stdout=-1, stderr=-1) as run:
        assert proc.wait_until(lambda: jobs.states("slow") == ["Stopping"], interval=0)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=100)
    assert run.returncode == 130
    (work / "go").touch()
    jobs.until("slow", "Stopped")


# local rm


def test_rm_removes_ended_jobs_only(jobs: Registry) -> None:
    jobs.start("old-1", 1, "true")
    jobs.start("old-2", 1, "true")
    jobs.until("old-1", "Succeeded")
    jobs.until("old-2", "Succeeded")
    refused = jobs.cli("local", "rm", "old-1", "stays", "--yes")
    assert (refused.stdout, refused.code) == (b"", 1)
    assert problem(refused.stderr) == ("job stays is still running", "stop it first: atlctl stop stays")
    dry = jobs.cli("local", "rm", "old-1", "--dry-run")
    assert (dry.stdout, dry.code) == (b"", 0)
    asked = jobs.cli("local", "rm", "old-1")
    assert asked.code == 2
    assert jobs.folder("old-1").exists()
    assert jobs.cli("local", "rm", "old-1", "old-2", "--yes").stdout == b"old-1\nold-2\n"
    assert not jobs.folder("old-1").exists()
    missing = jobs.cli("local", "rm", "old-1", "--yes")
    assert missing.code == 3
    problem(missing.stderr)


def test_a_name_given_twice_is_removed_once(jobs: Registry) -> None:
    jobs.start("once", 1, *IDLE)
    jobs.cli("stop", "once", "--yes")
    assert jobs.cli("local", "rm", "once", "once", "--yes", "-q") == (b"", b"", 0)
