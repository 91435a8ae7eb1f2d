"""From a finished scenario to a case's folder: logs as their workers saw them, some of them lost, and `case.json`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

from tests.corpus.scale import others, scenarios
from tests.corpus.scale.log import stamps
from tests.corpus.scale.opening import Size
from tests.corpus.scale.scenarios import Outcome, Scenario

#: All cases, by name.
CASES: dict[str, Scenario] = {
    "hang": scenarios.hang,
    "hang_in_gpu_call": scenarios.hang_in_gpu_call,
    "hang_in_subgroup": scenarios.hang_in_subgroup,
    "collective_mismatch": scenarios.collective_mismatch,
    "other_collective": scenarios.other_collective,
    "exception": scenarios.exception,
    "cuda_out_of_memory": scenarios.cuda_out_of_memory,
    "ecc_error": scenarios.ecc_error,
    "illegal_access": scenarios.illegal_access,
    "killed": scenarios.killed,
    "segfault": scenarios.segfault,
    "exit_zero": scenarios.exit_zero,
    "worker_lost": others.worker_lost,
    "worker_evicted": others.worker_evicted,
    "all_terminated": others.all_terminated,
    "import_error": others.import_error,
    "never_joined": others.never_joined,
    "two_culprits": others.two_culprits,
    "straggler": others.straggler,
    "culprit_unseen": others.culprit_unseen,
    "restart_then_failure": others.restart_then_failure,
    "restart_recovers": others.restart_recovers,
    "success": others.success,
}

#: How often logs are lost where they may be, and how many of 64 workers.
LOSES_LOGS = 0.6
_LOST_OF_64 = 3
_SOURCE = "by construction: what the scenario did; the logs were written from it, no job ran"


def render(name: str, out: Path, seed: int, size: Size) -> dict[str, Any]:
    """Writes the case to `out`/NAME, which is replaced; its document. KeyError for an unknown name."""
    rng = Random(f"{seed}/{name}")
    outcome = CASES[name](rng, size)
    lost = _lost_logs(outcome, rng)
    target = out / name
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for worker in outcome.job.workers:
        if worker.name in lost | outcome.absent:
            continue
        lines = worker.log.lines()
        plain = "".join(f"{line}\n" for _, line in lines)
        (target / f"{worker.name}.log").write_text(plain, encoding="utf-8", newline="")
        (target / f"{worker.name}.ts.log").write_text(stamps(lines), encoding="utf-8", newline="")
    document = _document(name, outcome, lost, seed)
    (target / "case.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return document


def _lost_logs(outcome: Outcome, rng: Random) -> set[str]:
    if outcome.unseen:
        return outcome.unseen
    free = [worker.name for worker in outcome.job.workers if worker.name not in outcome.keep | outcome.absent]
    count = min(_LOST_OF_64, len(outcome.job.workers) // 4, len(free) - 1)
    if count < 1 or rng.random() >= LOSES_LOGS:
        return set()
    return set(rng.sample(free, count))


def _document(name: str, outcome: Outcome, lost: set[str], seed: int) -> dict[str, Any]:
    job = outcome.job
    started = [worker.name for worker in job.workers if worker.name not in outcome.absent]
    first = job.store_host.host
    where = (
        f"--rdzv-backend=c10d --rdzv-endpoint={first}:29400"
        if job.rendezvous == "c10d"
        else f"--master-addr={first} --master-port=29400 --node-rank="
    )
    command = (
        f"torchrun --nnodes={len(job.workers)} --nproc-per-node={job.processes} --max-restarts={job.restarts} {where}"
    )
    return {
        "name": name,
        "what": " ".join((CASES[name].__doc__ or "").split()),
        "synthetic": True,
        "seed": seed,
        "nodes": [worker.name for worker in job.workers],
        "nodes_started": started,
        "nodes_by_rank": [worker.name for worker in sorted(job.workers, key=lambda worker: worker.node_rank)],
        "logs_lost": sorted(lost),
        "nproc_per_node": [job.processes] * len(job.workers),
        "pod_ip": {worker.name: worker.address for worker in job.workers},
        "clock_skew_seconds": {worker.name: round(worker.log.clock.skew / 1e9, 3) for worker in job.workers},
        "command": {
            worker.name: f"{command}{'' if job.rendezvous == 'c10d' else worker.index} {job.script}"
            for worker in job.workers
        },
        "environment": {"NCCL_DEBUG": job.nccl_debug} if job.nccl_debug else {},
        "record": job.record,
        "torch": job.profile.torch,
        "backend": "nccl",
        "exit_code": {name: code for name, code in outcome.exit_codes.items() if name in started},
        "ended_by": "itself",
        "truth": outcome.truth,
        "injected_events": [],
        "outside_actions": outcome.actions,
        "error_files": [],
        "truth_source": _SOURCE,
    }
