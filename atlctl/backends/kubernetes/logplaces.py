"""Where a worker's log is: which container of which pod, whether it may still write, and how many streams are open."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Protocol

from atlctl.backends.kubernetes.api import NoServer, Object, Stream
from atlctl.backends.kubernetes.logreason import objects, objects_at
from atlctl.jobs.model import Job

#: Streams that are open at once: each one is a connection through the API server to a node's kubelet.
STREAMS = 64
#: Bytes by which a log that is read to its end must grow to count as sent.
LEAST = 8192


class Places(Protocol):
    """What the readers of logs ask the rest of the backend. Raises what the Api raises."""

    async def pod(self, job: Job, worker: str, *, fresh: bool) -> Object | None:
        """The worker's newest pod, None where it has none. `fresh`: as it is now; else what is known will do."""

    def container(self, pod: Object) -> str:
        """The container whose log is meant."""

    async def over(self, job: Job) -> bool:
        """Whether no new pod and no restart of this job is to be expected any more."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. `lost`: how long a node that does not answer is asked again while its log is followed.

    `idle`: a followed stream without a byte for so long is opened anew, since it may have died silently. `silent`: the
    same for a read to the end, which has `LEAST` bytes in it; and `give_up`: after so long without a line it is not
    repeated. `beat`: a followed log is called quiet after it. `confirm`: by then the server knows of a restart. `look`:
    how old knowledge of a pod may be between two polls. `tries`: how often a read is repeated that brings nothing.
    """

    pause: float = 0.25
    most: float = 8.0
    poll: float = 1.5
    idle: float = 60.0
    silent: float = 15.0
    give_up: float = 20.0
    beat: float = 0.1
    confirm: float = 3.0
    look: float = 10.0
    lost: float = 300.0
    tries: int = 5

    def after(self, failures: int) -> float:
        """The pause after so many failures in a row: it grows and is never the same for two readers."""
        longest: float = min(self.pause * 2.0 ** min(failures, 16), self.most)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311  # no secret


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of a container. `id` is empty until it has started, `last_id` is the run before it.

    `final`: it has ended and its pod does not start it again.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    id: str
    last_id: str
    restarts: int
    running: bool
    final: bool

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}/log"

    def same(self, other: Instance) -> bool:
        """Whether the two are one run, as far as is known."""
        return self.uid == other.uid and (self.id == other.id or not self.id or not other.id)


def instance(pod: Object, container: str) -> Instance:
    """The run of `container` that `pod` states."""
    meta, status = objects_at(pod, "metadata"), objects_at(pod, "status")
    found: Object = {}
    for part in ("containerStatuses", "initContainerStatuses"):
        found = next((dict(one) for one in objects(pod, "status", part) if one.get("name") == container), found)
    state = objects_at(found, "state")
    ended = objects_at(found, "state", "terminated")
    policy = objects_at(pod, "spec").get("restartPolicy", "Always")
    stays_ended = bool(ended) and (policy == "Never" or (policy == "OnFailure" and ended.get("exitCode") == 0))
    restarts = found.get("restartCount")
    return Instance(
        namespace=str(meta.get("namespace", "")),
        pod=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        container=container,
        id=str(found.get("containerID") or ""),
        last_id=str(objects_at(found, "lastState", "terminated").get("containerID") or ""),
        restarts=restarts if isinstance(restarts, int) else 0,
        running="running" in state,
        final=stays_ended or status.get("phase") in ("Succeeded", "Failed"),
    )


def second(epoch: float) -> str:
    """A whole second as the server wants it."""
    return datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Streams:
    """Bounds how many streams are open. Logs that are followed leave room for short reads where there are too many."""

    def __init__(self, limit: int = STREAMS) -> None:
        self.limit = limit
        self._gate = asyncio.Semaphore(limit)
        self._following = 0

    def crowded(self, workers: int) -> bool:
        """Whether so many workers cannot all have a stream at once."""
        return workers > self.limit

    def may_follow(self, workers: int) -> bool:
        """Whether one more stream may stay open."""
        room = self.limit - max(1, self.limit // 4) if self.crowded(workers) else self.limit
        return self._following < room

    @asynccontextmanager
    async def open(self, *, follow: bool) -> AsyncIterator[None]:
        self._following += follow
        try:
            async with self._gate:
                yield
        finally:
            self._following -= follow


async def chunks(stream: Stream, beat: float | None, idle: float) -> AsyncGenerator[bytes | None, None]:
    """The chunks of `stream`; None after `beat` seconds without one, and then from time to time.

    After `idle` seconds without a byte it ends. Where no `beat` says that silence is to be expected, it raises NoServer
    instead, also where less than `LEAST` bytes have come in that time.
    """
    iterator = aiter(stream)

    async def following() -> bytes | None:
        return await anext(iterator, None)

    task: asyncio.Task[bytes | None] | None = None
    quiet, got = 0.0, 0
    try:
        while quiet < idle:
            if task is None:
                task = asyncio.create_task(following())
            wait = idle - quiet if beat is None else min(beat * 10 if quiet else beat, idle)
            begun = monotonic()
            done, _ = await asyncio.wait({task}, timeout=wait)
            if not done:
                if beat is None:
                    raise NoServer(f"the API server sent {got} bytes of a log in {idle:g} s")
                quiet += wait
                yield None
                continue
            chunk, task = task.result(), None
            if chunk is None:
                return
            got += len(chunk)
            if beat is not None or got >= LEAST:
                quiet, got = 0.0, 0
            else:
                quiet = min(quiet + monotonic() - begun, idle - 0.001)
            yield chunk
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()
