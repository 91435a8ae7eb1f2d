"""Which worker holds which global rank, by what the pods state."""

from __future__ import annotations

from collections.abc import Sequence

from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds import fields
from atlctl.jobs.model import Job, RankMap

_PER_NODE = "PET_NPROC_PER_NODE"
#: Under another rendezvous than this one torchrun gives out node ranks as agents come.
_RENDEZVOUS = "PET_RDZV_BACKEND"


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
