"""The rank that the others wait for, from /proc, stacks and flight recorders; with the diagnosis of logs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.diagnosis.hang import Scene, changes, diagnose, with_look
from atlctl.diagnosis.rankreport import innermost_user_frame, parse_report, place_of, threads_of_torch
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Verdict
from tests.unit.diagnosis.hang.made import COLLECTIVE, NOW, SITE, job, rank, recorder, report, stack

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
    assert said(job({5: rank(5, "futex")})) == ("undecided", None, [])
    assert said(job({}, usual="futex")) == ("undecided", None, [])
    assert said(job({}, usual="busy")) == ("undecided", None, [])


def test_all_wait_and_none_is_missing() -> None:
    scene = job({})
    assert said(scene) == ("undecided", None, [])
    assert "every rank waits" in scene.why
    scene = diagnose({"worker-0": report(*[rank(number) for number in range(4)])}, whole=False)
    assert said(scene) == ("undecided", None, [])
    assert "not seen" in scene.why


def test_send_and_recv_of_gloo_wait_for_another_rank() -> None:
    """A stage of a pipeline that waits for the one that hangs is no culprit; nor is one beside waiting ranks."""
    assert said(job({5: rank(5, "sleep"), 6: rank(6, "peer"), 7: rank(7, "peer")})) == (
        "hung in user code",
        "likely",
        [5],
    )
    assert said(job({5: rank(5, "sleep")}, usual="peer")) == ("hung in user code", "likely", [5])
    scene = job({5: rank(5, "peer")})
    assert said(scene) == ("undecided", None, [])
    assert "cannot be seen what the others wait for" in scene.why
    wait = stack(USER)  # `work.wait()`
    scene = job({5: rank(5, "sleep", stack=wait), 6: rank(6, "peer", stack=wait)}, stack=stack(*COLLECTIVE))
    assert said(scene) == ("hung in user code", "certain", [5])
    scene = job({5: rank(5, "peer", stack=stack(["recv", COLLECTIVE[0][1], 9], USER))}, stack=stack(*COLLECTIVE))
    assert said(scene) == ("undecided", None, [])
    assert scene.ranks[5].why == "its stack waits for another rank: recv"


def test_a_wrapper_of_torch_is_no_operation() -> None:
    api = f"{SITE}/torch/distributed/rpc/api.py"
    frames = stack(["rpc_sync", api, 842], ["_require_initialized.<locals>.wrapper", api, 99], USER)
    assert "it is in rpc_sync," in job({5: rank(5, "futex", stack=frames)}, stack=stack(*COLLECTIVE)).why


def test_a_job_that_ends_during_the_look_has_no_culprit() -> None:
    scene = job({}, usual="ended")
    assert said(scene) == ("undecided", None, [])
    assert scene.why == "all ranks ended during the look"


def test_one_waits_in_another_collective() -> None:
    def scene(*functions: str, unseen: int = 0) -> Scene:
        world, file = len(functions) + unseen, f"{SITE}/torch/distributed/distributed_c10d.py"
        stacks = [stack([name, file, 9], USER) for name in functions]
        ranks = [rank(number, world=world, stack=one) for number, one in enumerate(stacks)]
        return diagnose({"w": report(*ranks)}, whole=not unseen)

    usual = ["all_reduce"] * 3
    found = scene(*usual, "barrier")
    assert said(found) == ("in another operation", "guess", [3])
    assert found.why == "it is in barrier, and the others are in all_reduce; 3 of 4 ranks have waited for 2 s or more"
    for others in (["barrier"] * 2, ["barrier", "broadcast"], ["recv"], ["all_reduce"]):
        assert said(scene(*usual, *others)) == ("undecided", None, []), others
    assert said(scene("all_reduce", "barrier")) == ("undecided", None, [])
    assert said(scene(*usual, "barrier", unseen=1)) == ("undecided", None, [])


def test_one_is_in_another_collective_by_the_flight_recorders() -> None:
    def scene(operation: str, seq: int = 6, *, all_recorded: bool = True) -> Scene:
        odd = recorder(seq, pending=True)
        odd["json"]["entries"][-1]["profiling_name"] = f"gloo:{operation}"
        without = {} if all_recorded else {3: rank(3)}
        return job({5: rank(5, recorder=odd), **without}, recorder=recorder(6, pending=True))

    found = scene("all_gather")
    assert said(found) == ("in another operation", "likely", [5])
    assert found.why.startswith("it is in all_gather, and the others are in all_reduce; ")
    assert said(scene("all_reduce")) == ("undecided", None, [])
    assert said(scene("recv")) == ("undecided", None, [])
    assert said(scene("all_gather", all_recorded=False)) == ("undecided", None, [])


def test_a_stack_that_stands_for_many_blames_none_of_them() -> None:
    """Of a large job, stacks are taken of those that others wait for, and of one of each group of equal ranks."""
    waits = ["wait", "/usr/lib/python3.11/threading.py", 327]
    first: dict[int, dict[str, Any] | None] = {0: rank(0, "lock", stack=stack(waits, USER))}
    assert said(job({**first, 5: rank(5, "sleep", stack=stack(USER))}, usual="lock")) == (
        "hung in user code",
        "likely",
        [5],
    )
    whole = job(first, usual="lock")
    assert said(whole)[2] in ([], list(range(16)))


@pytest.mark.parametrize(("usual", "odd"), [("busy", "futex"), ("futex", "busy"), ("busy", "poll")])
def test_the_few_beside_the_many_are_a_guess(usual: str, odd: str) -> None:
    assert said(job({9: rank(9, odd)}, usual=usual)) == ("hung in user code", "guess", [9])


def test_half_and_half_is_no_answer() -> None:
    halves = {number: rank(number, "futex") for number in range(8)}
    assert said(job(dict(halves), usual="busy")) == ("undecided", None, [])


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


def test_a_worker_that_does_not_answer_is_what_the_others_wait_for() -> None:
    """Its machine hangs: neither `/proc` nor a stack of it can be read."""
    reports = {f"worker-{worker}": report(*(rank(4 * worker + local) for local in range(4))) for worker in range(3)}
    found = diagnose(reports, whole=False, silent={"worker-3": "no answer within 20 s"})
    assert said(found) == ("unreachable", "likely", [12, 13, 14, 15])
    assert {culprit.worker for culprit in found.culprits} == {"worker-3"}
    assert found.why == "its worker does not answer: no answer within 20 s; 12 of 16 ranks have waited for 2 s or more"
    assert found.unseen == ()
    # Another rank that hangs explains the wait; and where nobody waits, nobody is to blame.
    hung = {**reports, "worker-2": report(*(rank(8 + local, "sleep" if local == 1 else "gloo") for local in range(4)))}
    assert said(diagnose(hung, whole=False, silent={"worker-3": "lost"}))[2] == [9]
    moving = {name: report(*(rank(4 * at + local, "moving") for local in range(4))) for at, name in enumerate(reports)}
    assert said(diagnose(moving, whole=False, silent={"worker-3": "lost"}))[2] == []
    two = dict(list(reports.items())[:2])
    assert said(diagnose(two, whole=False, silent={"worker-2": "lost", "worker-3": "lost"}))[2] == list(range(8, 16))


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
    assert said(scene) == ("undecided", None, [])
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
    assert said(scene) == ("undecided", None, [])
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
        (
            [
                ["Cmd.cmdloop", "/usr/lib/python3.11/cmd.py", 132],
                ["Bdb.dispatch_line", "/usr/lib/python3.11/bdb.py", 114],
                USER,
            ],
            "stopped",
        ),
        ([["sleep", f"{SITE}/debugpy/_vendored/pydevd/pydevd.py", 9], USER], "stopped"),
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
    """`work.wait()`: the innermost Python frame is the user's."""
    scene = job({5: rank(5, "sleep", stack=stack(USER))}, stack=stack(["main", "/job/train.py", 20]))
    assert said(scene) == ("hung in user code", "certain", [5])


