"""Logs read from their ends give the same result as whole logs, and no more is read than needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from atlctl.backends.base import LogLine, LogRequest
from atlctl.cli.evidence.collect import Far, Scan, Tails, read_ends
from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.evidence import JobEvidence, WorkerEvidence
from atlctl.diagnosis.logfacts import LogFacts
from atlctl.diagnosis.result import Diagnosis
from atlctl.jobs.errors import AtlctlError, Unreachable
from atlctl.jobs.model import Job, State, Worker
from tests.unit.diagnosis.cause.logs import OWN, START, Log, closed_by
from tests.unit.diagnosis.samples import matcher

DATA = Path(__file__).parents[2] / "corpus" / "data"
CASES = sorted(path.parent for path in DATA.glob("*/case.json"))
FIRST = 3_000


@dataclass
class End:
    sink: Scan
    whole: bool
    first: int | None


class Reader:
    """A log as lines with timestamps; `broken` after this number of answers."""

    def __init__(self, lines: list[bytes], new_sink: Callable[[], Scan], broken: int | None) -> None:
        self.lines, self.new_sink, self.broken = lines, new_sink, broken
        self.asked = FIRST
        self.answers = 0

    async def read(self) -> End:
        await asyncio.sleep(0)
        if self.answers == self.broken:
            raise Unreachable("the node is gone")
        self.answers += 1
        part = self.lines[-self.asked :] if self.asked < len(self.lines) else self.lines
        sink = self.new_sink()
        data = b"".join(part)
        for at in range(0, len(data), 50_000):
            sink.feed(data[at : at + 50_000])
        first = int(datetime.fromisoformat(part[0][:26].decode() + "+00:00").timestamp() * 1e9) if part else None
        return End(sink, len(part) == len(self.lines), first)

    async def more(self) -> End:
        self.asked *= 8
        return await self.read()


class Ends:
    """See `LogEnds`."""

    def __init__(self, logs: Mapping[str, list[bytes]], broken: Mapping[str, int] | None = None) -> None:
        self.logs, self.broken = logs, broken or {}
        self.readers: dict[str, Reader] = {}
        self.previous: dict[str, list[str]] = {}

    def end_reader(self, job: Job, worker: Worker, new_sink: Callable[[], Any]) -> Reader:
        made = self.readers[worker.name] = Reader(self.logs[worker.name], new_sink, self.broken.get(worker.name))
        return made

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[list[LogLine]]:
        assert (request.previous, request.tail) == (True, 20_000)
        if worker.name not in self.previous:
            raise Unreachable("no instance before")
        for text in self.previous[worker.name]:
            yield [LogLine(int(START * 1e9), "stdout", text.encode())]


def read(source: Ends, *, restarts: int = 0) -> Tails:
    workers = tuple(Worker(name, index, State.FAILED, restarts=restarts) for index, name in enumerate(source.logs))
    job = Job("j", "PyTorchJob", "kubernetes", State.FAILED, "u", len(workers), workers)
    return asyncio.run(read_ends(cast("Far", source), job, workers, matcher(), asyncio.Semaphore(4)))


def whole(lines: list[bytes]) -> LogFacts:
    scan = Scan(matcher())
    scan.feed(b"".join(lines))
    return scan.finish()


def judged(facts: Mapping[str, LogFacts | None]) -> Diagnosis:
    workers = tuple(WorkerEvidence(name, index, log=log) for index, (name, log) in enumerate(facts.items()))
    return diagnose(JobEvidence(workers, expected=len(workers)), matcher())


def told(found: Diagnosis) -> object:
    causes = [
        (cause.worker, cause.rank, cause.local_rank, cause.category, cause.message, cause.confidence, cause.exit_code)
        for cause in (*found.root_causes, *found.candidates)
    ]
    return found.verdict, causes, [(group.reason, group.count) for group in found.cascade]


def training(until: bytes, count: int) -> list[bytes]:
    """`count` lines of a training before the timestamp `until`, ten per second."""
    end = datetime.fromisoformat(until[:19].decode()).replace(tzinfo=UTC)
    stamps = (end - timedelta(seconds=(count - at) / 10) for at in range(count))
    return [f"{stamp:%Y-%m-%dT%H:%M:%S.%f}000Z step {at} loss 1.25\n".encode() for at, stamp in enumerate(stamps)]


@pytest.mark.parametrize("case", CASES[::4], ids=lambda path: path.name)
def test_a_long_training_before_it_changes_no_answer(case: Path) -> None:
    logs = {}
    for path in sorted(case.glob("*.ts.log")):
        lines = path.read_bytes().splitlines(keepends=True)
        stamp = next((line for line in lines if line[:2] == b"20"), b"2026-11-20T17:00:00")
        # Added before all lines: the first lines of a job are far before its failure.
        logs[path.name.removesuffix(".ts.log")] = [*training(stamp, 9_000), *lines]
    source = Ends(logs)
    found = read(source)
    assert found.unread == {}
    everything = {name: whole(lines) for name, lines in logs.items()}
    assert told(judged(found.facts)) == told(judged(everything))


def failing() -> dict[str, list[bytes]]:
    """Worker 1 fails, worker 0 loses it, worker 2 logs nothing; each after a long training."""
    culprit = Log(1).trace(1.1, 1, OWN).ended(1.4, 1, closed=(0,))
    victim = Log(0).trace(1.2, 0, closed_by(1)).trace(1.2, 1, closed_by(1)).ended(1.6, 0, closed=(1,))
    logs = {}
    for log in (victim, culprit):
        lines = [f"{line}\n".encode() for line in log.lines]
        logs[log.name] = [*training(lines[0], 100_000), *lines]
    logs["worker-2"] = training(logs["worker-0"][-1], 100_000)
    return logs


def test_no_more_is_read_than_the_failure_needs() -> None:
    source = Ends(failing())
    found = read(source)
    assert (judged(found.facts).root_causes[0].worker, judged(found.facts).root_causes[0].local_rank) == ("worker-1", 1)
    assert {name: reader.answers for name, reader in source.readers.items()} == dict.fromkeys(source.logs, 1)
    assert set(found.cut) == set(source.logs)
    assert all(time is not None for time in found.cut.values())


def test_a_failure_that_begins_before_the_end_is_read_back_to() -> None:
    logs = failing()
    for name in logs:
        last = logs[name][-1]
        logs[name] += [last[:36] + b"waiting for inspection\n"] * 5_000
    source = Ends(logs)
    found = read(source)
    assert judged(found.facts).root_causes[0].worker == "worker-1"
    assert max(reader.answers for reader in source.readers.values()) == 2


def test_logs_in_which_nothing_failed_are_not_read_to_their_beginning() -> None:
    logs = {f"worker-{index}": training(b"2026-11-20T17:00:00", 100_000) for index in range(2)}
    source = Ends(logs)
    found = read(source)
    assert {reader.answers for reader in source.readers.values()} == {2}
    assert set(found.cut) == set(logs)


def test_a_log_that_breaks_keeps_what_was_read_of_it() -> None:
    logs = failing()
    for name in logs:
        logs[name] += [logs[name][-1][:36] + b"waiting\n"] * 5_000
    found = read(Ends(logs, broken={"worker-0": 0, "worker-2": 1}))
    assert set(found.unread) == {"worker-0"}
    assert found.facts["worker-0"] is None
    assert isinstance(found.unread["worker-0"], AtlctlError)
    assert found.facts["worker-2"] is not None
    assert "worker-2" in found.cut


def test_nobody_can_be_read() -> None:
    found = read(Ends(failing(), broken={f"worker-{index}": 0 for index in range(3)}))
    assert set(found.unread) == {"worker-0", "worker-1", "worker-2"}
    assert found.cut == {}


def test_the_instance_before_a_restart_is_read_too() -> None:
    before = Log(1, stamped=False).trace(1.1, 1, OWN).ended(1.4, 1, closed=(0,)).lines
    source = Ends({"worker-0": training(b"2026-11-20T17:00:00", 10), "worker-1": training(b"2026-11-20T18:00:00", 10)})
    source.previous = {"worker-1": before}
    found = read(source, restarts=1)
    facts = found.facts["worker-1"]
    assert facts is not None
    assert [trace.last.message for trace in facts.traces if not trace.agent] == [OWN]
    assert facts.last_line == len(before) + 10
    assert found.led == {"worker-1"}
    assert read(source).led == frozenset()
