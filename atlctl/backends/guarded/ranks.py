"""Which worker holds which global rank, by the processes of torchrun that live there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from atlctl.backends.base import Argv, Executor
from atlctl.backends.guarded.asking import stdout_of
from atlctl.backends.questions import ask_each
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import RankMap, Worker
from atlctl.remote.sending import shell

_AT_ONCE = 64
_SECONDS = 20.0
_LIMIT = 64 * 1024


async def living(executor: Executor, workers: Sequence[Worker]) -> RankMap | None:
    """What `workers`, which live, hold by the environment of torchrun's processes. None where no worker has any, or two
    have the same rank."""
    answers = await ask_each(workers, lambda worker: _ranks(executor, worker), _AT_ONCE)
    found: dict[int, str] = {}
    for worker, ranks in zip(workers, answers, strict=True):
        if any(rank in found for rank in ranks):
            return None
        found.update(dict.fromkeys(ranks, worker.name))
    return RankMap(found, Message("the processes of torchrun in the workers")) if found else None


async def _ranks(executor: Executor, worker: Worker) -> set[int]:
    try:
        async with asyncio.timeout(_SECONDS):
            said = await stdout_of(executor, worker, Argv(("sh", "-c", shell("ranks"))), _LIMIT)
    except (AtlctlError, TimeoutError):
        return set()
    return {int(line) for line in (said or b"").split() if line.isdigit() and len(line) < 8}
