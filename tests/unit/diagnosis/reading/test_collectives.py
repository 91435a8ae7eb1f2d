"""What ranks say about collectives, line by line, in the formats of torch 1.8 to 2.13."""

import pytest

from atlctl.diagnosis.origin import split_origin
from atlctl.diagnosis.reading import collectives
from atlctl.diagnosis.reading.collectives import Collective, Says, read_collectives
from tests.unit.diagnosis.samples import parse

STAMP = "1120 17:45:05.123456789"
CAUGHT = "Watchdog caught collective operation timeout: "
RAN = "ran for 600029 milliseconds before timing out."


def read(line: str) -> list[Collective]:
    origin, text = split_origin(line)
    return read_collectives(text, origin.rank, 7, None)


def one(line: str) -> Collective:
    (found,) = read(line)
    return found


NUMEL = "SeqNum=95, OpType=ALLREDUCE, NumelIn=16, NumelOut=64"
DIED = "[PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: "


@pytest.mark.parametrize(
    ("before", "work", "seq", "sizes"),
    [
        ("[E ProcessGroupNCCL.cpp:566] ", "OpType=ALLREDUCE", None, ""),
        ("[E ProcessGroupNCCL.cpp:828] ", "SeqNum=95, OpType=ALLREDUCE", 95, ""),
        ("[E ProcessGroupNCCL.cpp:475] ", NUMEL, 95, "16"),
        (f"[rank3]:[E{STAMP} ProcessGroupNCCL.cpp:607] ", NUMEL, 95, "16"),
        (f"  what():  {DIED}", NUMEL, 95, "16"),
    ],
)
def test_a_timeout_of_every_release(before, work, seq, sizes):
    found = one(f"{before}[Rank 3] {CAUGHT}WorkNCCL({work}, Timeout(ms)=600000) {RAN}")
    assert (found.says, found.rank, found.group, found.line_no) == (Says.TIMEOUT, 3, "", 7)
    assert (found.seq, found.operation, found.sizes) == (seq, "ALLREDUCE", sizes)


BY_WATCHDOG = "Exception (either an error or timeout) detected by watchdog at work: 95, "
NCCL_WORK = "last enqueued NCCL work: 99, last completed NCCL work: 94."
DUMP = "and we will try our best to dump the debug info. L" + NCCL_WORK[1:]
NO_NCCL = "sequence id: 95 PG status: last enqueued work: 99, last completed work: 94"
TIMED_OUT = "Received a dump signal due to a collective timeout from "
COUNTERS = [
    f"[rank3]:[E{STAMP} ProcessGroupNCCL.cpp:{rest}"
    for rest in (
        f"1537] [PG 0 Rank 3] Timeout at NCCL work: 95, {NCCL_WORK}",
        f"1664] [PG 0 (default_pg) Rank 3] {BY_WATCHDOG}{NCCL_WORK}",
        f"1785] [PG ID 0 PG GUID 0(default_pg) Rank 3] {BY_WATCHDOG}{NCCL_WORK}",
        f"2268] [PG ID 0 PG GUID 0(default_pg) Rank 3]  failure detected by watchdog at work {NO_NCCL}",
        f"1890] [PG ID 0 PG GUID 0 Rank 3] {TIMED_OUT} rank 1 {DUMP}This is most likely caused by incorrect usages",
        f"2057] [PG ID 0 PG GUID 0 Rank 3] {TIMED_OUT}this local rank {DUMP}",
    )
]


@pytest.mark.parametrize("line", COUNTERS)
def test_counters_of_the_default_group(line):
    found = one(line)
    assert (found.says, found.rank, found.group) == (Says.COUNTERS, 3, "")
    assert (found.enqueued, found.completed) == (99, 94)


def test_a_rank_that_completed_nothing():
    found = one(COUNTERS[3].replace("99", "-1").replace("work: 94", "work: -1"))
    assert (found.enqueued, found.completed) == (-1, -1)


def group_of(words: str) -> str:
    return one(f"[rank5]:[E{STAMP} ProcessGroupNCCL.cpp:1] [PG {words} Rank 1] {CAUGHT}WorkNCCL(SeqNum=1)").group


def test_a_subgroup_is_told_by_what_all_its_members_share():
    """PG ID counts the groups that one process is in; the GUID is the group's own. A description is many groups'."""
    assert group_of("ID 3 PG GUID 7(tp)") == group_of("ID 1 PG GUID 7(tp)") != ""
    assert group_of("ID 1 PG GUID 7(tp)") != group_of("ID 1 PG GUID 8(tp)")
    assert group_of("ID 1 PG GUID 7") == group_of("ID 2 PG GUID 7") != ""
    assert group_of("7 (tp)") != group_of("8 (tp)")
    assert group_of("7") not in ("", group_of("8"))


