"""Questions to the wrappers of `atlctl run`, which answer them in their own process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from atlctl.backends.base import NO_STATUS, Exited, FailedToStart, Lost
from atlctl.backends.guarded.execution import Ended
from atlctl.backends.hosts import asking
from atlctl.backends.hosts.connect import Connections
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.stream import HostPlace
from atlctl.jobs.errors import AtlctlError

#: The first word of a question's command.
COMMAND = "atlctl-run"


async def ask(
    connections: Connections,
    host: Host,
    question: str,
    details: Mapping[str, Any],
    seconds: float = asking.ANSWER_SECONDS,
) -> dict[str, Any]:
    """The object that the wrapper on a host answers with. Raises NoAnswer."""
    place = HostPlace(connections, host)
    out, said = bytearray(), bytearray()
    last: Exited | FailedToStart | Lost = Lost(NO_STATUS)
    try:
        async with asyncio.timeout(seconds):
            try:
                channel = await place.open(f"{COMMAND} {question}")
            except AtlctlError as error:
                raise asking.failure(place.refused(error), None, b"") from error
            try:
                await channel.send(asking.encoded(dict(details)))
                await channel.close_stdin()
                while (message := await channel.receive()) is not None:
                    if isinstance(message, Ended):
                        last = message.outcome
                        break
                    (out if message.stream == "stdout" else said).extend(message.data)
                    del said[asking.MAX_SAID :]
                    if len(out) > asking.MAX_ANSWER:
                        raise asking.unclear()
            finally:
                await channel.close()
    except TimeoutError:
        raise asking.silent(host.name, seconds) from None
    told = asking.parsed(bytes(out))
    if last == Exited(exit_code=0) and told is not None:
        return told
    raise asking.failure(last, told, bytes(said))
