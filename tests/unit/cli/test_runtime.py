"""The end of a command, seen from outside: processes, signals, pipes, a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from atlctl.cli import runtime
from atlctl.jobs.errors import AtlctlError
from tests.support.pace import within
from tests.unit.cli import sample

PROGRAM = [sys.executable, "-m", "tests.unit.cli.sample"]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def start(*argv, **streams):
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.Popen([*PROGRAM, *argv], cwd=ROOT, **streams)


def ready(process):
    assert process.stderr.readline() == b"ready\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_cancels_the_command_which_cleans_up(number, code):
    with start("completion", "wait") as process:
        ready(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out, err) == (code, b"", b"cleaning\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("what", ["slow", "block"])
def test_a_second_signal_leaves_at_once_and_says_what_may_still_run(number, code, what):
    with start("completion", what) as process:
        ready(process)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        if what == "slow":
            assert process.stderr.readline() == b"cleaning\n"
        else:
            time.sleep(0.3)
        process.send_signal(number)
        _, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (code, b"second\n")
    assert within(time.monotonic() - begun, 15)


def test_a_question_is_interrupted_at_once():
    with start("completion", "ask", stdin=subprocess.PIPE) as process:
        ready(process)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == b""


def test_cleanup_is_bounded_in_time():
    with start("completion", "stuck") as process:
        ready(process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (143, b"cleaning\nsecond\n")


def test_an_ignored_signal_stays_ignored():
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with start("completion", "wait", preexec_fn=ignore) as process:
        ready(process)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=100)
    assert process.returncode == 143


def test_a_reader_that_goes_away_ends_the_command_silently():
    with start("completion", "flood") as process:
        assert process.stdout.read(4) == b"y\ny\n"
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(20) == 141
    assert err == b"cleaned\n"


def test_help_into_a_closed_pipe_is_silent():
    read, write = os.pipe()
    os.close(read)
    with start("-h", stdout=write) as process:
        os.close(write)
        assert process.stderr.read() == b""
        assert process.wait(20) == 141


def test_a_full_disk_is_an_error():
    with open("/dev/full", "wb") as full, start("completion", "full", stdout=full) as process:
        err = process.stderr.read()
        assert process.wait(20) == 1
    assert err.startswith(b"error: the output could not be written: No space left on device\n")


def in_terminal(*argv, keys=()):
    """Run with a controlling terminal; returns (exit code, output, terminal attributes before and after)."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(PROGRAM[0], [*PROGRAM, *argv])
    before = termios.tcgetattr(master)
    shown = b""
    keys = list(keys)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            chunk = os.read(master, 4096)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
        while keys and keys[0][0] in shown:
            os.kill(pid, keys.pop(0)[1])
    after = termios.tcgetattr(master)
    _, status = os.waitpid(pid, 0)
    os.close(master)
    return os.waitstatus_to_exitcode(status), shown, before, after


def test_the_mode_of_the_controlling_terminal_comes_back():
    code, _, before, after = in_terminal("completion", "tty", keys=[(b"ready", signal.SIGINT)])
    assert code == 130
    assert after == before


def test_the_second_signal_shows_the_cursor_again():
    keys = [(b"ready", signal.SIGINT), (b"cleaning", signal.SIGINT)]
    code, shown, before, after = in_terminal("completion", "slow", keys=keys)
    assert code == 130
    assert shown.endswith(b"\x1b[?25h\x1b[0m")
    assert after == before


def test_failures_of_the_tree_are_told(capfd):
    assert sample.run("completion", "fail") == 3
    assert capfd.readouterr() == ("", "error: no job is called 'x^[[2J'\nhint: see: atlctl jobs\n")


def test_failures_speak_json_too(capfd):
    assert sample.run("completion", "fail", "-o", "json") == 3
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert (document["command"], document["status"], document["data"]) == ("completion", "error", None)
    assert document["errors"] == [
        {
            "kind": "nothing_matched",
            "message": "no job is called 'x\x1b[2J'",
            "hint": "see: atlctl jobs",
            "exit_code": 3,
        }
    ]
    assert err.startswith("error: ")


def test_a_fault_of_our_own_is_one_line_without_secrets(capfd):
    assert sample.run("completion", "crash") == 1
    _, err = capfd.readouterr()
    assert err.startswith("error: internal error: ValueError: token=[redacted] second line\nhint: ")
    assert err.count("\n") == 2


def test_debug_adds_the_traceback_without_secrets(capfd):
    assert sample.run("--debug", "completion", "crash") == 1
    _, err = capfd.readouterr()
    assert "Traceback" in err
    assert "abc" not in err


def test_a_command_that_cannot_be_imported_is_a_fault(capfd):
    assert sample.run("demo") == 1
    assert "error: internal error: ModuleNotFoundError" in capfd.readouterr().err


def test_the_result_comes_through_and_handlers_go_back():
    async def main():
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        return 42

    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert runtime.run_async(main) == 42
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_failures_pass_through_the_loop():
    async def main():
        raise AtlctlError("no")

    with pytest.raises(AtlctlError, match="no"):
        runtime.run_async(main)
