"""What stands around the root cause."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.cause.story import MAX_GROUPS
from atlctl.diagnosis.result import Verdict

from .logs import MESH, OWN, STORE, Log, closed_by, diagnosed, proofs, unread, victim

DIFFERENT = [
    *("KeyError", "TypeError", "IndexError", "OSError", "EOFError", "ImportError", "NameError", "LookupError"),
    *("BufferError", "MemoryError", "AttributeError", "RecursionError", "ZeroDivisionError", "OverflowError"),
    "NotImplementedError",
]


def culprit_and_victims() -> list[Log]:
    bad = Log(1).start().trace(1.0, 1, OWN).trace(1.05, 0, closed_by(1)).ended(1.4, 1, closed=(0,))
    return [victim(0, of=1), bad]


def test_evidence_points_at_the_right_lines() -> None:
    logs = culprit_and_victims()
    found = diagnosed(*logs)
    shown = proofs(found)
    assert len(shown) >= 4
    for proof in shown:
        log = logs[int(proof.worker[-1])]
        assert proof.line_no is not None
        assert proof.text in log.lines[proof.line_no - 1]
    first = found.root_causes[0].proofs[0]
    assert (first.worker, first.text) == ("worker-1", OWN)


def test_evidence_of_every_sort_of_answer_points_at_its_line() -> None:
    jobs = [
        [victim(0, of=1), Log(1).start()],
        [Log(index).start().signalled(1) for index in (0, 1)],
        [Log(0).agent_died(3, STORE), Log(1).start()],
        [Log(index).start().watchdog(600, 0).watchdog(600, 1).failed(601, 0, -6) for index in (0, 1)],
        [Log(0).trace(1, 0, OWN, prefix=False)],
    ]
    for logs in jobs:
        for proof in proofs(diagnosed(*logs)):
            assert proof.line_no is not None
            line = logs[int(proof.worker[-1])].lines[proof.line_no - 1]
            assert proof.text in line or proof.text.startswith("exitcode: ")


def test_the_cascade_is_folded_by_kind() -> None:
    (group,) = diagnosed(*culprit_and_victims()).cascade
    assert (group.count, group.ranks) == (3, (0, 1, 2))
    assert set(group.workers) == {"worker-0", "worker-1"}
    assert group.first is not None
    assert group.first.seconds == pytest.approx(1795196701.05, abs=0.01)


def test_the_cascade_has_at_most_ten_groups() -> None:
    """Fifteen sorts of later failures beside a culprit that was first by far."""
    world = 2 * (len(DIFFERENT) + 1)
    first = Log(0, world=world).start().trace(1, 0, OWN).trace(1.1, 1, closed_by(0)).ended(1.3, 0, closed=(1,))
    others = [
        Log(index, world=world).start().trace(30 + index, 0, f"{name}: x").trace(30 + index, 1, closed_by(0))
        .ended(31 + index, 0, closed=(1,))
        for index, name in enumerate(DIFFERENT, 1)
    ]  # fmt: skip
    found = diagnosed(first, *others)
    assert found.root_causes[0].worker == "worker-0"
    assert len(found.cascade) == MAX_GROUPS + 1 == 10
    assert found.cascade[-1].reason == "other failures"
    assert sum(group.count for group in found.cascade) == world - 1
    times = [group.first.seconds for group in found.cascade[:-1] if group.first]
    assert times == sorted(times)


def test_no_culprit_stands_in_the_cascade() -> None:
    found = diagnosed(*culprit_and_victims())
    assert all(3 not in group.ranks for group in found.cascade)


def test_a_line_for_every_worker() -> None:
    logs = culprit_and_victims()
    found = diagnosed(*logs, Log(2, world=8).start(), unread(3), Log(4, world=8).agent_died(3, STORE))
    assert [(item.worker, item.part) for item in found.workers] == [
        ("worker-0", "victim"), ("worker-1", "initiator"), ("worker-2", "silent"), ("worker-3", "no log"),
        ("worker-4", "agent"),
    ]  # fmt: skip
    bad = found.workers[1]
    assert (bad.said, bad.processes, bad.failed, bad.rounds) == (OWN, 2, 2, 1)
    assert found.workers[2].said.endswith("step 2/300 loss 1.5")


def test_remarks_say_what_was_missing_or_odd() -> None:
    logs = culprit_and_victims()
    assert diagnosed(*logs).remarks == ()
    found = diagnosed(*logs, unread(2), expected=4, missing=("worker-3",))
    assert found.remarks == ("no log of 1 worker: worker-2", "never seen: worker-3")


def test_earlier_failures_stand_beside_a_later_round() -> None:
    log = Log(0, world=2).start().trace(1, 0, OWN).closing(1.1, 1).failed(1.2, 0).restarted()
    log.start(5).trace(9, 0, MESH).trace(9, 1, MESH).ended(9.3, 0, closed=(1,))
    found = diagnosed(log)
    assert found.verdict is not Verdict.NONE
    assert OWN in {cause.message for cause in (*found.root_causes, *found.earlier)}
