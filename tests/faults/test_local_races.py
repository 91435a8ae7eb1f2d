"""Commands that arrive while their worker ends."""

from __future__ import annotations

import asyncio

from atlctl.backends.base import Argv, Event, ExecRequest, Exited, FailedToStart
from tests.unit.hosts.local import Local


def test_commands_into_an_ending_worker(local: Local) -> None:
    """Each command ran, was killed with its worker, or found it not running. None is lost, as all ended in order."""
    job = local.sh("sleep 0.15")

    async def one() -> Event:
        executor = local.backend.executor(job)
        execution = executor.run(job.workers[0], ExecRequest(Argv(("true",))))
        try:
            return [event async for event in execution][-1]
        finally:
            await execution.aclose()
            await executor.aclose()

    async def main() -> list[Event]:
        found: list[Event] = []
        while len(found) < 5 or not isinstance(found[-5], FailedToStart):
            found.append(await one())
        return found

    for end in asyncio.run(asyncio.wait_for(main(), 100)):
        if isinstance(end, FailedToStart):
            assert end.exit_code == 255
            assert "not running" in end.reason
        else:
            assert end in (Exited(exit_code=0), Exited(signal=9))
