from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.diagnosis import flightrecorder
from atlctl.diagnosis.flightrecorder import missing_ranks, parse_dump
from tests.unit.diagnosis.flights import FRAMES, document, dump, entry

HANGING = [entry(1), entry(2, "broadcast"), entry(3, state="started"), entry(4, state="scheduled")]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_read(protocol):
    found = dump(pickle.dumps(document(HANGING), protocol), 3)
    (group,) = found.groups
    assert (found.rank, found.whole) == (3, True)
    assert (group.name, group.description, group.ranks) == ("0", "default_pg", (0, 1, 2, 3))
    assert (group.last_enqueued, group.entered) == (4, 4)
    assert [(item.seq, item.operation) for item in group.done] == [(1, "all_reduce"), (2, "broadcast")]
    first, second = group.pending
    assert (first.state, second.state) == ("started", "scheduled")
    assert (first.seq, first.input_sizes) == (3, ((4, 8),))
    assert first.frame == 'File "/workspace/train.py", line 8, in step'
    assert first.created_ns == 1_795_289_768_000_000_003


def test_json_is_read_as_the_pickle_is():
    plain = document([{key: value for key, value in item.items() if key != "frames"} for item in HANGING])
    status = {key: str(value) for key, value in plain["pg_status"]["0"].items()}  # numbers are texts there
    data = json.dumps(plain | {"pg_status": {"0": status}}).encode()
    assert dump(data, 0) == dump(pickle.dumps(plain, 2), 0)
    assert dump(data, 0).groups[0].pending[0].frame is None


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("/tmp/nccl_trace_rank_3", 3),
        ("comm_lib_trace_rank_511", 511),
        ("dump_rank_7.json", 7),
        ("trace12.pkl", 12),
        ("trace", None),
        ("rank_3_old", None),
    ],
)
def test_the_rank_stands_at_the_end_of_the_name(name, rank):
    found, _ = parse_dump(pickle.dumps(document([])), name)
    assert found is not None
    assert found.rank == rank


def test_gloo_has_no_events_and_no_ranks():
    """The output of torch 2.13 for gloo: never started or completed, only retired; the status also counts sends."""
    entries = [entry(n, state="scheduled", retired=n < 3, profiling_name="gloo:all_reduce") for n in (1, 2, 3)]
    gloo = document(entries, {"": "[]"})
    gloo["pg_status"] = {"0": dict.fromkeys(gloo["pg_status"]["0"], -1) | {"last_enqueued_collective": 6}}
    (group,) = dump(pickle.dumps(gloo), 0).groups
    assert (group.ranks, group.last_enqueued, group.entered) == (None, 6, 3)
    assert ([item.seq for item in group.done], [item.seq for item in group.pending]) == ([1, 2], [3])


def test_a_collective_of_nccl_that_timed_out_still_waits():
    (group,) = dump(pickle.dumps(document([entry(1, state="scheduled", retired=True)])), 0).groups
    assert [item.seq for item in group.pending] == [1]


def test_groups_and_point_to_point():
    sent = entry(2, "send 0->1", "started", is_p2p=True, p2p_seq_id=5, group=("7", "tp"), pg_id=4)
    found = dump(pickle.dumps(document([entry(1), sent], {"0": "[0, 1]", "7": "[0, 1]", "9": "[0, 5]"})), 0)
    by_name = {group.name: group for group in found.groups}
    assert (by_name["7"].description, by_name["7"].ranks, by_name["7"].p2p) == ("tp", (0, 1), True)
    assert (by_name["7"].pending[0].operation, by_name["7"].pending[0].p2p) == ("send 0->1", True)
    assert by_name["7"].last_enqueued is None  # its status would be under 4
    assert (by_name["9"].ranks, by_name["9"].entered, by_name["0"].p2p) == ((0, 5), None, False)


