"""Completion in real shells on a real terminal: it completes, and it runs nothing."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from atlctl.cli.scripts import FILES, SCRIPTS
from tests.support.needs import needs

SHELLS = ["bash", pytest.param("zsh", marks=needs("zsh")), pytest.param("fish", marks=needs("fish"))]
ROOT = Path(__file__).parent.parent.parent

#: Candidates that create the file F in a shell that evaluates them (F1 to F4 were found to work on typer's script).
HOSTILE = [
    "x$(touch F)",
    "x`touch F`",
    "x\\$(touch F)",
    "x\\`touch F\\`",
    'x\\") ; touch F ; x=( \\"',
    "x'; touch F; '",
    'x"; touch F; "',
    "x;touch F",
    "x|touch F",
    "x&touch F",
    "x>F",
    "x<(touch F)",
    "x{a,$(touch F)}",
    "x(e:'touch F':)",
    "x${(e):-$(touch F)}",
    "x$((a[$(touch F)]))",
    "x*(e{touch F})",
    "~$(touch F)",
    "-x$(touch F)",
    "x\\",
    "x'",
    'x"',
]


class Shell:
    """An interactive shell under a terminal of 200 columns, with the completion script loaded."""

    def __init__(self, shell, folder, program):
        bin_ = folder / "bin"
        bin_.mkdir()
        (bin_ / "atlctl").write_text(program)
        (bin_ / "atlctl").chmod(0o755)
        script = folder / FILES[shell]
        script.write_text(SCRIPTS[shell])
        self.work = folder / "work"
        self.work.mkdir()
        start = {
            "bash": ["bash", "--norc", "--noprofile", "-i"],
            "zsh": ["zsh", "-f", "-i"],
            "fish": ["fish", "--no-config", "-i"],
        }[shell]
        load = {
            "bash": f"bind 'set show-all-if-ambiguous on'; bind 'set bell-style none'; source {script}",
            "zsh": f"autoload -Uz compinit; compinit -u -D; unsetopt beep; source {script}",
            "fish": f"source {script}",
        }[shell]
        environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "TERM": "xterm", "PS1": "$ "}
        self.screen = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(self.work)
            os.execvpe(start[0], start, environment)
        self.type(f"stty columns 200 rows 50; {load}; echo load''ed\r")
        self.expect("loaded")

    def type(self, text):
        os.write(self.master, text.encode())

    def expect(self, text, seconds=30):
        """Wait until `text` appears after what was expected before; returns what came until then."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} did not appear in {self.screen!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.screen += os.read(self.master, 65536)
        before, _, self.screen = self.screen.partition(text.encode())
        return before.decode(errors="replace")

    def line(self):
        """The words that were typed and completed, as a program gets them when the line is run."""
        self.type("\r")
        return self.expect("]]").rpartition("[[")[2]

    def abandon_line(self):
        # To its beginning, and cut to its end: ctrl-C would drop what is typed after it.
        self.type("\x01\x0becho ali''ve\r")
        self.expect("alive")

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.master)
        os.waitpid(self.pid, 0)


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


REAL = f"""#!/bin/sh
if [ "$1" = --complete ]; then PYTHONPATH='{ROOT}' exec '{sys.executable}' -m atlctl "$@"; fi
printf '[[%s' "$1"; shift; for word; do printf '|%s' "$word"; done; printf ']]\\n'
"""


@pytest.fixture
def open_shell(isolated):
    shells = []

    def open_(shell, program=REAL):
        shells.append(Shell(shell, isolated, program))
        return shells[-1]

    yield open_
    for shell in shells:
        shell.close()


@pytest.fixture
def state(isolated, monkeypatch):
    monkeypatch.setenv("ATLCTL_STATE_DIR", str(isolated / "state"))
    jobs = isolated / "state" / "local"
    for name in ("train-7", "zz-8", "zz-9"):
        (jobs / name / "workers" / "worker-0").mkdir(parents=True)
        (jobs / name / "job.json").write_text("{}")
    return jobs


@pytest.mark.parametrize("shell", SHELLS)
def test_words_are_completed(shell, open_shell, state):
    opened = open_shell(shell)
    for typed, line in [
        ("atlctl com\tba\t", "completion|bash"),
        ("atlctl stop tr\t", "stop|train-7"),
        ("atlctl --job tr\tps --fai\t", "--job|train-7|ps|--failed"),
        ("atlctl ps --job=tr\t", "ps|--job=train-7"),
        ("atlctl shell -j zz-9 wo\t", "shell|-j|zz-9|worker-0"),
        ("atlctl exec -j zz-9 -w wo\t--al\t", "exec|-j|zz-9|-w|worker-0|--all"),
        ("atlctl local r\t", "local|r"),
    ]:
        opened.type(typed)
        assert opened.line() == line


@pytest.mark.parametrize("shell", SHELLS)
def test_files_stand_where_a_path_does(shell, open_shell, state):
    opened = open_shell(shell)
    (opened.work / "saved-logs").mkdir()
    (opened.work / "saved-file").write_text("")
    opened.type("atlctl exec --all cat saved-f\t")
    assert opened.line() == "exec|--all|cat|saved-file"
    opened.type("atlctl exec --output-dir saved-\t")
    assert opened.line().rstrip("/") == "exec|--output-dir|saved-logs"


@pytest.mark.parametrize("shell", SHELLS)
def test_hostile_names_of_jobs_and_workers_run_nothing(shell, open_shell, state):
    for name in HOSTILE:
        safe = name.replace("/", "_")
        (state / safe / "workers" / safe).mkdir(parents=True)
        (state / safe / "job.json").write_text("{}")
        (state / "zz-8" / "workers" / safe).mkdir(parents=True)
    opened = open_shell(shell)
    for typed, last in [
        ("atlctl stop \t\t", "zz-9"),
        ("atlctl ps -j \t\t", "zz-9"),
        ("atlctl shell -j zz-8 \t\t", "worker-0"),
    ]:
        opened.type(typed)
        shown = opened.expect(last)
        assert "touch" not in shown.replace(typed.strip(), "")
        opened.abandon_line()
    for typed in ("x", "x$", "x\\", "x'", "-x"):
        opened.type(f"atlctl stop {typed}\t\t")
        opened.abandon_line()
    assert list(opened.work.iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_evaluate_no_candidate(shell, open_shell, isolated):
    """Even a program that answers with hostile candidates gets none of them run."""
    answer, asked = isolated / "answer", isolated / "asked"
    opened = open_shell(shell, f"#!/bin/sh\ncat '{answer}'; echo >> '{asked}'\n")
    for number, hostile in enumerate(HOSTILE):
        answer.write_text(f":words\n{hostile}\nzz-last-{number}\n")
        opened.type("atlctl stop \t\t")
        opened.expect(f"zz-last-{number}")
        opened.abandon_line()
        answer.write_text(f":words\n{hostile}\n")
        asked.unlink()
        opened.type("atlctl stop \t\t")
        until(asked.exists)
        opened.abandon_line()
        assert list(opened.work.iterdir()) == [], hostile


@pytest.mark.parametrize("shell", SHELLS)
def test_a_program_that_fails_is_silent(shell, open_shell, isolated):
    asked = isolated / "asked"
    opened = open_shell(shell, f"#!/bin/sh\necho oops >&2; touch '{asked}'; exit 1\n")
    opened.type("atlctl stop \t\t")
    until(asked.exists)
    opened.type("\x01\x0becho ali''ve\r")
    assert "oops" not in opened.expect("alive")
