"""The command that a recorder runs when a worker has failed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress

#: Seconds that it has, seconds from SIGTERM to SIGKILL, and the bytes of its output that are kept.
SECONDS = 60.0
GRACE = 2.0
OUTPUT = 64 * 1024


async def run(command: str, more: Mapping[str, str]) -> tuple[str, bytes]:
    """Runs `sh -c COMMAND` with `more` in its environment; how it ended, in words, and the end of what it printed.

    Whatever is left of its process group when it ends, or takes too long, is ended. Never raises for the command's
    sake.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            env={**os.environ, **more},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"could not be started: {error.strerror}", b""
    printed = bytearray()

    async def read() -> None:
        assert process.stdout is not None
        while data := await process.stdout.read(OUTPUT):
            printed.extend(data)
            del printed[:-OUTPUT]

    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(SECONDS):
            code = await process.wait()
        how = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
    except TimeoutError:
        how = f"ended after {SECONDS:g} s"
        _signal(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await process.wait()
    finally:
        _signal(process.pid, signal.SIGKILL)
        await asyncio.wait({reading}, timeout=GRACE)
        reading.cancel()
        await process.wait()
    return how, bytes(printed)


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
