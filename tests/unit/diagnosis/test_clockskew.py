"""Making times of several workers comparable."""

from datetime import UTC, datetime

import pytest

from atlctl.diagnosis.clockskew import Clocks
from atlctl.diagnosis.evidence import WorkerEvidence
from atlctl.diagnosis.logline import Moment, told_time

from .samples import PEER_GONE, block, entry, record, worker


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def shown(second: float, separator: str) -> str:
    return datetime.fromtimestamp(second, UTC).strftime(f"%Y-%m-%d{separator}%H:%M:%S.%f")[:-3]


def steps(name: str, *, ahead: float = 0.0, zone: int = 0, count: int = 6, jitter: float = 0.0) -> WorkerEvidence:
    """A worker with logged steps; its clock is `ahead` of the true time."""
    lines = []
    for step in range(count):
        now = seconds("2026-11-20T17:45:00") + step + ahead + jitter * (step % 2)
        told = f"{shown(now + zone, ' ')} INFO {name} train: step {step}/9 loss {ahead}"
        lines.append(f"{shown(now, 'T')}Z {told}")
    return worker(name, lines)


def when(clocks: Clocks, name: str, line: str) -> float:
    found = clocks.when(name, told_time(line))
    assert found is not None
    return found.seconds


def test_a_stamp_counts_as_it_is():
    clocks = Clocks([steps("a", zone=8 * 3600)])
    found = clocks.when("a", Moment(1000.5, 0.001, absolute=True))
    assert found is not None
    assert (found.seconds, found.resolution) == (1000.5, 0.001)
    assert clocks.when("a", None) is None


@pytest.mark.parametrize("zone", [0, 8 * 3600, -(3 * 3600 + 1800)])
def test_the_zone_from_lines_with_both_times(zone):
    clocks = Clocks([steps("a", zone=zone)])
    local = datetime.fromtimestamp(seconds("2026-11-20T17:45:05") + zone, UTC)
    assert when(clocks, "a", f"{local:%Y-%m-%d %H:%M:%S},000 INFO x") == seconds("2026-11-20T17:45:05")
    assert when(clocks, "a", f"W{local:%m%d %H:%M:%S}.250000 1 x.py:1] x") == seconds("2026-11-20T17:45:05.25")


def test_a_worker_whose_zone_is_unknown_shares_that_of_the_others():
    clocks = Clocks([worker("b", ["step"]), steps("a", zone=8 * 3600)])
    assert when(clocks, "b", "2026-11-21 01:45:05,000 x") == seconds("2026-11-20T17:45:05")


def test_the_zone_from_an_error_file_beside_its_entry():
    path = "/t/run_b/attempt_0/0/error.json"
    lines = block(entry(time="2026-11-21_01:45:04", text=PEER_GONE, file=path))
    outside = {"/evidence/w1/run_b/attempt_0/0/error.json": record(PEER_GONE, time=1795196704)}
    clocks = Clocks([worker("b", lines, files=outside)])
    assert when(clocks, "b", "2026-11-21 01:45:03,000 x") == 1795196703


def test_an_error_file_that_does_not_fit_its_entry_tells_no_zone():
    path = "/t/run_b/attempt_0/0/error.json"
    lines = block(entry(time="2026-11-21_01:45:04", file=path))
    clocks = Clocks([worker("b", lines, files={path: record(time=1795196704 + 333)})])
    assert when(clocks, "b", "2026-11-21 01:45:03,000 x") == seconds("2026-11-21T01:45:03")


@pytest.mark.parametrize(
    "lines",
    [
        ["2026-11-20 17:45:01,000 INFO step 1"],
        ["2026-11-20T17:45:01.5Z step 1"],
        block(entry(time="2026-11-20_17:45:05")),
    ],
)
def test_a_missing_year_is_that_of_the_log(lines):
    clocks = Clocks([worker("a", lines)])
    assert when(clocks, "a", "[E1018 17:45:05.123456789 P.cpp:1] x") == seconds("2026-10-18T17:45:05")


def test_a_missing_year_over_new_years_eve():
    clocks = Clocks([worker("a", ["2026-12-31T23:59:01.5Z step 1"])])
    assert when(clocks, "a", "[E101 00:00:03.000000001 P.cpp:1] x") == seconds("2027-01-01T00:00:03")
    clocks = Clocks([worker("a", ["2027-01-01T00:00:09.5Z step 1"])])
    assert when(clocks, "a", "E1231 23:59:58.000000 1 x.py:1] x") == seconds("2026-12-31T23:59:58")


def test_a_day_that_the_year_has_not():
    clocks = Clocks([worker("a", ["2026-11-20T17:45:01.5Z step 1"])])
    assert clocks.when("a", told_time("W0229 17:45:05.757000 1 x")) is None


def test_no_year_anywhere_still_orders():
    clocks = Clocks([worker("a", ["x"])])
    early, late = "W1120 17:45:05.000000 1 x", "W1120 17:45:06.500000 1 x"
    assert when(clocks, "a", late) - when(clocks, "a", early) == pytest.approx(1.5)


@pytest.mark.parametrize("ahead", [5.0, -5.0, 0.4])
def test_skew_from_lines_in_step(ahead):
    clocks = Clocks([steps("a"), steps("b", ahead=ahead), worker("c", ["nothing"])])
    assert clocks.skew == pytest.approx({"a": 0.0, "b": ahead}, abs=0.002)
    moment = Moment(2000.0, 0.001, absolute=True)
    first, second = clocks.when("a", moment), clocks.when("b", moment)
    assert first is not None
    assert second is not None
    assert first.seconds - second.seconds == pytest.approx(ahead, abs=0.002)
    assert clocks.aligned("a", "b")
    assert not clocks.aligned("a", "c")
    assert clocks.aligned("c", "c")


def test_a_difference_of_milliseconds_is_the_ranks_own():
    assert Clocks([steps("a"), steps("b", ahead=0.03)]).skew == {"a": 0.0, "b": 0.0}


def test_lines_that_are_not_in_step_give_no_skew():
    clocks = Clocks([steps("a"), steps("b", ahead=5, jitter=4)])
    assert "b" not in clocks.skew
    assert not clocks.aligned("a", "b")


def test_too_few_common_lines_give_no_skew():
    assert not Clocks([steps("a"), steps("b", ahead=5, count=2)]).aligned("a", "b")
