"""Addresses of workers, and workers that cannot be reached."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.jobs.model import State, Worker
from atlctl.remote.smoke import network as agent
from atlctl.smoke.findings import Culprit, Severity
from atlctl.smoke.network.mesh import (
    Call,
    Endpoint,
    choose_addresses,
    judge_calls,
    known_addresses,
    named_interfaces,
    parse_calls,
    parse_endpoint,
    unsure_workers,
)
from tests.support.pace import within
from tests.unit.smoke.network.test_blame import NAMES, matrix


def worker(index: int, address: str | None = None) -> Worker:
    return Worker(f"w{index}", index, State.RUNNING, address=address)


def place(stack: str, *addresses: str, default: str | None = None, **routes: str) -> Endpoint:
    ways = {to.replace("_", "."): own for to, own in routes.items()}
    return Endpoint(4000, ("127.0.0.1", *addresses), default, ways, "", stack, {})


@pytest.mark.parametrize(
    ("setting", "value", "cards"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", ["eth0", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "eth1,ib:1", ["eth1", "ib0"]),
        ("NCCL_SOCKET_IFNAME", "=eth1,eth", ["eth1"]),
        ("NCCL_SOCKET_IFNAME", "ens", []),
        ("NCCL_SOCKET_IFNAME", ",", []),
        ("GLOO_SOCKET_IFNAME", "eth", []),
        ("GLOO_SOCKET_IFNAME", "ib0,eth0", ["eth0", "ib0"]),
    ],
)
def test_interfaces_that_a_training_is_told_to_use(setting: str, value: str, cards: list[str]) -> None:
    there = {"eth0": ("10.0.0.1",), "eth1": ("fd77::1", "10.1.0.1"), "ib0": ("10.2.0.1",)}
    found = named_interfaces(setting, value, there)
    assert [card for card, _ in found] == cards
    assert dict(found).get("eth1", "10.1.0.1") == "10.1.0.1"


def test_workers_of_one_stack_share_loopback():
    chosen = choose_addresses([worker(0), worker(1)], {"w0": place("a", "10.0.0.1"), "w1": place("a", "10.0.0.1")})
    assert chosen.loopback
    assert set(chosen.addresses.values()) == {"127.0.0.1"}


def test_loopback_is_never_chosen_when_another_worker_is_elsewhere():
    chosen = choose_addresses([worker(0, "127.0.0.1"), worker(1)], {"w0": place("a", "10.0.0.1"), "w1": place("b")})
    assert chosen.addresses == {"w0": "10.0.0.1"}
    assert chosen.lost == ("w1",)


def test_the_platforms_address_counts_if_it_is_the_workers_own():
    workers = [worker(0, "10.1.0.1"), worker(1, "203.0.113.9")]
    places = {
        "w0": place("a", "192.168.0.1", "10.1.0.1"),
        "w1": place("b", "10.1.0.2", "192.168.0.2", default="192.168.0.2"),
    }
    assert choose_addresses(workers, places).addresses == {"w0": "10.1.0.1", "w1": "192.168.0.2"}
    assert unsure_workers(workers, places) == ["w1"]


def test_the_route_to_others_counts_before_the_default():
    places = {
        "w0": place("a", "172.17.0.1", "10.1.0.1", default="172.17.0.1", **{"10_1_0_2": "10.1.0.1"}),
        "w1": place("b", "10.1.0.2"),
    }
    assert choose_addresses([worker(0), worker(1)], places).addresses["w0"] == "10.1.0.1"


def test_one_family_where_all_have_it_and_the_other_where_not():
    both = place("a", "fd00::1", "10.0.0.1")
    assert (
        choose_addresses([worker(0), worker(1)], {"w0": both, "w1": place("b", "10.0.0.2")}).addresses["w0"]
        == "10.0.0.1"
    )
    assert (
        choose_addresses([worker(0), worker(1)], {"w0": both, "w1": place("b", "fd00::2")}).addresses["w0"] == "fd00::1"
    )


def test_an_address_of_a_link_alone_is_of_no_use():
    assert choose_addresses(
        [worker(0), worker(1)], {"w0": place("a", "169.254.1.1"), "w1": place("b", "10.0.0.2")}
    ).lost == ("w0",)


def test_agents_are_asked_about_addresses_not_names():
    assert known_addresses([worker(0, "node-1.example"), worker(1, "10.0.0.1"), worker(2), worker(3, "127.0.0.1")]) == [
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
def test_parse_endpoint_nonsense(told):
    assert parse_endpoint(told) is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.fixed_dictionaries(dict.fromkeys(("port", "addresses", "default", "routes", "machine", "stack"), anything)))
def test_parse_endpoint_any_answer(told):
    read = parse_endpoint(told)
    if read is not None:
        choose_addresses([worker(0), worker(1)], {"w0": read, "w1": place("b", "10.0.0.2")})


KINDS = {0: "", 1: "large", 2: "data", 3: "connect"}


def calls(count: int, nodes: dict[int, int], links: dict[tuple[int, int], int]) -> dict[tuple[str, str], Call]:
    return {pair: Call(KINDS[kind], "timed out" * bool(kind)) for pair, kind in matrix(count, nodes, links).items()}


def test_all_well_is_nothing_found():
    assert judge_calls(NAMES[:4], calls(4, {}, {})) == []


def test_a_worker_is_one_finding_that_tells_of_both_directions():
    (found,) = judge_calls(NAMES[:4], calls(4, {2: 3}, {}))
    assert (found.culprit, found.severity, found.confirmed) == (Culprit("worker", "w2"), Severity.FAIL, True)
    assert found.evidence == (
        "3 of 3 connections to it fail, 3 of 3 connections from it fail: no connection (timed out)"
    )


def test_a_link_names_both_ends_and_an_mtu_is_told_from_silence():
    (found,) = judge_calls(NAMES[:4], calls(4, {}, {(1, 3): 1}))
    assert found.culprit == Culprit("link", "w1", "w3")
    assert "small packets pass, large ones do not" in found.evidence
    assert "MTU" in (found.advice or "")


def test_one_direction_is_told():
    seen = calls(3, {}, {})
    seen["w2", "w0"] = Call("refused", "Connection refused")
    (found,) = judge_calls(NAMES[:3], seen)
    assert found.culprit == Culprit("link", "w0", "w2")
    assert found.evidence.startswith("only connections from w2 to w0 fail")


def test_where_nobody_reaches_anybody_nobody_is_accused():
    (found,) = judge_calls(NAMES[:4], calls(4, dict.fromkeys(range(4), 3), {}))
    assert found.culprit is None
    assert found.severity is Severity.FAIL


@pytest.mark.parametrize(
    "peers",
    [
        None,
        [],
        {},
        {"1": {"ok": 1}},
        {"1": {"ok": False, "kind": "of its own"}},
        {"1": {"ok": False}},
        {"2": {"ok": True}},
    ],
)
def test_parse_calls_nonsense(peers):
    assert parse_calls({"peers": peers}, "w0", {0: "w0", 1: "w1"}, [1]) is None


@given(anything)
def test_parse_calls_any_answer(peers):
    told = parse_calls({"peers": {"1": peers}}, "w0", {0: "w0", 1: "w1"}, [1])
    judge_calls(["w0", "w1"], told or {})


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_refusal_of_a_host_takes_no_time(host: str) -> None:
    said: list[dict[str, Any]] = []
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        port = server.getsockname()[1]
    begun, cpu = time.monotonic(), time.process_time()
    agent.meet(lambda **fields: said.append(fields), {"addresses": [host], "port": port, "patience": 30.0})
    assert [event["error"] for event in said] == [""]
    # It spun for all of its patience when it looked for the message of a firewall.
    assert within(time.monotonic() - begun, 5)
    assert time.process_time() - cpu < 5
