from itertools import permutations

import pytest

from atlctl.diagnosis.origin import NOBODY, Origin, split_origin

NOISE = ["stderr: ", "(CommandActor pid=552, ip=10.0.0.7) ", "704.7s\t1461\t", "2024-05-08T08:47:31.2Z a1b2c3 || "]


@pytest.mark.parametrize(
    ("prefix", "rank", "local"),
    [
        ("[rank3]: ", 3, None),
        ("[rank1023]:", 1023, None),
        ("[rank1]: [rank1]: ", 1, None),
        ("[default0]:", None, 0),
        ("[trainer-a.b_11]:", None, 11),
        ("[default0]:[default0]:", None, 0),
        ("[gpu187:0]:", None, 0),
        ("[default rank=5 local=1] ", 5, 1),
        ("[trainer rank 5 local_rank 1]: ", 5, 1),
        *((noise, None, None) for noise in NOISE),
        ("", None, None),
    ],
)
def test_each_prefix(prefix, rank, local):
    assert split_origin(f"{prefix}RuntimeError: x") == (Origin(rank, local), "RuntimeError: x")


@pytest.mark.parametrize("noise", NOISE)
def test_prefixes_nest_in_any_order(noise):
    for order in permutations(["[rank3]: ", "[default1]:", noise]):
        assert split_origin("".join(order) + "ValueError: x") == (Origin(3, 1), "ValueError: x")


@pytest.mark.parametrize("before", ["[0] ", "gpu187: ", "main/0 ", "[INFO] 2021-09-13 22:17:26,651 run: ", "        "])
def test_a_rank_behind_an_unknown_prefix(before):
    assert split_origin(f"{before}[rank3]: KeyError: 1") == (Origin(3), "KeyError: 1")


def test_a_progress_bar_in_front():
    bar = " 94%|#########4| 837/888 [9:42:50<34:08, 40.17s/it]"
    assert split_origin(f"{bar}[rank7]: KeyError: 1") == (Origin(7), "KeyError: 1")
    assert split_origin(f"{bar}[rank7]:[E ProcessGroupNCCL.cpp:1182] [Rank 7] x")[0] == Origin(7)


@pytest.mark.parametrize("stamp", ["E1120 17:45:05.123456789", "E321 17:45:05.123456789", "E", "W"])
@pytest.mark.parametrize("group", ["", "PG 0 ", "PG 0 (default_pg) ", "PG ID 0 PG GUID 0(default_pg) "])
def test_the_rank_in_a_c10_line_of_the_default_group(stamp, group):
    line = f"[{stamp} ProcessGroupNCCL.cpp:683] [{group}Rank 3] Watchdog"
    assert split_origin(line) == (Origin(3), line)


def test_the_rank_in_another_group_is_not_taken_for_the_global_one():
    line = "[E1120 17:45:05.123456789 ProcessGroupNCCL.cpp:683] [PG ID 2 PG GUID 5(tp) Rank 1] Watchdog"
    assert split_origin(line) == (NOBODY, line)
    assert split_origin(f"[rank5]:{line}") == (Origin(5), line)
    assert split_origin("[E ProcessGroupNCCL.cpp:683] [PG 12 Rank 1] x")[0] is NOBODY


def test_what_terminate_prints():
    assert split_origin("  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog")[0] == Origin(2)


@pytest.mark.parametrize(
    "text",
    ["", "[", "[rank", "[rank]: x", "[rank1] x", "[2026]:x", "[0] x", "Rank 3", "[rank99999999]: x", "[default]:x"],
)  # fmt: skip
def test_texts_that_name_nobody(text):
    assert split_origin(text) == (NOBODY, text)


def test_no_rank_is_looked_for_in_the_depth_of_a_line():
    assert split_origin("x" * 5000 + "[rank3]: y")[0] is NOBODY
    assert not NOBODY.known
    assert Origin(0).known