FAULTHANDLER = """\
Current thread 0x00007f74019286c0 (most recent call first):
  <no Python frame>

Thread 0x00007f74018286c0 [QueueFeeder] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Thread 0x00007f74218a8b80 (most recent call first):
  File "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/job/train.py", line 17 in main
  File "/job/train.py", line 22 in <module>
"""


def test_a_dump_of_torchs_worker_server() -> None:
    threads = threads_of_torch(FAULTHANDLER)
    assert [(thread.name, thread.main, len(thread.frames)) for thread in threads] == [
        ("QueueFeeder", False, 1),
        (None, True, 3),
    ]
    frames = threads[1].frames
    assert (str(place_of(frames)[0]), place_of(frames)[1]) == ("collective", "all_reduce")
    assert str(innermost_user_frame(frames)) == 'File "/job/train.py", line 17, in main'


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"atlctl_stacks": 2}', b"\xff" * 9, b"[" * 100_000])
def test_what_is_no_report(data: bytes) -> None:
    assert parse_report(data) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("T") | st.just(-1),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(rank(0))), _JSON, max_size=6), _JSON)
def test_any_field_may_be_anything(fields: dict[str, Any], other: object) -> None:
    found = {"atlctl_stacks": 1, "memory": other, "seconds": other, "ranks": [rank(0) | fields, rank(1), other]}
    report = parse_report(json.dumps(found).encode("utf-8", "replace"))
    assert report is not None
    diagnose({"worker-0": report}, whole=True)


