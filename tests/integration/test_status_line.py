"""Commands on a terminal are never silent for long, and the final screen equals their output on a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local import Registry, registry
from tests.integration.silence import slow_cluster, watched
from tests.integration.terminal import Terminal
from tests.support.cli import STATUS_LINE

#: Seconds of a wait without a status line, and the most between two outputs on a busy machine.
WAIT = 3.0
BUSY = WAIT - 0.7


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.start("two", 2)
        yield own


def test_a_slow_cluster_is_waited_for_visibly_and_in_chinese() -> None:
    with slow_cluster(WAIT) as cluster:
        env = {"KUBECONFIG": str(cluster.server.kubeconfig), "LC_ALL": "zh_CN.UTF-8", "NO_COLOR": "1"}
        seen = watched("jobs", env=env)
    assert seen.silence < BUSY, seen
    assert "正在列出作业  " in seen.screen.decode()
    heading, job = seen.left.decode().splitlines()[-2:]
    assert heading.startswith("名称")
    assert job.startswith("train ")
    assert b"\x1b[K" not in seen.left


def test_silent_commands_on_workers(jobs: Registry) -> None:
    script = f"echo begin; sleep {WAIT + 0.5}; echo end"
    seen = watched("exec", "-j", "two", "--all", "--color", "never", "sh", "-c", script, env=jobs.env)
    assert seen.silence < BUSY, seen
    assert "0/2 done, waiting for worker-[0-1]" in seen.screen.decode()
    *lines, summary = seen.left.decode().splitlines()
    assert sorted(lines) == [f"worker-{index}: {word}" for index in range(2) for word in ("begin", "end")]
    assert summary == "ok: worker-[0-1] (2)"


def test_not_with_quiet_not_on_a_dumb_terminal_not_on_a_pipe(jobs: Registry) -> None:
    words = ("exec", "-j", "two", "-w", "0", "sleep", "0.9")
    for more, env in ((("-q",), {}), ((), {"TERM": "dumb"})):
        assert watched(*more, *words, env={**jobs.env, **env}).screen == b""
    assert jobs.cli(*words) == (b"", b"", 0)


def test_ctrl_c_leaves_a_clean_line(jobs: Registry) -> None:
    with Terminal("exec", "--color", "never", "-j", "two", "--all", "sleep", "1000", env=jobs.env) as terminal:
        terminal.wait_for(b"waiting for worker-[0-1]")
        terminal.type(b"\x03")
        assert terminal.code() == 130
        assert terminal.mode() == terminal.before
    *_, last = STATUS_LINE.sub(b"", terminal.screen).splitlines()
    assert last.startswith(b"cancelled: worker-[0-1] (2)")


def test_a_question_is_asked_on_a_clean_line_and_no_is_no_error(jobs: Registry) -> None:
    with Terminal("stop", "two", "--color", "always", env=jobs.env) as terminal:
        terminal.wait_for(b"Stop job two? [y/N] ")
        begun = len(terminal.screen)
        time.sleep(1)  # longer than the delay of the status line
        terminal.type(b"n\r")
        assert terminal.code() == 1
    assert STATUS_LINE.sub(b"", terminal.screen[begun:]) == b"n\r\ncancelled: nothing was stopped\r\n"


def test_a_stop_by_the_terminal_leaves_a_clean_line_and_it_comes_back(jobs: Registry) -> None:
    """Ctrl-Z as in a shell: this process is the session leader, so that atlctl's group can be stopped."""
    leader = (
        "import os, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTTOU, signal.SIG_IGN)\n"
        "run = subprocess.Popen(sys.argv[1:], process_group=0)\n"
        "os.tcsetpgrp(0, run.pid)\n"
        "_, status = os.waitpid(run.pid, os.WUNTRACED)\n"
        "print('stopped' if os.WIFSTOPPED(status) else status, flush=True)\n"
        "os.kill(run.pid, signal.SIGCONT)\n"
        "sys.exit(run.wait())\n"
    )
    terminal, line = pty.openpty()
    words = ("exec", "-j", "two", "-w", "0", "sleep", "3")
    argv = ["setsid", "--ctty", sys.executable, "-c", leader, sys.executable, "-m", "atlctl", *words]
    env = {name: value for name, value in {**os.environ, **jobs.env}.items() if value is not None}
    screen = b""
    with subprocess.Popen(argv, env=env, stdin=line, stdout=line, stderr=line) as run:
        os.close(line)
        typed = False
        while True:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            screen += data
            if not typed and b"waiting for worker-0" in screen:
                os.write(terminal, b"\x1a")
                typed = True
        assert run.wait(20) == 0
    os.close(terminal)
    before, after = screen.split(b"stopped", 1)
    assert before.endswith(b"\r\x1b[K")
    assert b"waiting for worker-0" in after
    assert after.endswith(b"\r\x1b[K")


def test_saved_logs_have_a_bar(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.write_text("[rank3] RuntimeError, and what else makes a line worth a look\n" * 30_000)
    shown = watched("errors", "--from", str(log), env={"NO_COLOR": "1"}).screen.decode()
    size = r"[\d.]+ [KM]iB"
    assert re.search(rf"\r\x1b\[K\S reading the logs  [█░]{{12}} {size}/{size}  {size}/s  \ds", shown)
