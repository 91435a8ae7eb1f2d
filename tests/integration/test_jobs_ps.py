"""`jobs` and `ps`: every format, every state, `--watch`, and the choice of the job."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from atlctl.render.palette import Tone, painted
from tests.integration.local import Registry, problem, registry
from tests.integration.terminal import Terminal
from tests.support import proc

#: A launch script that is still running after its trainer has failed.
HELD = "echo 'torch.distributed.elastic.multiprocessing.errors.ChildFailedError: '; exec sleep 1000"


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    """done: Succeeded. failed: worker-1 exited with 3, worker-0 is running. lost: its supervisor was killed."""
    with registry() as own:
        own.start("done", 1, "true")
        own.start("failed", 2, "sh", "-c", '[ "$RANK" = 0 ] && exec sleep 1000; exit 3')
        own.start("lost", 2)
        own.until("done", "Succeeded")
        assert proc.wait_until(lambda: own.states("failed") == ["Running", "Failed"])
        os.kill(own.supervisor("lost"), signal.SIGKILL)
        own.until("lost", "Lost")
        yield own


def test_names_are_one_a_line_in_natural_order(jobs: Registry) -> None:
    assert jobs.cli("jobs", "-o", "name") == (b"done\nfailed\nlost\n", b"", 0)
    assert jobs.cli("ps", "failed", "-o", "name") == (b"worker-0\nworker-1\n", b"", 0)


def test_json_and_yaml_hold_the_same(jobs: Registry) -> None:
    for words in (("jobs",), ("ps", "failed")):
        as_json, as_yaml = (jobs.cli(*words, "-o", form).stdout for form in ("json", "yaml"))
        assert as_json.count(b"\n") == 1
        assert yaml.safe_load(as_yaml) == json.loads(as_json)
        assert json.loads(as_json)["apiVersion"] == "atlctl/v1"
        assert json.loads(as_json)["status"] == "success"


def test_jobs_tell_state_and_reason(jobs: Registry) -> None:
    found = {job["name"]: job for job in jobs.data("jobs")["jobs"]}
    assert {name: (job["state"], job["reason"]) for name, job in found.items()} == {
        "done": ("Succeeded", ""),
        "failed": ("Failed", "worker-1 failed"),
        "lost": ("Lost", "worker-[0-1] lost"),
    }
    assert found["failed"]["workers"] == {"expected": 2, "present": 2, "running": 1}
    assert (found["done"]["kind"], found["done"]["backend"], found["done"]["missing"]) == ("Local", "local", [])


def test_workers_tell_what_is_known_of_them(jobs: Registry) -> None:
    first, second = jobs.data("ps", "failed")["workers"]
    assert (first["index"], first["node_rank"], first["state"], first["exit_code"]) == (0, 0, "Running", None)
    assert proc.alive(first["pid"])
    assert first["ended"] is None
    assert (second["state"], second["reason"], second["exit_code"]) == ("Failed", "exit 3", 3)
    assert second["started"] <= second["ended"]


def test_a_signal_is_told_as_signal(jobs: Registry) -> None:
    jobs.start("killed", 1, "sh", "-c", "kill -9 $$")
    jobs.until("killed", "Failed")
    (worker,) = jobs.data("ps", "killed")["workers"]
    assert (worker["reason"], worker["exit_code"], worker["signal"]) == ("signal 9", None, 9)
    jobs.cli("local", "rm", "killed", "--yes")


def test_a_worker_that_outlives_its_failed_trainer_is_held_and_selected_by_failed(jobs: Registry) -> None:
    jobs.start("held", 2, "sh", "-c", f'[ "$RANK" = 0 ] || {{ {HELD}; }}; exec sleep 1000')
    assert proc.wait_until(lambda: jobs.states("held") == ["Running", "Held"]), jobs.states("held")
    assert jobs.cli("ps", "held", "--failed", "-o", "name").stdout == b"worker-1\n"
    assert jobs.exec("held", "--failed", "printenv", "RANK").stdout == b"1\n"
    assert jobs.cli("stop", "held", "--yes", "-q").code == 0
    assert jobs.states("held") == ["Stopped", "Stopped"]
    jobs.cli("local", "rm", "held", "--yes")


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (("--all",), b"worker-0\nworker-1\n"),
        (("-w", "1"), b"worker-1\n"),
        (("-w", "worker-[0-1]", "-x", "0"), b"worker-1\n"),
        (("-w", "*-0"), b"worker-0\n"),
        (("--role", "worker"), b"worker-0\nworker-1\n"),
        (("--failed",), b"worker-1\n"),
    ],
)
def test_ps_takes_selections(jobs: Registry, selection: tuple[str, ...], names: bytes) -> None:
    assert jobs.cli("ps", "failed", *selection, "-o", "name") == (names, b"", 0)


@pytest.mark.parametrize("alias", ["ps", "workers"])
def test_the_job_can_be_named_as_argument_and_with_j(jobs: Registry, alias: str) -> None:
    plain = jobs.cli(alias, "failed", "-o", "name")
    assert plain == jobs.cli(alias, "-j", "failed", "-o", "name") == jobs.cli("-j", "failed", alias, "-o", "name")
    assert plain == jobs.cli(alias, "failed", "-j", "failed", "-o", "name")
    conflict = jobs.cli(alias, "failed", "-j", "done")
    assert conflict.code == 2
    assert problem(conflict.stderr) == ("two jobs are named: 'failed' and 'done' (-j)", "name one job")


def test_what_reads_takes_the_only_active_job_and_says_so(jobs: Registry) -> None:
    run = jobs.cli("ps", "-o", "name")
    assert run == (b"worker-0\nworker-1\n", b"note: job failed, the only active one\n", 0)
    assert jobs.cli("ps", "-o", "name", "-q").stderr == b""
    assert jobs.cli("ps", "-o", "name", env={"ATLCTL_JOB": "done"}) == (b"worker-0\n", b"", 0)


def test_stop_never_guesses(jobs: Registry) -> None:
    run = jobs.cli("stop", "--yes")
    assert run.code == 2
    assert problem(run.stderr) == ("no job is named", "name one with -j: failed; all: atlctl jobs")
    assert jobs.states("failed") == ["Running", "Failed"]


@pytest.mark.parametrize("command", ["ps", "logs", "errors", "stop"])
def test_a_job_that_is_not_there_is_3_and_names_what_is(jobs: Registry, command: str) -> None:
    run = jobs.cli(command, "nope")
    assert (run.stdout, run.code) == (b"", 3)
    message, hint = problem(run.stderr)
    assert (message, hint.split("; ")[0]) == ("no job named nope", "jobs here: done, failed, lost")
    assert ("atlctl record nope" in hint) == (command == "errors")


@pytest.mark.parametrize(
    "name", ["../done", "a/b", "", ".", "..", ".lock", "a b", "训练", "-x", "x" * 64, "a\nb", "\x1b[31m", "do%2fne"]
)
@pytest.mark.parametrize("command", ["ps", "stop"])
def test_odd_job_names_are_refused_in_one_clear_line(jobs: Registry, command: str, name: str) -> None:
    run = jobs.cli(command, "--", name)
    assert (run.stdout, run.code) == (b"", 2)
    message, hint = problem(run.stderr)
    assert "name" in message
    assert hint
    assert run.stderr.decode().isprintable() or run.stderr.decode().replace("\n", "").isprintable()


def test_without_any_job_the_lists_say_how_to_begin() -> None:
    with registry() as own:
        run = own.cli("jobs")
        assert (run.stdout, run.code) == (b"", 0)
        assert b"atlctl local run --workers 2 -- CMD" in run.stderr
        assert own.data("jobs") == {"jobs": []}
        assert own.cli("jobs", "-o", "name") == (b"", b"", 0)
        assert own.cli("ps").code == 3
        assert not own.state.exists(), "reading makes no state"


def test_on_a_terminal_columns_that_say_nothing_are_left_out(jobs: Registry) -> None:
    def header(*words: str, **options: Any) -> list[str]:
        return jobs.cli("ps", "failed", *words, **options).stdout.decode().splitlines()[0].split()

    short = " ".join(header(tty=True, env={"NO_COLOR": "1"}))
    assert short == "INDEX NAME STATE POD/HOST ADDRESS AGE"
    assert {"RESTARTS", "GPUS"} < set(header())
    assert {"RESTARTS", "GPUS", "PID"} < set(header("-o", "wide", tty=True, columns=200, env={"NO_COLOR": "1"}))


def test_times_are_rfc3339_on_a_pipe_and_ages_on_a_terminal(jobs: Registry) -> None:
    header, row, *_ = jobs.cli("jobs").stdout.decode().splitlines()
    assert header.split()[-1] == "CREATED"
    created = row.split()[-1]
    assert time.time() - 120 < time.mktime(time.strptime(created, "%Y-%m-%dT%H:%M:%SZ")) <= time.time()
    header, row, *_ = jobs.cli("jobs", tty=True).stdout.decode().splitlines()
    assert header.rstrip().endswith("AGE\x1b[0m")
    assert row.split()[-1].endswith("s")


# --watch


def _snapshots(stdout: bytes) -> list[Any]:
    return [json.loads(line) for line in stdout.splitlines()]


def test_watch_shows_changes_and_ends_when_the_job_has_ended(jobs: Registry) -> None:
    jobs.start("watched", 2, "sh", "-c", '[ "$RANK" = 1 ] || exec sleep 1000; while [ ! -e go ]; do sleep 0.05; done')
    with jobs.popen("ps", "watched", "--watch", "-o", "json", stdout=-1, stderr=-1) as run:
        assert run.stdout is not None
        first = json.loads(run.stdout.readline())
        assert [worker["state"] for worker in first["data"]["workers"]] == ["Running", "Running"]
        jobs.folder("watched").joinpath("workers/worker-1/work/go").touch()
        second = json.loads(run.stdout.readline())
        assert [worker["state"] for worker in second["data"]["workers"]] == ["Running", "Succeeded"]
        assert jobs.cli("stop", "watched", "--yes", "-q").code == 0
        rest, stderr = run.communicate(timeout=100)
    assert (run.returncode, stderr) == (0, b"")
    last = [worker["state"] for worker in _snapshots(rest)[-1]["data"]["workers"]]
    assert last == ["Stopped", "Succeeded"]
    jobs.cli("local", "rm", "watched", "--yes")


def test_watch_of_an_ended_job_shows_it_once(jobs: Registry) -> None:
    assert jobs.cli("ps", "done", "--watch", "-o", "name") == (b"worker-0\n", b"", 0)


def test_watch_of_the_jobs_shows_changes_until_it_is_interrupted() -> None:
    with registry() as own, own.popen("jobs", "--watch", "-o", "json", stdout=-1, stderr=-1) as run:
        assert run.stdout is not None
        assert json.loads(run.stdout.readline())["data"] == {"jobs": []}
        own.start("new", 1, "sleep", "1000")
        while not (jobs := json.loads(run.stdout.readline())["data"]["jobs"]):
            pass
        assert [job["name"] for job in jobs] == ["new"]
        assert own.cli("stop", "new", "--yes", "-q").code == 0
        while json.loads(run.stdout.readline())["data"]["jobs"][0]["state"] != "Stopped":
            pass
        assert run.poll() is None, "a job may be started still"
        run.send_signal(signal.SIGINT)
        _, stderr = run.communicate(timeout=100)
    assert (run.returncode, stderr) == (130, b"")


def test_watch_is_left_with_ctrl_c_in_silence(jobs: Registry) -> None:
    with Terminal("ps", "failed", "--watch", env=jobs.env) as terminal:
        terminal.wait_for(f"worker-1  {painted('Failed', Tone.FAIL, True)} (exit 3)".encode())
        terminal.type(b"\x03")
        assert terminal.code() == 130
        assert terminal.mode() == terminal.before
    assert b"Traceback" not in terminal.screen
    assert b"error" not in terminal.screen


def test_watch_of_a_job_that_is_removed_meanwhile_is_3(jobs: Registry) -> None:
    jobs.start("fleeting", 1)
    with jobs.popen("ps", "fleeting", "--watch", "-o", "name", stdout=-1, stderr=-1) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"worker-0\n"
        assert jobs.cli("stop", "fleeting", "--yes", "-q").code == 0
        assert jobs.cli("local", "rm", "fleeting", "--yes", "-q").code == 0
        _, stderr = run.communicate(timeout=100)
    # It may have seen the stopped job first, which is also an end.
    assert (run.returncode, stderr) == (0, b"") or (
        run.returncode == 3 and problem(stderr)[0] == "no job named fleeting"
    )
