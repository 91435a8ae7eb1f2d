"""Recorded failures of five kinds, from the first failed pod to the last remaining one: the named culprit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from atlctl.backends.base import LogLine, LogRequest
from atlctl.backends.kubernetes.backend import KubernetesBackend
from atlctl.cli.evidence import gone
from atlctl.cli.evidence.collect import collect
from atlctl.cli.evidence.findings import matcher
from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.signatures import Matcher
from atlctl.jobs.model import Job, Worker
from tests.support.recordings import needs_recordings, recordings
from tests.unit.kubernetes.fakecluster import ALL, FakeApi, owned_by

Object = dict[str, Any]


class Recorded:
    """A recorded cluster at one moment; its logs are not recorded."""

    name = "kubernetes"

    def __init__(self, objects: Sequence[Object]) -> None:
        self._backend = KubernetesBackend()
        self._api = FakeApi(objects)
        self._api.namespace = "life"

    async def job(self, name: str) -> Job:
        self._backend._client = self._api  # type: ignore[assignment]
        self._backend._served = asyncio.get_running_loop().create_future()
        self._backend._served.set_result(ALL)
        return await self._backend.get_job(name)

    async def raw_events(self, job: Job) -> Sequence[Object]:
        return await self._backend.raw_events(job)

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
        nothing: tuple[Sequence[LogLine], ...] = ()
        for batch in nothing:
            yield batch


def jobset(top: Object, pod: Object) -> Object:
    """The JobSet between a TrainJob and its pods, which is missing in the TrainJob's recording."""
    uid = pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-uid"]
    made = {"name": top["metadata"]["name"], "namespace": "life", "uid": uid, "ownerReferences": [owned_by(top)]}
    return {"kind": "JobSet", "apiVersion": "jobset.x-k8s.io/v1alpha2", "metadata": made}


def moments(kind: str) -> Iterator[tuple[float, list[Object], bool]]:
    """The objects after each change since the failure, in seconds; True for the final ones."""
    folder = recordings()
    assert folder is not None
    now: dict[tuple[str, str], Object] = {}
    failed = False
    for line in Path(folder, "failing", f"{kind}.jsonl").read_text().splitlines():
        said = json.loads(line)
        if said["type"] == "NOTE":
            if failed:
                yield said["t"], list(now.values()), True
                return
            continue
        item = said["object"]
        key = item["kind"], item["metadata"]["name"]
        if said["type"] == "DELETED":
            now.pop(key, None)
        else:
            now[key] = item
        if kind == "trainjob" and item["kind"] == "Pod":
            now["JobSet", ""] = jobset(now["TrainJob", "fl-trainjob"], item)
        failed = failed or (item["kind"] == "Pod" and item["status"].get("phase") == "Failed")
        if failed:
            yield said["t"], list(now.values()), False


async def culprits(objects: list[Object], name: str, known: Matcher) -> list[tuple[str | None, int | None]]:
    source: Any = Recorded(objects)
    job = await source.job(name)
    found = diagnose((await collect(source, job, known, events=await gone.events(source, job))).evidence, known)
    return [(cause.worker, cause.exit_code) for cause in found.root_causes]


@needs_recordings
@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("kind", "culprit"),
    [
        ("job", "worker-1"),
        ("indexed", "worker-1"),
        ("jobset", "workers-1"),
        ("trainjob", "node-1"),
        ("pytorchjob", "worker-0"),
    ],
)
def test_the_culprit_is_named_from_its_failure_until_its_pod_is_gone_and_nobody_else_ever(
    kind: str, culprit: str
) -> None:
    known = matcher(())
    seen = 0
    for at, objects, left in moments(kind):
        said = asyncio.run(culprits(objects, f"fl-{kind}", known))
        assert said in ([], [(culprit, 3)]), at
        assert said or not left
        seen += bool(said)
    assert seen > 5
