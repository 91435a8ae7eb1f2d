"""The output below the panel: the cascade, the workers' timeline, remarks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atlctl.diagnosis.logline import When
from atlctl.diagnosis.result import Cause, Diagnosis, Followed, Proof, RankEnd, Traceback, Verdict
from atlctl.diagnosis.telling.guide import Manner
from atlctl.diagnosis.telling.people import tell_people
from atlctl.diagnosis.telling.timeline import (
    MAX_FOLLOWED,
    MAX_LAST_LINES,
    MAX_TRACE,
    MAX_TRACES,
    MAX_WORKERS,
    offset,
)
from atlctl.diagnosis.tracebacks import Frame, Raised
from atlctl.i18n import Language
from tests.unit.diagnosis.causes import (
    AT,
    CAUSE,
    FOLLOWED,
    GUIDE,
    KILLED,
    MESSAGE,
    NOTE,
    ONE,
    PEER_GONE,
    SECOND,
    after,
    command,
    found,
    lists,
    place,
    report,
    told,
)


def test_the_cascade_is_folded() -> None:
    assert lists(told(ONE))["consequences"] == [
        ("+1.0 s", "3x gloo: connection closed by a peer (ranks 0-2 on worker-[0-1])"),
    ]
    assert lists(told(ONE, "zh"))["连带影响"] == [("+1.0 s", "3× gloo：连接被对端关闭（worker-[0-1] 的 rank 0-2）")]
    whole = lists(told(ONE, verbose=True))["consequences"]
    assert whole[1] == ("", f"worker-0:7: {PEER_GONE}")


def test_long_lists_of_ranks_and_workers_are_counted() -> None:
    names = tuple(f"worker-{n}" for n in range(0, 100, 3))
    group = Followed("x", 60, names, tuple(range(0, 120, 2)), None, None)
    assert lists(told(replace(ONE, cascade=(group,))))["consequences"] == [("-", "60x x (60 ranks on 34 workers)")]
    assert "0,2,4," in lists(told(replace(ONE, cascade=(group,)), verbose=True))["consequences"][0][1]
    partly = Followed("x", 9, ("worker-1",), (3,), None, None)
    assert lists(told(replace(ONE, cascade=(partly,))))["consequences"] == [("-", "9x x (worker-1)")]


def test_the_cascade_has_at_most_ten_lines() -> None:
    groups = tuple(replace(FOLLOWED, reason=f"reason {n}") for n in range(14))
    shown = lists(told(replace(ONE, cascade=groups)))["consequences"]
    assert len(shown) == MAX_FOLLOWED
    assert shown[-1] == ("", "and 15 more: -v")


def test_the_timeline_begins_with_the_culprit() -> None:
    assert lists(told(ONE))["workers"] == [
        ("+0.0 s", "worker-1", MESSAGE),
        ("+1.0 s", "worker-0", "gloo: connection closed by a peer"),
    ]


def test_the_culprit_s_own_time_counts_for_its_worker() -> None:
    """Its neighbour's end has a resolution of one second, and seems to be earlier."""
    workers = (report(0, "victim", PEER_GONE, after(0.1)), report(1, "ended", "Signal 15 (SIGTERM)", SECOND))
    shown = lists(told(replace(ONE, workers=workers)))["workers"]
    assert shown[0] == ("+0.0 s", "worker-1", MESSAGE)


def test_workers_without_a_log_and_with_one_that_ends() -> None:
    workers = (
        report(0, "victim", PEER_GONE, after(0.1)),
        report(1, "initiator", MESSAGE, AT),
        report(2, "silent", "step 40", after(-3.0)),
        report(3, "silent", "", None),
        report(4, "no log", "", None),
        report(5, "agent", "RendezvousConnectionError: gone", after(2.0)),
    )
    assert lists(told(replace(ONE, workers=workers)))["workers"] == [
        ("-3.0 s", "worker-2", "last line: step 40"),
        ("+0.0 s", "worker-1", MESSAGE),
        ("+0.1 s", "worker-0", "gloo: connection closed by a peer"),
        ("+2.0 s", "worker-5", "torchrun: the rendezvous' host went away or cannot be reached"),
        ("-", "worker-3", "its log is empty"),
        ("-", "worker-4", "no log"),
    ]


def test_without_a_time_of_the_cause_the_first_failure_is_the_beginning() -> None:
    diagnosis = replace(ONE, root_causes=(replace(CAUSE, time=None, worker=None),))
    shown = lists(told(diagnosis))["workers (+0.0 s is 2026-11-20T17:47:12.905Z)"]
    assert [line[0] for line in shown] == ["+0.0 s", "+1.0 s"]


