from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.jobs.model import State, Worker
from atlctl.smoke.network.places import Place, choose, parse, targets, unsure


def worker(index: int, address: str | None = None) -> Worker:
    return Worker(f"w{index}", index, State.RUNNING, address=address)


def place(stack: str, *addresses: str, default: str | None = None, **routes: str) -> Place:
    return Place(
        4000, ("127.0.0.1", *addresses), default, {to.replace("_", "."): own for to, own in routes.items()}, "", stack
    )


def test_workers_of_one_stack_share_loopback():
    chosen = choose([worker(0), worker(1)], {"w0": place("a", "10.0.0.1"), "w1": place("a", "10.0.0.1")})
    assert chosen.loopback
    assert set(chosen.addresses.values()) == {"127.0.0.1"}


def test_loopback_is_never_chosen_when_another_worker_is_elsewhere():
    chosen = choose([worker(0, "127.0.0.1"), worker(1)], {"w0": place("a", "10.0.0.1"), "w1": place("b")})
    assert chosen.addresses == {"w0": "10.0.0.1"}
    assert chosen.lost == ("w1",)


def test_the_platforms_address_counts_if_it_is_the_workers_own():
    workers = [worker(0, "10.1.0.1"), worker(1, "203.0.113.9")]
    places = {
        "w0": place("a", "192.168.0.1", "10.1.0.1"),
        "w1": place("b", "10.1.0.2", "192.168.0.2", default="192.168.0.2"),
    }
    assert choose(workers, places).addresses == {"w0": "10.1.0.1", "w1": "192.168.0.2"}
    assert unsure(workers, places) == ["w1"]


def test_the_route_to_others_counts_before_the_default():
    places = {
        "w0": place("a", "172.17.0.1", "10.1.0.1", default="172.17.0.1", **{"10_1_0_2": "10.1.0.1"}),
        "w1": place("b", "10.1.0.2"),
    }
    assert choose([worker(0), worker(1)], places).addresses["w0"] == "10.1.0.1"


def test_one_family_where_all_have_it_and_the_other_where_not():
    both = place("a", "fd00::1", "10.0.0.1")
    assert choose([worker(0), worker(1)], {"w0": both, "w1": place("b", "10.0.0.2")}).addresses["w0"] == "10.0.0.1"
    assert choose([worker(0), worker(1)], {"w0": both, "w1": place("b", "fd00::2")}).addresses["w0"] == "fd00::1"


def test_an_address_of_a_link_alone_is_of_no_use():
    assert choose([worker(0), worker(1)], {"w0": place("a", "169.254.1.1"), "w1": place("b", "10.0.0.2")}).lost == (
        "w0",
    )


def test_agents_are_asked_about_addresses_not_names():
    assert targets([worker(0, "node-1.example"), worker(1, "10.0.0.1"), worker(2), worker(3, "127.0.0.1")]) == [
        "10.0.0.1"
    ]


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"port": "80", "addresses": [], "machine": "", "stack": ""},
        {"port": 0, "addresses": [], "machine": "", "stack": ""},
        {"port": 1, "addresses": {}, "machine": "", "stack": ""},
        {"port": 1, "addresses": [], "machine": None, "stack": ""},
    ],
)
def test_answers_that_make_no_sense_are_not_understood(told):
    assert parse(told) is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.fixed_dictionaries(dict.fromkeys(("port", "addresses", "default", "routes", "machine", "stack"), anything)))
def test_any_answer_is_read_or_refused(told):
    read = parse(told)
    if read is not None:
        choose([worker(0), worker(1)], {"w0": read, "w1": place("b", "10.0.0.2")})
