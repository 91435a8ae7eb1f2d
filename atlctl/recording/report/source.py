"""A job whose evidence is saved with its secrets hidden: they reach no disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from atlctl.backends.base import LogLine, LogRequest
from atlctl.diagnosis.scanning.sieve import sieve_for
from atlctl.jobs.model import Job, Worker
from atlctl.recording.save import Source
from atlctl.render.redact import LITERALS, Kind, Redactor, redact_json, redact_text


class Redacted:
    """`inner` as `save` asks it; `found` counts what was hidden. `job` is what `save` is handed in place of the job."""

    def __init__(self, inner: Source, job: Job, found: Counter[Kind]) -> None:
        self._inner, self._job, self._found = inner, job, found
        self._workers = {worker.name: worker for worker in job.workers}
        self._holds = sieve_for(LITERALS)
        workers = [
            replace(worker, reason=redact_text(worker.reason, found), message=redact_text(worker.message, found))
            for worker in job.workers
        ]
        self.job = replace(job, workers=tuple(workers))

    async def lines(
        self,
        job: Job,  # noqa: ARG002 - it was changed, and the source wants its own
        worker: Worker,
        request: LogRequest,
    ) -> AsyncIterator[Sequence[LogLine]]:
        """Raises AtlctlError, as the source does."""
        redactor = Redactor(self._holds, self._found, cut=True)
        batches = self._inner.lines(self._job, self._workers[worker.name], request)
        try:
            async for batch in batches:
                yield [_hidden(line, redactor) for line in batch]
        finally:
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()

    async def raw_events(self, job: Job) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        """Raises AtlctlError, as the source does."""
        return [redact_json(event, self._found) for event in await self._inner.raw_events(self._job)]


def _hidden(line: LogLine, redactor: Redactor) -> LogLine:
    data = redactor.line(line.data)
    return line if data is line.data else replace(line, data=data)
