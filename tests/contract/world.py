"""The environment of the contract suite: real workers and operations on them, in addition to the backend."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from atlctl.backends.base import Argv, Backend
from atlctl.jobs.model import Job
from tests.support import proc

REPOSITORY = Path(__file__).parents[2]
#: A worker's command that idles longer than any test.
IDLE = ("sleep", "4000")


class World(Protocol):
    """Real workers behind a backend. Each test gets a new one, which leaves nothing behind."""

    backend: Backend

    def start(self, argv: Sequence[str] = IDLE, workers: int = 1, name: str = "job") -> Job:
        """Start a job and return it when all its workers run."""

    def inside(self, job: Job, index: int = 0) -> list[proc.Process]:
        """All live processes of a worker: its own command, and commands executed in it."""

    def end_worker(self, job: Job, index: int = 0) -> None:
        """Kill a worker's own command with SIGKILL, like the OOM killer."""

    def lose(self, job: Job) -> None:
        """Make all workers unreachable at once, without notice."""

    def replace(self, job: Job) -> Job:
        """Start another job with the name of `job`, which has ended."""

    def client(self, job: Job, argv: Sequence[str], *, stdin: bool) -> subprocess.Popen[bytes]:
        """A process that executes `argv` in worker 0 and prints a line when it has started.

        With `stdin` it keeps the command's stdin open.
        """

    def close(self) -> None: ...


class LocalWorld:
    """Jobs of this machine."""

    def __init__(self) -> None:
        from atlctl.backends.hosts.local import LocalBackend

        self.backend: Backend = LocalBackend()

    def start(self, argv: Sequence[str] = IDLE, workers: int = 1, name: str = "job") -> Job:
        from atlctl.backends.hosts.starting import StartSpec, start_here

        return self.load(start_here(StartSpec(Argv(tuple(argv)), name), workers).name)

    def load(self, name: str) -> Job:
        return asyncio.run(self.backend.get_job(name))

    def inside(self, job: Job, index: int = 0) -> list[proc.Process]:
        marks = {f"ATLCTL_JOB={job.name}".encode(), f"ATLCTL_WORKER=worker-{index}".encode()}
        return [process for process in proc.marked() if marks <= environment(process.pid)]

    def end_worker(self, job: Job, index: int = 0) -> None:
        pid = job.workers[index].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def lose(self, job: Job) -> None:
        from atlctl.backends.hosts import registry

        os.kill(registry.glance(job.name).supervisor["pid"], signal.SIGKILL)

    def replace(self, job: Job) -> Job:
        asyncio.run(self.backend.stop(job, job.workers, 0.0))
        eventually(self, job.name, lambda found: not any(w.state.active for w in found.workers))
        assert proc.wait_until(lambda: not self._supervised(job))
        return self.start(name=job.name)

    def _supervised(self, job: Job) -> bool:
        from atlctl.backends.hosts import registry

        return registry.glance(job.name).presence == "alive"

    def client(self, job: Job, argv: Sequence[str], *, stdin: bool) -> subprocess.Popen[bytes]:
        return client_of(job, argv, stdin=stdin)

    def close(self) -> None:
        from atlctl.backends.hosts import registry

        for entry in registry.load_all()[0]:
            if entry.presence == "alive":
                asyncio.run(self.backend.stop(entry.job, entry.job.workers, 0.0))


def client_of(job: Job, argv: Sequence[str], *, stdin: bool, **env: str) -> subprocess.Popen[bytes]:
    """See `World.client`. `env`: additional variables."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.contract.client", job.name, "stdin" if stdin else "null", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **env},
    )


def environment(pid: int) -> set[bytes]:
    """A process's variables as NAME=VALUE; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except (FileNotFoundError, ProcessLookupError):
        return set()


def eventually(world: World, name: str, predicate: Callable[[Job], object], timeout: float = 100.0) -> Job:
    """The job as soon as it satisfies `predicate`. Fails the test after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        job = asyncio.run(world.backend.get_job(name))
        if predicate(job):
            return job
        assert time.monotonic() < deadline, f"not in {timeout} s: {job}"
        time.sleep(0.02)
