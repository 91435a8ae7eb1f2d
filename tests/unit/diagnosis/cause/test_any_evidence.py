"""Any evidence gives a consistent diagnosis, in bounded time."""

from __future__ import annotations

import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.diagnosis.result import Diagnosis, Verdict
from tests.support.pace import within

from .logs import (
    MESH,
    NCCL_REMOTE,
    NOBODY_CAME,
    OWN,
    STORE,
    WAITED,
    Log,
    closed_by,
    diagnosed,
    proofs,
    unread,
)

#: Parts of logs: each adds lines to a worker's log at a given time.
PIECES = (
    lambda log, at, local: log.start(at),
    lambda log, at, local: log.start(at, named=(local,)),
    lambda log, at, local: log.trace(at, local, OWN),
    lambda log, at, local: log.trace(at, local, OWN, prefix=False),
    lambda log, at, local: log.trace(at, local, closed_by(0)),
    lambda log, at, local: log.trace(at, local, closed_by(1), "TrainingError: x"),
    lambda log, at, local: log.trace(at, local, OWN, closed_by(1)),
    lambda log, at, local: log.trace(at, local, WAITED),
    lambda log, at, local: log.trace(at, local, MESH),
    lambda log, at, local: log.trace(at, local, NCCL_REMOTE),
    lambda log, at, local: log.trace(at, local, "RuntimeError: Ranks 0, 3 failed to pass monitoredBarrier in 5000 ms"),
    lambda log, at, local: log.watchdog(at, local),
    lambda log, at, local: log.watchdog(at, local, operation="BROADCAST", seq=80),
    lambda log, at, local: log.counters(at, local, enqueued=80),
    lambda log, at, local: log.closing(at, local),
    lambda log, at, local: log.closing(at, 0, 1),
    lambda log, at, local: log.forced(at, local),
    lambda log, at, local: log.failed(at, local),
    lambda log, at, local: log.failed(at, local, -9),
    lambda log, at, local: log.ended(at, local, closed=(1 - local,)),
    lambda log, at, local: log.ended(at, local, -11),
    lambda log, at, local: log.ended(at, local, 3, OWN),
    lambda log, at, local: log.signalled(at),
    lambda log, at, local: log.agent_died(at, NOBODY_CAME),
    lambda log, at, local: log.agent_died(at, STORE),
    lambda log, at, local: log.agent_died(at, OWN),
    lambda log, at, local: log.restarted(),
    lambda log, at, local: log.say(at, "RuntimeError: CUDA out of memory. Tried to allocate 5.25 GiB."),
    lambda log, at, local: log.say(at, "worker-1:6:6 [0] NCCL INFO Bootstrap : Using eth0:10.42.1.17<0>"),
    lambda log, at, local: log.say(at, "\x1b[31m\x00[rank99]: Traceback (most recent call last):", "[rank9999999]: x"),
    lambda log, at, local: log.say(at, "rank 9999999 of 3: local rank 9999", "rank 0 of 0: local rank 0"),
)
#: Maximum seconds for one diagnosis on a busy machine; usually it takes milliseconds.
PATIENCE = 5.0


def check(found: Diagnosis) -> None:
    """Check the properties of every diagnosis."""
    empty = found.verdict in (Verdict.NONE, Verdict.UNDECIDED)
    assert bool(found.root_causes) is not empty, found
    assert bool(found.candidates) is (found.verdict is Verdict.UNDECIDED), found
    if found.verdict is Verdict.RANK:
        (cause,) = found.root_causes
        assert cause.rank is not None or cause.local_rank is not None or cause.worker is not None
    if found.verdict is Verdict.RANKS:
        assert len(found.root_causes) > 1
    if found.verdict in (Verdict.WORKER, Verdict.JOB, Verdict.EXTERNAL):
        assert len(found.root_causes) == 1
    if found.verdict in (Verdict.JOB, Verdict.EXTERNAL):
        assert found.root_causes[0].worker is None
    assert len(found.cascade) <= 10
    for cause in (*found.root_causes, *found.candidates):
        assert cause.category
        assert cause.why


def job_of(numbers: random.Random) -> list[Log]:
    logs = []
    for index in range(numbers.randrange(1, 4)):
        log = Log(index, world=6, stamped=numbers.random() < 0.7, ahead=numbers.choice((0.0, 0.0, 4.0, -3600.0)))
        at = 0.0
        for _ in range(numbers.randrange(0, 9)):
            at += numbers.choice((0.0, 0.01, 0.5, 5.0, 40.0))
            numbers.choice(PIECES)(log, at, numbers.randrange(2))
        logs.append(log)
    return logs


def test_a_thousand_jobs_at_random() -> None:
    numbers = random.Random(20261120)
    seen = set()
    for _ in range(1_000):
        logs = job_of(numbers)
        start = time.monotonic()
        found = diagnosed(*logs)
        assert within(time.monotonic() - start, PATIENCE)
        check(found)
        seen.add(found.verdict)
        for proof in proofs(found):
            log = logs[int(proof.worker[-1])]
            assert proof.line_no is None or 1 <= proof.line_no <= len(log.lines)
    assert seen == set(Verdict)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_shuffled_and_cut_logs_get_an_answer(data: st.DataObject) -> None:
    """Realistic lines in any order, cut anywhere, and workers without logs."""
    logs = job_of(random.Random(data.draw(st.integers(0, 10_000))))
    for log in logs:
        if data.draw(st.booleans()):
            random.Random(data.draw(st.integers(0, 99))).shuffle(log.lines)
        log.lines = [line[: data.draw(st.sampled_from([3, 40, 90, 10_000]))] for line in log.lines[:60]]
    others = [unread(7)] * data.draw(st.integers(0, 1))
    missing = ("worker-8",) * data.draw(st.integers(0, 1))
    check(diagnosed(*logs, *others, missing=missing))


def test_many_workers_take_bounded_time() -> None:
    """512 workers with two ranks, one of which raised: the time must not be quadratic."""
    logs = [
        Log(index, world=1024).start().trace(1.1, 0, closed_by(7)).trace(1.1, 1, closed_by(7)) for index in range(512)
    ]
    logs[7] = Log(7, world=1024).start().trace(1, 1, OWN).trace(1.05, 0, closed_by(7))
    evidence = [
        log.ended(1.5, 0 if log.index != 7 else 1, closed=(1 if log.index != 7 else 0,)).evidence() for log in logs
    ]
    start = time.process_time()
    found = diagnosed(*evidence)
    assert within(time.process_time() - start, 20)
    check(found)
    assert (found.root_causes[0].worker, found.root_causes[0].local_rank) == ("worker-7", 1)
