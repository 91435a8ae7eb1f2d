"""What one short command in a worker prints, for the backend's own questions."""

from __future__ import annotations

from atlctl.backends.base import Argv, Event, ExecRequest, Executor, Exited, FailedToStart, Lost, Output
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, Unreachable
from atlctl.jobs.model import Worker
from atlctl.remote.sending import shell


async def stdout_of(executor: Executor, worker: Worker, argv: Argv, limit: int) -> bytes | None:
    """Up to `limit` bytes of its standard output; None where it did not end with exit code 0."""
    data, last = await _run(executor, worker, argv, limit)
    return data if isinstance(last, Exited) and last.exit_code == 0 else None


async def file_of(executor: Executor, worker: Worker, path: str, limit: int) -> bytes | None:
    """Up to `limit` bytes of a regular file there; None where it is none, or cannot be read. A link at its end is not
    followed."""
    return await stdout_of(executor, worker, Argv(("sh", "-c", shell("read_file"), "sh", path, str(limit))), limit)


async def told_by(executor: Executor, worker: Worker, argv: Argv, limit: int) -> bytes:
    """The same. Raises Unreachable, AtlctlError where it did not."""
    data, last = await _run(executor, worker, argv, limit)
    match last:
        case Exited(exit_code=0):
            return data
        case Lost(reason=reason) | FailedToStart(exit_code=255, reason=reason):
            raise Unreachable(reason)
        case FailedToStart(reason=reason):
            raise AtlctlError(reason)
        case _:
            raise AtlctlError(Message("the command on the worker failed"))


async def _run(executor: Executor, worker: Worker, argv: Argv, limit: int) -> tuple[bytes, Event | None]:
    execution = executor.run(worker, ExecRequest(argv))
    data = bytearray()
    last: Event | None = None
    try:
        async for last in execution:
            if isinstance(last, Output) and last.stream == "stdout":
                data += last.data[: limit - len(data)]
    finally:
        await execution.aclose()
    return bytes(data), last
