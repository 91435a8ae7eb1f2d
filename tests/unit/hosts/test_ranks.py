"""The global ranks of workers: from live processes, or guessed, or unknown."""

from __future__ import annotations

import asyncio

from tests.support.proc import named, wait_until
from tests.unit.hosts.local import Local

#: Variables that torchrun sets for its children; the worker's RANK counts workers.
CHILD = "TORCHELASTIC_RUN_ID=x LOCAL_RANK={local} RANK=$((RANK * 2 + {local})) sleep 4600"


def test_living_torchrun_children_tell(local: Local) -> None:
    job = local.sh(" & ".join(CHILD.format(local=rank) for rank in range(2)) + " & wait", workers=2)
    assert wait_until(lambda: len(named("sleep 4600")) >= 4)
    assert wait_until(lambda: len(_workers(local)) == 4)
    assert _workers(local) == {0: "worker-0", 1: "worker-0", 2: "worker-1", 3: "worker-1"}
    found = asyncio.run(local.backend.ranks(job))
    assert found is not None
    assert not found.guess


def _workers(local: Local) -> dict[int, str]:
    found = asyncio.run(local.backend.ranks(local.load("job")))
    return {} if found is None else found.workers


def test_without_them_a_stated_number_of_processes_is_a_guess(local: Local) -> None:
    job = local.run(workers=3, env={"PET_NPROC_PER_NODE": "2"})
    found = asyncio.run(local.backend.ranks(job))
    assert found is not None
    assert found.guess
    assert found.workers[5] == "worker-2"
    assert len(found.workers) == 6


def test_a_rendezvous_that_gives_ranks_by_itself_is_not_guessed(local: Local) -> None:
    job = local.run(workers=2, env={"PET_NPROC_PER_NODE": "2", "PET_RDZV_BACKEND": "c10d"})
    assert asyncio.run(local.backend.ranks(job)) is None


def test_nothing_stated_is_not_known(local: Local) -> None:
    job = local.run(env={"PET_NPROC_PER_NODE": "auto"})
    assert asyncio.run(local.backend.ranks(job)) is None
