from __future__ import annotations

import json
import pickle
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from atlctl.diagnosis.recorder.gaps import missing_ranks
from tests.unit.diagnosis.recorder.flights import document, dump, entry


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
    assert found.frame == 'File "/workspace/train.py", line 8, in step'
    assert found.created_ns == 1_795_289_768_000_000_003


def test_nothing_is_missing_where_all_are_equal():
    assert missing_ranks([rank_with(rank, entry(1), waiting(2)) for rank in range(4)]) == ()
    assert missing_ranks([]) == ()


def test_what_ended_was_joined_by_all():
    """An older dump: rank 1's was written before it entered what has ended on rank 0."""
    ahead = rank_with(0, entry(1), entry(2), groups={"0": "[0, 1]"})
    behind = rank_with(1, entry(1), groups={"0": "[0, 1]"})
    assert missing_ranks([ahead, behind]) == ()
    # A broadcast ends on its root before the others come.
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
    """The oldest number of a ring that went round may have lost some of its operations."""
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
    # Its ring went round: it may have entered the group long ago, or not.
    round_once = rank_with(1, entry(1, record_id=9), groups={"0": "[0, 1]"})
    assert missing_ranks([waits, round_once]) == ()
    third = rank_with(2, entry(1), groups={"0": "[0, 1, 2]", "5": "[0, 1, 2]"})
    all_three = [
        replace(dump, groups=tuple(replace(g, ranks=(0, 1, 2)) for g in dump.groups)) for dump in (waits, round_once)
    ]
    (found,) = missing_ranks([*all_three, third])
    assert (found.joined, found.absent, found.unclear) == ((0,), (2,), (1,))


def test_only_active_entries_leave_the_status():
    """TORCH_INCLUDE_ONLY_ACTIVE: a rank that waits for nothing has no entries, its status says how far it came."""
    waits = rank_with(0, waiting(5), groups={"0": "[0, 1]"})
    idle = rank_with(1, groups={"0": "[0, 1]"}, pg_status={"0": {"last_enqueued_collective": 4}})
    (found,) = missing_ranks([waits, idle])
    assert (found.seq, found.joined, found.absent) == (5, (0,), (1,))
    # With sends and receives in the group the status counts more than collectives.
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
