"""Which worker holds which global rank: by the processes that live in the containers, else by what the pods state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from atlctl.backends.base import Argv, Executor
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.asking import stdout_of
from atlctl.backends.kubernetes.kinds import fields
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Job, RankMap, State, Worker

#: Prints the global rank of every process that torchrun has started, its children's again.
_SCRIPT = r"""
for f in /proc/[0-9]*/environ; do
  tr '\0' '\n' <"$f" 2>/dev/null | { r= l= t=
    while IFS= read -r x; do
      case $x in RANK=*) r=${x#*=};; LOCAL_RANK=*) l=1;; TORCHELASTIC_RUN_ID=*) t=1;; esac
    done
    [ "$l$t" = 11 ] && echo "$r"; }
done
exit 0
"""
_AT_ONCE = 64
_SECONDS = 20.0
_LIMIT = 64 * 1024
_PER_NODE = "PET_NPROC_PER_NODE"
#: Under another rendezvous than this one torchrun gives out node ranks as agents come.
_RENDEZVOUS = "PET_RDZV_BACKEND"


async def living(executor: Executor, workers: Sequence[Worker]) -> RankMap | None:
    """By the environment of torchrun's processes. None where no worker has any, or two have the same rank."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(worker: Worker) -> set[int]:
        async with gate:
            return await _ranks(executor, worker)

    running = [worker for worker in workers if worker.state in (State.RUNNING, State.HELD)]
    answers = await asyncio.gather(*(ask(worker) for worker in running))
    found: dict[int, str] = {}
    for worker, ranks in zip(running, answers, strict=True):
        if any(rank in found for rank in ranks):
            return None
        found.update(dict.fromkeys(ranks, worker.name))
    return RankMap(found, "the processes of torchrun in the workers") if found else None


def stated(job: Job, pods: Sequence[Object]) -> RankMap | None:
    """Computed from node ranks and the number of processes on each node, where all pods state the same. A guess."""
    by_name = {fields.name(pod): pod for pod in pods}
    counts = {_per_node(by_name.get(worker.pod or "", {}), worker.container) for worker in job.workers}
    if len(counts) != 1 or (count := counts.pop()) is None or job.missing:
        return None
    found: dict[int, str] = {}
    for worker in job.workers:
        if worker.node_rank is None:
            return None
        ranks = range(worker.node_rank * count, (worker.node_rank + 1) * count)
        found.update(dict.fromkeys(ranks, worker.name))
    return RankMap(found, f"node ranks and {_PER_NODE}={count}", guess=True)


def _per_node(pod: Object, container: str | None) -> int | None:
    """Processes of each node, where the container states it and node ranks are static."""
    for entry in fields.entries(fields.spec(pod).get("containers")):
        if entry.get("name") == container:
            env = {item.get("name"): fields.text(item.get("value")) for item in fields.entries(entry.get("env"))}
            count = env.get(_PER_NODE, "")
            static = env.get(_RENDEZVOUS, "static") == "static"
            return int(count) if static and count.isascii() and count.isdigit() and 0 < len(count) < 4 else None
    return None


async def _ranks(executor: Executor, worker: Worker) -> set[int]:
    try:
        async with asyncio.timeout(_SECONDS):
            said = await stdout_of(executor, worker, Argv(("sh", "-c", _SCRIPT)), _LIMIT)
    except (AtlctlError, TimeoutError):
        return set()
    return {int(line) for line in (said or b"").split() if line.isdigit() and len(line) < 8}
