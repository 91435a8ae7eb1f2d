"""The rank that the others wait for: from /proc alone, from stacks, from flight recorders."""

from __future__ import annotations

from typing import Any

import pytest

from atlctl.diagnosis.hang.scene import Scene, diagnose
from tests.unit.diagnosis.hang.made import COLLECTIVE, SITE, job, rank, recorder, report, stack

USER = ["stuck", "/job/train.py", 6]


def said(scene: Scene) -> tuple[str, str | None, list[int | None]]:
    return str(scene.what), scene.confidence, [one.rank for one in scene.culprits]


@pytest.mark.parametrize(
    ("sign", "what", "confidence"),
    [
        ("sleep", "hung in user code", "likely"),
        ("lock", "hung in user code", "likely"),
        ("busy", "hung in user code", "likely"),
        ("child", "hung in user code", "likely"),
        ("file", "blocked on I/O", "likely"),
        ("read", "blocked on I/O", "likely"),
        ("disk", "blocked on I/O", "likely"),
        ("stopped", "stopped", "certain"),
        ("traced", "stopped", "certain"),
        ("frozen", "stopped", "certain"),
        ("starved", "starved", "likely"),
        ("ended", "gone", "certain"),
    ],
)
def test_proc_alone_names_the_rank(sign: str, what: str, confidence: str) -> None:
    scene = job({5: rank(5, sign)})
    assert said(scene) == (what, confidence, [5])
    assert [one.rank for one in scene.groups[0].ranks] == [5]
    assert len(scene.groups) == 2


def test_what_could_be_any_wait_is_not_guessed_at() -> None:
    assert said(job({5: rank(5, "futex")})) == ("cannot tell", None, [])
    assert said(job({}, usual="futex")) == ("cannot tell", None, [])
    assert said(job({}, usual="busy")) == ("cannot tell", None, [])


def test_all_wait_and_none_is_missing() -> None:
    scene = job({})
    assert said(scene) == ("cannot tell", None, [])
    assert "every rank waits" in scene.why


@pytest.mark.parametrize(("usual", "odd"), [("busy", "futex"), ("futex", "busy"), ("busy", "poll")])
def test_the_few_beside_the_many_are_a_guess(usual: str, odd: str) -> None:
    assert said(job({9: rank(9, odd)}, usual=usual)) == ("hung in user code", "guess", [9])


def test_half_and_half_is_no_answer() -> None:
    halves = {number: rank(number, "futex") for number in range(8)}
    assert said(job(dict(halves), usual="busy")) == ("cannot tell", None, [])


def test_where_all_move_nothing_hangs() -> None:
    assert said(job({}, usual="moving")) == ("working", "guess", [])
    assert said(job({3: rank(3, "busy")}, usual="moving"))[2] == []


@pytest.mark.parametrize(("sign", "what"), [("sleep", "hung in user code"), ("file", "blocked on I/O")])
def test_stacks_make_it_certain(sign: str, what: str) -> None:
    odd = rank(5, sign, stack=stack(USER, ["main", "/job/train.py", 16]))
    scene = job({5: odd}, stack=stack(*COLLECTIVE))
    assert said(scene) == (what, "certain", [5])
    assert [frame.function for frame in scene.groups[0].first.frames] == ["stuck", "main"]
    assert "15 of 16 ranks" in scene.why


def test_a_busy_rank_may_only_be_slow() -> None:
    scene = job({5: rank(5, "busy", stack=stack(USER))}, stack=stack(*COLLECTIVE))
    assert said(scene) == ("hung in user code", "likely", [5])


def test_a_worker_that_was_not_seen_leaves_doubt() -> None:
    odd = rank(0, "sleep", stack=stack(USER))
    workers = {"worker-0": report(odd, *[rank(number, stack=stack(*COLLECTIVE)) for number in range(1, 4)])}
    scene = diagnose(workers, whole=False)
    assert said(scene) == ("hung in user code", "likely", [0])
    assert scene.unseen == tuple(range(4, 16))


def test_ranks_that_nobody_has_are_gone() -> None:
    assert said(job({7: None})) == ("gone", "certain", [7])
    scene = job({7: None}, whole=False)
    assert said(scene) == ("gone", "certain", [7])
    assert scene.culprits[0].worker == "worker-1"


