from datetime import UTC, datetime

import pytest

from atlctl.diagnosis.moments import Moment, mark_of, split_stamp, told_time, zone_of


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
        # The fraction of c10's stamps is another clock's; its month is not padded.
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
    stamp = at("2026-11-20T17:45:05", 0.001, absolute=True)
    assert zone_of(Moment(stamp.seconds + zone - late, 0.001, absolute=False), stamp) == zone


@pytest.mark.parametrize("ahead", [15 * 3600, 400, -86400, 7 * 86400])
def test_times_that_do_not_fit_give_no_zone(ahead):
    stamp = at("2026-11-20T17:45:05", 0.001, absolute=True)
    assert zone_of(Moment(stamp.seconds + ahead, 0.001, absolute=False), stamp) is None


def test_a_mark_is_the_same_on_all_ranks():
    told = ["2026-11-20 17:45:05,123 INFO r0 train: step 12/100 loss 2.1", "[rank1]: r1 step 12/100 loss 1.9"]
    assert {mark_of(line) for line in told} == {"step 12/100"}
    assert mark_of("iteration      300/ 1000 | lm loss: 2") == "iteration 300/ 1000"
    assert mark_of("Epoch [3/10], loss") == mark_of("epoch: 3/10")


@pytest.mark.parametrize("line", ["", "loss 0.5", "steps done", "footstep 3", "x" * 400 + " step 3"])
def test_lines_without_a_steps_number_make_no_mark(line):
    assert mark_of(line) is None
