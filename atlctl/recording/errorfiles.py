"""Error files that the summaries in a job's logs name, fetched from its workers while these can still be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from atlctl.diagnosis.errorfile import SIZE_LIMIT
from atlctl.diagnosis.reading.reader import LogFacts
from atlctl.diagnosis.torchelastic import all_attempts
from atlctl.jobs.model import Job, Worker
from atlctl.recording.save import stem

#: Files of one worker that are read at most, and workers that are asked at once.
MOST, READERS = 256, 16
#: Parts of a file's path in its worker that are kept: those that torchelastic makes, and some before.
_DEPTH = 8


class Files(Protocol):
    """What is needed of a backend."""

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None: ...


def named_in(log: LogFacts) -> list[str]:
    """Paths in the worker: what its own summaries name, and the same of the attempts before."""
    named = [entry.error_file for summary in log.summaries for entry in summary.entries if entry.error_file]
    return list(dict.fromkeys(path for name in named for path in all_attempts(name)))[:MOST]


def parts(worker: Worker, path: str) -> list[str]:
    """Where a file of a worker stands in an evidence folder: below the worker's name, by the end of its path."""
    return [stem(worker.name), *[part for part in path.split("/") if part not in ("", ".", "..")][-_DEPTH:]]


async def fetch(
    source: Files, job: Job, logs: Mapping[str, LogFacts], keep: Callable[[Worker, str, bytes], None]
) -> None:
    """Hands each file that can be read to `keep`, with its path. `logs`: what is known of them, by the stem of a
    worker's name. What cannot be read, or is larger than an error file is, is passed over."""
    gate = asyncio.Semaphore(READERS)

    async def of(worker: Worker, log: LogFacts) -> None:
        for path in named_in(log):
            async with gate:
                data = await source.read_file(job, worker, path, SIZE_LIMIT + 1)
            if data is not None and len(data) <= SIZE_LIMIT:
                keep(worker, path, data)

    known = [(worker, logs.get(stem(worker.name))) for worker in job.workers]
    await asyncio.gather(*(of(worker, log) for worker, log in known if log is not None))
