"""Detect Held workers, which a platform does not report: `atlctl run` keeps them, or their logs say that the training
has failed.

A launch script may sleep after its trainer's end and then exit with 0. Local jobs note that themselves; elsewhere the
last lines of the logs are read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from atlctl.cli import say
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import DOUBTFUL_REASON, HELD_REASON, Job, State, Worker

if TYPE_CHECKING:
    from atlctl.backends.base import Backend

#: Workers whose logs are read: each is a request to its node.
MOST = 64
SECONDS = 5.0
#: Lines from the end: a summary of 8 ranks with what launch scripts print behind it.
_LINES = 200


async def look(source: Backend, job: Job) -> Job:
    """`job` with its Held workers, those that a user debugs, and with a reason for workers that exited with 0 but did
    not succeed.

    If more than `MOST` workers may be affected, their logs are not read, and a note says so.
    """
    job = await _kept(source, job)
    if source.name != "kubernetes":
        return job
    asked = [worker for worker in job.workers if worker.state in (State.RUNNING, State.SUCCEEDED)]
    if len(asked) > MOST:
        say.note(
            Message(
                "{count} workers: too many to look for Held ones in their logs; atlctl errors reads all logs",
                count=len(asked),
            )
        )
        return job
    with say.counting(Message("looking for Held workers in the logs of job {job}", job=job.name), len(asked)) as one:
        answers = await asyncio.gather(*(one(_failed(source, job, worker)) for worker in asked))
    failed = {worker.name for worker, answer in zip(asked, answers, strict=True) if answer}
    if not failed:
        return job
    return _seen(job, [_told(worker) if worker.name in failed else worker for worker in job.workers])


async def _kept(source: Backend, job: Job) -> Job:
    """`job` with the states of the workers that `atlctl run` keeps, if it wraps them and all answer in time."""
    from atlctl.cli.target import with_wrappers

    kept: dict[int, Worker] = {}
    with contextlib.suppress(AtlctlError, TimeoutError):
        async with asyncio.timeout(SECONDS):
            wrapped, found = await with_wrappers(source, job)
        if wrapped is not source:
            kept = {worker.index: worker for worker in found.workers if worker.state in (State.HELD, State.DEBUGGING)}
    if not kept:
        return job
    workers = [
        replace(worker, state=kept[worker.index].state, reason=kept[worker.index].reason)
        if worker.index in kept and worker.state is State.RUNNING
        else worker
        for worker in job.workers
    ]
    return _seen(job, workers)


def _seen(job: Job, workers: Sequence[Worker]) -> Job:
    """`job` with these workers, and in the state that follows if some of them are held or debugged."""
    held = [worker.name for worker in workers if worker.state is State.HELD]
    job = replace(job, workers=tuple(workers))
    if job.state is not State.RUNNING:
        return job
    if held:
        from atlctl.jobs.naming import fold_names

        return replace(job, state=State.HELD, reason=Message("{workers} held", workers=fold_names(held)))
    return replace(job, state=State.DEBUGGING) if any(w.state is State.DEBUGGING for w in workers) else job


def _told(worker: Worker) -> Worker:
    if worker.state is State.RUNNING:
        return replace(worker, state=State.HELD, reason=HELD_REASON)
    return replace(worker, reason=DOUBTFUL_REASON)


async def _failed(source: Backend, job: Job, worker: Worker) -> bool:
    from atlctl.backends.base import LogRequest
    from atlctl.diagnosis.torchelastic import trainer_failed

    lines: list[bytes] = []
    try:
        async with asyncio.timeout(SECONDS):
            async for batch in source.lines(job, worker, LogRequest(tail=_LINES)):
                lines += [line.data for line in batch]
    except (AtlctlError, TimeoutError):
        return False  # a log that cannot be read proves nothing
    return trainer_failed(lines)
