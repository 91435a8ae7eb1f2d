"""The ranks of workers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest

from atlctl.backends.base import Event, Executor, Exited, FailedToStart, Output, Started
from atlctl.backends.guarded import asking as guarded
from atlctl.backends.kubernetes.pods import stated_ranks
from atlctl.jobs.model import Job, RankMap, State, Worker
from atlctl.remote.sending import shell


class Execution:
    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[Event]:
        if self._answer is None:
            yield FailedToStart(255, "not running")
            return
        yield Started(guarded=True)
        yield Output("stderr", b"77\n")
        for byte in self._answer:
            yield Output("stdout", bytes([byte]))
        yield Exited(exit_code=0)

    async def aclose(self) -> None:
        pass


class Executes:
    def __init__(self, answers: Mapping[str, bytes | None]) -> None:
        self.answers = answers

    def run(self, worker: Worker, request: Any) -> Execution:
        assert request.argv.words[:2] == ("sh", "-c")
        return Execution(self.answers[worker.name])


def workers(*states: State) -> list[Worker]:
    return [
        Worker(f"w-{index}", index, state, node_rank=index, pod=f"p-{index}", container="main")
        for index, state in enumerate(states)
    ]


def living(answers: Mapping[str, bytes | None], *states: State) -> RankMap | None:
    return asyncio.run(guarded.living(cast("Executor", Executes(answers)), workers(*states)))


def test_living_processes_tell() -> None:
    found = living({"w-0": b"0\n1\n1\n", "w-1": b"3\n2\n", "w-2": None}, *[State.RUNNING] * 3)
    assert found is not None
    assert (found.workers, found.guess) == ({0: "w-0", 1: "w-0", 2: "w-1", 3: "w-1"}, False)


def test_nothing_is_told_by_nobody_or_by_two_at_once() -> None:
    assert living({"w-0": b"", "w-1": b"x\n-1\n99999999\n"}, State.RUNNING, State.HELD) is None
    assert living({"w-0": b"0\n", "w-1": b"0\n"}, State.RUNNING, State.RUNNING) is None
    assert living({}) is None


def test_the_script_finds_torchruns_processes_and_no_others() -> None:
    """Among this machine's processes, identified by unique ranks."""
    started = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, **env})
        for env in (
            {"RANK": "900001", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"},
            {"RANK": "900002"},  # the platform's RANK, which counts workers
            {"RANK": "900003", "LOCAL_RANK": "1"},
        )
    ]
    try:
        run = subprocess.run(["sh", "-c", shell("ranks")], capture_output=True, check=True)
        assert [line for line in run.stdout.split() if line.startswith(b"90000")] == [b"900001"]
    finally:
        for process in started:
            process.communicate(b"\n")


def pod(index: int, **env: str) -> dict[str, Any]:
    variables = [{"name": key, "value": value} for key, value in env.items()]
    sidecar = {"name": "side", "env": [{"name": "PET_NPROC_PER_NODE", "value": "7"}]}
    return {"metadata": {"name": f"p-{index}"}, "spec": {"containers": [sidecar, {"name": "main", "env": variables}]}}


def stated(*pods: dict[str, Any], expected: int = 2) -> RankMap | None:
    made = tuple(workers(*[State.RUNNING] * len(pods)))
    return stated_ranks(Job("j", "PyTorchJob", "kubernetes", State.RUNNING, "u", expected, made), pods)


def test_pods_that_all_state_the_same_give_a_guess() -> None:
    found = stated(pod(0, PET_NPROC_PER_NODE="2"), pod(1, PET_NPROC_PER_NODE="2"))
    assert found is not None
    assert (found.workers, found.guess) == ({0: "w-0", 1: "w-0", 2: "w-1", 3: "w-1"}, True)


@pytest.mark.parametrize("second", [{}, {"PET_NPROC_PER_NODE": "4"}, {"PET_NPROC_PER_NODE": "auto"}])
def test_pods_that_differ_give_none(second: dict[str, str]) -> None:
    assert stated(pod(0, PET_NPROC_PER_NODE="2"), pod(1, **second)) is None


def test_what_is_not_static_or_not_whole_gives_none() -> None:
    elastic = {"PET_NPROC_PER_NODE": "2", "PET_RDZV_BACKEND": "c10d"}
    assert stated(pod(0, **elastic), pod(1, **elastic)) is None
    assert stated(pod(0, PET_NPROC_PER_NODE="2"), pod(1, PET_NPROC_PER_NODE="2"), expected=3) is None
    assert stated({}, {}) is None
