"""`shell`: a terminal in a worker."""

from __future__ import annotations

import os
import signal
import termios
import time
from collections.abc import Iterator

import pytest

from tests.integration.local import Registry, problem, registry
from tests.integration.terminal import Terminal
from tests.support import proc
from tests.support.pace import within

PROMPT = b"ready> "


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        shell = ("--env", "SHELL=/bin/sh", "--env", f"PS1={PROMPT.decode()}")
        own.start("two", 2, options=shell)
        own.start("one", 1, options=shell)
        yield own


@pytest.fixture
def terminal(jobs: Registry) -> Iterator[Terminal]:
    """A shell in worker-1 after its prompt. The terminal's mode must be restored at the end."""
    with Terminal("shell", "-j", "two", "worker-1", env=jobs.env, columns=97, rows=31) as own:
        own.wait_for(PROMPT)
        yield own


def ask(terminal: Terminal, line: bytes, answer: bytes) -> None:
    """Type a line. The answer must be at the start of a line: the echo does not count."""
    terminal.type(line + b"\r")
    terminal.wait_for(b"\n" + answer + b"\r\n")
    terminal.wait_for(PROMPT)


def leave(terminal: Terminal, keys: bytes, code: int) -> None:
    terminal.type(keys)
    assert terminal.code() == code
    assert terminal.mode() == terminal.before


def test_commands_run_in_the_worker_and_the_exit_code_is_passed_on(terminal: Terminal, jobs: Registry) -> None:
    ask(terminal, b"echo $ATLCTL_JOB/$RANK", b"two/1")
    ask(terminal, b"pwd", str(jobs.folder("two") / "workers/worker-1/work").encode())
    leave(terminal, b"exit 23\r", 23)


def test_it_answers_each_line_without_waiting_for_another_key(terminal: Terminal) -> None:
    for number in range(20):
        ask(terminal, b"echo $((%d + 1000))" % number, b"%d" % (1000 + number))
    leave(terminal, b"exit\r", 0)


def test_it_has_the_terminals_size_and_follows_its_changes(terminal: Terminal) -> None:
    ask(terminal, b"stty size", b"31 97")
    terminal.resize(61, 17)
    assert proc.wait_until(lambda: _size_is(terminal, b"17 61"))
    leave(terminal, b"exit\r", 0)


def _size_is(terminal: Terminal, size: bytes) -> bool:
    terminal.type(b"stty size\r")
    return size in terminal.wait_for(PROMPT)


def test_ctrl_c_goes_to_the_worker_and_not_to_atlctl(terminal: Terminal, jobs: Registry) -> None:
    terminal.type(b"sleep 985\r")
    assert proc.wait_until(lambda: jobs.commands("sleep 985"))
    terminal.type(b"\x03")
    terminal.wait_for(PROMPT)
    assert not jobs.commands("sleep 985")
    ask(terminal, b"echo code $?", b"code 130")
    leave(terminal, b"exit\r", 0)


def test_ctrl_d_ends_it(terminal: Terminal) -> None:
    leave(terminal, b"\x04", 0)


def test_ctrl_z_stops_the_workers_command_and_not_atlctl(terminal: Terminal, jobs: Registry) -> None:
    terminal.type(b"sleep 984\r")
    assert proc.wait_until(lambda: jobs.commands("sleep 984"))
    terminal.type(b"\x1a")
    terminal.wait_for(PROMPT)
    terminal.type(b"kill -9 %1\r")
    terminal.wait_for(PROMPT)
    assert proc.wait_until(lambda: not jobs.commands("sleep 984"))
    leave(terminal, b"exit 4\rexit 4\r", 4)


def test_the_terminal_is_raw_meanwhile(terminal: Terminal) -> None:
    assert terminal.mode()[3] & (termios.ICANON | termios.ECHO | termios.ISIG) == 0
    leave(terminal, b"exit\r", 0)


def test_a_death_by_signal_counts_as_128_and_its_number(terminal: Terminal) -> None:
    leave(terminal, b"kill -9 $$\r", 137)


def test_full_screen_programs_get_their_bytes_unchanged(terminal: Terminal) -> None:
    terminal.type(b"printf '\\033[2J\\033]0;t\\007|\\n'\r")
    terminal.wait_for(b"\x1b[2J\x1b]0;t\x07|")
    terminal.wait_for(PROMPT)
    leave(terminal, b"exit\r", 0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_atlctl_ends_the_shell_and_restores_the_terminal(
    terminal: Terminal, jobs: Registry, number: int, code: int
) -> None:
    terminal.type(b"sleep 983\r")
    assert proc.wait_until(lambda: jobs.commands("sleep 983"))
    os.kill(terminal.pid, number)
    assert terminal.code() == code
    assert terminal.mode() == terminal.before
    assert proc.wait_until(lambda: not jobs.commands("sleep 983"))


def test_a_worker_that_ends_ends_the_shell(jobs: Registry) -> None:
    jobs.start("short", 1, options=("--env", "SHELL=/bin/sh", "--env", f"PS1={PROMPT.decode()}"))
    with Terminal("shell", "-j", "short", env=jobs.env) as terminal:
        terminal.wait_for(PROMPT)
        assert jobs.cli("stop", "short", "--yes", "-q").code == 0
        assert terminal.code() in (129, 137, 143, 255)
        assert terminal.mode() == terminal.before


def test_a_job_of_one_worker_needs_no_worker_named(jobs: Registry) -> None:
    with Terminal("shell", "-j", "one", env=jobs.env) as terminal:
        terminal.wait_for(PROMPT)
        leave(terminal, b"exit\r", 0)


def test_without_a_terminal_it_is_refused_with_the_way_for_scripts(jobs: Registry) -> None:
    begun = time.monotonic()
    run = jobs.cli("shell", "-j", "two", "0", stdin=b"echo hi\n")
    assert (run.stdout, run.code) == (b"", 2)
    assert problem(run.stderr) == (
        "a shell needs a terminal on standard input and output",
        "for a script: atlctl exec -w WORKER -i -- sh < script.sh",
    )
    assert within(time.monotonic() - begun, 20)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("-j", "two"), 2, b"a shell opens in one worker, and this means 2"),
        (("-j", "two", "*"), 2, b"a shell opens in one worker, and this means 2"),
        (("-j", "two", "9"), 3, b"job two has no worker with index 9"),
        (("-j", "nope", "0"), 3, b"no job named nope"),
    ],
)
def test_it_opens_in_exactly_one_worker(jobs: Registry, words: tuple[str, ...], code: int, text: bytes) -> None:
    run = jobs.cli("shell", *words, tty=True)
    assert run.code == code
    assert text in run.stdout


def test_in_a_worker_that_has_ended_it_is_255(jobs: Registry) -> None:
    jobs.start("ended", 1, "true")
    jobs.until("ended", "Succeeded")
    run = jobs.cli("shell", "-j", "ended", tty=True)
    assert run.code == 255
    assert b"not running (Succeeded)" in run.stdout
