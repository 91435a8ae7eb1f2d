"""Requests of the backend to hosts, and data passed to commands there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from atlctl.backends.hosts import looking, states
from atlctl.backends.hosts.connect import Connections
from atlctl.backends.hosts.hostkeys import KnownHosts
from atlctl.backends.hosts.keys import Keys
from atlctl.backends.hosts.records import Claim
from atlctl.backends.hosts.ssh import SshBackend, within
from atlctl.jobs.model import State
from tests.unit.hosts.fake import RECORD


def test_where_ranks_live_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim(RECORD.name)
    claim.write(RECORD)
    claim.release()
    asked = []

    async def look(executor: object, record: object) -> dict[str, states.Seen]:
        asked.append(record)
        running = [replace(worker, state=State.RUNNING) for worker in looking.workers(RECORD)]
        return {worker.name: states.Seen(worker, ranks=(7 - worker.index,)) for worker in running}

    monkeypatch.setattr(looking, "look", look)

    async def ranks(named: bool) -> dict[int, str]:
        backend = SshBackend(Connections(Keys(lambda _: None), KnownHosts(accept_new=False), None), ())
        job = await backend.get_job("job") if named else looking.job(RECORD, {})
        found = await backend.ranks(job)
        assert found is not None
        return found.workers

    assert asyncio.run(ranks(True)) == {7: "w1", 6: "w2"}
    assert len(asked) == 1
    assert asyncio.run(ranks(False)) == {7: "w1", 6: "w2"}
    assert len(asked) == 2


def test_a_command_is_given_the_contract_of_its_worker() -> None:
    found = within(replace(RECORD, chdir="run"))
    assert found["w2"].env == {
        "MASTER_ADDR": "h1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "RANK": "1",
        "ATLCTL_JOB": "job",
        "ATLCTL_WORKER": "w2",
        "ATLCTL_STATE_DIR": "/state",
    }
    assert [one.folder for one in found.values()] == ["run", "run"]
