"""What is made once for all processes of a run."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from tests.support import once


def test_of_several_processes_one_makes_it_and_all_have_it(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "folder_of_run", lambda _: tmp_path)
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()

    def make() -> list[int]:
        time.sleep(0.2)
        return [os.getpid()]

    def ask() -> None:
        answers.put(once.once(tmp_path_factory, "thing", make))

    started = [fork.Process(target=ask) for _ in range(3)]
    for one in started:
        one.start()
    found = [answers.get() for _ in started]
    for one in started:
        one.join()
    assert found[0] == found[1] == found[2]
    assert found[0][0] in {one.pid for one in started}
    assert once.once(tmp_path_factory, "other", lambda: 7) == 7


@pytest.mark.parametrize("worker", [False, True])
def test_the_folder_is_one_for_all_workers_of_xdist(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, worker: bool
) -> None:
    base = tmp_path_factory.getbasetemp()
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if worker:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert once.folder_of_run(tmp_path_factory) == (base.parent if worker else base)
