"""Events of a job: both API versions, sorted, without duplicates."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.backends.kubernetes.api import Denied, Items
from atlctl.backends.kubernetes.events import ONE_BY_ONE, About, fetch, own_objects, sorted_events
from atlctl.cli.commands.events import event_data, events_table
from atlctl.render.streams import Streams
from tests.support.recordings import load, names, needs_recordings

POD, NODE = "uid-pod", "uid-node"
ABOUT = {POD: About(worker="worker-0"), NODE: About(node="node1"), "uid-job": About()}


def core(name: str, uid: str = POD, **fields: Any) -> dict[str, Any]:
    made = {
        "metadata": {"name": name, "namespace": "ns", "uid": f"event-{name}"},
        "involvedObject": {"kind": "Pod", "uid": uid, "name": "pod-0"},
        "reason": "BackOff", "message": "Back-off", "type": "Warning", "count": 2, "source": {"host": "node2"},
        "firstTimestamp": "2026-11-20T18:29:13Z", "lastTimestamp": "2026-11-20T18:29:26Z", "eventTime": None,
    }  # fmt: skip
    return {**made, **fields}


def test_both_forms_of_one_event_are_one() -> None:
    other = {
        "metadata": {"name": "a", "namespace": "ns", "uid": "event-a"},
        "regarding": {"kind": "Pod", "uid": POD},
        "reason": "BackOff", "note": "Back-off", "type": "Warning", "eventTime": None,
        "deprecatedSource": {"host": "node2"}, "deprecatedCount": 2,
        "deprecatedFirstTimestamp": "2026-11-20T18:29:13Z", "deprecatedLastTimestamp": "2026-11-20T18:29:26Z",
    }  # fmt: skip
    [event] = sorted_events([core("a"), other], ABOUT)
    assert (event.worker, event.node, event.kind) == ("worker-0", "node2", "Pod")
    assert (event.reason, event.message, event.count, event.type) == ("BackOff", "Back-off", 2, "Warning")
    assert event.time == 1795199366.0
    assert sorted_events([other], ABOUT)[0] == event


def test_the_newest_state_of_an_event_counts_and_foreign_objects_do_not() -> None:
    late = core("a", count=7, lastTimestamp="2026-11-20T18:40:00Z")
    events = sorted_events([late, core("a"), core("b", uid="somebody-else")], ABOUT)
    assert [(event.count, event.time) for event in events] == [(7, 1795200000.0)]


def test_series_and_event_times() -> None:
    series = {"count": 9, "lastObservedTime": "2026-11-20T18:50:00.250000Z"}
    one = core("a", lastTimestamp=None, firstTimestamp=None, count=None, eventTime="2026-11-20T18:30:00.5Z")
    two = core("b", series=series)
    assert [(event.time, event.count) for event in sorted_events([two, one], ABOUT)] == [
        (1795199400.5, 1),
        (1795200600.25, 9),
    ]


KEYS = st.sampled_from(["uid", "kind", "count", "host", "lastObservedTime"])
ODD = st.recursive(
    st.none() | st.integers() | st.text(max_size=8), lambda x: st.lists(x, max_size=3) | st.dictionaries(KEYS, x)
)


@given(ODD)
def test_no_object_makes_it_fail(value: Any) -> None:
    odd = ("metadata", "source", "series", "count", "lastTimestamp", "type", "message", "reason")
    for key in odd:
        sorted_events([core("a", **{key: value})], ABOUT)
    assert sorted_events([{"involvedObject": value}], ABOUT) == []


class Server:
    """Only lists events."""

    def __init__(self, events: list[dict[str, Any]], refuse_nodes: bool = False) -> None:
        self.events, self.refuse_nodes = events, refuse_nodes
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def list(self, path: str, query: dict[str, str] | None = None) -> Items:
        query = query or {}
        self.asked.append((path, query))
        selector = query.get("fieldSelector", "")
        if selector == "involvedObject.kind=Node":
            if self.refuse_nodes:
                raise Denied(403, "Forbidden", "no")
            return Items([core("n", uid="node1", involvedObject={"kind": "Node", "uid": "node1", "name": "node1"})])
        uid = selector.removeprefix("involvedObject.uid=")
        return Items([item for item in self.events if not selector or item["involvedObject"]["uid"] == uid])


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("refused", [False, True])
def test_few_objects_are_asked_for_one_by_one_and_many_at_once(many: bool, refused: bool) -> None:
    server = Server([core("a"), core("b", uid="uid-other")], refused)
    objects = {POD: About(worker="worker-0")}
    if many:
        objects |= {f"uid-{i}": About(worker=f"worker-{i}") for i in range(1, ONE_BY_ONE + 1)}
    found = asyncio.run(fetch(server, "ns", objects, ["node1"]))  # type: ignore[arg-type]
    events = sorted_events(*found)
    assert [(event.worker, event.node) for event in events] == (
        [("worker-0", "node2")] if refused else [(None, "node1"), ("worker-0", "node2")]
    )
    assert len(server.asked) == 2
    assert [item["metadata"]["name"] for item in own_objects(*found)] == (["a"] if refused else ["n", "a"])


def test_as_table_and_as_data() -> None:
    events = sorted_events([core("a", message="bad \x1b[31m text"), core("n", uid=NODE, reason="NodeNotReady")], ABOUT)
    assert event_data(events[0])["time"] == "2026-11-20T18:29:26.000000Z"
    assert event_data(events[1])["worker"] == "worker-0"
    table = events_table(events, Streams())
    assert "\x1b" not in table
    assert table.splitlines()[0].split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE"]
    assert "worker-0" in table


@needs_recordings
@pytest.mark.parametrize("name", names("events/*.core.json"))
def test_recorded_events_are_read_alike_in_both_forms(name: str) -> None:
    items = load(name)["response"]["body"]["items"]
    objects = [item["involvedObject"] for item in items]
    about = {its.get("uid") or its["name"]: About(worker="worker-0") for its in objects}
    events = sorted_events(items, about)
    assert len(events) <= len(items)
    assert bool(events) == bool(about)
    assert all(event.time and event.reason and event.kind for event in events)
    assert [event.time for event in events] == sorted(event.time or 0 for event in events)
    other = name.replace(".core", ".eventsv1")
    if other in names("events/*.json") and other != "events/namespace.eventsv1":  # recorded at another time
        assert list(sorted_events(load(other)["response"]["body"]["items"], about)) == list(events)