@given(st.dictionaries(st.sampled_from(["source", "threads", "text", "json"]), _JSON))
def test_any_stack_may_be_anything(found: dict[str, Any]) -> None:
    for source in ("py-spy", "torch"):
        data = {"atlctl_stacks": 1, "ranks": [rank(0, stack={"source": source} | found, recorder=found)]}
        assert parse_report(json.dumps(data).encode()) is not None


def test_two_looks() -> None:
    before = job({3: rank(3, "busy"), 4: rank(4, pid=77), 6: None, 5: rank(5, stack=stack(*COLLECTIVE))})
    after = job({3: rank(3, "busy"), 7: None, 5: rank(5, stack=stack(["main", "/job/train.py", 3]))})
    how = {change.rank: change.how for change in changes(before, after)}
    assert {number: how[number] for number in (0, 3, 4, 5, 6, 7)} == {
        0: "still",
        3: "ran",
        4: "new",
        5: "moved",
        6: "new",
        7: "gone",
    }


def test_a_collective_that_goes_on_counts_as_moved() -> None:
    def look(number: int) -> Any:
        return job({}, stack=stack(*COLLECTIVE), recorder=recorder(number, pending=True))

    assert {change.how for change in changes(look(6), look(7))} == {"moved"}
    assert {change.how for change in changes(look(6), look(6))} == {"still"}


SILENT = Diagnosis(Verdict.NONE)
STUCK = stack(["sleep", f"{SITE}/vendored/wait.py", 3], ["fetch", "/job/train.py", 6], ["main", "/job/train.py", 30])


def test_silent_logs_and_one_rank_that_hangs() -> None:
    found = with_look(SILENT, job({5: rank(5, "sleep", stack=STUCK)}), 60.0)
    assert found.verdict is Verdict.RANK
    [cause] = found.root_causes
    assert (cause.worker, cause.rank, cause.local_rank, cause.category) == ("worker-1", 5, 1, "hang")
    assert (cause.message, cause.confidence) == ("hung in user code", "likely")
    assert cause.why == "it sleeps, in no collective; 15 of 16 ranks have waited for 2 s or more"
    assert cause.frame is not None
    assert str(cause.frame) == 'File "/job/train.py", line 6, in fetch'
    assert [proof.text for proof in cause.proofs][1:] == [
        'File "/job/train.py", line 6, in fetch',
        'File "/job/train.py", line 30, in main',
        "/proc/1005: state S in clock_nanosleep, 0 ticks of CPU",
    ]
    assert found.remarks == ("the logs name no failure: this is what the ranks are doing now",)


@pytest.mark.parametrize(
    ("quiet", "last"), [(4.0, "the last line of a log is 4 s old: it may only be slow"), (None, "")]
)
def test_a_job_that_still_talks_may_only_be_slow(quiet: float | None, last: str) -> None:
    found = with_look(SILENT, job({5: rank(5, "sleep", stack=STUCK)}), quiet)
    assert [(cause.rank, cause.confidence) for cause in found.root_causes] == [(5, "guess")]
    assert found.remarks[1:] == ((last,) if last else ())