@pytest.mark.parametrize("words", ["0", "0 (default_pg)", "ID 0 PG GUID 0(default_pg)", "ID 0 PG GUID 0"])
def test_the_default_group_has_no_name(words):
    assert group_of(words) == ""


def test_the_prefix_is_the_global_rank_and_the_brackets_may_be_a_subgroups():
    words = "[PG ID 1 PG GUID 7(tp) Rank 1]"
    assert one(f"[rank5]:[E{STAMP} ProcessGroupNCCL.cpp:1] {words} {CAUGHT}WorkNCCL(SeqNum=1)").rank == 5


def test_a_summary_of_the_ranks_log_has_both():
    """Counters of one rank in a real log's order."""
    facts = parse([COUNTERS[3], COUNTERS[3].replace("rank3", "rank4").replace("Rank 3", "Rank 4"), "step 3"])
    assert [(item.rank, item.line_no) for item in facts.collectives] == [(3, 1), (4, 2)]


@pytest.mark.parametrize(
    "line",
    [
        "[E ProcessGroupNCCL.cpp:916] [Rank 3] NCCL watchdog thread terminated with exception: CUDA error: ECC",
        f"[rank3]:[E{STAMP} ProcessGroupNCCL.cpp:1] {DIED}CUDA error: device-side assert triggered",
        f"[rank3]:[E{STAMP} ProcessGroupNCCL.cpp:1] [Rank 3] NCCL work raised the following async exception: x",
    ],
)
def test_a_watchdog_that_died_of_something_else(line):
    found = one(line)
    assert (found.says, found.rank) == (Says.DIED, 3)


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("RuntimeError: [Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 30000 ms", (4, 5, 6, 7)),
        ("[E ProcessGroupGloo.cpp:138] [Rank 0]: Ranks 12 failed to pass monitoredBarrier in 1 ms", (12,)),
        ("[rank0]: RuntimeError: Rank 1 failed to pass monitoredBarrier in 30000 ms", (1,)),
        ("\t - [1, 3] finished collective #2, but didn't join collective #3 (count from 1)", (1, 3)),
        ("  - [1] joined but didn't join collective #3", (1,)),
    ],
)
def test_reports_that_name_others(line, ranks):
    found = one(line)
    assert (found.says, found.ranks) == (Says.NAMES, ranks)


def test_a_peer_of_a_barrier_names_nobody():
    line = "Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
    assert not any(found.ranks for found in read(line))


def test_the_fingerprints_of_both_sides():
    shape = "TensorShape=[4], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu)"
    first, second = read(
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        f"CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, {shape}), but Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=4, OpType=BARRIER). Collectives differ in the following aspects: Op type"
    )
    assert first.says is Says.RUNS
    assert (first.rank, first.seq, first.operation) == (0, 3, "ALLREDUCE")
    assert first.sizes.startswith("TensorShape=[4]")
    assert (second.rank, second.seq, second.operation, second.sizes) == (1, 4, "BARRIER", "")


def test_fingerprints_before_torch_2_have_no_number():
    first, *_ = read(
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running inconsistent collective: "
        "CollectiveFingerPrint(OpType=ALLREDUCE, TensorShape=[1], TensorDtypes=Float, TensorDeviceTypes=cpu)"
    )
    assert (first.rank, first.seq, first.operation) == (2, None, "ALLREDUCE")


@pytest.mark.parametrize(
    "line",
    [
        "", "step 3", "[I ProcessGroupNCCL.cpp:844] [Rank 0] NCCL watchdog thread terminated normally",
        "last enqueued work: x, last completed work: y", "Ranks failed to pass monitoredBarrier",
        "[] finished collective #2, but didn't join collective #3", "Detected mismatch between collectives on ranks.",
    ],
)  # fmt: skip
def test_lines_that_state_nothing(line):
    assert read(line) == []


@pytest.mark.parametrize("line", [*COUNTERS, f"[Rank 3] {CAUGHT}WorkNCCL()"])
def test_each_statement_holds_a_literal(line):
    assert any(literal in line.encode() for literal in collectives.LITERALS)


def test_hostile_numbers_are_no_error():
    for number in ("9" * 30, "-", "٣", "1e9", ""):
        read(f"[Rank {number}] {CAUGHT}WorkNCCL(SeqNum={number}, OpType={number})")
        read(f"last enqueued work: {number}, last completed work: {number}")
        read(f"Ranks {number}, {number} failed to pass monitoredBarrier")
        read(f"Ranks , {number} , failed to pass monitoredBarrier")
