"""Facts from one log: whole logs line by line, reports on collectives of torch 1.8 to 2.13, identities."""

from __future__ import annotations

import pytest

from atlctl.diagnosis import logfacts
from atlctl.diagnosis.logfacts import (
    COLLECTIVE_LITERALS,
    IDENTITY_LITERALS,
    CollectiveLine,
    Identity,
    LogFacts,
    LogReader,
    Says,
    literals_of,
    read_address,
    read_collectives,
    read_identity,
)
from atlctl.diagnosis.logline import split_origin
from atlctl.diagnosis.signatures import LineRole, Matcher
from atlctl.diagnosis.torchelastic import NoteKind
from tests.unit.diagnosis.samples import STACK, block, entry, matcher, parse

OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


def test_an_empty_log():
    facts = parse([])
    assert facts == LogFacts()


def test_the_last_line_is_always_kept():
    lines = [*(f"loss {n}" for n in range(200)), "2026-11-20T17:45:05.5Z loading \x1b[31mshard\x1b[0m 7"]
    facts = parse(lines)
    assert (facts.last_line, facts.last_text) == (201, "loading shard 7")
    assert facts.last is not None
    assert facts.last.absolute
    assert (facts.hits, facts.traces, facts.notes) == ([], [], [])


def test_a_stamp_that_comes_beside_the_line():
    told = LogReader(matcher())
    stamp = parse(["2026-11-20T17:45:05.5Z x"]).last
    told.feed(1, b"Sending process 15 closing signal SIGTERM", stamp)
    assert told.facts().moments[1] == stamp
    assert told.facts().last == stamp


def test_facts_are_those_of_the_last_attempt():
    first = ["step 1", OUT, *block(entry(text=STACK))]
    begun = [*first, "2026-11-20T17:45:05.5Z atlctl: attempt 2: python train.py", "step 1"]
    facts = parse(begun)
    assert (facts.attempt, facts.ended, facts.hits, facts.summaries, facts.said) == (2, None, [], [], False)
    facts = parse([*begun, "ValueError: x", OUT, "atlctl: attempt 2 ended: exit code 1"])
    assert (facts.attempt, facts.ended, [hit.line_no for hit in facts.hits]) == (2, 1, [len(begun) + 1, len(begun) + 2])
    assert parse([*begun, "atlctl: attempt 2 ended: signal 9"]).ended == -9
    quoted = parse([*first, "atlctl: attempt 2 ended badly", "atlctl: attempts 3: x", "[rank0]: atlctl: attempt 2: x"])
    assert (quoted.attempt, len(quoted.summaries)) == (0, 1)


def test_it_asks_for_the_lines_it_needs():
    found = LogReader(matcher())
    for number in range(1, 60):
        assert not found.feed(number, b"loss 0.5")
    wanted = [found.feed(60 + number, line.encode()) for number, line in enumerate(block(entry(text=STACK)))]
    assert all(wanted[:-1])
    assert found.feed(100, b"[rank3]: Traceback (most recent call last):")
    assert found.feed(101, b"")


def test_signs_that_the_program_goes_on():
    before = [f"loss {n}" for n in range(50)]
    for line in (
        "2026-11-20 17:45:05,123 INFO train: saved",
        " 30%|###  | 3/10 [00:01<00:02, 3it/s]",
        "step 12 loss 2",
        "Epoch: 3 done",
        "iteration     300/ 1000 | loss 2",
    ):
        assert parse([*before, line, "loss x"]).last_activity == 51, line
    assert parse([*before, "n1:10:20 [1] NCCL INFO Channel 0", "waiting"]).last_activity == 0


def test_notes_traces_and_hits_of_one_failure():
    lines = [
        "2026-11-20T17:45:04.5Z step 3/9",
        "2026-11-20T17:45:05.1Z [rank1]: Traceback (most recent call last):",
        '2026-11-20T17:45:05.1Z [rank1]:   File "/jobs/train.py", line 3, in main',
        f"2026-11-20T17:45:05.1Z [rank1]: {OUT}",
        "2026-11-20T17:45:05.2Z E1120 17:45:05.200000 1 x.py:1] failed (exitcode: 1) local_rank: 1 (pid: 14) of binary",
        f"2026-11-20T17:45:05.3Z {XID}",
        *(f"2026-11-20T17:45:05.3Z {line}" for line in block(entry(rank=1, local=1))),
    ]
    facts = parse(lines)
    assert [item.last.message for item in facts.traces if not item.agent][:1] == [OUT]
    assert [item.kind for item in facts.notes] == [NoteKind.FAILED]
    assert [item.line_no for item in facts.hits] == [6]
    assert facts.hits[0].match.signature.hardware
    assert [item.entries[0].rank for item in facts.summaries] == [1]
    assert facts.moments[5].absolute
    assert facts.first is not None
    assert facts.last is not None
    assert facts.last.seconds - facts.first.seconds == pytest.approx(0.8)


