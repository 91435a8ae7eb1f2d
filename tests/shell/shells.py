"""Real shells on a real terminal, and candidates that would run something in one that evaluates them."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from atlctl.cli.completion.scripts import FILES, SCRIPTS
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
    """An interactive shell under a terminal of 200 columns, with the completion script loaded.

    `installed`: the shell finds the script by itself, in a folder where it looks for such. `before` is run first.
    """

    def __init__(self, shell, folder, program, *, installed=False, before=":"):
        bin_ = folder / "bin"
        bin_.mkdir()
        (bin_ / "atlctl").write_text(program)
        (bin_ / "atlctl").chmod(0o755)
        script = folder / "scripts" / FILES[shell]
        script.parent.mkdir()
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
        if installed:
            load = {
                # What bash-completion does, by the words of bash's manual.
                "bash": f"_load() {{ source {script.parent}/$1 && return 124; }}; complete -D -F _load; "
                "bind 'set bell-style none'",
                "zsh": f"fpath=({script.parent} $fpath); autoload -Uz compinit; compinit -u -D; unsetopt beep",
                "fish": f"set -p fish_complete_path {script.parent}",
            }[shell]
        environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "TERM": "xterm", "PS1": "$ "}
        self.screen = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(self.work)
            os.execvpe(start[0], start, environment)
        self.type(f"stty columns 200 rows 50; {before}; {load}; echo load''ed\r")
        self.expect("loaded")

    def type(self, text):
        os.write(self.master, text.encode())

    def expect(self, text, seconds=100):
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


def until(condition, seconds=100):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


REAL = f"""#!/bin/sh
if [ "$1" = --complete ]; then PYTHONPATH='{ROOT}' exec '{sys.executable}' -m atlctl "$@"; fi
printf '[[%s' "$1"; shift; for word; do printf '|%s' "$word"; done; printf ']]\\n'
"""
