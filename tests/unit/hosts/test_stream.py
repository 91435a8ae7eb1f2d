"""An SSH session as a channel, without a host."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncssh
import pytest

from atlctl.backends.base import Exited, Output
from atlctl.backends.guarded.execution import Ended
from atlctl.backends.hosts.stream import SessionChannel, _Session


@pytest.mark.parametrize("lost", [False, True], ids=["closed", "lost"])
@pytest.mark.parametrize("ended", [False, True], ids=["no-eof", "eof"])
def test_a_status_counts_when_the_output_is_known_to_be_at_its_end(ended: bool, lost: bool) -> None:
    """sshd sends the status when the command ends, perhaps before its last output."""

    async def main() -> list[Any]:
        session = _Session()
        channel = SessionChannel(session, None, lambda: None)  # type: ignore[arg-type]
        session.data_received(b"out", None)
        session.exit_status_received(0)
        if ended:
            session.eof_received()
        session.connection_lost(asyncssh.ConnectionLost("reset") if lost else None)
        return [await channel.receive(), await channel.receive()]

    status = None if lost and not ended else Ended(Exited(exit_code=0))
    assert asyncio.run(main()) == [Output("stdout", b"out"), status]
