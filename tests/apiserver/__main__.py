"""`python -m tests.apiserver FOLDER`: serves until stdin ends; the first line on stdout has the addresses (JSON)."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys

from tests.apiserver.processes import Pipe
from tests.apiserver.server import ApiServer


async def _main(folder: str | None) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    async with ApiServer(folder) as server:
        where = {"url": server.url, "control": server.control_url, "ca": server.authority, "id": server.cluster.id}
        os.write(1, json.dumps(where).encode() + b"\n")
        try:
            while await Pipe(0).read():
                pass
        except asyncio.CancelledError:
            return


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_main(sys.argv[1] if len(sys.argv) > 1 else None))
