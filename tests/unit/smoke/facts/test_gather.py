"""What is asked of the agents once, where one of them talks nonsense."""

from __future__ import annotations

import asyncio
import time

import pytest

from atlctl.smoke.context import Options, Run
from atlctl.smoke.facts import gather
from atlctl.smoke.findings import Report
from atlctl.smoke.session import Session
from tests.unit.smoke.scripted import Script, Scripted, Stream, worker


def tells(wall: str) -> Script:
    """An agent that answers everything with this time, and then with another one."""

    async def script(stream: Stream) -> None:
        await stream.ask()
        stream.hello()
        while (command := await stream.ask())["cmd"] != "bye":
            for told in (wall, "1"):
                stream.put(b'\x1e{"ev":"clock","re":%d,"wall":%s}\n' % (command["id"], told.encode()))
            stream.say(ev="told", re=command["id"], end=True)

    return script


def clocks(wall: str) -> tuple[list[str], gather.Bounds, gather.Bounds]:
    """Of two workers who lives after both looks, and the clocks in the first and in the second look."""

    async def main() -> tuple[list[str], gather.Bounds, gather.Bounds]:
        hosts = (worker(0), worker(1))
        async with Session(Scripted({"worker-1": tells(wall)}), hosts, {"seconds": 9}) as session:
            assert await session.roll_call(5) == {}
            run = Run(session, hosts, Options(), Report("quick"))
            await gather.gather(run)
            again = await gather.clocks(run, session.living())
            first = {name: fact["clock"] for name, fact in run.facts.items() if "clock" in fact}
            return session.living(), first, again

    return asyncio.run(main())


def test_the_clock_is_what_was_said_first() -> None:
    living, *looks = clocks(str(time.time() + 1000))
    assert living == ["worker-0", "worker-1"]
    for bounds in looks:
        assert list(bounds) == ["worker-1"]
        least, most = bounds["worker-1"]
        assert 990 < least < most < 1010


@pytest.mark.parametrize("wall", ["9" * 400, "-1e15", "NaN", "Infinity", '"now"', "null"], ids=lambda wall: wall[:8])
def test_a_time_that_is_none_costs_nobody_anything(wall: str) -> None:
    living, *looks = clocks(wall)
    assert living == ["worker-0", "worker-1"]
    assert all(bounds["worker-1"][1] < -1e9 for bounds in looks), "the next word counts"
