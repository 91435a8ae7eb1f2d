"""Tables of jobs and workers."""

from __future__ import annotations

from atlctl.cli.views import workers_table
from atlctl.i18n import Message, specific
from atlctl.jobs.model import State, Worker
from atlctl.render.streams import Streams

LONG = "a reason that is far too long for a cell of the table, and so is below it"
TERMINAL = Streams(stdout_tty=True, width=200)


def notes(*reasons: str) -> list[str]:
    workers = [Worker(f"worker-{n}", n, State.FAILED, reason=reason) for n, reason in enumerate(reasons)]
    return [line for line in workers_table(workers, (), TERMINAL, False).splitlines() if line.startswith("Failed: ")]


def test_a_reason_that_all_share_has_no_names() -> None:
    assert notes(LONG, LONG) == [f"Failed: {LONG}"]
    assert notes(LONG, LONG, f"{LONG}!") == [f"Failed: worker-[0-1]: {LONG}", f"Failed: worker-2: {LONG}!"]


def test_reasons_that_differ_in_the_host_are_one() -> None:
    why = Message("no answer within {seconds:g} s", seconds=15)
    own = [specific(Message("{host}: {why}", host=f"gpu{n}.example:22 {LONG}", why=why), why) for n in range(2)]
    assert notes(*own) == ["Failed: no answer within 15 s"]
