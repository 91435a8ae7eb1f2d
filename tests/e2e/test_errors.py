"""`errors` and Held on real failures: torchrun in each job kind, and an out-of-memory worker."""

from __future__ import annotations

import pytest

from tests.e2e import kinds, objects, training
from tests.e2e.cluster import Cluster, Object, until
from tests.e2e.kinds import Job, Kind

#: Allocates more memory than its limit, a mebibyte at a time; stops at eight times the limit if it is not enforced.
GREEDY = """
import time
kept = []
for _ in range(512):
    kept.append(b"x" * 2**20)
print("no limit was kept", flush=True)
time.sleep(3600)
"""
LIMIT = "64Mi"


def diagnosis(cluster: Cluster, job: Job) -> Object:
    data: Object = cluster.data("errors", *job.words)
    return data


def check(data: Object, worker: str) -> Object:
    """The only root cause, which must be the rank that raised."""
    assert data["verdict"] == "rank", data
    (cause,) = data["root_causes"]
    assert (cause["rank"], cause["local_rank"], cause["worker"]) == (training.RANK, training.LOCAL_RANK, worker), data
    assert (cause["exception"], cause["exit_code"]) == ("ValueError", 1), data
    assert training.MESSAGE in cause["message"]
    return dict(cause)


@pytest.mark.torch
@pytest.mark.usefixtures("torch_image")
@pytest.mark.parametrize("kind", kinds.EACH, ids=lambda kind: kind.id)
def test_the_rank_that_raised_is_the_root_cause(cluster: Cluster, kind: Kind) -> None:
    job = training.create(cluster, kind)
    try:
        training.wait_until_held(job)
        failing = training.workers(job)[training.NODE_RANK]["name"]
        held = cluster.data("ps", *job.words, "--failed")["workers"]
        assert len(held) == len(kind.workers)
        cause = check(diagnosis(cluster, job), failing)
        assert cause["frame"]["file"].endswith("/train.py")
        assert cause["frame"]["function"] == "load"
        files = [proof["file"] or "" for proof in cause["evidence"]]
        assert any(file.endswith("error.json") for file in files), cause
        assert cluster.cli("errors", *job.words, "--exit-code").code == 1
        if not kind.fails:
            return
        # The container ends with torchrun's code: its files are gone, its log and the platform's messages stay.
        training.let_go(cluster, job, failing)
        if kind.resource != kinds.PODS:
            until("the job's failure", lambda: job.state() == "Failed")
        check(diagnosis(cluster, job), failing)
    finally:
        job.remove()


def test_a_worker_that_ran_out_of_memory_is_named(cluster: Cluster) -> None:
    script = f'if [ "$JOB_COMPLETION_INDEX" = 1 ]; then exec python3 -c "$GREEDY"; fi; {objects.IDLE}'
    memory = {"cpu": "10m", "memory": LIMIT}
    one = objects.container(
        script, env=[{"name": "GREEDY", "value": GREEDY}], resources={"requests": memory, "limits": {"memory": LIMIT}}
    )
    job = Job(kinds.INDEXED, kinds.named(kinds.INDEXED), cluster)
    cluster.create("jobs.batch", objects.batch_job(job.name, objects.spec(one), 2))
    job.objects.append(("jobs.batch", job.name))
    try:

        def killed() -> bool:
            if cluster.cli("ps", *job.words).code:
                return False
            return any((worker["name"], worker["reason"]) == ("worker-1", "OOMKilled") for worker in job.workers)

        until("worker-1 is OOMKilled", killed)
        data = diagnosis(cluster, job)
        assert data["verdict"] in ("worker", "rank"), data
        (cause,) = data["root_causes"]
        assert cause["worker"] == "worker-1"
        assert cause["category"] == "memory_limit_kill", cause
    finally:
        job.remove()