def test_ranks_of_a_worker_without_any_are_gone_only_where_all_were_seen() -> None:
    missing = dict.fromkeys(range(12, 16))
    assert said(job(dict(missing))) == ("gone", "certain", [12, 13, 14, 15])
    scene = job(dict(missing), whole=False)
    assert (said(scene)[2], scene.unseen) == ([], (12, 13, 14, 15))


def test_a_process_whose_environment_hangs_is_known_by_exclusion() -> None:
    scene = job({6: rank(None, "disk")})
    assert said(scene) == ("blocked on I/O", "likely", [6])


def test_two_trainings_with_the_same_ranks_miss_nobody() -> None:
    workers = {name: report(*[rank(n, world=4) for n in range(3)]) for name in ("worker-0", "worker-1")}
    assert said(diagnose(workers, whole=True))[2] == []


def test_no_rank_at_all() -> None:
    scene = diagnose({"worker-0": report()}, whole=True)
    assert said(scene) == ("cannot tell", None, [])
    assert "no rank process" in scene.why


@pytest.mark.parametrize(
    ("launchers", "why"),
    [
        ((1, 0, 0), "torchrun waits on worker-0, and there is none on worker-[1-2]"),
        ((1, 1, 1), "torchrun waits on worker-[0-2] for its rendezvous"),
        ((0, 0, 0), "no rank process was found"),
    ],
)
def test_torchrun_that_waits_for_others(launchers: tuple[int, ...], why: str) -> None:
    reports = {f"worker-{index}": report(launchers=count) for index, count in enumerate(launchers)}
    scene = diagnose(reports, whole=True)
    assert said(scene) == ("cannot tell", None, [])
    assert why in scene.why


def test_a_recorder_gives_the_number_and_makes_it_certain() -> None:
    waiting = {n: rank(n, "busy", recorder=recorder(6, pending=True), stack=stack(*COLLECTIVE)) for n in range(16)}
    waiting[5] = rank(5, "sleep", recorder=recorder(5, pending=False), stack=stack(USER))
    scene = job(dict(waiting))
    assert said(scene)[0::2] == ("hung in user code", [5])
    group = scene.groups[-1].first
    assert group.pending is not None
    assert (group.pending.seq, group.pending.operation, group.pending.group) == (6, "all_reduce", "default_pg")


def test_a_recorder_without_stacks_names_the_one_that_is_absent() -> None:
    odd: dict[int, Any] = {n: rank(n, "futex", recorder=recorder(6, pending=True)) for n in range(16)}
    odd[5] = rank(5, "futex", recorder=recorder(5, pending=False))
    scene = job(odd)
    assert said(scene) == ("hung in user code", "likely", [5])


def test_a_dump_that_is_older_than_its_process_does_not_count() -> None:
    one = report(rank(0, recorder=recorder(5, pending=True), started=2_000_000_100.0)).ranks[0]
    assert one.recorder is None
    assert one.problems == ("flight recorder: its dump is older than the process",)


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        ([["_try_get_data", f"{SITE}/torch/utils/data/dataloader.py", 1131], USER], "hung in user code"),
        ([["save", f"{SITE}/torch/serialization.py", 850], USER], "blocked on I/O"),
        ([["recv_into", "/usr/lib/python3.11/ssl.py", 1], USER], "blocked on I/O"),
        ([["wait", "/usr/lib/python3.11/threading.py", 320], USER], "hung in user code"),
    ],
)
def test_what_the_stack_is_in(frames: list[list[Any]], what: str) -> None:
    scene = job({5: rank(5, "futex", stack=stack(*frames))}, stack=stack(*COLLECTIVE))
    assert said(scene) == (what, "certain", [5])


def test_loader_processes_on_a_dead_disk() -> None:
    child = {"pid": 9, "name": "pt_data_worker", "state": "D", "ticks": 0, "syscall": "read", "target": "/data/x"}
    frames = stack(["_try_get_data", f"{SITE}/torch/utils/data/dataloader.py", 1131], USER)
    scene = job({5: rank(5, "poll", stack=frames, children=[child])}, stack=stack(*COLLECTIVE))
    assert said(scene)[0::2] == ("blocked on I/O", [5])
    assert "DataLoader" in scene.why


def test_waiting_below_python_is_seen_by_gloos_threads() -> None:
    """`work.wait()`: the innermost frame is the user's own."""
    scene = job({5: rank(5, "sleep", stack=stack(USER))}, stack=stack(["main", "/job/train.py", 20]))
    assert said(scene) == ("hung in user code", "certain", [5])