def test_a_ring_that_went_round_is_not_whole():
    assert not dump(pickle.dumps(document([entry(2_001)])), 0).whole
    assert not dump(pickle.dumps(document([])), 0).whole


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(flightrecorder, "MAX_PENDING", 3)
    monkeypatch.setattr(flightrecorder, "MAX_DONE", 2)
    monkeypatch.setattr(flightrecorder, "MAX_ENTRIES", 12)
    found = dump(
        pickle.dumps(document([entry(n, state="completed" if n < 11 else "started") for n in range(1, 16)])), 0
    )
    (group,) = found.groups
    assert [item.seq for item in group.done] == [9, 10]
    assert [item.seq for item in group.pending] == [11, 12, 13]
    assert (group.entered, found.whole) == (15, False)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"Traceback (most recent call last):", "neither"),
        (b"\x80\x02cos\nsystem\n.", "not a pickle of plain values"),
        (pickle.dumps(document(HANGING))[:-20], "cut off"),
        (json.dumps(document(HANGING)).encode()[:-20], "not valid JSON"),
        (b"{" * 5_000, "not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (pickle.dumps([1]), "no flight-recorder dump"),
        (b'{"message": "text"}', "no flight-recorder dump"),
        (pickle.dumps({"version": "1.4", "entries": [{"seq_id": 1, "pg_id": 0}]}), "version 1.4"),
    ],
)
def test_what_cannot_be_read_has_a_reason(data, reason):
    found, why = parse_dump(data, "nccl_trace_rank_0")
    assert found is None
    assert reason in why


def test_sizes_are_limited(monkeypatch):
    monkeypatch.setattr(flightrecorder, "JSON_LIMIT", 100)
    monkeypatch.setattr(flightrecorder, "DUMP_LIMIT", 1_000)
    assert "100 bytes" in parse_dump(b'{"entries": [' + b" " * 100 + b"]}", "")[1]
    assert "1000 bytes" in parse_dump(b"\x80" * 1_001, "")[1]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(entry(1))), JUNK), max_size=6),
    st.dictionaries(st.sampled_from(["version", "pg_config", "pg_status", "entries", "rank"]), JUNK, max_size=3),
)
def test_fields_may_be_anything(fields, more):
    entries = [entry(1) | dict(fields), entry(2) | dict(fields[:2])]
    strange = document([]) | {"entries": entries} | more
    found, reason = parse_dump(json.dumps(strange).encode(), "trace")
    assert (found is None) == bool(reason)


def test_shared_values_take_their_memory_once():
    sizes = [[2**40] * 16] * 64
    ranks = "[" + ", ".join(map(str, range(20_000))) + "]"
    name = "nccl:" + "x" * 10_000
    entries = [
        entry(1, state="started", input_sizes=sizes, profiling_name=name, group=(f"p{n}", "")) for n in range(100)
    ]
    many = document(entries * 50)
    many["pg_config"] = {f"g{n}": {"name": f"g{n}", "desc": "", "ranks": ranks} for n in range(1_000)}
    data = pickle.dumps(many)
    tracemalloc.start()
    found = dump(data, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.groups) == 1_100
    assert peak < 60_000_000


@pytest.mark.parametrize(
    ("frames", "frame"),
    [
        (FRAMES, 'File "/workspace/train.py", line 8, in step'),
        (FRAMES[:1], None),
        ([{"name": "f", "filename": "??", "line": 0}, *FRAMES], 'File "/workspace/train.py", line 8, in step'),
        ([{"name": "f", "filename": "/src/torch/csrc/x.cpp", "line": 3}], None),
        ([{"name": "f", "filename": '/x"\n.py', "line": 3}], None),
        ([{"name": ["f"], "filename": "/x.py", "line": 3}, 7], None),
        ("text", None),
    ],
)
def test_the_frame_is_the_innermost_of_the_user(frames, frame):
    (group,) = dump(pickle.dumps(document([entry(1, state="started", frames=frames)])), 0).groups
    assert group.pending[0].frame == frame


