from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.remote import proc
from atlctl.remote.smoke import network as agent
from atlctl.smoke.network.throughput import Rate, batches, loss_pace, parse_transfer, reference, rounds
from tests.unit.smoke.network.test_blame import NAMES, matrix
from tests.unit.smoke.network.test_mesh import anything


def speeds(count: int, nodes: dict[int, int], links: dict[tuple[int, int], int]) -> dict[tuple[str, str], Rate]:
    """100 bytes per second, 20 for faulty nodes and links."""
    return {pair: Rate(20.0 if kind else 100.0) for pair, kind in matrix(count, nodes, links).items()}


@pytest.mark.parametrize(
    ("count", "nodes", "links"),
    [
        (3, {0: 1}, {}),
        (4, {0: 1, 1: 1}, {}),
        (4, {0: 1}, {(1, 2): 1}),
        (4, {}, {(0, 1): 1, (1, 2): 1, (2, 3): 1}),
        (8, {0: 1, 1: 1, 2: 1}, {}),
        (64, {0: 1}, {}),
    ],
)
def test_a_few_faults_leave_a_reference(count, nodes, links):
    assert reference(speeds(count, nodes, links), count) == 100.0


def test_among_many_a_few_fast_links_are_no_reference():
    seen = speeds(32, {}, {})
    for other in range(1, 6):
        seen[NAMES[0], NAMES[other]] = Rate(1000.0)
    assert reference(seen, 32) == 100.0


def test_loss_is_what_was_sent_again_in_vain_not_what_had_arrived():
    told = {
        "bytes_per_s": 1e6,
        "bytes": 1e6,
        "seconds": 1,
        "segments": 1000,
        "singly": 1000,
        "again": 12,
        "needless": 2,
    }
    told |= {"cpu_share": 0.1, "waited_share": 0.1, "receiver_share": 0}
    read = parse_transfer({"to": 3, **told})
    assert read is not None
    assert read[0] == 3
    assert (read[1].again, read[1].lossy) == (10, True)
    assert not (parse_transfer({"to": 3, **told, "needless": 11}) or read)[1].lossy


@pytest.mark.parametrize(
    ("again", "segments", "lossy"), [(4, 400, False), (5, 500, True), (5, 4000, False), (9, 2500, True)]
)
def test_a_few_segments_prove_nothing(again, segments, lossy):
    assert Rate(1.0, segments, again).lossy is lossy


def test_a_starved_machine_is_not_a_slow_link():
    assert Rate(1.0, busy=0.9).starved
    assert Rate(1.0, receiver=0.5).starved
    assert not Rate(1.0, busy=0.5).starved
    assert not Rate(0.0, error="timed out", busy=0.9).starved


@given(st.floats(0, 1e10), st.floats(0, 1e10))
def test_a_pace_never_fills_the_usual_link(own, usual):
    assert loss_pace(Rate(own), usual) <= max(1e5, usual / 4)


@given(st.integers(2, 200))
def test_rounds_send_everyone_to_others_and_up_to_a_limit_to_all(count):
    steps = rounds(count, 64)
    assert len(set(steps)) == len(steps)
    assert all(0 < step < count for step in steps)
    if count <= 64:
        assert len(steps) == count - 1
    else:
        assert len(steps) < 20


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda p: p[0] != p[1]), unique=True), st.booleans()
)
def test_what_runs_at_once_is_in_nobodys_way(numbers, apart):
    todo = [(NAMES[one], NAMES[other]) for one, other in numbers]
    found = batches(todo, apart)
    assert sorted(pair for batch in found for pair in batch) == sorted(todo)
    for batch in found:
        assert len({one for one, _ in batch}) == len({other for _, other in batch}) == len(batch)
        if apart:
            assert len({name for pair in batch for name in pair}) == 2 * len(batch)


@given(anything | st.fixed_dictionaries({"to": st.integers(), "bytes_per_s": anything, "segments": anything}))
def test_any_answer_is_read_or_refused(turn):
    parse_transfer(turn)


def test_link_speed_is_that_of_real_interfaces(tmp_path, monkeypatch):
    names = [["eth0", "10.0.0.1"], ["veth1", "10.0.0.2"], ["eth2", "10.0.0.3"]]
    monkeypatch.setattr(proc, "addresses", lambda: names)
    for name, speed in (("eth0", "25000\n"), ("veth1", "10000\n"), ("eth2", "-1\n")):
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "speed").write_text(speed)
        if name != "veth1":
            (folder / "device").mkdir()
    speeds = [agent.link_speed(f"10.0.0.{number}", str(tmp_path)) * 8 / 1e9 for number in range(1, 5)]
    assert speeds == [25.0, 1.0, 1.0, 1.0]