def test_several() -> None:
    found = with_look(SILENT, job({5: rank(5, "sleep"), 9: rank(9, "stopped")}), 60.0)
    assert found.verdict is Verdict.RANKS
    assert {(cause.rank, cause.message) for cause in found.root_causes} == {(5, "hung in user code"), (9, "stopped")}


def test_nobody_hangs() -> None:
    found = with_look(SILENT, job({}, usual="moving"), 60.0)
    assert (found.verdict, found.root_causes) == (Verdict.NONE, ())
    assert found.remarks == (
        "the ranks were inspected; working; every rank was moving during the look; compare two looks with --repeat",
    )


@pytest.mark.parametrize("verdict", [Verdict.UNDECIDED, Verdict.RANK])
def test_an_answer_of_the_logs_stands(verdict: Verdict) -> None:
    cause = Cause("worker-0", "python_exception", "x", Confidence.GUESS, "y", rank=0)
    told = Diagnosis(verdict, candidates=(cause,))
    found = with_look(told, job({5: rank(5, "sleep")}), 60.0)
    assert (found.verdict, found.root_causes, found.candidates) == (verdict, (), (cause,))
    [remark] = found.remarks
    assert remark.startswith("the ranks were inspected; hung in user code (rank 5); it sleeps; ")


def at_start(age: float, sign: str = "file", **more: Any) -> dict[str, Any]:
    """Changed fields in a rank's report `age` seconds after its launch, before it has a process group."""
    return {"started": NOW - age, "waits": [], "torch": False, "sign": sign, **more}


@pytest.mark.parametrize("sign", ["file", "disk", "busy", "starved", "sleep", "futex", "poll"])
@pytest.mark.parametrize("torch", [True, False, None])
def test_a_young_start_is_not_a_hang(sign: str, torch: bool | None) -> None:
    ranks = {number: rank(number, **at_start(12, sign, torch=torch)) for number in range(15)}
    found = with_look(SILENT, job({**ranks, 15: None}), 60.0)
    assert (found.verdict, found.candidates) == (Verdict.NONE, ())
    assert found.remarks == (
        "the ranks were inspected; starting; 16 of 16 ranks are starting, 12 s after they were launched",
    )


def test_a_start_that_others_wait_for_is_not_a_hang_while_it_is_young() -> None:
    found = with_look(SILENT, job({5: rank(5, **at_start(12))}), 60.0)
    assert (found.verdict, found.remarks[0].split("; ")[1]) == (Verdict.NONE, "starting")


def test_a_start_that_others_have_long_waited_for_is_a_hang() -> None:
    found = with_look(SILENT, job({5: rank(5, **at_start(600))}), 60.0)
    assert [(cause.rank, cause.category) for cause in found.root_causes] == [(5, "hang")]


def test_a_stopped_process_is_stopped_at_its_start_too() -> None:
    ranks: dict[int, dict[str, Any] | None]
    ranks = {number: rank(number, **at_start(12, "stopped" if number == 5 else "file")) for number in range(16)}
    found = with_look(SILENT, job(ranks), 60.0)
    assert [(cause.rank, cause.message) for cause in found.root_causes] == [(5, "stopped")]


IMPORTING = stack(["<module>", "/nfs/pkg/x.py", 3], ["_load_unlocked", "<frozen importlib._bootstrap>", 690])


@pytest.mark.parametrize("known", [{"torch": False}, {"torch": True, "stack": IMPORTING}])
def test_a_start_that_takes_long_is_undecided(known: dict[str, Any]) -> None:
    ranks: dict[int, dict[str, Any] | None]
    ranks = {number: rank(number, **at_start(430, **known)) for number in range(16)}
    found = with_look(SILENT, job(ranks), 60.0)
    assert (found.verdict, found.root_causes) == (Verdict.UNDECIDED, ())
    assert {(cause.category, cause.message) for cause in found.candidates} == {("slow_start", "starting")}
    assert found.remarks[0].endswith("; starting; 16 of 16 ranks are still starting after 7 min")


def test_an_import_in_the_middle_of_the_training_is_not_a_start() -> None:
    found = with_look(SILENT, job({5: rank(5, "file", stack=IMPORTING)}), 60.0)
    assert [(cause.rank, cause.category) for cause in found.root_causes] == [(5, "hang")]