# gloo's threads retire an operation after its caller has been notified, in any order.
RECORDED = """
import json
import time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(4, 8))
dist.broadcast(torch.ones(5), 0)
while not all(entry["retired"] for entry in json.loads(_dump_fr_trace_json(True, False))["entries"]):
    time.sleep(0.01)
open("nccl_trace_rank_0", "wb").write(_dump_fr_trace(True, True, False))
open("json_rank_0", "wb").write(_dump_fr_trace_json(True, False))
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_torchs_own_recorder(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(RECORDED)
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True, capture_output=True, timeout=50)
    data = (tmp_path / "nccl_trace_rank_0").read_bytes()
    assert flightrecorder._harmless(data), "torch writes other opcodes now: reading takes four times as long"
    pickled = dump(data, 0)
    (group,) = pickled.groups
    assert (group.name, group.description, group.entered, group.last_enqueued) == ("0", "default_pg", 4, 4)
    assert [item.operation for item in group.done] == ["all_reduce"] * 3 + ["broadcast"]
    assert [item.input_sizes for item in group.done[2:]] == [((4, 8),), ((5,),)]
    assert group.done[0].frame == f'File "{script}", line 10, in <module>'
    written = dump((tmp_path / "json_rank_0").read_bytes(), 0)
    assert [item.created_ns for item in written.groups[0].done] == [item.created_ns for item in group.done]


def rank_with(rank, *entries, groups=None, **more):
    return dump(pickle.dumps(document(list(entries), groups, **more)), rank)


def waiting(seq, **more):
    return entry(seq, state="started", **more)


def test_the_rank_that_never_came():
    dumps = [rank_with(rank, entry(1), entry(2), waiting(3), waiting(4)) for rank in (0, 1, 3)]
    dumps.append(rank_with(2, entry(1), entry(2)))
    (found,) = missing_ranks(dumps)
    assert (found.group, found.description, found.seq, found.operation) == ("0", "default_pg", 3, "all_reduce")
    assert (found.joined, found.absent, found.no_dump, found.unclear) == ((0, 1, 3), (2,), (), ())
    assert (found.input_sizes, found.mismatches) == (((4, 8),), ())
    assert found.created_ns == 1_795_289_768_000_000_003


def test_nothing_is_missing_where_all_are_equal():
    assert missing_ranks([rank_with(rank, entry(1), waiting(2)) for rank in range(4)]) == ()
    assert missing_ranks([]) == ()


def test_what_ended_was_joined_by_all():
    """An older dump: rank 1's is from before it entered the collective that has ended on rank 0."""
    ahead = rank_with(0, entry(1), entry(2), groups={"0": "[0, 1]"})
    behind = rank_with(1, entry(1), groups={"0": "[0, 1]"})
    assert missing_ranks([ahead, behind]) == ()
    # A broadcast ends on its root before the others arrive.
    root = rank_with(0, entry(1), entry(2, "broadcast"), groups={"0": "[0, 1]"})
    assert [(item.seq, item.absent) for item in missing_ranks([root, behind])] == [(2, (1,))]


def test_a_rank_without_a_dump_is_named_where_the_others_wait():
    (found,) = missing_ranks([rank_with(rank, entry(1), waiting(2), waiting(3)) for rank in (0, 1, 3)])
    assert (found.seq, found.joined, found.absent, found.no_dump) == (2, (0, 1, 3), (), (2,))
    assert missing_ranks([rank_with(rank, entry(1), entry(2)) for rank in (0, 1, 3)]) == ()


def test_another_operation_under_the_same_number():
    dumps = [rank_with(rank, entry(1), waiting(2)) for rank in (0, 1, 3)]
    dumps.append(rank_with(2, entry(1), entry(2, "barrier", "started", input_sizes=[])))
    (found,) = missing_ranks(dumps)
    assert (found.seq, found.operation, found.joined, found.absent) == (2, "all_reduce", (0, 1, 2, 3), ())
    assert [(item.rank, item.operation, item.input_sizes) for item in found.mismatches] == [(2, "barrier", ())]


