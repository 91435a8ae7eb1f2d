"""The end of a pod's log as raw bytes, for a reader that takes chunks: no object is made for each line.

The API has no "until": what lies before a tail can only be read as part of a longer tail, from its beginning. So a
tail is grown by a factor, each time into a new sink, and costs little more than its last size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic
from typing import Generic

from atlctl.backends.base import S
from atlctl.backends.kubernetes.api import ApiError, NoServer
from atlctl.backends.kubernetes.logplaces import chunks, instance
from atlctl.backends.kubernetes.logreason import no_log, no_node, refused
from atlctl.backends.kubernetes.logs import PodLogs, passing
from atlctl.backends.kubernetes.logstream import NODE_WORDS, Stamps
from atlctl.jobs.errors import NothingMatched
from atlctl.jobs.model import Job, Worker

#: Lines of the first tail: some MiB of a usual log.
FIRST = 20_000
#: By so much a tail grows.
GROWTH = 8
#: A tail of more bytes than this is asked for again with fewer lines.
MOST = 32 * 1024 * 1024
#: Bytes at the beginning that are looked at for a stamp, and for a node's words.
_START = 4096


@dataclass(frozen=True, slots=True)
class Tail(Generic[S]):
    """The last `lines` lines, `size` bytes with their stamps, that `sink` has taken.

    `whole`: that is all there is. `first` is the time of the first line (nanoseconds since the epoch), None where
    there is none: what is older was not read.
    """

    sink: S
    lines: int
    size: int
    whole: bool
    first: int | None


class TailReader(Generic[S]):
    """One worker's log from its end. `new_sink` makes a sink for each answer."""

    def __init__(
        self, source: PodLogs, job: Job, worker: Worker, new_sink: Callable[[], S], *, most: int = MOST
    ) -> None:
        self._source = source
        self._job = job
        self._worker = worker
        self._new_sink = new_sink
        self._most = most
        self._asked = FIRST

    async def read(self, lines: int = FIRST) -> Tail[S]:
        """The last `lines` lines, or fewer where they are very long.

        Raises AtlctlError that says why there is no log.
        """
        asked = lines
        while True:
            tail = await self._tried(asked, self._most)
            if tail is not None:
                self._asked = asked
                return tail
            asked = max(1, asked // GROWTH)
            if asked == 1:
                return await self._all(1)

    async def more(self) -> Tail[S]:
        """A tail longer than the last one by the factor `GROWTH`."""
        self._asked *= GROWTH
        return await self._all(self._asked)

    async def _all(self, lines: int) -> Tail[S]:
        tail = await self._tried(lines, None)
        assert tail is not None
        return tail

    async def _tried(self, lines: int, most: int | None) -> Tail[S] | None:
        failures, since, patience = 0, monotonic(), self._source.patience
        while True:
            try:
                return await self._answer(lines, most)
            except (NoServer, ApiError) as error:
                failures += 1
                if not passing(error) or failures >= patience.tries or monotonic() - since > patience.give_up:
                    if isinstance(error, ApiError):
                        pod = self._worker.pod or self._worker.name
                        raise refused(error, pod, None, self._job.name) from error
                    raise
                self._source.failed(self._worker.name, error)
                await asyncio.sleep(patience.after(failures))

    async def _answer(self, lines: int, most: int | None) -> Tail[S] | None:
        """One answer into a new sink; None where it is longer than `most`."""
        source, name = self._source, self._job.name
        pod = await source.places.pod(self._job, self._worker.name, fresh=False)
        if pod is None:
            raise NothingMatched(
                f"worker {self._worker.name} has no pod (any more), so it has no log", f"atlctl ps {name}"
            )
        at = instance(pod, source.places.container(pod))
        query = {"container": at.container, "timestamps": "true", "tailLines": str(lines)}
        sink, size, count, start, last = self._new_sink(), 0, 0, b"", b""
        async with source.streams.open(follow=False), source.api.stream(at.path, query) as (status, stream):
            if status == 204:
                raise no_node(at.pod, pod, name)
            async with aclosing(chunks(stream, None, source.patience.silent)) as parts:
                async for chunk in parts:
                    if not chunk:
                        continue
                    if len(start) < _START:
                        start += chunk[: _START - len(start)]
                        if start.startswith(NODE_WORDS):
                            raise no_log(start.decode("utf-8", "replace").strip()[:300], at.pod, pod, name)
                    size += len(chunk)
                    if most is not None and size > most:
                        return None
                    count += chunk.count(b"\n")
                    last = chunk
                    sink.feed(chunk)
        count += bool(last) and not last.endswith(b"\n")
        return Tail(sink, count, size, count < lines, Stamps().split(start)[0])
