"""Reports are read as hostile; stacks in both forms; two looks are compared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.diagnosis.hang.frames import place_of, threads_of_torch, user_frame
from atlctl.diagnosis.hang.repeat import changes
from atlctl.diagnosis.hang.report import parse_report
from atlctl.diagnosis.hang.scene import diagnose
from tests.unit.diagnosis.hang.made import COLLECTIVE, job, rank, recorder, stack

FAULTHANDLER = """\
Current thread 0x00007f74019286c0 (most recent call first):
  <no Python frame>

Thread 0x00007f74018286c0 [QueueFeeder] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Thread 0x00007f74218a8b80 (most recent call first):
  File "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/job/train.py", line 17 in main
  File "/job/train.py", line 22 in <module>
"""


def test_a_dump_of_torchs_worker_server() -> None:
    threads = threads_of_torch(FAULTHANDLER)
    assert [(thread.name, thread.main, len(thread.frames)) for thread in threads] == [
        ("QueueFeeder", False, 1),
        (None, True, 3),
    ]
    frames = threads[1].frames
    assert (str(place_of(frames)[0]), place_of(frames)[1]) == ("collective", "all_reduce")
    assert str(user_frame(frames)) == 'File "/job/train.py", line 17, in main'


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"atlctl_stacks": 2}', b"\xff" * 9, b"[" * 100_000])
def test_what_is_no_report(data: bytes) -> None:
    assert parse_report(data) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("T") | st.just(-1),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(rank(0))), _JSON, max_size=6), _JSON)
def test_any_field_may_be_anything(fields: dict[str, Any], other: object) -> None:
    found = {"atlctl_stacks": 1, "memory": other, "seconds": other, "ranks": [rank(0) | fields, rank(1), other]}
    report = parse_report(json.dumps(found).encode("utf-8", "replace"))
    assert report is not None
    diagnose({"worker-0": report}, whole=True)


@given(st.dictionaries(st.sampled_from(["source", "threads", "text", "json"]), _JSON))
def test_any_stack_may_be_anything(found: dict[str, Any]) -> None:
    for source in ("py-spy", "torch"):
        data = {"atlctl_stacks": 1, "ranks": [rank(0, stack={"source": source} | found, recorder=found)]}
        assert parse_report(json.dumps(data).encode()) is not None


def test_two_looks() -> None:
    before = job({3: rank(3, "busy"), 4: rank(4, pid=77), 6: None, 5: rank(5, stack=stack(*COLLECTIVE))})
    after = job({3: rank(3, "busy"), 7: None, 5: rank(5, stack=stack(["main", "/job/train.py", 3]))})
    how = {change.rank: change.how for change in changes(before, after)}
    assert {number: how[number] for number in (0, 3, 4, 5, 6, 7)} == {
        0: "still",
        3: "ran",
        4: "new",
        5: "moved",
        6: "new",
        7: "gone",
    }


def test_a_collective_that_goes_on_counts_as_moved() -> None:
    def look(number: int) -> Any:
        return job({}, stack=stack(*COLLECTIVE), recorder=recorder(number, pending=True))

    assert {change.how for change in changes(look(6), look(7))} == {"moved"}
    assert {change.how for change in changes(look(6), look(6))} == {"still"}