def test_other_sizes_under_the_same_number():
    dumps = [rank_with(rank, entry(1), waiting(2)) for rank in (0, 1, 3)]
    dumps.append(rank_with(2, entry(1), waiting(2, input_sizes=[[4, 9]])))
    (found,) = missing_ranks(dumps)
    assert [(item.rank, item.input_sizes) for item in found.mismatches] == [(2, ((4, 9),))]


def test_without_a_majority_both_are_named():
    pair = {"0": "[0, 1]"}
    dumps = [rank_with(0, entry(1), waiting(2), groups=pair)]
    dumps.append(rank_with(1, entry(1), entry(2, "barrier", "started"), groups=pair))
    (found,) = missing_ranks(dumps)
    assert [item.rank for item in found.mismatches] == [0, 1]


def test_sizes_may_differ_where_they_may():
    for operation in ("all_to_all", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all_v_single"):
        dumps = [
            rank_with(rank, entry(1, operation, "started", input_sizes=[[rank + 1]]), groups={"0": "[0, 1]"})
            for rank in (0, 1)
        ]
        assert missing_ranks(dumps) == ()


def test_a_mismatch_and_who_stays_behind_it_are_two_findings():
    dumps = [rank_with(rank, entry(1), waiting(2), waiting(3)) for rank in (0, 1, 3)]
    dumps.append(rank_with(2, entry(1), entry(2, "barrier", "started")))
    first, second = missing_ranks(dumps)
    assert (first.seq, [item.rank for item in first.mismatches], first.absent) == (2, [2], ())
    assert (second.seq, second.mismatches, second.absent) == (3, (), (2,))


def test_coalesced_operations_of_one_number_are_one():
    def group_of(rank):
        return rank_with(rank, entry(1), waiting(2), waiting(2, record_id=2), entry(2, "coalesced", "started"))

    assert missing_ranks([group_of(rank) for rank in range(4)]) == ()
    (found,) = missing_ranks([*(group_of(rank) for rank in range(3)), rank_with(3, entry(1), waiting(2))])
    assert [item.rank for item in found.mismatches] == [3]


def test_the_beginning_of_a_ring_may_be_cut():
    """The oldest number in a full ring buffer may have lost some of its operations."""
    whole = [rank_with(rank, entry(7), entry(7), waiting(8)) for rank in (0, 1, 2)]
    assert missing_ranks([*whole, rank_with(3, entry(7), waiting(8))]) == ()


def test_groups_of_one_name_are_told_apart_by_their_ranks():
    pairs = {0: "[0, 1]", 1: "[0, 1]", 2: "[2, 3]", 3: "[2, 3]"}
    dumps = [
        rank_with(
            rank,
            entry(1),
            *([] if rank == 3 else [waiting(1, group=("5", "tp"), record_id=1)]),
            groups={"0": "[0, 1, 2, 3]", "5": pairs[rank]},
        )
        for rank in range(4)
    ]
    (found,) = missing_ranks(dumps)
    assert (found.group, found.description, found.joined, found.absent) == ("5", "tp", (2,), (3,))


def test_a_rank_that_never_used_the_group_is_absent_only_where_its_dump_is_whole():
    tp = {"0": "[0, 1]", "5": "[0, 1]"}
    waits = rank_with(0, entry(1), waiting(1, group=("5", "tp"), record_id=1), groups=tp)
    (found,) = missing_ranks([waits, rank_with(1, entry(1), groups={"0": "[0, 1]"})])
    assert (found.group, found.absent, found.unclear) == ("5", (1,), ())
    # Its ring buffer was full: it may have entered the group long ago, or not.
    round_once = rank_with(1, entry(1, record_id=9), groups={"0": "[0, 1]"})
    assert missing_ranks([waits, round_once]) == ()
    third = rank_with(2, entry(1), groups={"0": "[0, 1, 2]", "5": "[0, 1, 2]"})
    all_three = [
        replace(dump, groups=tuple(replace(g, ranks=(0, 1, 2)) for g in dump.groups)) for dump in (waits, round_once)
    ]
    (found,) = missing_ranks([*all_three, third])
    assert (found.joined, found.absent, found.unclear) == ((0,), (2,), (1,))


def test_only_active_entries_leave_the_status():
    """TORCH_INCLUDE_ONLY_ACTIVE: a rank that is not waiting has no entries; its status shows its progress."""
    waits = rank_with(0, waiting(5), groups={"0": "[0, 1]"})
    idle = rank_with(1, groups={"0": "[0, 1]"}, pg_status={"0": {"last_enqueued_collective": 4}})
    (found,) = missing_ranks([waits, idle])
    assert (found.seq, found.joined, found.absent) == (5, (0,), (1,))
    # With sends and receives in the group, the status counts more than collectives.
    sends = rank_with(0, waiting(5, p2p_seq_id=3), groups={"0": "[0, 1]"})
    assert missing_ranks([sends, idle]) == ()


def test_ranks_of_gloo_are_those_with_dumps():
    def gloo(rank, *seqs):
        made = (entry(n, state="scheduled", retired=True, profiling_name="gloo:barrier") for n in seqs)
        return rank_with(rank, *made, groups={"": "[]"})

    (found,) = missing_ranks([gloo(0, 1, 2), gloo(1, 1, 2, 3), gloo(2, 1)])
    assert (found.seq, found.joined, found.absent, found.no_dump) == (2, (0, 1), (2,), ())


def test_a_member_of_the_default_group_may_have_no_entries_in_it():
    def gloo(rank, name):
        made = entry(
            1, state="scheduled", profiling_name="gloo:barrier", group=(name, "default_pg" if name == "0" else "")
        )
        return rank_with(rank, made, groups={"": "[]"}, pg_status={})

    (found,) = missing_ranks([gloo(0, "0"), gloo(1, "0"), gloo(2, "7")])
    assert (found.group, found.seq, found.joined, found.absent) == ("0", 1, (0, 1), (2,))


def test_the_first_by_the_clock_comes_first():
    tp = {"0": "[0, 1]", "5": "[0, 1]"}
    late = [waiting(1, group=("5", "tp"), record_id=1, time_created_ns=2_000_000_000_000_000_000)]
    dumps = [
        rank_with(0, waiting(1), *late, groups=tp),
        rank_with(1, entry(1, record_id=0, group=("9", "x")), groups=tp, pg_status={}),
    ]
    assert [item.group for item in missing_ranks(dumps)] == ["0", "5"]


def test_point_to_point_is_not_compared():
    pair = {"0": "[0, 1]"}
    sends = [entry(1, "send 0->1", "started", is_p2p=True, p2p_seq_id=n, record_id=n) for n in (1, 2)]
    assert missing_ranks([rank_with(0, entry(1), *sends, groups=pair), rank_with(1, entry(1), groups=pair)]) == ()
    assert missing_ranks([rank_with(0, entry(1), *sends, groups=pair)]) == ()


NAMES = st.sampled_from(["0", "5"])
ENTRIES = st.builds(
    lambda seq, name, state, operation, p2p: entry(
        seq, operation, state, group=(name, "default_pg" if name == "0" else "tp"), is_p2p=p2p
    ),
    st.integers(-2, 6),
    NAMES,
    st.sampled_from(["scheduled", "started", "completed", "?"]),
    st.sampled_from(["all_reduce", "broadcast", "send 0->1", ""]),
    st.booleans(),
)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.lists(ENTRIES, max_size=6),
            st.dictionaries(NAMES, st.sampled_from(["[]", "[0, 1]", "[1, 2, 9]", "x"])),
        )
    )
)
def test_any_dumps_can_be_compared(ranks):
    dumps = [
        dump(json.dumps(document(list(entries), groups or None)).encode(), rank) for rank, entries, groups in ranks
    ]
    for found in missing_ranks(dumps):
        assert found.absent or found.no_dump or found.mismatches
        assert not set(found.joined) & set(found.absent)
        assert not set(found.no_dump) & {dump.rank for dump in dumps}
