"""What one short command in a worker prints, for the backend's own questions."""

from __future__ import annotations

from atlctl.backends.base import Argv, ExecRequest, Executor, Exited, Output
from atlctl.jobs.model import Worker


async def stdout_of(executor: Executor, worker: Worker, argv: Argv, limit: int) -> bytes | None:
    """Up to `limit` bytes of its standard output; None where it did not end with exit code 0."""
    execution = executor.run(worker, ExecRequest(argv))
    data = bytearray()
    ended = False
    try:
        async for event in execution:
            if isinstance(event, Output) and event.stream == "stdout":
                data += event.data[: limit - len(data)]
            elif isinstance(event, Exited):
                ended = event.exit_code == 0
    finally:
        await execution.aclose()
    return bytes(data) if ended else None
