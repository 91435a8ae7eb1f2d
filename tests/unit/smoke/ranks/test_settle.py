"""The ranks to blame for a stage that did not finish."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from atlctl.smoke.ranks import settle
from atlctl.smoke.ranks.members import Member
from atlctl.smoke.ranks.settle import blame, frames, losers, pairings
from atlctl.smoke.ranks.stages import StageOutcome, Track

STACK = """Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f2 (most recent call first):
"""
WAITS = (
    STACK
    + '  File "/x/torch/distributed/distributed_c10d.py", line 3000 in all_gather\n  File "p", line 9 in all_gather\n'
)
SLEEPS = (
    STACK + '  File "<atlctl>/atlctl.remote.smoke.probe", line 12 in poll_device\n  File "p", line 9 in all_gather\n'
)
GPU = STACK + '  File "/x/torch/cuda/__init__.py", line 800 in synchronize\n  File "p", line 9 in all_gather\n'


def track(number: int, *events: dict[str, Any], look: dict[str, Any] | None = None) -> Track:
    found = Track(Member(number, f"worker-{number}"), place=number, look=look)
    for event in ({"ev": "forked"}, {"ev": "up"}, *events):
        found.hear(event)
    return found


def step(name: str) -> dict[str, Any]:
    return {"ev": "step", "step": name}


def ended(code: int | None = 1, number: int | None = None, **more: Any) -> dict[str, Any]:
    return {"ev": "exit", "started": True, "code": code, "signal": number, "words": "", "stack": "", **more}


def error(text: str, kind: str = "") -> dict[str, Any]:
    return {"ev": "error", "error": text, "kind": kind}


def numbers(*tracks: Track, silent: bool = False) -> list[int]:
    return [one.member.number for one in blame(StageOutcome("collectives", list(tracks), silent))]


def test_a_crash_is_named_and_what_it_causes_is_not() -> None:
    dead = track(1, step("all_gather"), ended(None, 11))
    follows = track(0, step("all_gather"), error("RuntimeError: Connection closed by peer [10.0.0.2]:1"), ended())
    (found,) = blame(StageOutcome("collectives", [follows, dead, track(2, step("all_gather"))]))
    assert found.member.number == 1
    assert "signal 11 (SIGSEGV) in all_gather" in found.evidence


def test_the_last_words_of_a_crash_are_shown() -> None:
    dead = track(0, step("memory"), ended(17, words="hello\nCUDA out of memory\n\n"))
    (found,) = blame(StageOutcome("device", [dead, track(1)]))
    assert found.evidence.endswith("exit 17 in memory; it said: CUDA out of memory")


def test_a_rank_that_was_not_forked_goes_before_all_others() -> None:
    unborn = Track(Member(2, "worker-2"))
    unborn.hear({"ev": "exit", "started": False, "error": "Resource temporarily unavailable"})
    assert numbers(track(0, step("x"), ended(3)), unborn) == [2]


def test_an_error_of_its_own_is_named_among_those_that_follow() -> None:
    own = track(2, step("init"), error("RuntimeError: CUDA error: an illegal memory access"), ended())
    assert numbers(track(0, step("init"), error("Timed out waiting"), ended()), own, track(1, step("init"))) == [2]


def test_an_error_that_all_ranks_have_is_nobodys() -> None:
    assert numbers(*(track(n, step("init"), error("ValueError: no"), ended()) for n in range(3))) == []


def test_a_leader_that_most_cannot_reach_is_named_in_their_place() -> None:
    text = "RuntimeError: the store of the leader cannot be reached on port 1: 10.0.0.1: timed out"
    lost = [track(n, step("store"), error(text, "unreached"), ended()) for n in (1, 2)]
    assert numbers(track(0, step("meeting")), *lost, track(3, step("meeting"))) == [0]
    assert numbers(track(0, step("meeting")), lost[0], track(2, step("meeting")), track(3, step("meeting"))) == [1]


def test_the_one_behind_hangs() -> None:
    ahead = [track(n, step("barrier"), step("all_gather"), look={"state": "S", "stack": WAITS}) for n in (0, 2, 3)]
    assert numbers(*ahead, track(1, step("barrier"), look={"state": "S", "stack": SLEEPS}), silent=True) == [1]


def test_of_those_in_one_step_the_one_that_does_not_wait_hangs() -> None:
    for other in (WAITS, GPU):
        waiting = [track(n, step("all_gather"), look={"state": "S", "stack": other}) for n in (0, 1, 3)]
        hangs = track(2, step("all_gather"), look={"state": "S", "stack": SLEEPS})
        assert numbers(*waiting, hangs, silent=True) == [2]


def test_one_that_went_on_is_not_taken_for_the_odd_one() -> None:
    """Rank 0 only had to send; of the ranks behind it, the one that is not waiting is the culprit."""
    first = track(0, step("broadcast"), step("all_to_all"), look={"state": "S", "stack": GPU})
    waiting = [track(n, step("broadcast"), look={"state": "S", "stack": WAITS}) for n in (1, 3)]
    hangs = track(2, step("broadcast"), look={"state": "S", "stack": SLEEPS})
    assert numbers(first, *waiting, hangs, silent=True) == [2]


def test_a_stopped_rank_answers_no_signal_and_is_told_by_its_state() -> None:
    others = [track(n, step("all_gather"), look={"state": "S", "stack": WAITS}) for n in (0, 1)]
    assert numbers(*others, track(2, step("all_gather"), look={"state": "T", "stack": ""}), silent=True) == [2]


def test_where_all_do_the_same_nobody_is_named() -> None:
    assert numbers(*(track(n, step("init"), look={"state": "S", "stack": WAITS}) for n in range(4)), silent=True) == []


def test_a_rank_whose_agent_is_gone_is_not_blamed() -> None:
    gone = track(1, step("init"))
    gone.lost = "the agent ended"
    assert numbers(track(0, step("init"), error("Connection reset by peer"), ended()), gone) == []


def test_frames_are_those_of_the_thread_that_was_asked() -> None:
    assert frames(WAITS)[0] == "all_gather (distributed_c10d.py:3000)"
    assert frames(None) == frames("") == []


@pytest.mark.parametrize("count", range(3, 20))
def test_one_or_two_bad_ranks_are_found_in_pairs(count: int) -> None:
    played = [pair for games in pairings(range(count), settle._PARTNERS) for pair in games]
    for culprits in [*combinations(range(count), 1), *(combinations(range(count), 2) if count > 3 else ())]:
        found, _ = losers(played, [pair for pair in played if set(pair) & set(culprits)])
        assert sorted(found) == list(culprits)
