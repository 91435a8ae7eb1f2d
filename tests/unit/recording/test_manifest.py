from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.diagnosis.platform import PlatformState, judge_state
from atlctl.diagnosis.result import GpuIdentity
from atlctl.jobs.errors import UsageError
from atlctl.jobs.model import State
from atlctl.recording import manifest
from atlctl.recording.manifest import JobInfo, read_manifest

WORKER = {
    "name": "worker-3",
    "index": 3,
    "node_rank": 1,
    "pod": "train-worker-3",
    "node": "node7",
    "host_ip": "10.0.0.7",
    "addresses": ["10.244.1.9", "fd00::9"],
    "state": "Failed",
    "reason": "OOMKilled",
    "message": "text\u001b[31m",
    "exit_code": 137,
    "signal": 0,
    "restarts": 2,
    "started": "2026-11-20T18:29:00Z",
    "ended": 1_795_199_400.5,
    "gpus": [{"local_rank": 0, "index": 5, "uuid": "GPU-1", "pci": "0000:3b:00.0", "temperature": 70}],
}
JOB = {
    "name": "train",
    "kind": "PyTorchJob",
    "uid": "u-1",
    "state": "Failed",
    "namespace": "ml",
    "expected_workers": 8,
}
WHOLE = {"version": 1, "job": JOB, "workers": [WORKER], "written_by": "atlctl 0.9"}


def read(document):
    return read_manifest(json.dumps(document).encode())


def test_every_field():
    found = read(WHOLE)
    assert found.job == JobInfo("train", "PyTorchJob", "u-1", State.FAILED, "ml", 8)
    (worker,) = found.workers
    assert (worker.name, worker.index, worker.node_rank, worker.pod) == ("worker-3", 3, 1, "train-worker-3")
    assert (worker.state, worker.started, worker.ended) == (State.FAILED, 1_795_199_340.0, 1_795_199_400.5)
    assert worker.platform == PlatformState(
        exit_code=137,
        signal=0,
        reason="OOMKilled",
        message="text\x1b[31m",
        finished=1_795_199_400.5,
        restarts=2,
        node="node7",
        host_ip="10.0.0.7",
        addresses=("10.244.1.9", "fd00::9"),
        gpus=(GpuIdentity(5, "GPU-1", "0000:3b:00.0", 0),),
    )
    judgement = judge_state(worker.platform)
    assert judgement is not None
    assert judgement.category == "memory_limit_kill"


def test_little_is_enough():
    found = read({"version": 1, "workers": [{"name": "a"}, {"name": "b", "gpus": None, "state": "Dreaming"}]})
    assert found.job == JobInfo()
    assert [(item.name, item.index, item.state) for item in found.workers] == [
        ("a", 0, State.UNKNOWN),
        ("b", 1, State.UNKNOWN),
    ]
    assert found.workers[0].platform == PlatformState()
    assert read({"version": 1, "workers": []}).workers == ()


def worker(**fields):
    return {"version": 1, "workers": [WORKER, WORKER | {"name": "other"} | fields]}


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ([], "expected an object"),
        ({"workers": []}, "version: expected version 1"),
        ({"version": 2, "workers": []}, "version: version 2 is newer than this atlctl"),
        ({"version": "1", "workers": []}, "version: expected a whole number"),
        ({"version": True, "workers": []}, "version: expected a whole number"),
        ({"version": 1}, "workers: expected a list"),
        ({"version": 1, "workers": {}}, "workers: expected a list"),
        ({"version": 1, "workers": [7]}, "workers[0]: expected an object"),
        ({"version": 1, "workers": [{}]}, "workers[0].name: missing"),
        ({"version": 1, "workers": [], "job": []}, "job: expected an object"),
        ({"version": 1, "workers": [], "job": {"uid": 7}}, "job.uid: expected a string"),
        (
            {"version": 1, "workers": [], "job": {"expected_workers": -1}},
            "job.expected_workers: expected a whole number from 0",
        ),
        (worker(name="worker-3"), "workers[1].name: the name of another worker"),
        (worker(name=""), "workers[1].name: missing"),
        (worker(exit_code="1"), "workers[1].exit_code: expected a whole number"),
        (worker(exit_code=2**31), "workers[1].exit_code: expected a whole number"),
        (worker(restarts=1.5), "workers[1].restarts: expected a whole number from 0"),
        (worker(index=-1), "workers[1].index: expected a whole number from 0"),
        (worker(reason=["x"]), "workers[1].reason: expected a string"),
        (worker(state=1), "workers[1].state: expected a string"),
        (worker(started="yesterday"), "workers[1].started: expected a time"),
        (worker(ended=True), "workers[1].ended: expected a time"),
        (worker(addresses="10.0.0.1"), "workers[1].addresses: expected a list"),
        (worker(addresses=["10.0.0.1", 7]), "workers[1].addresses[1]: expected a string"),
        (worker(gpus=[{}, {"index": "0"}]), "workers[1].gpus[1].index: expected a whole number from 0"),
        (worker(gpus=[None]), "workers[1].gpus[0]: expected an object"),
    ],
)
def test_what_is_wrong_is_named(document, complaint):
    with pytest.raises(UsageError) as error:
        read(document)
    assert error.value.message.startswith(f"atlctl.json: {complaint}")
    assert error.value.hint


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not valid JSON"),
        (b'{"version": 1', "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)
def test_what_is_no_json(data, complaint):
    with pytest.raises(UsageError, match=complaint):
        read_manifest(data)


def test_the_size_is_limited(monkeypatch):
    monkeypatch.setattr(manifest, "SIZE_LIMIT", 10)
    with pytest.raises(UsageError, match="larger than 10 bytes"):
        read_manifest(b" " * 11)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(WORKER)), JUNK), st.dictionaries(st.sampled_from(sorted(JOB)), JUNK))
def test_anything_gives_a_manifest_or_a_complaint(fields, job):
    try:
        found = read(worker(**fields) | {"job": JOB | job})
    except UsageError as error:
        found = None
        complaint = error.message
    if found is None:
        assert complaint.startswith(("atlctl.json: workers[1].", "atlctl.json: job."))
    else:
        assert len(found.workers) == 2
