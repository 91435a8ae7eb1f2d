"""Which worker holds which global rank, by the processes of torchrun that live there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from atlctl.backends.base import Argv, Executor
from atlctl.backends.guarded.asking import stdout_of
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import RankMap, Worker

#: Prints the global rank of every process that torchrun has started, its children's again.
SCRIPT = r"""
f=/proc/[0-9]*/environ
command -v grep >/dev/null && f=`grep -la LOCAL_RANK= $f 2>/dev/null`
for f in $f; do
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


async def living(executor: Executor, workers: Sequence[Worker]) -> RankMap | None:
    """What `workers`, which live, hold by the environment of torchrun's processes. None where no worker has any, or two
    have the same rank."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(worker: Worker) -> set[int]:
        async with gate:
            return await _ranks(executor, worker)

    answers = await asyncio.gather(*(ask(worker) for worker in workers))
    found: dict[int, str] = {}
    for worker, ranks in zip(workers, answers, strict=True):
        if any(rank in found for rank in ranks):
            return None
        found.update(dict.fromkeys(ranks, worker.name))
    return RankMap(found, "the processes of torchrun in the workers") if found else None


async def _ranks(executor: Executor, worker: Worker) -> set[int]:
    try:
        async with asyncio.timeout(_SECONDS):
            said = await stdout_of(executor, worker, Argv(("sh", "-c", SCRIPT)), _LIMIT)
    except (AtlctlError, TimeoutError):
        return set()
    return {int(line) for line in (said or b"").split() if line.isdigit() and len(line) < 8}
