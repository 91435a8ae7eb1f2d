"""Records of wrapped jobs: found while their wrapper lives, and private."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from atlctl.backends.hosts import runs
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.jobkeys import JobAccess
from atlctl.backends.hosts.records import RUN, Placed, Record
from atlctl.backends.hosts.states import understood
from atlctl.cli import hosts
from atlctl.jobs.errors import NothingMatched
from atlctl.jobs.model import State, Worker
from atlctl.remote.supervisor import processes

RECORD = Record(
    name="train-7",
    uid="u1",
    created=5.0,
    argv=("python", "train.py"),
    hostfile=None,
    chdir="/work",
    master_addr="",
    master_port=0,
    workers=(Placed("worker-0", Host("10.0.0.1", "atlctl", 4022), "/x/worker-0"),),
    kind=RUN,
    access=JobAccess(b"k" * 32, "u1"),
    own="worker-0",
)


def _me() -> dict[str, int | str]:
    return processes.identity(os.getpid())


def test_record_of_a_living_wrapper(isolated: Path) -> None:
    path = runs.write(RECORD, _me())
    assert runs.here() == [RECORD]
    assert runs.load("train-7") == RECORD
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    runs.forget(path)
    assert runs.here() == []
    assert not os.path.exists(os.path.dirname(path))


def test_record_with_an_owner(isolated: Path) -> None:
    inside = replace(RECORD, name="inside", uid="u2", created=9.0, owner="outer")
    runs.write(inside, _me())
    assert not hosts.wrapped(None)
    assert hosts.wrapped("inside")
    assert not hosts.wrapped("outer")
    runs.write(RECORD, _me())
    assert runs.here() == [RECORD, inside]
    assert hosts.wrapped(None)
    assert (hosts.wrappers_of("outer"), hosts.wrappers_of("inside")) == (inside, None)


def test_record_of_a_dead_wrapper_does_not_count(isolated: Path) -> None:
    runs.write(RECORD, {**_me(), "start": 1})
    assert runs.here() == []
    with pytest.raises(NothingMatched):
        runs.load("train-7")


def test_record_of_another_container_does_not_count(isolated: Path) -> None:
    runs.write(RECORD, {**_me(), "pid_namespace": "pid:[1]"})
    assert runs.here() == []


def test_newest_record_first(isolated: Path) -> None:
    runs.write(RECORD, _me())
    newer = replace(RECORD, name="train-8", uid="u2", created=6.0)
    runs.write(newer, _me())
    assert [record.name for record in runs.here()] == ["train-8", "train-7"]


@pytest.mark.parametrize("change", [{"schema": 2}, {"workers": 5}, {"access": None}, {"access": {"secret": "zz"}}])
def test_damaged_record_does_not_count(isolated: Path, change: dict[str, object]) -> None:
    path = Path(runs.write(RECORD, _me()))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert runs.here() == []


def test_records_that_others_may_write_do_not_count(isolated: Path) -> None:
    runs.write(RECORD, _me())
    os.chmod(runs.root(), 0o777)
    assert runs.here() == []


def _seen(**held: object) -> Worker:
    answer = {"event": "seen", "presence": "alive", "exit": {"exit_code": 3}, "held": held or None}
    found = understood(Worker("worker-0", 0, State.UNKNOWN), answer)
    assert found is not None
    return found.worker


def test_state_of_a_held_worker() -> None:
    worker = _seen(left=125.0)
    assert (worker.state, worker.exit_code, str(worker.reason)) == (State.HELD, 3, "exit 3; 2 min left")


def test_state_of_a_worker_kept_for_debugging() -> None:
    worker = _seen(debugging=True, left=None)
    assert (worker.state, str(worker.reason)) == (State.DEBUGGING, "exit 3; until it is released")
    assert worker.state.active


def test_state_of_a_worker_that_waits_for_the_verdict() -> None:
    worker = _seen(waiting=True)
    assert (worker.state, str(worker.reason)) == (State.HELD, "exit 3; waits for the verdict")


def test_state_of_a_worker_that_is_not_held() -> None:
    assert _seen().state is State.FAILED
