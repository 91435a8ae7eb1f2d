"""Looks at the ranks of many workers: py-spy goes to few of them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from atlctl.cli.evidence import looking
from atlctl.jobs.model import Job, State, Worker
from atlctl.stacks import look as looks
from atlctl.stacks.look import Look
from tests.unit.diagnosis.hang.made import COLLECTIVE, rank, report, stack

EACH = 2


def job(workers: int) -> Job:
    made = [Worker(name=f"worker-{index}", index=index, state=State.RUNNING) for index in range(workers)]
    return Job("train", "Local", "local", State.RUNNING, "uid", workers, tuple(made))


class Ranks:
    """Stands for `look`: rank 7 sleeps, the others use a CPU; Python stacks for those to whom py-spy is sent."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.asked: list[tuple[int, bool]] = []

    async def look(
        self, _: object, workers: Sequence[Worker], __: float, pyspy: bytes | bool, **___: Any
    ) -> list[Look]:
        sent = isinstance(pyspy, bytes)
        self.asked.append((len(workers), sent))
        return [Look(worker, report(*(self._rank(worker, local, sent) for local in range(EACH)))) for worker in workers]

    def _rank(self, worker: Worker, local: int, sent: bool) -> dict[str, Any]:
        number = EACH * (worker.index or 0) + local
        frames = [["wait_for_lease", "/job/data.py", 41]] if number == 7 else COLLECTIVE
        found = stack(*frames) if sent else None
        sign = "sleep" if number == 7 else "gloo"
        return rank(number, sign, each=EACH, world=self.world, stack=found, spy=sent)


@pytest.mark.parametrize("workers", [16, 40])
def test_of_many_workers_the_odd_one_and_one_like_the_others_get_it(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, made = Ranks(EACH * workers), job(workers)
    monkeypatch.setattr(looks, "look", ranks.look)
    found = asyncio.run(looking.look_at(None, made, made.workers, 20.0, b"\x7fELF"))  # type: ignore[arg-type]
    assert ranks.asked == ([(16, True)] if workers == 16 else [(40, False), (2, True)])
    scene = looking.scene_of(found, made)
    (culprit,) = scene.culprits
    assert (culprit.rank, str(culprit.frames[0])) == (7, 'File "/job/data.py", line 41, in wait_for_lease')
    spied = [rank for rank in scene.ranks if rank.frames]
    assert len(spied) == (EACH * workers if workers == 16 else EACH * 2)


def test_without_it_one_look_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, made = Ranks(80), job(40)
    monkeypatch.setattr(looks, "look", ranks.look)
    for pyspy in (True, False):
        asyncio.run(looking.look_at(None, made, made.workers, 20.0, pyspy))  # type: ignore[arg-type]
    assert ranks.asked == [(40, False), (40, False)]


def test_what_is_no_program_for_linux_is_not_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert looking.own_pyspy() is True
    (tmp_path / "py-spy").write_bytes(b"#!/bin/sh\n")
    assert looking.own_pyspy() is True
    (tmp_path / "py-spy").write_bytes(b"\x7fELF 1")
    assert looking.own_pyspy() == b"\x7fELF 1"
