"""The lines of a running job are watched for steps: one warning for a slow job, few entries, bounded work."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import pytest

from atlctl.diagnosis.logline import Origin
from atlctl.diagnosis.steps import Slowdown
from atlctl.diagnosis.stepwatch import LogPace, StepWatch, seconds_text, slow_text
from tests.support.paces import HEALTHY, START, Made, lines_of, noisy, slowed


def watched(made: Made, workers: Iterable[str] = ("w-0",)) -> tuple[StepWatch, list[Slowdown]]:
    watch = StepWatch()
    found = [watch.feed(worker, line, at) for line, at in lines_of(made, "stamps") for worker in workers]
    return watch, [slow for slow in found if slow is not None]


def test_one_warning_for_all_workers() -> None:
    _, found = watched(slowed(random.Random(1), 3), ("w-0", "w-1", "w-2"))
    (slow,) = found
    assert abs(slow.first - 201) <= 1
    assert slow.factor == pytest.approx(3, rel=0.1)


def test_no_warning_below_the_double() -> None:
    assert watched(slowed(random.Random(1), 1.6))[1] == []


def test_another_warning_if_it_gets_much_worse_or_slow_again() -> None:
    rng = random.Random(1)
    worse = Made([*noisy(rng, 200), *noisy(rng, 50, 2.5), *noisy(rng, 50, 6)])
    again = Made([*noisy(rng, 200), *noisy(rng, 50, 2.5), *noisy(rng, 100), *noisy(rng, 50, 2.5)])
    for made in (worse, again):
        watch, found = watched(made)
        assert len(found) == 2
        assert [slow.last is None for slow in watch.warned()] == [False, True]


def test_no_warning_in_healthy_training() -> None:
    for name, make in HEALTHY.items():
        made = make(random.Random(name))
        if len(made.steps) <= 1500:
            assert watched(made)[1] == [], name


def test_entries_are_at_most_one_a_second() -> None:
    watch, _ = watched(Made([0.1] * 1000))
    entries = [*watch.fresh(), *watch.rest()]
    assert 90 <= len(entries) <= 101
    assert entries[-1]["step"] == 1000
    assert all(one["first"] == other["step"] + 1 for other, one in pairwise(entries))
    assert {entry["seconds"] for entry in entries} == {0.1}
    assert watch.fresh() == watch.rest() == []


def test_entries_of_slow_steps_come_at_once() -> None:
    watch, _ = watched(Made([3.0] * 10))
    entries = watch.fresh()
    assert [entry["step"] for entry in entries] == list(range(2, 11))
    assert entries[0] == {
        "worker": "w-0",
        "loop": "plain step",
        "step": 2,
        "first": 2,
        "time": START + 6,
        "seconds": 3.0,
        "loss": 2.3,
    }


def test_entries_name_the_rank() -> None:
    watch = StepWatch()
    for step in range(3):
        watch.feed("w-0", b"[rank7]: step %d loss 2.3" % step, START + 2 * step)
    assert [(entry["rank"], entry["step"]) for entry in watch.fresh()] == [(7, 1), (7, 2)]
    assert next(iter(watch.workers["w-0"].found))[0] == Origin(7)


def test_the_stamp_of_a_line_is_its_time() -> None:
    watch = StepWatch()
    for second in (10, 12):
        watch.feed("w-0", b"2026-11-20T17:45:%d.500000000Z step %d loss 2.3" % (second, second))
    (entry,) = watch.fresh()
    assert (entry["time"], entry["seconds"]) == (1795196712.5, 1.0)


def test_few_lines_of_a_second_are_looked_at() -> None:
    pace = LogPace()
    assert sum(pace.allows(START) for _ in range(5000)) == 600
    assert not pace.allows(START)
    assert sum(pace.allows(START + 1) for _ in range(5000)) == 300
    assert sum(pace.allows(START + 0.5) for _ in range(5000)) == 0
    assert pace.allows(START + 2)


def test_texts() -> None:
    assert [seconds_text(value) for value in (0.0042, 0.31, 0.9999, 3.101, 16.704, 1234.5)] == [
        *("4.2 ms", "310 ms", "1 s", "3.1 s", "16.7 s", "1234 s"),
    ]
    slow = Slowdown(83, None, START, None, 3.05, 3.101, 9.465, 47.0)
    assert slow_text(slow) == (
        "training is 3.0 times slower since 2023-11-14T22:13:20Z, from step 83 on: 9.46 s a step instead of 3.1 s"
    )
    ended = Slowdown(83, 87, START, None, 3.05, 3.101, 9.465, 47.0)
    assert slow_text(ended) == "training was 3.0 times slower from step 83 to 87: 9.46 s a step instead of 3.1 s"
    unknown = Slowdown(83, None, None, None, 3.06, 3.101, 9.465, 47.0)
    assert slow_text(unknown) == "training is 3.1 times slower from step 83 on: 9.46 s a step instead of 3.1 s"
