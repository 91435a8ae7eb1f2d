"""Run short commands in workers for the backend's own questions, such as which worker holds which rank."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from atlctl.backends.base import Argv, Event, ExecRequest, Executor, Exited, FailedToStart, Lost, Output
from atlctl.backends.questions import ask_each
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, Unreachable
from atlctl.jobs.model import RankMap, Worker
from atlctl.remote.sending import shell

#: Workers asked for their ranks at once; seconds and bytes for one answer.
_AT_ONCE, _SECONDS, _LIMIT = 64, 20.0, 64 * 1024


async def stdout_of(executor: Executor, worker: Worker, argv: Argv, limit: int) -> bytes | None:
    """The command's standard output, at most `limit` bytes; None if its exit code is not 0."""
    data, last = await _run(executor, worker, argv, limit)
    return data if isinstance(last, Exited) and last.exit_code == 0 else None


async def file_of(executor: Executor, worker: Worker, path: str, limit: int) -> bytes | None:
    """The first `limit` bytes of a regular file in the worker; None if it is another kind of file or cannot be read. A
    symbolic link as the last component is not followed."""
    return await stdout_of(executor, worker, Argv(("sh", "-c", shell("read_file"), "sh", path, str(limit))), limit)


async def told_by(executor: Executor, worker: Worker, argv: Argv, limit: int) -> bytes:
    """As `stdout_of`, but raises Unreachable or AtlctlError if the exit code is not 0."""
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


async def living(executor: Executor, workers: Sequence[Worker]) -> RankMap | None:
    """The ranks of the living `workers`, from the environment of torchrun's processes. None if there are no ranks, or
    if two workers have the same one."""
    answers = await ask_each(workers, lambda worker: _ranks(executor, worker), _AT_ONCE)
    found: dict[int, str] = {}
    for worker, ranks in zip(workers, answers, strict=True):
        if any(rank in found for rank in ranks):
            return None
        found.update(dict.fromkeys(ranks, worker.name))
    return RankMap(found, Message("the processes of torchrun in the workers")) if found else None


async def _ranks(executor: Executor, worker: Worker) -> set[int]:
    try:
        async with asyncio.timeout(_SECONDS):
            said = await stdout_of(executor, worker, Argv(("sh", "-c", shell("ranks"))), _LIMIT)
    except (AtlctlError, TimeoutError):
        return set()
    return {int(line) for line in (said or b"").split() if line.isdigit() and len(line) < 8}
