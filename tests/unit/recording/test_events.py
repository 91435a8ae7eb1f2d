from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.diagnosis.platform import Event
from atlctl.jobs import statedir
from atlctl.recording import events
from atlctl.recording.events import parse_events

OWN = {
    "time": "2026-11-20T18:29:05.5Z",
    "worker": "worker-3",
    "node": "node7",
    "kind": "Pod",
    "reason": "Evicted",
    "message": "The node was low on resource: memory.",
}
CORE = {
    "kind": "Event",
    "apiVersion": "v1",
    "metadata": {"name": "w-3.18e9", "creationTimestamp": "2026-11-20T18:29:00Z"},
    "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "w-3", "uid": "x"},
    "reason": "BackOff",
    "message": "Back-off restarting failed container main",
    "source": {"component": "kubelet", "host": "node2"},
    "firstTimestamp": "2026-11-20T18:29:01Z",
    "lastTimestamp": "2026-11-20T18:29:09Z",
    "count": 4,
    "type": "Warning",
    "eventTime": None,
}
NEW = {
    "kind": "Event",
    "apiVersion": "events.k8s.io/v1",
    "metadata": {"name": "w-3.18e9", "creationTimestamp": "2026-11-20T18:29:00Z"},
    "regarding": {"kind": "Node", "name": "node2"},
    "reason": "NodeNotReady",
    "note": "Node node2 status is now: NodeNotReady",
    "eventTime": "2026-11-20T18:29:03.718574Z",
    "series": {"count": 3, "lastObservedTime": "2026-11-20T18:29:07.25Z"},
    "deprecatedSource": {"component": "node-controller"},
    "type": "Normal",
}
AT = 1_795_199_340.0  # 2026-11-20T18:29:00Z


def parse(*found):
    return parse_events(json.dumps(item).encode() + b"\n" for item in found)


def test_the_three_forms():
    own, core, new = parse(OWN, CORE, NEW)[0]
    low, back = "The node was low on resource: memory.", "Back-off restarting failed container main"
    assert own == Event(AT + 5.5, "worker-3", "node7", "Pod", "Evicted", low, AT + 5.5)
    assert core == Event(AT + 9, "w-3", "node2", "Pod", "BackOff", back, AT + 1)
    status = "Node node2 status is now: NodeNotReady"
    assert replace(new, first=None) == Event(AT + 7.25, None, "node2", "Node", "NodeNotReady", status)
    assert new.first == pytest.approx(AT + 3.718574)


def test_watched_events_are_unwrapped():
    assert parse({"type": "ADDED", "object": CORE}) == parse(CORE)


@pytest.mark.parametrize(
    ("reason", "message", "pod"),
    [
        ("BackOff", "Back-off restarting failed container main", None),
        ("SuccessfulDeletePod", "Deleted pod: bert-worker-1", "bert-worker-1"),
        ("SuccessfulDelete", "Deleted pod: sweep-x7k2p", "sweep-x7k2p"),
        ("SuccessfulCreate", "(combined from similar events): Created pod: sweep-x7k2p", None),
        ("ExitedWithCode", "Pod: team.bert-worker-1 exited with code 137", "bert-worker-1"),
        ("PyTorchJobFailed", "Deleted pod: bert-worker-1", None),
    ],
)
def test_an_event_of_a_job_is_about_the_pod_that_it_names(reason, message, pod):
    about = {"kind": "PyTorchJob", "name": "bert"}
    (found,), _ = parse(CORE | {"involvedObject": about, "source": {}, "reason": reason, "message": message})
    assert (found.worker, found.node, found.kind) == (pod, None, "PyTorchJob")


@pytest.mark.parametrize(
    ("missing", "time"),
    [
        (("series",), 3.718574),
        (("series", "eventTime"), 0.0),
        (("series", "eventTime", "metadata"), None),
    ],
)
def test_the_best_time_that_there_is(missing, time):
    (found,), _ = parse({key: value for key, value in NEW.items() if key not in missing})
    assert found.time == (None if time is None else pytest.approx(AT + time))


def test_bad_lines_are_told_and_skipped():
    lines = [b"\n", b"{cut off", b"[1]", b"7", b"{}", b"\xff\xfe", b"[" * 100_000, json.dumps(OWN).encode()]
    found, remarks = parse_events(lines)
    assert [item.reason for item in found] == ["Evicted"]
    assert remarks == [
        "line 2: not JSON (cut off?)",
        "line 3: not a JSON object",
        "line 4: not a JSON object",
        "line 5: neither a reason nor a message",
        "line 6: not JSON (cut off?)",
        "line 7: nested too deeply",
    ]


def test_remarks_and_events_are_bounded(monkeypatch):
    monkeypatch.setattr(events, "MAX_REMARKS", 2)
    monkeypatch.setattr(events, "MAX_EVENTS", 3)
    found, remarks = parse_events([b"x"] * 5 + [json.dumps(OWN | {"reason": str(n)}).encode() for n in range(5)])
    assert [item.reason for item in found] == ["2", "3", "4"]
    assert remarks == [
        "line 1: not JSON (cut off?)",
        "line 2: not JSON (cut off?)",
        "3 more lines are not events",
        "more than 3 events: the first 2 were dropped",
    ]


def test_a_line_without_end_is_not_held(monkeypatch):
    for module in (events, statedir):
        monkeypatch.setattr(module, "LINE_LIMIT", 500)
    file = io.BytesIO(b"a\n" + b"x" * 5_000 + b"\n" + json.dumps(OWN).encode() + b"\n" + b"y" * 3_000)
    lines = list(statedir.lines_within(file))
    assert [len(line) for line in lines] == [2, 501, len(json.dumps(OWN)) + 1, 501]
    found, remarks = parse_events(lines)
    assert len(found) == 1
    assert remarks[1:] == ["line 2: longer than 500 bytes", "line 4: longer than 500 bytes"]


def test_texts_are_cut_and_can_be_encoded():
    (found,), _ = parse(OWN | {"message": "\ud800" + "x" * 10_000, "worker": "w" * 5_000})
    assert found.worker is not None
    assert (len(found.worker), len(found.message)) == (1_000, 4_096)
    found.message.encode()


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.binary(max_size=50)), st.dictionaries(st.sampled_from(sorted({*OWN, *CORE, *NEW, "object"})), JUNK))
def test_anything_can_be_fed(lines, fields):
    strange = [json.dumps(form | fields).encode() for form in (OWN, CORE, NEW)]
    found, remarks = parse_events([*lines, *strange])
    assert len(found) + len(remarks) <= len(lines) + len(strange)
