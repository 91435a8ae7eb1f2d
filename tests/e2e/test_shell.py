"""`shell`: a terminal in a real container."""

from __future__ import annotations

import contextlib

from tests.e2e.cluster import Cluster
from tests.e2e.kinds import Job
from tests.integration.terminal import Terminal

#: A prompt that no image has.
PROMPT = b"e2e-prompt> "


def ready(own: Terminal) -> None:
    """Set the prompt. Input before the shell has started may be lost, so it is repeated until there is an answer."""
    for _ in range(12):
        own.type(b"PS1='e2e-'prompt'> '; PROMPT_COMMAND=\r")
        with contextlib.suppress(AssertionError):
            own.wait_for(PROMPT, 5)
            return
    raise AssertionError(f"no shell has answered: {own.screen!r}")


def test_a_shell_has_a_terminal_of_the_right_size(cluster: Cluster, job: Job) -> None:
    with cluster.terminal("shell", *job.words, "worker-1", columns=97, rows=31) as own:
        ready(own)
        own.type(b"test -t 0 && echo yes-$((40 + 2))\r")
        own.wait_for(b"yes-42\r\n", 30)
        own.type(b"python3 -c 'import os; print(*os.get_terminal_size())'\r")
        own.wait_for(b"97 31\r\n", 30)
        own.resize(120, 40)
        own.wait_for(PROMPT, 30)
        own.type(b"sleep 1; python3 -c 'import os; print(*os.get_terminal_size())'\r")
        own.wait_for(b"120 40\r\n", 30)
        own.type(b"echo $JOB_COMPLETION_INDEX-of-$((1 + 1))\r")
        own.wait_for(b"1-of-2\r\n", 30)
        own.type(b"exit 23\r")
        assert own.code(60) == 23
        assert own.mode() == own.before


def test_ctrl_c_reaches_the_workers_command_and_not_atlctl(cluster: Cluster, job: Job) -> None:
    with cluster.terminal("shell", *job.words, "0") as own:
        ready(own)
        own.type(b"echo going-$((1 + 1)); sleep 3000\r")
        own.wait_for(b"going-2\r\n", 30)
        own.type(b"\x03")
        own.wait_for(PROMPT, 30)
        own.type(b"exit\r")
        own.code(60)
        assert own.mode() == own.before


def test_without_a_terminal_it_is_refused(cluster: Cluster, job: Job) -> None:
    run = cluster.cli("shell", *job.words, "0", stdin=b"id\n")
    assert (run.stdout, run.code) == (b"", 2)
