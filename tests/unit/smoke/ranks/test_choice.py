"""The choice of ranks, slow ranks, expected bandwidth, and NCCL's transports."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from atlctl.remote.smoke import zygote
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.ranks import allreduce, collectives, expected, settle, stragglers
from atlctl.smoke.ranks.members import Member, Without, choose, cut_off, unjudged
from atlctl.smoke.ranks.stages import StageOutcome, Track

TORCH = {"ok": True, "torch": "2.4.0", "cuda": "12.4"}


def gpus(*numbers: int, machine: str = "") -> dict[str, Any]:
    """GPUs of a machine; without `machine`, they have no UUID."""
    uuids = {number: f"GPU-{machine}-{number}" if machine else "" for number in numbers}
    return {"gpus": [{"index": n, "uuid": uuids[n], "name": "NVIDIA H100 80GB HBM3"} for n in numbers]}


def test_one_rank_for_each_gpu_in_the_order_of_the_workers() -> None:
    found = choose(["a", "b"], {"a": TORCH, "b": TORCH}, {"a": gpus(0, 1), "b": gpus(0, 1)}, None)
    assert [(m.number, m.worker, m.gpu) for m in found.members] == [(0, "a", 0), (1, "a", 1), (2, "b", 0), (3, "b", 1)]
    assert found.members[3].culprit == Culprit("gpu", "b", gpu=1, rank=3)
    assert not found.without


def test_a_gpu_that_several_workers_see_is_tested_once() -> None:
    """NCCL rejects two ranks on one GPU: observed with two local workers on a machine with one H200."""
    facts = {
        "a": gpus(0, machine="x"),
        "b": gpus(0, 1, machine="x"),
        "c": gpus(0, machine="x"),
        "d": gpus(0, machine="y"),
    }
    found = choose(list(facts), dict.fromkeys("abcd", TORCH), facts, None)
    assert [(m.number, m.worker, m.gpu) for m in found.members] == [(0, "a", 0), (1, "b", 1), (2, "d", 0)]
    assert found.without == {"c": Without("its GPUs are those of a, and tested there", due=False, covered=True)}
    assert unjudged("device", found) == [], "or a healthy machine whose workers share its GPUs is no PASS"


def test_one_rank_for_each_worker_where_nobody_has_a_gpu() -> None:
    found = choose(["a", "b"], {"a": TORCH, "b": {"ok": False, "error": "no"}}, {}, None)
    assert [m.culprit for m in found.members] == [Culprit("rank", "a", rank=0)]
    assert found.without == {"b": Without("no torch: no", due=True)}


def test_a_worker_without_torch_is_due_only_if_another_has_it_or_its_own_is_broken() -> None:
    absent = {"ok": False, "error": "no", "absent": True}
    assert not choose(["a"], {"a": absent}, {}, None).without["a"].due
    assert choose(["a"], {"a": {"ok": False, "error": "libcudart.so"}}, {}, None).without["a"].due
    assert choose(["a", "b"], {"a": absent, "b": TORCH}, {}, None).without["a"].due


def test_a_selection_leaves_out_all_else() -> None:
    facts = {"a": gpus(0, 1), "b": gpus(0, 1), "c": gpus(0)}
    found = choose(["a", "b", "c"], dict.fromkeys("abc", TORCH), facts, {"a": [1], "c": [0, 7]})
    assert [(m.worker, m.gpu) for m in found.members] == [("a", 1), ("c", 0)]
    assert found.without == {"b": Without("no GPU of it was selected", due=False), "c": Without("it has no GPU 7")}


def test_a_worker_that_lacks_what_the_others_have_is_said() -> None:
    facts = {"a": gpus(0), "b": {"gpus": "nonsense"}, "c": gpus(0)}
    found = choose(["a", "b", "c"], {"a": TORCH, "b": TORCH, "c": {**TORCH, "cuda": None}}, facts, None)
    assert [m.worker for m in found.members] == ["a"]
    assert set(found.without) == {"b", "c"}


def test_broken_links_cost_as_few_workers_as_can_be() -> None:
    def link(one: str, other: str) -> Finding:
        return Finding("mesh", Severity.FAIL, Culprit("link", one, other), "")

    assert cut_off([link("a", "b"), link("b", "c")]) == {"b"}
    assert cut_off([Finding("mesh", Severity.FAIL, Culprit("worker", "a"), ""), link("a", "c")]) == {"a"}
    assert cut_off([]) == set()


def pace(wall: float, cpu: float, starved: float | None) -> stragglers.Pace:
    found = stragglers.pace({"rounds": [[wall, cpu, starved]] * 5})
    assert found is not None
    return found


def ranks(*paces: stragglers.Pace) -> dict[Member, stragglers.Pace]:
    return {Member(number, f"worker-{number}"): one for number, one in enumerate(paces)}


def test_slow_is_told_from_starved() -> None:
    """Both take three times as long, the second one only because it got no CPU."""
    good = [pace(0.1, 0.1, 0.0) for _ in range(3)]
    computes, sleeps, starved = pace(0.3, 0.3, 0.0), pace(0.3, 0.1, 0.0), pace(0.3, 0.1, 0.2)
    for slow in (computes, sleeps):
        assert [m.number for m in stragglers.suspects(ranks(*good, slow))] == [3]
    assert stragglers.suspects(ranks(*good, starved)) == []
    assert [m.number for m in stragglers.starved(ranks(*good, starved))] == [3]


def test_two_cannot_tell_which_of_them_is_slow() -> None:
    assert stragglers.suspects(ranks(pace(0.1, 0.1, 0), pace(0.5, 0.5, 0))) == []


def test_a_suspect_that_is_not_slow_alone_is_let_go() -> None:
    slow, good = pace(0.3, 0.3, 0.0), pace(0.1, 0.1, 0.0)
    assert stragglers.confirmed((slow, good))
    assert not stragglers.confirmed((good, good))
    assert not stragglers.confirmed((slow, slow))
    assert not stragglers.confirmed(None)


def test_starved_is_who_gets_less_than_another_alone() -> None:
    hungry, fed, busy = pace(1.0, 0.1, 0.9), pace(0.1, 0.1, 0.0), pace(1.0, 0.2, 0.85)
    assert stragglers.still_starved((hungry, fed))
    assert not stragglers.still_starved((hungry, busy))
    assert not stragglers.still_starved((busy, busy))
    assert not stragglers.still_starved((fed, fed))


@pytest.mark.parametrize("rounds", [None, [], "x", [[1]], [["a", 1, 2]], [[1, 2]], {}])
def test_a_pace_that_cannot_be_understood_is_none(rounds: Any) -> None:
    assert stragglers.pace({"rounds": rounds}) is None


def test_known_hardware_has_a_figure_and_its_source() -> None:
    row = expected.expected("NVIDIA H100 80GB HBM3", 1, 8)
    assert row is not None
    assert row.busbw == 460
    assert "Azure" in row.source
    assert expected.expected("NVIDIA H100 80GB HBM3", 1, 4) is None
    assert expected.expected("", 1, 8) is None
    assert expected.expected("Fantasy 1", 1, 8) is None


def test_rows_of_the_user_go_first_and_are_checked() -> None:
    mine = expected.rows([{"gpu": "fantasy", "workers": "many", "busbw": 7.5, "source": "me", "from_bytes": 1024}])
    found = expected.expected("Fantasy 1", 3, 2, extra=mine)
    assert found is not None
    assert found.source == "me"
    for bad in ({"gpu": "x"}, {"gpu": "x", "workers": "two", "busbw": 1, "source": ""}, {"nonsense": 1}):
        with pytest.raises(ValueError, match="row 1"):
            expected.rows([bad])
    with pytest.raises(ValueError, match="above 0"):
        expected.rows([{"gpu": "x", "workers": "one", "busbw": -1, "source": ""}])


def test_too_little_bandwidth_is_judged_where_the_figure_speaks() -> None:
    row = expected.expected("H100", 1, 8)
    small = allreduce.Figure(1 << 20, 1.0, 1.0, 1.0)
    assert allreduce.judge([small], row) is None
    low, high = (allreduce.Figure(1 << 30, 1.0, 1.0, rate) for rate in (300.0, 400.0))
    judged = allreduce.judge([small, low], row)
    assert judged is not None
    assert judged[0] is low
    assert allreduce.judge([small, high], row) is None
    assert allreduce.judge([low], None) is None


def test_busbw_is_that_of_all_reduce() -> None:
    tracks = [Track(Member(n, f"worker-{n}")) for n in range(4)]
    for track in tracks:
        track.hear({"ev": "result", "step": "x", "bytes": 10**9, "median": 0.5})
        track.hear({"ev": "result", "step": "y", "bytes": "x", "median": None})
    (figure,) = allreduce.figures(StageOutcome("allreduce", tracks))
    assert (figure.algbw, figure.busbw) == (2.0, 3.0)


def test_every_pair_plays_once_and_nobody_twice_in_a_round() -> None:
    for count in range(2, 10):
        games = settle.pairings(list(range(count)))
        assert sorted(tuple(sorted(p)) for games_ in games for p in games_) == [
            *itertools.combinations(range(count), 2)
        ]
        assert all(len({x for pair in one for x in pair}) == 2 * len(one) for one in games)
    assert len(settle.pairings(list(range(64)), 3)) == 3


def test_a_slow_worker_is_told_from_a_slow_link() -> None:
    names = [f"w{n}" for n in range(5)]
    every = {pair: {0: 10.0} for pair in itertools.combinations(names, 2)}
    worker = {pair: {0: 2.0} if "w3" in pair else rates for pair, rates in every.items()}
    assert [f.culprit for f in allreduce.judge_pairs(worker, names)] == [Culprit("worker", "w3")]
    link = {**every, ("w1", "w4"): {0: 2.0}}
    assert [f.culprit for f in allreduce.judge_pairs(link, names)] == [Culprit("link", "w1", "w4")]
    dead = {**every, ("w1", "w4"): {0: 0.0}}
    assert [(f.culprit, f.severity) for f in allreduce.judge_pairs(dead, names)] == [
        (Culprit("link", "w1", "w4"), Severity.FAIL)
    ]
    assert allreduce.judge_pairs(every, names) == []


def test_the_worker_whose_nccl_fell_back_to_sockets_is_named() -> None:
    told = {f"w{n}": {"NET/IB": 16, "P2P": 8} for n in range(3)} | {"w3": {"NET/Socket": 16, "P2P": 8}}
    (found,) = collectives.judge_ways(told)
    assert found.culprit == Culprit("worker", "w3")
    assert collectives.judge_ways({w: {"NET/IB": 1} for w in "abc"}) == []
    assert collectives.judge_ways({w: {"NET/Socket": 1} for w in "abc"}) == []
    (all_of_them,) = collectives.judge_ways({w: {"NET/Socket": 1} for w in "abc"}, rdma="abc")
    assert all_of_them.culprit is None
    shm = {w: {"P2P": 8} for w in "abc"} | {"d": {"SHM": 8}}
    assert [f.culprit for f in collectives.judge_ways(shm)] == [Culprit("worker", "d")]


LOG = """\
host:1:1 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so), using internal implementation
host:1:1 [0] NCCL INFO NET/IB : No device found.
host:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
host:1:1 [0] NCCL INFO Using network Socket
host:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [receive] via NET/Socket/0
host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC
host:1:1 [0] NCCL INFO Channel 01 : 0[0] -> 1[1] via SHM/direct/direct
host:1:1 [0] NCCL INFO Channel 01/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
host:1:1 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.2<41> failed
"""


def test_what_nccl_chose_is_read_from_its_log(tmp_path: Path) -> None:
    """Searching for InfiniBand does not mean using it."""
    (tmp_path / "log").write_text(LOG)
    with open(tmp_path / "log", "rb") as file:
        found = zygote.transports(file.fileno())
    assert found["nets"] == ["Socket"]
    assert found["via"] == {"NET/Socket": 1, "P2P": 1, "SHM": 1, "NET/IB": 1}
    assert len(found["warnings"]) == 1
    (tmp_path / "empty").touch()
    with open(tmp_path / "empty", "rb") as file:
        assert not zygote.transports(file.fileno())["said"]
