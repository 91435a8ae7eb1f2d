"""Slow ranks, starved ranks, and machines too busy for a verdict."""

from __future__ import annotations

import pytest

from atlctl.smoke.ranks.members import Member
from atlctl.smoke.ranks.stragglers import Pace, confirmed, crowded, note, pace, starved, still_starved, suspects


def made(middle: float = 1.0, waiting: float | None = 0.0) -> Pace:
    return Pace(middle, middle, middle, waiting)


def members(count: int) -> list[Member]:
    return [Member(n, f"worker-{n}") for n in range(count)]


def test_a_slow_one_is_suspected_by_its_own_time() -> None:
    one, two, slow = members(3)
    paces = {one: made(), two: made(1.1), slow: made(2.0)}
    assert suspects(paces) == [slow]
    assert confirmed((made(2.0), made()))
    assert not confirmed((made(1.2), made()))


def test_two_cannot_tell_which_of_them_is_slow() -> None:
    one, two = members(2)
    assert suspects({one: made(), two: made(9.0)}) == []


def test_who_waits_for_a_cpu_alone_is_starved_and_who_waits_with_everybody_is_not() -> None:
    one, two, three = members(3)
    assert starved({one: made(waiting=0.9), two: made(waiting=0.1), three: made(waiting=0.5)}) == [one, three]
    assert still_starved((made(waiting=0.8), made(waiting=0.1)))
    assert not still_starved((made(waiting=0.8), made(waiting=0.8)))


@pytest.mark.parametrize(
    ("looks", "count"),
    [
        ([], 0),
        ([(made(waiting=0.7), made(waiting=0.6))], 1),
        ([(made(waiting=0.7), made(waiting=0.1))], 0),
        ([(made(waiting=0.1), made(waiting=0.7))], 0),
        ([(made(waiting=None), made(waiting=None))], 0),
    ],
)
def test_a_machine_is_too_busy_where_the_control_waits_too(looks: list[tuple[Pace, Pace]], count: int) -> None:
    assert crowded(looks) == count


def test_the_note_tells_how_many_waited() -> None:
    one, two, three = members(3)
    paces = {one: made(waiting=0.9), two: made(), three: made(3.0)}
    assert note(paces, 1) == "slowest 3.00 times the middle; 1 of 3 had to wait for a CPU"


@pytest.mark.parametrize("rounds", [None, [], "x", [[1.0]], [[1.0, "x", 0.0]]])
def test_what_no_rank_says_is_no_pace(rounds: object) -> None:
    assert pace({"rounds": rounds}) is None
