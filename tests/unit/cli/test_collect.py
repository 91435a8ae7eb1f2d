"""Data read from a running or ended job for a diagnosis."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from atlctl.backends.base import LogLine
from atlctl.cli.evidence.collect import READERS, Collected, collect
from atlctl.jobs.errors import Unreachable
from atlctl.jobs.model import Job, State, Worker
from tests.unit.diagnosis.cause.logs import OWN, START, Log
from tests.unit.diagnosis.samples import matcher

FOLDER = "/tmp/torchelastic_a/run_b"


@dataclass
class Source:
    """A backend with logs and files by worker; a worker without a log is unreachable."""

    logs: dict[str, list[LogLine]]
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    open: int = 0
    most: int = 0

    async def lines(self, job: Job, worker: Worker, request: object) -> Any:
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        if worker.name not in self.logs:
            raise Unreachable(f"{worker.name} is gone")
        yield self.logs[worker.name]

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None:
        self.asked.append(path)
        return self.files.get(path)


def run(source: Source, count: int, *, expected: int | None = None, **values: Any) -> Collected:
    workers = tuple(Worker(f"worker-{index}", index, State.FAILED, **values) for index in range(count))
    job = Job("train-7", "PyTorchJob", "fake", State.FAILED, "u", expected or count, workers)
    return asyncio.run(collect(source, job, matcher()))  # type: ignore[arg-type]


def lines(*texts: str, at: float | None = START) -> list[LogLine]:
    time = None if at is None else int(at * 1e9)
    return [LogLine(time, "stdout", text.encode()) for text in texts]


def test_logs_with_their_stamps() -> None:
    log = Log(0, stamped=False).trace(1, 1, OWN).failed(1.3, 1)
    (worker,) = run(Source({"worker-0": lines(*log.lines)}), 1).evidence.workers
    assert worker.log is not None
    (trace,) = worker.log.traces
    assert (trace.line_no, trace.last.message) == (1, OWN)
    assert trace.time is not None
    assert (trace.time.seconds, trace.time.absolute) == (START, True)


def test_a_worker_that_cannot_be_reached_has_no_log() -> None:
    found = run(Source({"worker-0": []}), 2)
    first, second = found.evidence.workers
    assert first.log is not None
    assert (second.log, second.worker) == (None, "worker-1")
    assert [str(error) for error in found.unread.values()] == ["worker-1 is gone"]


def test_workers_that_were_never_seen() -> None:
    evidence = run(Source({"worker-0": []}), 1, expected=3).evidence
    assert (evidence.expected, evidence.missing) == (3, ("worker 1", "worker 2"))


def test_error_files_of_the_summary_and_of_the_attempts_before() -> None:
    log = Log(0, stamped=False).summary(1, (0, 1, OWN))
    log.lines = [line.replace("<N/A>", f"{FOLDER}/attempt_2/0/error.json") for line in log.lines]
    record = json.dumps({"message": {"message": "KeyError: 1", "extraInfo": {"timestamp": "1"}}}).encode()
    source = Source({"worker-0": lines(*log.lines)}, {f"{FOLDER}/attempt_0/0/error.json": record})
    (worker,) = run(source, 1).evidence.workers
    assert source.asked == [f"{FOLDER}/attempt_{attempt}/0/error.json" for attempt in (2, 1, 0)]
    assert [item.message for item in worker.error_files.values()] == ["KeyError: 1"]


def test_what_the_platform_says() -> None:
    values: dict[str, Any] = {
        "exit_code": 137,
        "signal": 9,
        "reason": "OOMKilled",
        "node": "gpu-17",
        "address": "10.42.0.17",
    }
    (worker,) = run(Source({"worker-0": []}), 1, **values).evidence.workers
    platform = worker.platform
    assert platform is not None
    assert (platform.exit_code, platform.signal, platform.reason) == (137, 9, "OOMKilled")
    assert (platform.node, platform.addresses) == ("gpu-17", ("10.42.0.17",))


def test_some_workers_at_a_time() -> None:
    source = Source({f"worker-{index}": [] for index in range(3 * READERS)})
    assert len(run(source, 3 * READERS).evidence.workers) == 3 * READERS
    assert 1 < source.most <= READERS
