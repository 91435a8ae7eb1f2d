"""`logs` and `events` of real pods: merged, followed to the end, from the run before a restart."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from tests.e2e import kinds, objects
from tests.e2e.cluster import Cluster, until
from tests.e2e.kinds import Job
from tests.e2e.settings import SOON


def test_all_logs_come_with_the_workers_names(cluster: Cluster, idle: Job) -> None:
    names = idle.names
    until("two lines of each", lambda: cluster.cli("logs", *idle.words).stdout.count(b"step 1 ") == len(names))
    run = cluster.cli("logs", *idle.words)
    assert run.code == 0, run
    lines = run.stdout.decode().splitlines()
    assert {line.partition(": ")[0] for line in lines} == set(names)
    for name in names:
        own = [line.partition(": ")[2] for line in lines if line.startswith(f"{name}: ")]
        assert own[0].startswith("begin ")
        assert [line.rsplit(" ", 1)[0] for line in own[1:3]] == ["step 0", "step 1"]


def test_lines_are_merged_by_their_time(cluster: Cluster, job: Job) -> None:
    run = cluster.cli("logs", *job.words, "-o", "json")
    events = [json.loads(line) for line in run.stdout.splitlines()]
    times = [event["time"] for event in events if event["type"] == "output"]
    assert times == sorted(times)
    assert events[-1]["type"] == "summary"


def test_tail_since_and_grep(cluster: Cluster, job: Job) -> None:
    tail = cluster.cli("logs", *job.words, "--tail", "3", "-w", "0")
    assert len(tail.stdout.splitlines()) == 3
    begun = cluster.cli("logs", *job.words, "--grep", "^begin ").stdout.splitlines()
    assert len(begun) == 2
    assert b"begin " not in cluster.cli("logs", *job.words, "--since", "1s").stdout


def test_a_follow_ends_with_the_job_and_loses_nothing(cluster: Cluster) -> None:
    """Each worker writes 500 numbered lines. None may be missing or repeated."""
    script = "until [ -s end ]; do sleep 0.2; done; sleep 1; i=0; "
    script += 'while [ $i -lt 500 ]; do echo "n $i"; i=$((i + 1)); done; echo over'
    job = kinds.create(cluster, kinds.INDEXED, script)
    try:
        job.started()
        with cluster.running("logs", *job.words, "-f") as follow:
            assert cluster.cli("exec", *job.words, "--all", "--", "sh", "-c", "echo 0 > end").code == 0
            assert follow.wait(SOON) == 0, Path("err").read_bytes()
        counts = Counter(Path("out").read_text().splitlines())
        expected = [f"{name}: n {number}" for name in ("worker-0", "worker-1") for number in range(500)]
        assert counts == Counter([*expected, "worker-0: over", "worker-1: over"])
        until("the job's end", lambda: job.state() == "Succeeded")
    finally:
        job.remove()


def test_a_restart_is_followed_and_the_run_before_can_be_read(cluster: Cluster) -> None:
    """An ended container of a StatefulSet is restarted in the same pod, with new files."""
    job = kinds.create(cluster, kinds.STATEFULSET, 'echo "run $(date +%s%N)"; ' + objects.ENDING)
    try:
        job.started()
        until("the first line", lambda: b"run " in cluster.cli("logs", *job.words, "-w", "0").stdout)
        (first,) = re.findall(rb"run \w+", cluster.cli("logs", *job.words, "-w", "0").stdout)
        with cluster.running("logs", *job.words, "-w", "0", "-f", "--no-prefix"):
            until("the follow's begin", lambda: Path("out").read_bytes().startswith(first))
            assert cluster.cli("exec", *job.words, "-w", "0", "--", "sh", "-c", "echo 4 > end").code == 0
            until("a restart", lambda: restarted(job))
            until("the second run in the follow", lambda: Path("out").read_bytes().count(b"begin ") >= 2)
        assert first not in cluster.cli("logs", *job.words, "-w", "0").stdout
        before = cluster.cli("logs", *job.words, "-w", "0", "--previous")
        assert before.stdout.startswith(first), before
        assert b"leaving" in before.stdout
        seen = Path("out").read_bytes()
        assert seen.index(b"leaving ") < seen.rindex(b"begin ")
        assert seen.count(b"leaving ") == seen.count(first) == 1
        lacking = cluster.cli("logs", *job.words, "-w", "1", "--previous")
        assert lacking.stdout == b""
        assert lacking.stderr
    finally:
        job.remove()


def restarted(job: Job) -> bool:
    first = job.workers[0]
    return bool(first["restarts"]) and str(first["state"]) == "Running"


def test_events_of_a_job_name_its_workers(cluster: Cluster, idle: Job) -> None:
    data = cluster.data("events", *idle.words)
    named = {event["worker"] for event in data["events"]}
    assert set(idle.names) <= named
    assert {"Scheduled", "Started"} & {event["reason"] for event in data["events"]}
    table = cluster.cli("events", *idle.words)
    assert table.code == 0
    assert b"Scheduled" in table.stdout
