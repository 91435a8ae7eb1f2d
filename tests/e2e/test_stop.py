"""`stop` and `resume` on real controllers: stopped, restored and refused jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import kinds, objects
from tests.e2e.cluster import Cluster, until
from tests.e2e.kinds import Job, Kind

REVERSIBLE = [kind for kind in kinds.EACH if kind.suspends]


@pytest.fixture
def own(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Job]:
    """A running job of a kind for one test."""
    made = kinds.create(cluster, request.param, objects.IDLE)
    try:
        yield made.started()
    finally:
        made.remove()


def each(chosen: list[Kind]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("own", chosen, indirect=True, ids=lambda kind: kind.id)


def pods(cluster: Cluster, job: Job) -> set[str]:
    """UIDs of the job's pods that are not terminating."""
    found = cluster.list("pods")
    return {
        pod["metadata"]["uid"]
        for pod in found
        if pod["metadata"]["name"].startswith(job.name) and not pod["metadata"].get("deletionTimestamp")
    }


def frozen(cluster: Cluster, job: Job) -> str:
    """The spec of the job's object and its pods, as text."""
    resource, name = job.objects[0]
    found = cluster.get(resource, name)
    assert found is not None
    kept = [found["spec"], found["metadata"]["uid"], found["metadata"].get("deletionTimestamp")]
    return json.dumps([kept, sorted(pods(cluster, job))], sort_keys=True)


@each(list(kinds.EACH))
def test_a_dry_run_writes_nothing(cluster: Cluster, own: Job) -> None:
    before = frozen(cluster, own)
    for more in ((), ("--delete",), ("--keep",)):
        run = cluster.cli("stop", *own.words, "--dry-run", "--yes", *more)
        if more == ("--delete",) or (own.kind.suspends and not more):
            assert run.code == 0, run
    missing = cluster.cli("stop", *own.words, "--delete", stdin=b"y\n")
    assert missing.code == 2, missing
    assert frozen(cluster, own) == before
    assert list(Path().iterdir()) == []


@each(REVERSIBLE)
def test_a_stop_saves_suspends_and_is_taken_back(cluster: Cluster, own: Job) -> None:
    before = pods(cluster, own)
    until("a line of each", lambda: cluster.cli("logs", *own.words).stdout.count(b"begin ") == len(before))
    names = own.names
    run = cluster.cli("stop", *own.words, "--yes", "--out", "kept", timeout=300)
    assert run.code == 0, run
    assert pods(cluster, own) == set()
    saved = json.loads(Path("kept/atlctl.json").read_bytes())
    assert [worker["name"] for worker in saved["workers"]] == names
    for name in names:
        assert b"begin " in Path("kept", f"{name}.ts.log").read_bytes()
    (line,) = [line for line in run.stdout.decode().splitlines() if line.startswith("resume: ")]
    assert own.name in line
    until("Suspended", lambda: own.state() == "Suspended")
    again = cluster.cli("stop", *own.words, "--yes", "--no-save")
    assert (again.code, b"nothing to stop" in again.stderr) == (0, True), again
    back = cluster.cli("resume", *own.words, "--yes", timeout=300)
    assert back.code == 0, back
    own.started()
    until("Running", lambda: own.state() == "Running")
    after = pods(cluster, own)
    assert len(after) == len(before)
    assert not after & before


@each(list(kinds.EACH))
def test_a_delete_takes_object_and_pods(cluster: Cluster, own: Job) -> None:
    run = cluster.cli("stop", *own.words, "--delete", "--yes", "--no-save", timeout=300)
    assert run.code == 0, run
    assert all(cluster.get(*item) is None for item in own.objects if "runtime" not in item[0])
    until("no pod is left", lambda: not pods(cluster, own))


@each([kinds.STATEFULSET, kinds.BARE])
def test_kinds_without_a_way_back_are_refused_with_the_native_command(cluster: Cluster, own: Job) -> None:
    before = frozen(cluster, own)
    run = cluster.cli("stop", *own.words, "--yes", "--no-save")
    assert run.code == 2, run
    assert b"hint: kubectl " in run.stderr
    assert frozen(cluster, own) == before


@each([kinds.INDEXED])
def test_a_question_that_is_declined_stops_nothing(cluster: Cluster, own: Job) -> None:
    before = frozen(cluster, own)
    with cluster.terminal("stop", *own.words, columns=300) as terminal:
        terminal.wait_for(b"[y/N] ", 60)
        assert cluster.namespace.encode() in terminal.screen
        terminal.type(b"n\r")
        assert terminal.code(60) == 1
    assert frozen(cluster, own) == before


def test_keep_pods_ends_the_training_alone(cluster: Cluster) -> None:
    """The container's first process is a shell, which keeps running."""
    training = 'python3 -c "import time; time.sleep(3000)"; echo "ended with $?"; while :; do sleep 1; done'
    job = kinds.create(cluster, kinds.INDEXED, f'echo "begin $HOSTNAME"; {training}')
    try:
        before = pods(cluster, job.started())
        run = cluster.cli("stop", *job.words, "--keep", "--yes", "--no-save", "--grace", "5")
        assert run.code == 0, run
        assert b"ended after SIGTERM: worker-[0-1] (2, 2 processes)" in run.stdout
        until("the shell's word", lambda: cluster.cli("logs", *job.words).stdout.count(b"ended with 143") == 2, 30)
        assert pods(cluster, job) == before
        assert [worker["restarts"] for worker in job.workers] == [0, 0]
    finally:
        job.remove()


def test_what_keep_has_ended_starts_again_in_the_same_pods(cluster: Cluster) -> None:
    training = """python3 -c 'import os, time; print("step of", os.environ["LR"], flush=True); time.sleep(3000)'"""
    job = kinds.create(cluster, kinds.INDEXED, f"LR=7 {training}; while :; do sleep 1; done")

    def logged(text: bytes, count: int) -> None:
        until(text.decode(), lambda: cluster.cli("logs", *job.words).stdout.count(text) == count, 60)

    def stop() -> None:
        run = cluster.cli("stop", *job.words, "--keep", "--yes", "--no-save", "--grace", "5")
        assert run.code == 0, run

    try:
        before = pods(cluster, job.started())
        logged(b"step of 7\n", 2)
        stop()
        run = cluster.cli("rerun", *job.words, "--yes")
        assert (run.code, b"started: worker-[0-1]" in run.stderr) == (0, True), run
        logged(b"step of 7\n", 4)
        busy = cluster.cli("rerun", *job.words, "--yes")
        assert busy.code == 1, busy
        stop()
        logged(b"atlctl: attempt 2 ended: signal 15\n", 2)
        run = cluster.cli("rerun", *job.words, "--yes", "--", "sh", "-c", "exit 3")
        assert run.code == 0, run
        logged(b"atlctl: attempt 3 ended: exit code 3\n", 2)
        assert cluster.data("errors", *job.words)["attempt"] == 3
        assert pods(cluster, job) == before
    finally:
        job.remove()


def test_keep_pods_is_refused_where_the_training_is_the_first_process(cluster: Cluster) -> None:
    job = kinds.create(cluster, kinds.INDEXED, 'exec python3 -c "import time; time.sleep(3000)"')
    try:
        before = pods(cluster, job.started())
        run = cluster.cli("stop", *job.words, "--keep", "--yes", "--no-save", "--grace", "1")
        assert run.code == 1, run
        assert b"not stopped: worker-[0-1]" in run.stderr
        assert pods(cluster, job) == before
        assert [worker["state"] for worker in job.workers] == ["Running", "Running"]
    finally:
        job.remove()
