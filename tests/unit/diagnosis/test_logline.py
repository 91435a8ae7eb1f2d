from __future__ import annotations

from datetime import UTC, datetime
from itertools import permutations

import pytest

from atlctl.diagnosis.logline import NOBODY, Moment, Origin, mark_of, split_origin, split_stamp, told_time, zone_of


def at(text: str, resolution: float, *, absolute: bool = False, dated: bool = True) -> Moment:
    return Moment(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp(), resolution, absolute, dated)


def test_a_nodes_stamp_is_utc_and_taken_off():
    moment, rest = split_stamp(b"2026-11-20T17:45:05.757882235Z step 3")
    assert rest == b"step 3"
    assert moment is not None
    assert abs(moment.seconds - at("2026-11-20T17:45:05.757882", 0).seconds) < 1e-5
    assert moment.absolute
    assert moment.resolution <= 0.001


@pytest.mark.parametrize(
    ("stamp", "utc"),
    [
        (b"2026-11-20T17:45:05.5+08:00 ", "2026-11-20T09:45:05.5"),
        (b"2026-11-20T17:45:05.5-03:30 ", "2026-11-20T21:15:05.5"),
    ],
)
def test_a_stamp_with_an_offset(stamp, utc):
    assert split_stamp(stamp + b"x") == (at(utc, 0.001, absolute=True), b"x")


def test_a_stamp_of_whole_seconds_is_not_finer_than_a_second():
    assert split_stamp(b"2026-11-20T17:45:05Z x") == (at("2026-11-20T17:45:05", 1.0, absolute=True), b"x")


@pytest.mark.parametrize(
    "line",
    [
        b"", b"2", b"step 3", b"2026-11-20T17:45:05.5Z", b"2026-13-20T17:45:05Z x", b"2026-11-20 17:45:05.5Z x",
        b"2026-11-20T25:45:05Z x", b"2026-11-20T17:45:05.1234567890Z x", b"2026-11-20T17:45:05+99:99 x",
        b" 2026-11-20T17:45:05Z x", b"20\xff\xff-11-20T17:45:05Z x",
    ],
)  # fmt: skip
def test_what_is_no_stamp_stays(line):
    assert split_stamp(line) == (None, line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("W1120 17:45:05.757000 1 torch/x.py:10] x", at("2000-11-20T17:45:05.757", 0.001, dated=False)),
        ("[rank0]:E0104 17:45:05.757000 140633869123008 x", at("2000-01-04T17:45:05.757", 0.001, dated=False)),
        # The fraction in c10's timestamps is from another clock; its month is not padded.
        ("[W1120 17:44:40.665371319 socket.cpp:207] x", at("2000-11-20T17:44:40", 1.0, dated=False)),
        ("[rank3]:[E321 07:45:05.999999999 P.cpp:1] x", at("2000-03-21T07:45:05", 1.0, dated=False)),
        ("[E1206 17:45:05.123456789 P.cpp:1] x", at("2000-12-06T17:45:05", 1.0, dated=False)),
        ("[E101 17:45:05.123456789 P.cpp:1] x", at("2000-01-01T17:45:05", 1.0, dated=False)),
        ("W0229 17:45:05.757000 1 x", at("2000-02-29T17:45:05.757", 0.001, dated=False)),
        ("[2024-05-08 08:47:31,261] torch.x: [ERROR] failed", at("2024-05-08T08:47:31.261", 0.001)),
        ("[INFO] 2021-09-13 22:17:26,651 run: ", at("2021-09-13T22:17:26.651", 0.001)),
        ("2026-11-20 17:45:05 INFO x", at("2026-11-20T17:45:05", 1.0)),
        ("2026/11/20 17:45:05 x", at("2026-11-20T17:45:05", 1.0)),
        ("  time      : 2026-11-20_17:45:05", at("2026-11-20T17:45:05", 1.0)),
    ],
)  # fmt: skip
def test_a_processs_own_time(line, expected):
    assert told_time(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "", "[E ProcessGroupNCCL.cpp:737] [Rank 3] x", "W1332 17:45:05.757000 1 x", "[E000 17:45:05.1 P.cpp:1] x",
        "2026-02-30 17:45:05 x", "2026-11-20 27:45:05 x", "x" * 5000 + " 2026-11-20 17:45:05 x", "step 1120 17:45:05",
    ],
)  # fmt: skip
def test_lines_that_tell_no_time(line):
    assert told_time(line) is None


@pytest.mark.parametrize("zone", [0, 8 * 3600, -5 * 3600, 5 * 3600 + 2700, -(3 * 3600 + 1800), 14 * 3600])
@pytest.mark.parametrize("late", [0.0, 0.4, -3.0])
def test_the_zone_of_a_line_with_both_times(zone, late):
    assert zone_of(zone - late) == zone


@pytest.mark.parametrize("ahead", [15 * 3600, 400, -86400, 7 * 86400])
def test_times_that_do_not_fit_give_no_zone(ahead):
    assert zone_of(ahead) is None


def test_a_mark_is_the_same_on_all_ranks():
    told = ["2026-11-20 17:45:05,123 INFO r0 train: step 12/100 loss 2.1", "[rank1]: r1 step 12/100 loss 1.9"]
    assert {mark_of(line) for line in told} == {"step 12/100"}
    assert mark_of("iteration      300/ 1000 | lm loss: 2") == "iteration 300/ 1000"
    assert mark_of("Epoch [3/10], loss") == mark_of("epoch: 3/10")


@pytest.mark.parametrize("line", ["", "loss 0.5", "steps done", "footstep 3", "x" * 400 + " step 3"])
def test_lines_without_a_steps_number_make_no_mark(line):
    assert mark_of(line) is None


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
