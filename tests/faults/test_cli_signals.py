"""However `exec` ends, its commands end, too: all processes of a test carry a mark and are counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.integration.local import Registry, registry
from tests.integration.terminal import Terminal
from tests.support import proc
from tests.support.pace import within

WORKERS = 64
#: Maximum seconds from the signal to the prompt.
SECONDS = 2.0
SLEEP = "sleep 1000.25"


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.start("many", WORKERS, "sleep", "2000")
        own.start("few", 2, "sleep", "2000")
        yield own


def all_run(jobs: Registry, count: int) -> bool:
    return proc.wait_until(lambda: len(jobs.commands(SLEEP)) == count, interval=0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda n: n.name)
@pytest.mark.parametrize("stdin", [False, True], ids=["", "with -i"])
def test_within_two_seconds_the_prompt_is_back_and_nothing_lives(
    jobs: Registry, number: signal.Signals, stdin: bool
) -> None:
    """One of three times, on a machine that has other work."""
    times = (end_by(jobs, number, ("-i",) if stdin else ()) for _ in range(3))
    assert any(within(seconds, SECONDS) for seconds in times)


def end_by(jobs: Registry, number: signal.Signals, options: tuple[str, ...]) -> float:
    """The seconds from the signal to the prompt and the end of all commands."""
    reading, writing = os.pipe()
    words = ("exec", "-j", "many", "--all", *options, "--", *SLEEP.split())
    with jobs.popen(*words, stdin=reading, stdout=-1, stderr=-1) as run:
        assert all_run(jobs, WORKERS)
        begun = time.monotonic()
        run.send_signal(number)
        _, stderr = run.communicate(timeout=100)
        assert proc.wait_until(lambda: not jobs.commands(SLEEP), interval=0.05), len(jobs.commands(SLEEP))
        seconds = time.monotonic() - begun
    os.close(reading)
    os.close(writing)
    assert run.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert b"ending the command on worker-[0-63]" in stderr
        assert b"cancelled: worker-[0-63] (64): interrupted\n" in stderr
    assert set(jobs.states("many")) == {"Running"}
    return seconds


def test_ctrl_c_typed_on_a_terminal(jobs: Registry) -> None:
    with Terminal("exec", "-j", "many", "--all", "--", *SLEEP.split(), env=jobs.env) as terminal:
        assert all_run(jobs, WORKERS)
        begun = time.monotonic()
        terminal.type(b"\x03")
        assert terminal.code() == 130
        assert within(time.monotonic() - begun, SECONDS)
        assert terminal.mode() == terminal.before
    assert not jobs.commands(SLEEP)
    assert b"Traceback" not in terminal.screen


@pytest.mark.parametrize("options", [("-i",), ("-o", "json"), ("--gather",), ("--output-dir", "out")])
def test_ctrl_c_in_every_form_of_output(jobs: Registry, options: tuple[str, ...]) -> None:
    with Terminal("exec", "-j", "few", "--all", *options, "--", *SLEEP.split(), env=jobs.env) as terminal:
        assert all_run(jobs, 2)
        terminal.type(b"\x03")
        assert terminal.code() == 130
        assert terminal.mode() == terminal.before
    assert not jobs.commands(SLEEP)


def test_a_command_that_ignores_sigterm_is_killed_all_the_same(jobs: Registry) -> None:
    script = f"trap '' TERM INT HUP; echo up; while :; do {SLEEP}; done"
    with jobs.popen("exec", "-j", "few", "--all", "--", "sh", "-c", script, stdout=-1, stderr=-1) as run:
        assert all_run(jobs, 2)
        begun = time.monotonic()
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=100)
    assert run.returncode == 130
    assert within(time.monotonic() - begun, SECONDS + 1)
    assert not jobs.running(SLEEP)


def test_what_has_left_its_session_is_ended_too(jobs: Registry) -> None:
    script = f"setsid sh -c 'setsid {SLEEP} & setsid {SLEEP}' & wait"
    with jobs.popen("exec", "-j", "few", "-w", "0", "--", "sh", "-c", script, stdout=-1, stderr=-1) as run:
        assert all_run(jobs, 2)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=100)
    assert run.returncode == 130
    assert proc.wait_until(lambda: not jobs.commands(SLEEP))


def test_a_stopped_command_is_ended_too(jobs: Registry) -> None:
    with jobs.popen("exec", "-j", "few", "--all", "--", *SLEEP.split(), stdout=-1, stderr=-1) as run:
        assert all_run(jobs, 2)
        for process in jobs.commands(SLEEP):
            os.kill(process.pid, signal.SIGSTOP)
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=100)
    assert run.returncode == 143
    assert not jobs.commands(SLEEP)


def test_the_second_ctrl_c_leaves_at_once_and_names_what_may_still_run(jobs: Registry) -> None:
    script = f"trap '' TERM; echo up; while :; do {SLEEP}; done"
    with Terminal("exec", "-j", "few", "--all", "--", "sh", "-c", script, env=jobs.env) as terminal:
        assert all_run(jobs, 2)
        begun = time.monotonic()
        terminal.type(b"\x03")
        terminal.wait_for(b"ending the command on worker-[0-1]")
        terminal.type(b"\x03")
        assert terminal.code() == 130
        assert within(time.monotonic() - begun, 4)
        assert terminal.mode() == terminal.before
    assert b"may still run: worker-[0-1]\r\n" in terminal.screen
    # The guard still ends them.
    assert proc.wait_until(lambda: not jobs.running(SLEEP))


def test_a_supervisor_that_hangs_is_named_and_not_waited_for(jobs: Registry) -> None:
    jobs.start("hung", 2, "sleep", "2000")
    with jobs.popen("exec", "-j", "hung", "--all", "--", *SLEEP.split(), stdout=-1, stderr=-1) as run:
        assert all_run(jobs, 2)
        os.kill(jobs.supervisor("hung"), signal.SIGSTOP)
        begun = time.monotonic()
        run.send_signal(signal.SIGINT)
        _, stderr = run.communicate(timeout=100)
        assert within(time.monotonic() - begun, 15)
    assert run.returncode == 130
    assert b"may still run: worker-[0-1] (2)\n" in stderr
    os.kill(jobs.supervisor("hung"), signal.SIGCONT)
    assert proc.wait_until(lambda: not jobs.commands(SLEEP))


def test_nohup_is_respected(jobs: Registry) -> None:
    words = [sys.executable, "-m", "atlctl", "exec", "-j", "few", "-w", "0", "sleep", "2.7"]
    env = {name: value for name, value in {**os.environ, **jobs.env}.items() if value is not None}
    with subprocess.Popen(["sh", "-c", 'trap "" HUP; exec "$@"', "_", *words], env=env) as run:
        assert proc.wait_until(lambda: jobs.commands("sleep 2.7"))
        run.send_signal(signal.SIGHUP)
        assert run.wait(30) == 0


@pytest.mark.parametrize("form", [(), ("-i",), ("-o", "json"), ("--gather",)], ids=" ".join)
def test_a_reader_that_has_gone_ends_everything_silently(jobs: Registry, form: tuple[str, ...]) -> None:
    producer = "while :; do echo line; sleep 0.001; done" if form != ("--gather",) else "echo a; sleep 0.3"
    reading, writing = os.pipe()
    with jobs.popen(
        "exec",
        "-j",
        "few",
        "--all",
        *form,
        "--",
        "sh",
        "-c",
        producer,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=-1,
    ) as run:
        os.close(writing)
        if form != ("--gather",):
            assert os.read(reading, 1)
        os.close(reading)
        _, stderr = run.communicate(timeout=100)
    assert (run.returncode, stderr) == (141, b"")
    assert proc.wait_until(lambda: not jobs.running("echo line"))


@pytest.mark.parametrize(
    "words",
    [
        ("jobs",),
        ("ps", "few"),
        ("-h",),
        ("completion", "bash"),
        ("errors", "few"),
        ("stacks", "few"),
        ("top", "few", "--once"),
        ("doctor",),
    ],
)
def test_every_command_is_silent_when_its_reader_has_gone(jobs: Registry, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with jobs.popen(*words, stdout=writing, stderr=-1) as run:
        os.close(writing)
        _, stderr = run.communicate(timeout=100)
    # Notes about the job are not errors.
    assert [line for line in stderr.splitlines() if not line.startswith(b"note: ")] == []
    assert run.returncode == 141


def test_a_reader_of_stderr_that_has_gone_costs_no_output(jobs: Registry) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = ("exec", "-j", "few", "-w", "0", "--", "sh", "-c", "echo e >&2; echo out")
    with jobs.popen(*words, stdout=-1, stderr=writing) as run:
        os.close(writing)
        stdout, _ = run.communicate(timeout=100)
    assert (stdout, run.returncode) == (b"out\n", 0)
