"""`atlctl slow`: whom py-spy is sent to, and the answer for people."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from atlctl.cli.commands import slow
from atlctl.diagnosis.slow import judge
from atlctl.jobs.model import State, Worker
from atlctl.stacks import look
from tests.unit.diagnosis.test_slow import SLOW, rank, samples, worker


def test_look_sends_py_spy_of_many_workers_to_the_slow_ones_and_one_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], bytes | bool]] = []

    async def fake(_: Any, workers: Sequence[Worker], __: float, spy: bytes | bool, *___: Any, **____: Any) -> Any:
        asked.append(([one.name for one in workers], spy))
        odd = {**SLOW, "stacks": None if isinstance(spy, bytes) else {}}
        reports = [worker(rank(one.index, **(odd if one.index == 7 else {}))) for one in workers]
        return [look.Look(one, report) for one, report in zip(workers, reports, strict=True)]

    monkeypatch.setattr(look, "look", fake)
    workers = [Worker(f"worker-{number}", number, State.RUNNING) for number in range(20)]
    looks = asyncio.run(slow._look(None, workers, 10.0, b"program"))  # type: ignore[arg-type]
    assert asked == [([one.name for one in workers], True), (["worker-7", "worker-0"], b"program")]
    assert [item.worker.name for item in looks] == [one.name for one in workers]
    found = slow._judged(looks)
    assert [culprit.name for culprit in found.culprits] == ["rank 7 on worker-7"]
    assert found.ranks[7].frame is not None


def test_lines_are_clean() -> None:
    evil = {**SLOW, "samples": samples("/data/\x1b[31m\n", "/\x1b]0;x", wait=8, read=150)}
    evil["stacks"] = {"evil\x1b[2J (/job/\x07.py:3)": 80}
    text = "\n".join(slow._lines(judge({"worker-0": worker(rank(0)), "worker-1": worker(rank(1, **evil))}), None))
    assert "rank 1 on worker-1: " in text
    assert not set(text) & {"\x1b", "\x07"}
    assert all(line.strip() for line in text.splitlines()[:5])