def test_many_workers_that_say_the_same_are_one_line() -> None:
    workers = [report(n, "victim", f"{PEER_GONE}{n}", after(n / 10)) for n in range(2, 60)]
    diagnosis = replace(ONE, workers=(report(1, "initiator", MESSAGE, AT), *workers))
    assert lists(told(diagnosis))["workers"] == [
        ("+0.0 s", "worker-1", MESSAGE),
        ("+0.2 s", "worker-[2-59]", "gloo: connection closed by a peer"),
    ]
    assert len(lists(told(diagnosis, verbose=True))["workers"]) == 59


def test_a_long_timeline_keeps_culprit_and_silent_workers() -> None:
    others = [report(n, "victim", f"ValueError: {'x' * n}", after(n / 10)) for n in range(2, 30)]
    silent = report(40, "silent", "step 3", after(50))
    diagnosis = replace(ONE, workers=(*others, silent, report(1, "initiator", MESSAGE, AT)))
    shown = lists(told(diagnosis))["workers"]
    assert len(shown) == MAX_WORKERS
    assert shown[0][1] == "worker-1"
    assert shown[-2] == ("+50.0 s", "worker-40", "last line: step 3")
    assert shown[-1] == ("", "", "19 more (-v): 19 lost their peer")


def test_one_worker_needs_no_timeline() -> None:
    alone = replace(ONE, workers=ONE.workers[1:])
    assert "workers" not in lists(told(alone))
    assert "workers" in lists(told(alone, verbose=True))


def test_where_nothing_failed_the_last_lines_show_who_is_behind() -> None:
    workers = (report(0, "silent", "step 9", after(5)), report(1, "silent", "step 2", after(0)))
    assert lists(told(Diagnosis(Verdict.NONE, workers=workers)))["workers"] == [
        ("2026-11-20T17:47:12.905Z", "worker-1", "last line: step 2"),
        ("2026-11-20T17:47:17.905Z", "worker-0", "last line: step 9"),
    ]


def test_v_counts_what_a_worker_lost() -> None:
    worker = report(0, "victim", PEER_GONE, after(1), processes=8, failed=7, rounds=3, skew=-4.66)
    shown = lists(told(replace(ONE, workers=(worker,)), verbose=True))["workers"]
    assert shown == [
        ("+1.0 s", "worker-0", f"{PEER_GONE} (7 of 8 processes failed, 3 rounds, clock -4.7 s, worker-0:7)")
    ]


def test_remarks() -> None:
    assert lists(told(ONE))["remarks"] == [("never seen: worker-2",)]
    assert lists(told(ONE, "zh"))["备注"] == [("从未出现：worker-2",)]


@pytest.mark.parametrize(
    ("when", "shown"),
    [
        (AT, "+0.0 s"), (after(-0.02), "+0.0 s"), (after(1.44), "+1.4 s"), (after(-33.8), "-33.8 s"),
        (after(599), "+599.0 s"), (after(600), "+10 min"), (after(-7000), "-117 min"), (after(9000), "+2.5 h"),
        (SECOND, "+0 s"), (When(SECOND.seconds + 1, 1.0), "+0 s"), (When(SECOND.seconds + 2, 1.0), "+1 s"),
        (When(SECOND.seconds - 5, 1.0), "-5 s"), (None, "-"),
    ],
)  # fmt: skip
def test_offsets(when: When | None, shown: str) -> None:
    assert offset(when, AT) == shown


def test_v_does_not_count_processes_that_nobody_knows() -> None:
    worker = report(2, "silent", "step 3", after(1), processes=0, failed=0)
    assert lists(told(replace(ONE, workers=(worker,)), verbose=True))["workers"] == [
        ("+1.0 s", "worker-2", "last line: step 3 (worker-2:7)")
    ]


def test_v_without_anything_to_count() -> None:
    worker = report(2, "no log", "", None, processes=0, failed=0, proof=None)
    assert lists(told(replace(ONE, workers=(worker,)), verbose=True))["workers"] == [("-", "worker-2", "no log")]


TRAIN = Frame("/job/train.py", 20, "main", "step(x)")
TORCH = [Frame(f"/venv/lib/python3.11/site-packages/torch/m{n}.py", n, "forward", "y()") for n in range(9)]
DATA = Frame("/job/data.py", 38, "read", "raise ValueError(x)")


def traced(*frames: Frame, **values: Any) -> Cause:
    whole: dict[str, Any] = {
        "exception": "ValueError",
        "message": MESSAGE,
        "proof": Proof("worker-1", 12, MESSAGE),
    } | values
    return replace(CAUSE, traceback=Traceback(frames, **whole))


def trace_of(cause: Cause, language: Language = "en", verbose: bool = False) -> tuple[str, list[str]]:
    shown = told(found(Verdict.RANK, cause), language, verbose).listings[0]
    return shown.label, [line.cells[0] for line in shown.lines]


