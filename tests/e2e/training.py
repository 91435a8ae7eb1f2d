"""A real torchrun job that fails on one rank, in any job kind, without name resolution.

Each worker waits until a test gives it its node rank and the master's address, as shown by `ps`.
"""

from __future__ import annotations

from tests.e2e import kinds
from tests.e2e.cluster import Cluster, Object, until
from tests.e2e.kinds import Job, Kind
from tests.e2e.settings import START

PORT = 29511
MESSAGE = "e2e: shard 17 is damaged"
#: The failing rank in torchrun's numbering: two processes on each of two workers.
RANK = 3
LOCAL_RANK = 1
NODE_RANK = 1

#: Four processes sum up a number, then one finds its data damaged while the others wait for it.
TRAIN = f'''
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def load(step):
    if step == 3 and dist.get_rank() == {RANK}:
        time.sleep(0.5)
        raise ValueError("{MESSAGE}")


@record
def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    for step in range(1000):
        load(step)
        total = torch.ones(1)
        dist.all_reduce(total)
        print(f"step {{step}} rank {{dist.get_rank()}} total {{total.item():.0f}}", flush=True)


try:
    main()
except Exception as error:
    # The connections stay for a moment: no peer's complaint is as old as the cause.
    sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
    time.sleep(1.1)
    os._exit(1)
'''

#: Written by tests: `start` with the worker's position, `end` to release a held worker.
LAUNCH = f"""
printf %s "$TRAIN" > train.py
until [ -f start ]; do sleep 0.2; done
. ./start
export OMP_NUM_THREADS=1
python3 -m torch.distributed.run --nnodes=2 --nproc-per-node=2 --node-rank="$E2E_NODE_RANK" \\
  --master-addr="$E2E_MASTER" --master-port={PORT} train.py
code=$?
echo "launcher: torchrun has ended with $code, waiting"
until [ -f end ]; do sleep 0.2; done
sleep 1
exit $code
"""


def create(cluster: Cluster, kind: Kind) -> Job:
    """Create the job and start the training; returns while it runs or after it has failed."""
    job = kinds.create(cluster, kind, LAUNCH, torch=True, env={"TRAIN": TRAIN})
    try:
        job.started(2 * START)
        for place, worker in enumerate(workers(job)):
            script = 'printf "E2E_NODE_RANK=%s\\nE2E_MASTER=%s\\n" "$1" "$2" > start.tmp && mv start.tmp start'
            words = ("sh", "-c", script, "sh", str(place), workers(job)[0]["address"])
            run = cluster.cli("exec", *job.words, "-w", worker["name"], "--", *words)
            assert run.code == 0, run
    except BaseException:
        job.remove()
        raise
    return job


def workers(job: Job) -> list[Object]:
    """By node rank; by index if the kind has none."""
    return sorted(job.workers, key=lambda worker: (worker["node_rank"] or 0, worker["index"]))


def wait_until_held(job: Job) -> None:
    """Wait until torchrun has failed in all workers, and the containers keep sleeping."""

    def held() -> bool:
        return [worker["state"] for worker in job.workers] == ["Held", "Held"]

    until("both workers are Held", held, START)


def let_go(cluster: Cluster, job: Job, worker: str) -> None:
    """End the worker's container with torchrun's exit code."""
    run = cluster.cli("exec", *job.words, "-w", worker, "--", "touch", "end")
    assert run.code == 0, run
