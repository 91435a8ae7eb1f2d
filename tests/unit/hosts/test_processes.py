"""Processes in /proc, and the workers they belong to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from atlctl.remote.proc import Stat
from atlctl.remote.supervisor import processes
from atlctl.remote.supervisor.processes import Snapshot
from tests.support.proc import wait_until


@pytest.mark.parametrize("name", ["plain", "a) b (c", ") R 1 1 1", "x\ny", "名"])
def test_any_name_of_a_process(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([str(program), "60"], start_new_session=True) as process:
        found = processes.stat(process.pid)
        assert found is not None
        assert (found.comm, found.parent) == (name, os.getpid())
        assert found.group == found.session == process.pid
        assert processes.alive(process.pid, found.start)
        assert not processes.alive(process.pid, found.start + 1), "the number was given out again"
        process.kill()


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen(["sleep", "60"])
    start = (processes.stat(process.pid) or Stat(0, "", "", 0, 0, 0, 0)).start
    process.kill()
    assert wait_until(lambda: not processes.alive(process.pid, start))
    assert process.pid not in processes.everything()
    process.wait()
    assert processes.stat(process.pid) is None


def test_signals_to_what_has_ended() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    processes.send([process.pid], signal.SIGKILL)
    processes.send_group(process.pid, signal.SIGKILL)


def table(*entries: tuple[int, int, int, int], start: int = 5) -> dict[int, Stat]:
    """A process table; entries: pid, parent, group, session."""
    return {pid: Stat(pid, "x", "S", parent, group, session, start) for pid, parent, group, session in entries}


def snapshot(
    monkeypatch: pytest.MonkeyPatch, entries: dict[int, Stat], marks: dict[int, tuple[str, str, str]]
) -> Snapshot:
    """A snapshot. `marks`: job, worker and run of each process with marks."""

    def environment(pid: int) -> dict[bytes, bytes]:
        names = (b"ATLCTL_JOB", b"ATLCTL_WORKER", b"ATLCTL_EXEC")
        values = zip(names, marks.get(pid, ("", "", "")), strict=True)
        return {name: value.encode() for name, value in values if value}

    monkeypatch.setattr(processes, "everything", lambda: entries)
    monkeypatch.setattr(processes, "environment", environment)
    monkeypatch.setattr(processes, "alive", lambda pid, start: True)
    return Snapshot(1, "job", set())


def test_whose_a_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = table(
        (10, 1, 10, 10),  # worker-0
        (11, 10, 10, 10),  # its child
        (12, 1, 12, 12),  # in another session, forked twice; found by its mark
        (13, 1, 10, 10),  # in its group, without marks
        (14, 13, 14, 14),  # child of that one, in another session
        (20, 1, 20, 1),  # executed in worker-0
        (21, 20, 21, 21),  # its child
        (30, 1, 30, 30),  # worker-1
        (40, 1, 40, 40),  # of a job started inside this one
        (50, 2, 10, 10),  # not a descendant
    )
    marks = {
        10: ("job", "worker-0", ""),
        11: ("job", "worker-0", ""),
        12: ("job", "worker-0", ""),
        20: ("job", "worker-0", "run"),
        21: ("job", "worker-0", "run"),
        30: ("job", "worker-1", ""),
        40: ("inner", "worker-0", ""),
    }
    seen = snapshot(monkeypatch, entries, marks)
    assert seen.of_worker("worker-0", 10, 5) == {10, 11, 12, 13, 14, 20, 21}
    assert seen.of_worker("worker-1", 30, 5) == {30}
    assert seen.executed_in("worker-0") == {20, 21}
    assert seen.of_run("worker-0", "run", 20, 5) == {20, 21}
    assert seen.of_run("worker-0", "another", 99, 5) == set()
    assert seen.on_their_own("worker-0", 10, 5) == {12}


def test_a_process_in_the_middle_of_an_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is empty for a moment, so it is read again; a process without one is read again only once."""
    entries = table((10, 1, 10, 10), (11, 1, 11, 11))
    looks = {10: 0, 11: 0}

    def environment(pid: int) -> dict[bytes, bytes]:
        looks[pid] += 1
        late = pid == 10 and looks[pid] > 1
        return {b"ATLCTL_JOB": b"job", b"ATLCTL_WORKER": b"worker-0"} if late else {}

    monkeypatch.setattr(processes, "everything", lambda: entries)
    monkeypatch.setattr(processes, "environment", environment)
    monkeypatch.setattr(processes, "alive", lambda pid, start: True)
    bare: set[tuple[int, int]] = set()
    assert Snapshot(1, "job", bare).of_worker("worker-0", 99, 5) == {10}
    assert bare == {(11, 5)}
    before = looks[11]
    Snapshot(1, "job", bare)
    assert looks[11] == before + 1
    del entries[11]
    Snapshot(1, "job", bare)
    assert bare == set()


def test_a_number_that_was_given_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command had PID 20, which now belongs to a later command in another worker."""
    seen = snapshot(monkeypatch, table((20, 1, 20, 1), start=9), {20: ("job", "worker-1", "later")})
    assert seen.of_run("worker-0", "run", 20, 5) == set()
    assert seen.of_run("worker-1", "later", 20, 9) == {20}


def test_a_group_whose_leader_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = snapshot(monkeypatch, table((21, 1, 20, 1)), {})
    assert seen.of_run("worker-0", "run", 20, 5) == {21}
