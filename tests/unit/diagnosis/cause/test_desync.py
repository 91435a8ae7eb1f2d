"""Ranks' reports about each other's progress."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.result import Verdict

from .logs import SITE, WAITED, Log, candidates, closed_by, culprit, diagnosed, victim


def stuck(index: int, *, slow: tuple[int, ...] = (), dumped: tuple[int, ...] = (), **options: object) -> Log:
    """A worker in an endless collective. `slow` ranks are two behind, `dumped` ranks logged their counters."""
    log = Log(index, **options).start()  # type: ignore[arg-type]
    for local, rank in enumerate(log.ranks):
        if rank in slow or rank in dumped:
            log.counters(600, local, enqueued=80 if rank in slow else 82)
        else:
            log.watchdog(600, local)
    return log


def aborted(log: Log) -> Log:
    """All its processes abort."""
    return log.failed(601.2, 0, -6).summary(601.3, (0, -6, ""), (1, -6, ""))


def test_the_lowest_counter_is_the_one_that_hangs() -> None:
    slow = stuck(1, slow=(3,)).closing(601, 1).failed(601.2, 0, -6).summary(601.3, (0, -6, ""), (1, -15, ""))
    found = diagnosed(aborted(stuck(0)), slow)
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    (cause,) = found.root_causes
    assert (cause.rank, cause.category) == (3, "hang")
    assert cause.why == "last enqueued collective 80; 3 other ranks had enqueued up to 82"
    assert "Last enqueued NCCL work: 80" in cause.proofs[0].text
    assert found.cascade[0].ranks == (0, 1, 2)


def test_ranks_that_a_dump_signal_ended_waited_too() -> None:
    """One watchdog can end all ranks: a rank that only dumped its counters is not a culprit."""
    found = diagnosed(aborted(stuck(0, dumped=(1,))), aborted(stuck(1, slow=(3,), dumped=(2,))))
    assert culprit(found)[:3] == ("rank", "worker-1", 1)
    assert found.root_causes[0].category == "hang"


def test_two_ranks_behind_on_two_workers() -> None:
    logs = [stuck(index, slow=(1, 5), world=8) for index in range(4)]
    found = diagnosed(*(log.closing(601, 1).failed(601.2, 0, -6).summary(601.3, (0, -6, "")) for log in logs))
    assert found.verdict is Verdict.RANKS
    assert [cause.rank for cause in found.root_causes] == [1, 5]


def test_a_whole_worker_behind_is_the_worker() -> None:
    logs = [stuck(index, slow=(2, 3), world=8) for index in range(4)]
    made = [
        log.closing(601, 0, 1).agent_died(602, "RuntimeError: gone") if log.index == 1 else aborted(log) for log in logs
    ]
    assert culprit(diagnosed(*made))[:3] == ("worker", "worker-1", None)


def test_equal_counters_everywhere_are_undecided() -> None:
    found = diagnosed(aborted(stuck(0)), aborted(stuck(1)))
    assert found.verdict is Verdict.UNDECIDED
    assert len(found.candidates) == 4


def test_no_majority_is_undecided() -> None:
    """Half of the ranks are behind the other half: either half may be wrong."""
    found = diagnosed(aborted(stuck(0)), aborted(stuck(1, slow=(2, 3))))
    assert found.verdict is not Verdict.RANK


@pytest.mark.parametrize(("odd", "worker", "local"), [((2,), "worker-1", 0), ((1,), "worker-0", 1)])
def test_an_odd_operation(odd: tuple[int, ...], worker: str, local: int) -> None:
    logs = []
    for index in (0, 1):
        log = Log(index).start()
        for place, rank in enumerate(log.ranks):
            log.watchdog(600, place, operation="_ALLGATHER_BASE" if rank in odd else "ALLREDUCE")
        logs.append(aborted(log))
    found = diagnosed(*logs)
    assert culprit(found) == ("rank", worker, local, "likely")
    assert found.root_causes[0].category == "collective_mismatch"


def test_two_sides_in_two_operations_are_undecided() -> None:
    logs = []
    for index in (0, 1):
        log = Log(index).start()
        for place in (0, 1):
            log.watchdog(600, place, elements=8 + index)
        logs.append(aborted(log))
    assert diagnosed(*logs).verdict is Verdict.UNDECIDED


REACHED = (
    "RuntimeError: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
    "from rank 0. Please check rank 0 logs for faulty rank."
)


@pytest.mark.parametrize(("named", "ranks"), [("Ranks 3", [3]), ("Ranks 1, 3", [1, 3])])
def test_a_monitored_barrier_names_who_is_missing(named: str, ranks: list[int]) -> None:
    first = Log(0).start().trace(6, 0, f"RuntimeError: [Rank 0]: {named} failed to pass monitoredBarrier in 5000 ms")
    second = Log(1).start().trace(6, 0, REACHED.format(rank=2)).ended(6.3, 0, closed=(1,))
    if 1 not in ranks:
        first.trace(6, 1, REACHED.format(rank=1))
    found = diagnosed(first.ended(6.3, 0, closed=(1,)), second)
    assert [(cause.rank, cause.category, str(cause.confidence)) for cause in found.root_causes] == [
        (rank, "hang", "certain") for rank in ranks
    ]
    assert found.root_causes[0].proofs[0].worker == "worker-0"


def mismatch(rank: int, other: int, odd: int) -> str:
    def printed(who: int) -> str:
        operation = "BROADCAST" if who == odd else "ALLREDUCE"
        return f"CollectiveFingerPrint(SequenceNumber=4, OpType={operation}, TensorShape=[8], TensorDtypes=Float)"

    return (
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: "
        f"{printed(rank)}, but Rank {other} is running collective: {printed(other)}."
    )


def test_fingerprints_vote() -> None:
    """All ranks raise; three of them ran the same collective."""
    logs = []
    for index in (0, 1):
        log = Log(index).start()
        for place, rank in enumerate(log.ranks):
            log.trace(1, place, mismatch(rank, 2 if rank != 2 else 0, odd=2))
        logs.append(log.ended(1.3, 0, closed=(1,)))
    found = diagnosed(*logs)
    assert culprit(found) == ("rank", "worker-1", 0, "certain")
    assert (found.root_causes[0].rank, found.root_causes[0].category) == (2, "collective_mismatch")


def test_fingerprints_without_a_majority() -> None:
    logs = [
        Log(index, processes=1, world=2).start().trace(1, 0, mismatch(index, 1 - index, odd=1)).ended(1.3, 0)
        for index in (0, 1)
    ]
    found = diagnosed(*logs)
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-0", 0), ("worker-1", 0)]
    assert {cause.why for cause in found.candidates} == {"two sides, no majority"}


def test_an_own_exception_beats_the_counters() -> None:
    log = Log(1).start().trace(1, 1, "KeyError: 'lr'").trace(1.1, 0, closed_by(1)).counters(1.2, 0, enqueued=80)
    assert culprit(diagnosed(victim(0, of=1), log.ended(1.4, 1, closed=(0,))))[:3] == ("rank", "worker-1", 1)


def test_a_named_rank_that_left_no_log() -> None:
    """If its worker is unknown, only the rank is reported."""
    first = (
        Log(0, world=8)
        .start()
        .trace(6, 0, "RuntimeError: [Rank 0]: Ranks 7 failed to pass monitoredBarrier in 5000 ms")
    )
    first.trace(6, 1, REACHED.format(rank=1)).ended(6.3, 0, closed=(1,))
    (cause,) = diagnosed(first, missing=("worker-3",)).root_causes
    assert (cause.worker, cause.rank, cause.local_rank) == (None, 7, None)


def waiting_in(*operations: str, world: int = 4) -> list[Log]:
    """Two workers whose ranks waited until the timeout, each in the given function of torch.distributed; "": silent."""
    logs = []
    for index in (0, 1):
        log = Log(index, world=world).start()
        for place, rank in enumerate(log.ranks):
            if not operations[rank]:
                continue
            inner = f'  File "{SITE}/distributed_c10d.py", line 3252, in {operations[rank]}'
            rows = ["Traceback (most recent call last):", '  File "/job/train.py", line 20, in main', inner, WAITED]
            log.say(6 + place / 100, *(f"[rank{rank}]: {row}" for row in rows))
        logs.append(log.ended(6.3, 0, 1, WAITED, closed=(1,)))
    return logs


def test_an_odd_function_of_torch() -> None:
    found = diagnosed(*waiting_in("all_reduce", "all_reduce", "broadcast", "all_reduce"))
    assert culprit(found) == ("rank", "worker-1", 0, "likely")
    assert found.root_causes[0].why == "it waited in broadcast, 3 others in all_reduce"


@pytest.mark.parametrize("operations", [("send", "recv", "recv", "recv"), ("recv", *["all_reduce"] * 3)])
def test_point_to_point_is_no_other_collective(operations: tuple[str, ...]) -> None:
    """Pipeline stages wait in different functions: each waits for its neighbour."""
    found = diagnosed(*waiting_in(*operations))
    assert found.verdict is Verdict.UNDECIDED
    assert len(found.candidates) == 4


def test_an_odd_function_counts_only_where_nobody_is_quiet() -> None:
    """A rank that was killed without logs did not arrive; a rank in another function may be waiting for it."""
    found = diagnosed(*waiting_in("broadcast", "all_reduce", "all_reduce", ""))
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    assert (found.root_causes[0].rank, found.root_causes[0].category) == (3, "hang")


def test_an_odd_function_beside_a_rank_that_nobody_heard() -> None:
    found = diagnosed(*waiting_in("broadcast", "all_reduce", "all_reduce", "all_reduce", world=5))
    assert found.verdict is Verdict.UNDECIDED


def test_an_odd_operation_that_nccl_numbers_counts_beside_a_quiet_rank() -> None:
    """The sequence numbers show that it is the same place in the same group."""
    first = Log(0).start().watchdog(600, 0, operation="_ALLGATHER_BASE").watchdog(600, 1)
    second = Log(1).start().watchdog(600, 0).closing(601, 1).failed(601.2, 0, -6)
    found = diagnosed(aborted(first), second)
    assert culprit(found) == ("rank", "worker-0", 0, "likely")
    assert found.root_causes[0].category == "collective_mismatch"
