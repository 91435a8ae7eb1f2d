"""Shells that a test opens are closed behind it."""

from __future__ import annotations

import pytest

from tests.shell.shells import REAL, Shell


@pytest.fixture
def open_shell(isolated):
    shells = []

    def open_(shell, program=REAL, **how):
        shells.append(Shell(shell, isolated, program, **how))
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
