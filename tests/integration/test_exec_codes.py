"""Exit codes of `exec`, as documented."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.integration.local import IDLE, Registry, problem, registry
from tests.support import proc
from tests.support.pace import within


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    """job-4: running workers. mixed: worker-1 has exited with 3, the others are running."""
    with registry() as own:
        own.start("job-4", 4)
        own.start("mixed", 3, "sh", "-c", '[ "$RANK" = 1 ] && exit 3; exec sleep 1000')
        assert proc.wait_until(lambda: own.states("mixed")[1] == "Failed")
        yield own


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 1", 1), ("exit 3", 3), ("exit 124", 124), ("exit 255", 255)]
    + [(f"kill -{name} $$", 128 + number) for name, number in (("TERM", 15), ("KILL", 9), ("SEGV", 11), ("HUP", 1))],
)
def test_one_worker_gives_its_own_code_and_nothing_else_is_said(jobs: Registry, script: str, code: int) -> None:
    run = jobs.exec("job-4", "-w", "2", "--", "sh", "-c", f"echo out; echo err >&2; {script}")
    assert run == (b"out\n", b"err\n", code)


def test_several_give_the_highest_code(jobs: Registry) -> None:
    run = jobs.exec("job-4", "--all", "--", "sh", "-c", "exit $((RANK * 10))")
    assert run.stdout == b""
    assert run.stderr.decode().splitlines() == [
        "ok: worker-0 (1)",
        "exit 10: worker-1 (1)",
        "exit 20: worker-2 (1)",
        "exit 30: worker-3 (1)",
    ]
    assert run.code == 30


def test_a_signal_counts_as_128_and_its_number_among_several(jobs: Registry) -> None:
    run = jobs.exec("job-4", "--all", "--", "sh", "-c", '[ "$RANK" = 1 ] && kill -9 $$; exit 12')
    assert run.code == 137
    assert b"killed by SIGKILL: worker-1 (1)\n" in run.stderr
    assert b"exit 12: worker-[0,2-3] (3)\n" in run.stderr


@pytest.mark.parametrize("selection", [["-w", "0"], ["--all"]])
def test_a_command_that_does_not_exist_is_127(jobs: Registry, selection: list[str]) -> None:
    run = jobs.exec("job-4", *selection, "--", "no-such-command-here", "-x")
    assert (run.stdout, run.code) == (b"", 127)
    assert b"failed to start: worker-" in run.stderr
    assert b"no-such-command-here: command not found" in run.stderr


@pytest.mark.parametrize("selection", [["-w", "0"], ["--all"]])
@pytest.mark.parametrize("program", ["/etc/passwd", "/", "/etc/passwd/x"])
def test_a_command_that_cannot_be_executed_is_126(jobs: Registry, selection: list[str], program: str) -> None:
    run = jobs.exec("job-4", *selection, program)
    assert (run.stdout, run.code) == (b"", 126)
    assert program.encode() in run.stderr


def test_a_worker_that_has_ended_is_255(jobs: Registry) -> None:
    run = jobs.exec("mixed", "-w", "1", "true")
    assert (run.stdout, run.code) == (b"", 255)
    assert run.stderr == b"failed to start: worker-1 (1): not running (Failed)\n"


def test_among_several_a_worker_that_has_ended_outweighs_everything(jobs: Registry) -> None:
    run = jobs.exec("mixed", "--all", "--timeout", "2", "--", "sh", "-c", '[ "$RANK" = 0 ] && exit 7; sleep 997')
    assert run.code == 255
    assert run.stderr.decode().splitlines() == [
        "exit 7: worker-0 (1)",
        "failed to start: worker-1 (1): not running (Failed)",
        "timed out: worker-2 (1): not done within 2 s",
    ]
    assert not jobs.commands("sleep 997")


@pytest.mark.parametrize("selection", ["0", "0-3"])
def test_a_deadline_is_124_and_ends_the_command(jobs: Registry, selection: str) -> None:
    begun = time.monotonic()
    run = jobs.exec("job-4", "-w", selection, "--timeout", "2s", "--", "sh", "-c", "echo begun; sleep 996")
    assert run.code == 124
    assert within(time.monotonic() - begun, 20)
    assert run.stdout.count(b"begun\n") == (1 if selection == "0" else 4)
    assert b"timed out: worker-" in run.stderr
    assert not jobs.commands("sleep 996")


def test_a_deadline_outweighs_a_higher_code_of_another_worker(jobs: Registry) -> None:
    run = jobs.exec("job-4", "--all", "--timeout", "2", "--", "sh", "-c", '[ "$RANK" = 0 ] && exit 200; sleep 995')
    assert run.code == 124


def test_a_command_that_ignores_sigterm_is_killed_at_the_deadline(jobs: Registry) -> None:
    run = jobs.exec("job-4", "-w", "0", "--timeout", "0.3", "--", "sh", "-c", "trap '' TERM; sleep 994 & wait; wait")
    assert run.code == 124
    assert b"may still run" not in run.stderr
    assert not jobs.commands("sleep 994")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["-j", "job-4", "true"], 2),
        (["-j", "job-4", "--all"], 2),
        (["-j", "job-4", "-w", "x[", "true"], 2),
        (["-j", "job-4", "-w", "9", "true"], 3),
        (["-j", "job-4", "-w", "nobody", "true"], 3),
        (["-j", "job-4", "--all", "-x", "0-3", "true"], 3),
        (["-j", "job-4", "--failed", "true"], 3),
        (["-j", "job-4", "--role", "nobody", "true"], 3),
        (["-j", "job-4", "--rank", "0", "true"], 3),
        (["-j", "nope", "--all", "true"], 3),
    ],
)
def test_usage_is_2_and_nothing_matched_is_3_each_with_a_hint(jobs: Registry, args: list[str], code: int) -> None:
    run = jobs.cli("exec", *args)
    assert (run.stdout, run.code) == (b"", code)
    message, hint = problem(run.stderr)
    assert message
    assert hint


@pytest.mark.parametrize("selection", ["0", "0-3"])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=lambda n: str(int(n))
)
def test_interrupted_is_128_and_the_signal(jobs: Registry, selection: str, number: int, code: int) -> None:
    with jobs.popen("exec", "-j", "job-4", "-w", selection, "sleep", "993", stdout=-1, stderr=-1) as run:
        assert proc.wait_until(lambda: len(jobs.commands("sleep 993")) == (1 if selection == "0" else 4))
        run.send_signal(number)
        stdout, stderr = run.communicate(timeout=100)
    assert (stdout, run.returncode) == (b"", code)
    assert b"Traceback" not in stderr
    assert not jobs.commands("sleep 993")


def test_a_reader_that_has_gone_is_141_without_a_word(jobs: Registry) -> None:
    reading, writing = os.pipe()
    with jobs.popen("exec", "-j", "job-4", "--all", "yes", stdout=writing, stderr=-1) as run:
        os.close(writing)
        assert os.read(reading, 10)
        os.close(reading)
        _, stderr = run.communicate(timeout=100)
    assert run.returncode == 141
    assert stderr == b""
    assert not jobs.commands("yes")


def test_a_job_of_one_worker_needs_no_selection_and_several_do(jobs: Registry) -> None:
    jobs.start("single", 1, *IDLE)
    assert jobs.exec("single", "echo", "here") == (b"here\n", b"", 0)
    run = jobs.exec("job-4", "echo", "here")
    assert run.code == 2
    assert problem(run.stderr) == (
        "which of the 4 workers of job-4?",
        "select them: --all, or -w with some of worker-[0-3]",
    )


def test_a_supervisor_that_dies_mid_run_is_255_never_success(jobs: Registry) -> None:
    jobs.start("doomed", 2, *IDLE)
    with jobs.popen("exec", "-j", "doomed", "--all", "sleep", "992", stdout=-1, stderr=-1) as run:
        assert proc.wait_until(lambda: len(jobs.commands("sleep 992")) == 2)
        os.kill(jobs.supervisor("doomed"), signal.SIGKILL)
        _, stderr = run.communicate(timeout=100)
    assert run.returncode == 255
    assert b"lost: worker-[0-1] (2): " in stderr
    assert b"may still run: worker-[0-1] (2)" in stderr
    assert proc.wait_until(lambda: not jobs.commands("sleep 992"))
    assert set(jobs.states("doomed")) == {"Lost"}