def test_noise_is_no_hit():
    noise = [item for item in matcher()._signatures if item.role is LineRole.NOISE]
    assert noise
    line = (
        "[W1120 17:44:40.665371319 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    )
    assert parse([line]).hits == []


def test_torchelastics_events_by_rank():
    event = '{"name": "torchelastic.worker.status.FAILED", "metadata": {"global_rank": 3, "x": 1}}'
    assert parse(["x", event]).events == {3: 2}
    assert (
        parse([event.replace("3,", '"x",'), event.replace("3,", "null,"), event.replace('"global_rank": ', "")]).events
        == {}
    )


def test_the_zone_of_a_log_with_both_times():
    assert parse(["2026-11-20T17:45:05.5Z 2026-11-21 01:45:05,499 INFO x"]).zone == 8 * 3600
    assert parse(["2026-11-20T17:45:05.5Z INFO x", "2026-11-20 17:45:05,499 INFO x"]).zone is None


def test_marks_are_of_lines_in_step():
    facts = parse([f"2026-11-20T17:45:0{n}.5Z [rank0]: step {n}/9 loss {n}" for n in range(5)])
    assert list(facts.marks) == [f"step {n}/9" for n in range(5)]
    again = parse(["2026-11-20T17:45:01.5Z step 1/9", "2026-11-20T17:45:09.5Z step 1/9"])
    assert again.marks["step 1/9"] == parse(["2026-11-20T17:45:01.5Z step 1/9"]).marks["step 1/9"]


def test_a_carriage_return_and_colours():
    facts = parse([" 10%|#\r 20%|##\r\x1b[31mSending process 15 closing signal SIGTERM\x1b[0m\r"])
    assert [item.pid for item in facts.notes] == [15]


def test_bounds_hold():
    counters = "[Rank 1] last enqueued work: 3, last completed work: 2"
    many = max(logfacts.MAX_COLLECTIVES, logfacts.MAX_IDENTITIES, logfacts.MAX_NOTES) + 20
    found = LogReader(matcher())
    for number in range(1, many):
        for line in (
            counters,
            "rank=1 local_rank=1",
            "Sending process 1 closing signal SIGTERM",
            f"Bootstrap : Using e:10.0.{number % 250}.{number % 199}<0>",
            f"2026-11-20 17:45:05,123 INFO step {number}",
        ):
            found.feed(number, line.encode())
    facts = found.facts()
    assert len(facts.collectives) == logfacts.MAX_COLLECTIVES
    assert len(facts.identities) == logfacts.MAX_IDENTITIES
    assert len(facts.notes) == logfacts.MAX_NOTES
    assert len(facts.addresses) == logfacts.MAX_ADDRESSES
    assert len(facts.marks) == logfacts.MAX_MARKS


def test_hits_keep_the_first_and_the_last():
    total = logfacts.MAX_FIRST_HITS + logfacts.MAX_LAST_HITS + 100
    kept = [item.line_no for item in parse([XID] * total).hits]
    assert len(kept) == logfacts.MAX_FIRST_HITS + logfacts.MAX_LAST_HITS
    assert kept[: logfacts.MAX_FIRST_HITS] == list(range(1, logfacts.MAX_FIRST_HITS + 1))
    assert kept[-1] == total


def test_texts_are_bounded():
    facts = parse([XID + "x" * 100_000, "Watchdog caught collective " + "x" * 100_000, "y" * 100_000])
    texts = [*(item.text for item in facts.hits), *(item.text for item in facts.collectives)]
    assert max(map(len, texts)) <= 1_000
    assert len(facts.last_text) <= 1_000


@pytest.mark.parametrize(
    "line",
    [
        "failed (exitcode: 1) local_rank: 1 (pid: 14) of binary",
        "Sending process 15 closing signal SIGTERM",
        "Unable to shutdown process 12 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
        "Received 15 death signal, shutting down workers",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 2",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "[default] Worker group FAILED. 2/3 attempts left; will restart worker group",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "Traceback (most recent call last):",
        "╭─────── Traceback (most recent call last) ────────╮",
        '{"message": "failed", "exc_info": "Traceback (most recent call last):\\nKeyError: 1"}',
        "Exception in thread Thread-3 (fill):",
        "Exception ignored in: <function Pool.__del__ at 0x7f>",
        '{"name": "torchelastic.worker.status.FAILED", "metadata": {"global_rank": 3}}',
    ],
)
def test_each_line_that_is_read_holds_a_literal_of_the_readers_own(line):
    assert any(literal in line.encode() for literal in literals_of(Matcher([])))


def test_literals_serve_the_scanner():
    found = literals_of(matcher())
    assert all(literal.isascii() and b"\n" not in literal for literal in found)
    assert found is literals_of(matcher())


STAMP = "1120 17:45:05.123456789"
CAUGHT = "Watchdog caught collective operation timeout: "
RAN = "ran for 600029 milliseconds before timing out."


def read(line: str) -> list[CollectiveLine]:
    origin, text = split_origin(line)
    return read_collectives(text, origin.rank, 7, None)


def one(line: str) -> CollectiveLine:
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
    assert found.enqueued == 99


def test_a_rank_that_completed_nothing():
    found = one(COUNTERS[3].replace("99", "-1").replace("work: 94", "work: -1"))
    assert found.enqueued == -1


def group_of(words: str) -> str:
    return one(f"[rank5]:[E{STAMP} ProcessGroupNCCL.cpp:1] [PG {words} Rank 1] {CAUGHT}WorkNCCL(SeqNum=1)").group


def test_a_subgroup_is_told_by_what_all_its_members_share():
    """PG ID counts the groups of one process; the GUID identifies the group. Several groups may share a description."""
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
    """The counters of one rank in the order of a real log."""
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
    assert any(literal in line.encode() for literal in COLLECTIVE_LITERALS)


def test_hostile_numbers_are_no_error():
    for number in ("9" * 30, "-", "٣", "1e9", ""):
        read(f"[Rank {number}] {CAUGHT}WorkNCCL(SeqNum={number}, OpType={number})")
        read(f"last enqueued work: {number}, last completed work: {number}")
        read(f"Ranks {number}, {number} failed to pass monitoredBarrier")
        read(f"Ranks , {number} , failed to pass monitoredBarrier")


@pytest.mark.parametrize(
    ("line", "rank", "local", "world", "pid"),
    [
        ("2026-11-20 21:38:56,243 INFO train: rank=3 world=4 local_rank=1 host=worker-1 pid=13", 3, 1, 4, 13),
        ("2026-11-20 21:38:56,243 INFO train: rank 0 of 3: local rank 0 on worker-0", 0, 0, 3, None),
        ("Rank: 3, World size: 8, Local rank: 1", 3, 1, 8, None),
        ("local_rank: 1, global_rank: 3, world_size: 8", 3, 1, 8, None),
        ("RANK=3 LOCAL_RANK=1 WORLD_SIZE=8", 3, 1, 8, None),
        ("| distributed init (rank 3, local rank 1): env://", 3, 1, None, None),
        ("n1:10:20 [1] NCCL INFO comm 0x55 rank 3 nranks 8 cudaDev 1 busId 3b000 - Init COMPLETE", 3, 1, None, None),
        (
            "n1:10:20 [1] NCCL INFO ncclCommInitRank comm 0x55 rank 3 nranks 8 cudaDev 1 nvmlDev 1",
            3, 1, None, None,
        ),
    ],
)  # fmt: skip
def test_a_process_that_says_who_it_is(line, rank, local, world, pid):
    assert read_identity(line, 7) == [Identity(7, rank, local, world, pid)]


def test_the_agents_table_of_ranks():
    assert read_identity("  global_ranks=[2, 3]", 7) == [Identity(7, 2, 0, None), Identity(7, 3, 1, None)]
    assert read_identity("  global_ranks=[0]", 7) == [Identity(7, 0, 0, None)]
    assert read_identity("  global_world_sizes=[4, 4]", 7) == [Identity(7, None, None, 4)]


@pytest.mark.parametrize(
    "line",
    [
        "", "rank 3", "local_rank=1", "  rank      : 2 (local_rank: 0)", "  role_ranks=[2, 3]", "rank 3.5 local_rank 1",
        "failed (exitcode: 1) local_rank: 0 (pid: 14) of binary: python", "parser.add_argument('--local_rank', rank=0)",
        "myrank=3 xlocal_rank=1", "global_ranks=[]", "NCCL INFO comm 0x55 rank x nranks 8 cudaDev 1",
    ],
)  # fmt: skip
def test_lines_that_say_nothing_of_both_ranks(line):
    assert read_identity(line, 1) == []


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("n1:10:20 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.5<0>", "10.0.0.5"),
        ("n1:10:20 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.5<0>", "10.0.0.5"),
        ("n1:10:20 [0] NCCL INFO Bootstrap : Using ib0:fd00::1<0>", "fd00::1"),
        ("SO_ERROR: Connection refused, remote=[10.0.0.9]:21847, local=[10.0.0.5]:44", "10.0.0.5"),
        ("remote=[10.0.0.9]:21847", None),
        ("Connection closed by peer [10.0.0.9]:4242", None),
        ("NET/Socket : Using [0]eth0:10.0.0.5<0>", None),
        ("", None),
    ],
)
def test_the_workers_own_address(line, address):
    assert read_address(line) == address


@pytest.mark.parametrize(
    "line",
    [
        "rank=3 world=4 local_rank=1", "rank 0 of 3: local rank 0", "RANK=3 LOCAL_RANK=1", "global_ranks=[2, 3]",
        "NCCL INFO comm 0x55 rank 3 nranks 8 cudaDev 1", "NCCL INFO Bootstrap : Using eth0:10.0.0.5<0>",
        "Rank: 3, Local rank: 1", "remote=[a], local=[10.0.0.5]:44", "Local Rank 1, Rank 3",
    ],
)  # fmt: skip
def test_each_such_line_holds_a_literal(line):
    assert read_identity(line, 1) or read_address(line)
    assert any(literal in line.encode() for literal in IDENTITY_LITERALS)
