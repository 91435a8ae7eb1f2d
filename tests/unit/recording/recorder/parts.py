"""Lines, jobs and sources for tests of the recorder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from atlctl.backends.base import LogLine, LogRequest
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Job, State, Worker

SECOND = 1_795_200_000 * 10**9  # 2026-11-20T18:40:00Z


def lines(first: int, count: int, *, step: int = 10**7, size: int = 20) -> list[LogLine]:
    """Numbered lines, `step` nanoseconds apart."""
    return [
        LogLine(SECOND + number * step, "stdout", b"%06d " % number + b"x" * size)
        for number in range(first, first + count)
    ]


def job(*workers: Worker, state: State = State.RUNNING, uid: str = "uid-1") -> Job:
    return Job("train", "PyTorchJob", "kubernetes", state, uid, len(workers), workers, namespace="team")


def recorded(folder: Path, worker: str = "worker-0") -> list[int]:
    """The numbers of the recorded lines, in order."""
    parts = sorted(folder.glob(f"{worker}.part-*.ts.log"), key=lambda path: int(path.name.split("part-")[1][:-7]))
    whole = [folder / f"{worker}.ts.log", *parts]
    return [int(line.split(b" ", 2)[1]) for path in whole if path.exists() for line in path.read_bytes().splitlines()]


class Source:
    """Returns `log` from `since` on, in several answers; each ends with one of `ends`."""

    def __init__(self, log: Sequence[LogLine], ends: Sequence[AtlctlError | int | None]) -> None:
        """An end is an error after all lines, a number of lines before an error, or None (end of the log)."""
        self.log, self.ends = list(log), list(ends)
        self.requests: list[LogRequest] = []
        self.previous: list[LogLine] | AtlctlError = []

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
        self.requests.append(request)
        if request.previous:
            if isinstance(self.previous, AtlctlError):
                raise self.previous
            yield self.previous
            return
        since = 0 if request.since is None else int(request.since) * 10**9
        found = [line for line in self.log if line.time is None or line.time >= since]
        end = self.ends.pop(0) if self.ends else None
        upto = end if isinstance(end, int) else len(found)
        for at in range(0, upto, 7):
            yield found[at : min(at + 7, upto)]
            await asyncio.sleep(0)
        if end is not None:
            raise end if isinstance(end, AtlctlError) else AtlctlError("the connection broke")

    async def raw_events(self, job: Job) -> Sequence[dict[str, str]]:
        return ()


def close(fd: int) -> None:
    os.close(fd)
