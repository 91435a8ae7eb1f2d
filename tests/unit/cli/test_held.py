"""Held workers that are known only from their logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from atlctl.backends.base import Backend, LogLine, LogRequest
from atlctl.cli import say
from atlctl.cli.evidence import held
from atlctl.diagnosis.torchelastic import FAILURE_MARKERS
from atlctl.jobs.errors import Unreachable
from atlctl.jobs.model import DOUBTFUL_REASON, Job, State, Worker


class Source:
    """A backend for which only logs are requested."""

    name = "kubernetes"

    def __init__(self, failed: Sequence[str] = (), lost: Sequence[str] = (), silent: Sequence[str] = ()) -> None:
        self.failed, self.lost, self.silent = failed, lost, silent
        self.asked: list[str] = []

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
        assert request == LogRequest(tail=200)
        self.asked.append(worker.name)
        if worker.name in self.lost:
            raise Unreachable("gone")
        if worker.name in self.silent:
            await asyncio.sleep(3600)
        if worker.name in self.failed:
            yield [LogLine(None, "stdout", FAILURE_MARKERS[0])]
        yield [LogLine(None, "stdout", b"cleaning up")]


def job(*states: State) -> Job:
    workers = tuple(Worker(f"worker-{index}", index, state) for index, state in enumerate(states))
    return Job("train", "PyTorchJob", "kubernetes", State.RUNNING, "u", len(workers), workers)


def look(source: Source, of: Job) -> Job:
    return asyncio.run(held.look(cast("Backend", source), of))


def test_a_worker_whose_trainer_failed_is_held() -> None:
    found = look(Source(failed=["worker-1"]), job(State.RUNNING, State.RUNNING))
    assert [worker.state for worker in found.workers] == [State.RUNNING, State.HELD]
    assert (found.state, found.reason) == (State.HELD, "worker-1 held")


def test_a_success_whose_log_shows_a_failure_is_none() -> None:
    found = look(Source(failed=["worker-0"]), job(State.SUCCEEDED, State.FAILED))
    assert (found.workers[0].state, found.workers[0].reason) == (State.SUCCEEDED, DOUBTFUL_REASON)
    assert found.workers[1].reason == ""
    assert found.state is State.RUNNING


def test_logs_that_cannot_be_read_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "SECONDS", 0.05)
    of = job(State.RUNNING, State.RUNNING)
    assert look(Source(lost=["worker-0"], silent=["worker-1"]), of) is of


def test_only_workers_that_it_may_be_true_of_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    monkeypatch.setattr(say, "note", noted.append)
    source = Source()
    of = job(State.PENDING, State.FAILED, State.RUNNING)
    assert look(source, of) is of
    assert source.asked == ["worker-2"]
    many = job(*[State.RUNNING] * 65)
    assert look(Source(failed=["worker-0"]), many) is many
    assert [note.split()[0] for note in noted] == ["65"]


def test_local_jobs_tell_it_themselves() -> None:
    source = Source(failed=["worker-0"])
    source.name = "local"
    look(source, job(State.RUNNING))
    assert source.asked == []
