"""The command on a failure: bounded, and nothing of it is left."""

from __future__ import annotations

import asyncio
import time

import pytest

from atlctl.recording.recorder import hook
from tests.support.proc import marked, wait_until


def run(command: str, **env: str) -> tuple[str, bytes]:
    return asyncio.run(hook.run(command, env))


def test_its_environment_and_its_end() -> None:
    assert run('echo "$ATLCTL_JOB failed"; exit 3', ATLCTL_JOB="train; rm") == ("exit code 3", b"train; rm failed\n")
    assert run("kill -9 $$")[0] == "ended by signal 9"
    assert run("no-such-command-here")[0] == "exit code 127"


def test_it_is_ended_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "SECONDS", 0.5)
    begun = time.monotonic()
    how, printed = run("echo first; sleep 4321 & sleep 4321")
    assert (how, printed) == ("ended after 0.5 s", b"first\n")
    assert time.monotonic() - begun < 5
    assert wait_until(lambda: not [p for p in marked() if "4321" in p.command])


def test_what_it_prints_is_bounded() -> None:
    how, printed = run("yes | head -c 1000000; echo last")
    assert how == "exit code 0"
    assert len(printed) <= hook.OUTPUT
    assert printed.endswith(b"last\n")
