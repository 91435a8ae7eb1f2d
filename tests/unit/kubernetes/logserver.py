"""A model of an API server's log endpoint: one worker, its pods and container runs, in memory.

It behaves like the recordings: sinceTime by the second, tailLines, limitBytes, previous, follow; and fails on request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from atlctl.backends.kubernetes.api import ApiError, NoServer, NotFound, Object
from atlctl.jobs.model import Job, State, Worker

BILLION = 1_000_000_000
START = 1_790_000_000 * BILLION


def stamp(when: int) -> bytes:
    moment = datetime.fromtimestamp(when // BILLION, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{when % BILLION:09d}Z ".encode()


@dataclass
class Run:
    """One run of the container. The last line may have no newline (`torn`)."""

    id: str
    lines: list[tuple[int, bytes]] = field(default_factory=list)
    torn: bool = False
    first: int = 0
    ended: bool = False

    def answer(self, start: int, since: int, limit: int | None = None) -> bytes:
        """The bytes of the lines from `start` on that are not older than `since`."""
        parts = [stamp(when) + text + b"\n" for when, text in self.lines[max(start, self.first) :] if when >= since]
        data = b"".join(parts)
        if self.torn and parts:
            data = data[:-1]
        return data if limit is None else data[:limit]


@dataclass(frozen=True)
class Cut:
    """The answer ends after `size` bytes: with an error, or `clean`, as when a kubelet dies."""

    size: int
    clean: bool = False


@dataclass(frozen=True)
class Fail:
    """No answer: the server refuses with `status`, or (0) is unreachable."""

    status: int
    text: str = ""


class Server:
    """One worker's pod. `cuts`: faults of the next answers, in order; None: no fault."""

    server = "model"
    context = None
    namespace = "ns"

    def __init__(self, cuts: Iterable[Cut | Fail | None] = (), chunk: int = 1 << 16) -> None:
        self.cuts = iter(cuts)
        self.chunk = chunk
        self.uid = 1
        self.runs = [Run("run-1")]
        self.previous: Run | None = None
        self.pod_there = True
        self.phase = "Running"
        self.policy = "Always"
        self.waiting: str | None = None
        self.done = False
        self.lag = 0.0
        self.stale_until = 0.0
        self.stale: Object | None = None
        self.last = ""
        self.queries: list[dict[str, str]] = []
        self.open = self.most_open = 0
        self.instead: tuple[int, bytes] | None = None
        self.changed = asyncio.Event()

    # -- what happens ------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        return self.runs[-1]

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def write(self, *lines: tuple[int, bytes]) -> None:
        self.run.lines += lines
        self.tell()

    def restart(self) -> None:
        """The container restarts in the same pod. The server learns of it `lag` seconds later."""
        self._goes_stale()
        self.run.ended = True
        self.previous = self.run
        self.runs.append(Run(f"run-{len(self.runs) + 1}"))
        self.tell()

    def replace(self) -> None:
        """The pod is replaced by another one with the same name."""
        self._goes_stale()
        self.run.ended = True
        self.previous = None
        self.uid += 1
        self.runs.append(Run(f"run-{len(self.runs) + 1}"))
        self.tell()

    def end(self, phase: str = "Succeeded") -> None:
        self.run.ended = True
        self.phase, self.done = phase, True
        self.tell()

    def _goes_stale(self) -> None:
        self.stale, self.stale_until = self.status(), time.monotonic() + self.lag

    # -- what is asked -----------------------------------------------------------------------------------------------

    def status(self) -> Object:
        state: dict[str, Any] = {"terminated": {"exitCode": 0}} if self.run.ended else {"running": {}}
        if self.waiting is not None:
            state = {"waiting": {"reason": self.waiting}}
        last = {"terminated": {"containerID": self.previous.id}} if self.previous else {}
        named = {"name": "main", "restartCount": len(self.runs) - 1, "containerID": self.run.id}
        return {
            "metadata": {"name": "pod-0", "namespace": "ns", "uid": str(self.uid)},
            "spec": {"restartPolicy": self.policy},
            "status": {"phase": self.phase, "containerStatuses": [{**named, "state": state, "lastState": last}]},
        }

    async def pod(self, job: Job, worker: str, *, fresh: bool) -> Object | None:
        await asyncio.sleep(0)
        if not self.pod_there:
            return None
        if self.stale is not None and time.monotonic() < self.stale_until:
            return self.stale
        return self.status()

    def container(self, pod: Object) -> str:
        return "main"

    async def over(self, job: Job) -> bool:
        return self.done

    @asynccontextmanager
    async def stream(self, path: str, query: dict[str, str]) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        assert path == "/api/v1/namespaces/ns/pods/pod-0/log"
        assert query["timestamps"] == "true"
        assert query["container"] == "main"
        self.queries.append(query)
        await asyncio.sleep(0)
        cut = next(self.cuts, None)
        if isinstance(cut, Fail):
            raise ApiError(cut.status, "", cut.text) if cut.status else NoServer(cut.text)
        if self.instead is not None and self.instead[0] >= 400:
            raise ApiError(self.instead[0], "", self.instead[1].decode())
        if not self.pod_there:
            raise NotFound(404, "NotFound", 'pods "pod-0" not found')
        run = self.run
        if query.get("previous"):
            if self.previous is None:
                text = 'previous terminated container "main" in pod "pod-0" not found'
                raise ApiError(400, "BadRequest", text)
            run = self.previous
        self.last = "previous" if query.get("previous") else run.id
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            if self.instead is not None:
                yield self.instead[0], self._cut_up(self._fixed(self.instead[1]), None)
            else:
                yield 200, self._cut_up(self._answer(run, query), cut)
        finally:
            self.open -= 1

    @staticmethod
    async def _fixed(data: bytes) -> AsyncIterator[bytes]:
        if data:
            yield data

    async def _answer(self, run: Run, query: dict[str, str]) -> AsyncIterator[bytes]:
        since = 0
        if "sinceTime" in query:
            asked = datetime.strptime(query["sinceTime"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            since = int(asked.timestamp()) * BILLION
        start = run.first
        if "tailLines" in query:
            start = max(start, len(run.lines) - int(query["tailLines"]))
        limit = int(query["limitBytes"]) if "limitBytes" in query else None
        if "follow" not in query:
            yield run.answer(start, since, limit)
            return
        while True:
            changed, ended, count = self.changed, run.ended, len(run.lines)
            data = run.answer(start, since)
            start = count
            if data:
                yield data
            if ended or not self.pod_there:
                return
            await changed.wait()

    async def _cut_up(self, source: AsyncIterator[bytes], cut: Cut | None) -> AsyncIterator[bytes]:
        left = None if cut is None else cut.size
        async for data in source:
            for at in range(0, len(data), self.chunk):
                part = data[at : at + self.chunk]
                if left is not None and len(part) >= left:
                    if left:
                        yield part[:left]
                    assert cut is not None
                    if cut.clean:
                        return
                    raise NoServer("the connection broke")
                left = None if left is None else left - len(part)
                yield part


def job(workers: int = 1) -> Job:
    made = tuple(Worker(f"worker-{i}", i, State.RUNNING, pod="pod-0") for i in range(workers))
    return Job("train", "Job", "kubernetes", State.RUNNING, "uid", workers, made, namespace="ns")
