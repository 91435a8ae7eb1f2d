"""One short command in one worker, within bounds of time and size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from atlctl.backends.base import Argv, Event, ExecRequest, Executor, Exited, FailedToStart, Lost, Output
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Worker

#: Seconds from SIGTERM to SIGKILL for a command that takes too long.
_GRACE = 1.0


async def ask(executor: Executor, worker: Worker, argv: Argv, seconds: float, take: Callable[[bytes], None]) -> str:
    """Hands the command's standard output to `take`; returns what went wrong, empty where nothing did."""
    execution = executor.run(worker, ExecRequest(argv))
    last: Event | None = None
    try:
        async with asyncio.timeout(seconds):
            async for last in execution:
                if isinstance(last, Output) and last.stream == "stdout":
                    take(last.data)
    except TimeoutError:
        await execution.end(_GRACE)
        return f"no answer within {seconds:g} s"
    except AtlctlError as error:
        return error.message
    finally:
        await execution.aclose()
    if isinstance(last, Lost | FailedToStart):
        return last.reason
    if isinstance(last, Exited) and last.exit_code == 0:
        return ""
    return "the command that reads in it failed"
