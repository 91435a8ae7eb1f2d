"""Worker states from hosts' reports: never wrong, whatever the hosts report."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.backends.base import Event, Exited, FailedToStart, Lost, Output, StopResult
from atlctl.backends.hosts import looking, states, stopping
from atlctl.jobs.errors import NO_PYTHON
from atlctl.jobs.model import DOUBTFUL_REASON, State
from tests.unit.hosts.fake import RECORD, FakeExecutor, out

SEEN: dict[str, Any] = {
    "event": "seen",
    "presence": "alive",
    "place": "",
    "host": "h1",
    "process": {"pid": 7, "start": 1, "started": 5.5},
    "exit": None,
    "trainer_failed": False,
    "stopping": False,
    "load": [1.5, 2, 3],
    "cpus": 4,
    "processes": 9,
    "programs": [],
    "ranks": [1, 0],
}
ENDED = {"exit_code": 0, "signal": None, "ended": 9.5, "stopped": False, "log_bytes_lost": 0}


def told(message: object, code: int = 0) -> list[Event]:
    return out(json.dumps(message).encode() + b"\n", code)


def look(one: list[Event], two: list[Event] | None = None) -> dict[str, states.Seen]:
    return asyncio.run(looking.look(FakeExecutor(w1=one, w2=two or told(SEEN)), RECORD))


def one(**changes: Any) -> states.Seen:
    return look(told({**SEEN, **changes}))["w1"]


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({}, State.RUNNING, ""),
        ({"exit": ENDED}, State.SUCCEEDED, ""),
        ({"exit": ENDED, "trainer_failed": True}, State.SUCCEEDED, DOUBTFUL_REASON),
        ({"exit": {**ENDED, "exit_code": 3}, "presence": "gone"}, State.FAILED, "exit 3"),
        ({"exit": {**ENDED, "exit_code": None, "signal": 9, "stopped": True}}, State.STOPPED, "signal 9"),
        ({"presence": "gone"}, State.LOST, "its supervisor was killed or the machine restarted"),
        ({"presence": "elsewhere", "place": "h7"}, State.UNKNOWN, "runs on h7"),
        ({"stopping": True}, State.STOPPING, ""),
        (
            {"trainer_failed": True, "programs": ["bash", "sleep"]},
            State.HELD,
            "trainer failed; launch script still running",
        ),
        (
            {"trainer_failed": True, "programs": ["bash", "python3"]},
            State.RUNNING,
            "one of its trainers has failed before",
        ),
    ],
)
def test_states(changes: dict[str, Any], state: State, reason: str) -> None:
    found = one(**changes)
    assert (found.worker.state, found.worker.reason, found.problem) == (state, reason, None)


def test_everything_that_a_host_tells() -> None:
    found = one()
    assert (found.load, found.cpus, found.processes, found.ranks) == ((1.5, 2.0, 3.0), 4, 9, (0, 1))
    assert (found.worker.pid, found.worker.started, found.worker.index, found.worker.host) == (7, 5.5, 0, "h1")
    ranks = looking.ranks(look(told(SEEN), told({**SEEN, "ranks": [2]})))
    assert ranks is not None
    assert ranks.workers == {0: "w1", 1: "w1", 2: "w2"}


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([FailedToStart(255, "h1:22: connection refused")], "w1: h1:22: connection refused"),
        ([Lost("the connection is closed")], "w1: the connection is closed"),
        ([Exited(exit_code=NO_PYTHON)], "w1: no Python 3.8 or newer found"),
        ([Output("stderr", b"Traceback\nMemoryError\n"), Exited(exit_code=1)], "w1: MemoryError"),
        ([Exited(signal=9)], "w1: the program on the host ended with signal 9"),
        (told({"event": "failed", "kind": "failed", "message": "bad disk"}, 96), "w1: bad disk"),
        (told({**SEEN, "presence": "dead"}), "w1: its answer is malformed"),
        (told([]), "w1: its answer is malformed"),
        (told(SEEN, 96), "w1: its answer is malformed"),
        ([*told(SEEN)[:-1], Lost("cut")], "w1: cut"),
    ],
)
def test_a_host_that_does_not_tell_is_unknown(events: list[Event], words: str) -> None:
    seen = look(events)
    found = seen["w1"]
    assert (found.worker.state, found.worker.reason) == (State.UNKNOWN, words)
    assert found.problem is not None
    assert seen["w2"].worker.state is State.RUNNING
    job = looking.job(RECORD, seen)
    assert (job.state, job.reason, job.ended) == (State.UNKNOWN, words, None)


@pytest.mark.parametrize("why", ["absent", "replaced"])
def test_a_host_that_knows_nothing_of_it_has_lost_it(why: str) -> None:
    found = look(told({"event": "failed", "kind": why, "message": "gone"}, 96))["w1"]
    assert (found.worker.state, found.worker.reason, found.problem) == (State.LOST, "gone", None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(sorted(SEEN)), json_values),
    st.dictionaries(st.sampled_from(sorted(ENDED)), json_values),
)
def test_no_answer_is_too_wild(changes: dict[str, Any], ended: dict[str, Any]) -> None:
    for exits in ({}, {"exit": {**ENDED, **ended}}):
        seen = look(told({**SEEN, **changes, **exits}))
        job = looking.job(RECORD, seen)
        assert job.state in State
        assert isinstance(seen["w1"].worker.reason, str)


def test_a_job_of_which_one_worker_has_failed_has_failed() -> None:
    seen = look([Lost("gone")], told({**SEEN, "exit": {**ENDED, "exit_code": 1}}))
    assert looking.job(RECORD, seen).reason == "w2 failed"
    done = {"exit": ENDED}
    seen = look(told({**SEEN, **done}), told({**SEEN, "exit": {**ENDED, "ended": 10.5}}))
    job = looking.job(RECORD, seen)
    assert (job.state, job.ended, job.kind, job.backend) == (State.SUCCEEDED, 10.5, "SSH", "ssh")
    assert looking.job(RECORD, {}).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("events", "result"),
    [
        (told({"event": "stopped", "how": "killed", "processes": 3, "reason": ""}), StopResult("w1", "killed", 3)),
        (
            told({"event": "stopped", "how": "not-stopped", "processes": 1}),
            StopResult("w1", "not-stopped", 1, "some of its processes could not be ended"),
        ),
        (
            told({"event": "stopped", "how": "?"}),
            StopResult("w1", "not-stopped", 0, "some of its processes could not be ended"),
        ),
        (
            told({"event": "failed", "kind": "absent", "message": "gone"}, 96),
            StopResult("w1", "already-ended", reason="gone"),
        ),
        ([FailedToStart(255, "refused")], StopResult("w1", "not-stopped", reason="refused")),
    ],
)
def test_results_of_a_stop(events: list[Event], result: StopResult) -> None:
    assert asyncio.run(stopping.stop(FakeExecutor(events), RECORD, ["w1"], 1.0)) == [result]


def test_files() -> None:
    answers = [
        [*told({"event": "file"})[:-1], Output("stdout", b"a\x00\nbcd"), Exited(exit_code=0)],
        told({"event": "none"}),
    ]
    executor = FakeExecutor(*answers)

    async def main() -> list[bytes | None]:
        return [await looking.read_file(executor, RECORD, "w1", "x", 5) for _ in answers]

    assert asyncio.run(main()) == [b"a\0\nbc", None]
