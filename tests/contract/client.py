"""A separate client process, to be killed: executes a command in worker 0 and prints a line when it has started."""

from __future__ import annotations

import asyncio
import os
import sys

from atlctl.backends.base import Argv, ExecRequest, Started
from atlctl.cli.target import backend as find_backend


async def main(name: str, stdin: bool, argv: tuple[str, ...]) -> None:
    backend = find_backend(name)
    job = await backend.get_job(name)
    executor = backend.executor(job)
    async for event in executor.run(job.workers[0], ExecRequest(Argv(argv), stdin=stdin)):
        if isinstance(event, Started):
            os.write(1, b"started\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] == "stdin", tuple(sys.argv[3:])))