def test_the_traceback_comes_first_below_the_panel() -> None:
    assert trace_of(traced(TRAIN, TORCH[1], DATA)) == (
        "traceback of rank 3 (worker-1:12)",
        [
            "/job/train.py:20 in main", "    step(x)", "torch/m1.py:1 in forward", "/job/data.py:38 in read",
            "    raise ValueError(x)", MESSAGE,
        ],
    )  # fmt: skip
    label, lines = trace_of(traced(TRAIN), "zh")
    assert (label, lines[0]) == ("rank 3 的 traceback（worker-1:12）", "/job/train.py:20，函数 main")


def test_own_frames_stand_out() -> None:
    shown = told(found(Verdict.RANK, traced(TRAIN, TORCH[1], DATA))).listings[0]
    assert [line.tone for line in shown.lines] == ["strong", "plain", "faint", "strong", "plain", "culprit"]


def test_long_runs_in_libraries_are_folded() -> None:
    _, lines = trace_of(traced(TRAIN, *TORCH))
    assert lines[2:] == [
        "torch/m0.py:0 in forward", "(7 library frames)", "torch/m8.py:8 in forward", "    y()", MESSAGE,
    ]  # fmt: skip


def test_of_many_frames_the_innermost_are_shown() -> None:
    _, lines = trace_of(traced(*[TRAIN, DATA] * 9, omitted=5))
    assert lines[0] == "(17 more frames above)"
    assert len(lines) == MAX_TRACE + 2
    _, whole = trace_of(traced(*[TRAIN, DATA] * 9, omitted=5), verbose=True)
    assert (whole[0], len(whole)) == ("(5 more frames above)", 2 * 18 + 2)


def test_the_user_s_last_frame_is_shown_however_deep_the_library_is() -> None:
    _, lines = trace_of(traced(TRAIN, *(frame for frame in TORCH for _ in range(3))))
    assert "/job/train.py:20 in main" in lines


def test_the_exceptions_of_a_chain() -> None:
    first = Raised("KeyError", "KeyError: 'lr'", (), DATA, 3)
    _, lines = trace_of(traced(TRAIN, earlier=(first,)))
    assert lines[0] == "raised before: KeyError: 'lr' (/job/data.py:38 in read)"


def test_equal_tracebacks_are_shown_once_and_not_too_many() -> None:
    causes = [replace(traced(TRAIN), rank=rank) for rank in range(3)]
    shown = told(found(Verdict.RANKS, *causes)).listings
    assert [item.label for item in shown] == ["traceback of ranks 0-2 (worker-1:12)"]
    others = [replace(traced(frame), rank=rank) for rank, frame in enumerate(TORCH)]
    assert len(told(found(Verdict.RANKS, *others)).listings) == MAX_TRACES
    assert len(told(found(Verdict.RANKS, *others), verbose=True).listings) == len(TORCH)


def test_last_lines_before_a_silent_end() -> None:
    cause = replace(KILLED, last_lines=tuple(Proof("worker-1", n, f"step {n}") for n in range(20, 40)))
    (shown,) = told(found(Verdict.RANK, cause)).listings
    assert shown.label == "last log lines before the end of rank 3 (worker-1:39)"
    assert [line.cells for line in shown.lines] == [(str(n), f"step {n}") for n in range(40 - MAX_LAST_LINES, 40)]
    assert not told(found(Verdict.EXTERNAL, replace(cause, category="preemption"))).listings


def test_stacks_of_a_hang() -> None:
    label, lines = trace_of(replace(CAUSE, traceback=Traceback((TRAIN, TORCH[1]))))
    assert label == "Python stack of rank 3, innermost call last"
    assert lines[-1] == "    y()"


def end(rank: int | None, part: str, said: str = "", code: int | None = 1, **values: Any) -> RankEnd:
    whole: dict[str, Any] = {"signal": None, "time": AT, "proof": None, "worker": "worker-0", "local_rank": 0} | values
    return RankEnd(rank=rank, part=part, exit_code=code, said=said, **whole)


def test_every_rank_s_end_folded() -> None:
    ends = (
        end(3, "cause", MESSAGE, worker="worker-1"),
        *(end(rank, "victim", f"{PEER_GONE}{rank}", time=after(1.0)) for rank in range(3)),
        end(4, "ended", NOTE, -15, signal="SIGTERM", time=None),
        end(None, "silent", "", None, local_rank=5, time=None),
    )
    panel = tell_people(replace(ONE, ranks=ends), Manner("en", False, GUIDE, place, command, ranks=True))
    assert "workers" not in lists(panel)
    assert lists(panel)["ranks"] == [
        ("+0.0 s", "rank 3 on worker-1", "root cause, exit code 1", MESSAGE),
        ("+1.0 s", "ranks 0-2 on worker-0", "consequence, exit code 1", "gloo: connection closed by a peer"),
        ("-", "rank 4 on worker-0", "ended by its agent, SIGTERM", ""),
        ("-", "local rank 5 on worker-0", "end not in the logs", ""),
    ]
    assert [line.tone for line in panel.listings[-2].lines] == ["culprit", "victim", "faint", "plain"]
