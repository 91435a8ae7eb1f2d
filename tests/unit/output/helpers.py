"""A writer on two pipes, and workers, for tests of sinks."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable

from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.jobs.model import State, Worker
from atlctl.render.writer import Writer


def worker(index: int, name: str | None = None) -> Worker:
    return Worker(name or f"worker-{index}", index, State.RUNNING)


def exited(index: int, code: int = 0) -> Outcome:
    return Outcome(worker(index), EndKind.EXITED, code, guarded=True)


def run(scenario: Callable[[Writer], Awaitable[None]], limit: int = 8 << 20) -> tuple[bytes, bytes]:
    """The output of `scenario` on stdout and stderr."""
    got = (bytearray(), bytearray())

    def read(fd: int, into: bytearray) -> None:
        while chunk := os.read(fd, 1 << 16):
            into += chunk
        os.close(fd)

    (out_read, out), (err_read, err) = os.pipe(), os.pipe()
    threads = [threading.Thread(target=read, args=args) for args in ((out_read, got[0]), (err_read, got[1]))]
    for thread in threads:
        thread.start()
    writer = Writer(out, err, limit)

    async def main() -> None:
        await scenario(writer)

    try:
        asyncio.run(main())
        assert writer.close(10)
    finally:
        writer.close(0)
        os.close(out)
        os.close(err)
        for thread in threads:
            thread.join()
    return bytes(got[0]), bytes(got[1])
