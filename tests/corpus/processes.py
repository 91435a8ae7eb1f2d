"""The processes of a case, found by the mark that all of them inherit (Linux, /proc)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass

#: Environment variables: which run a process belongs to, and which worker of it.
RUN = "CORPUS_RUN"
WORKER = "CORPUS_WORKER"


@dataclass(frozen=True, slots=True)
class Process:
    """A living Python process of a run."""

    pid: int
    command: tuple[str, ...]
    environment: dict[str, str]

    @property
    def is_agent(self) -> bool:
        """Whether it is a torchrun."""
        return "torch.distributed.run" in self.command[:4]


def of_run(run: str, worker: str | None = None) -> list[Process]:
    """The living processes of a run, or of one of its workers."""
    found = []
    for name in os.listdir("/proc"):
        process = _read(int(name)) if name.isdigit() else None
        if process and process.environment.get(RUN) == run and worker in (None, process.environment.get(WORKER)):
            found.append(process)
    return found


def agent(run: str, worker: str) -> Process:
    """The worker's torchrun. Raises LookupError where it does not run."""
    python = os.path.realpath(sys.executable)
    for process in of_run(run, worker):
        with contextlib.suppress(OSError):
            if process.is_agent and os.path.realpath(f"/proc/{process.pid}/exe") == python:
                return process
    raise LookupError(f"{worker} has no torchrun")


def trainer(run: str, worker: str, local_rank: int) -> Process:
    """The process of this local rank. Raises LookupError where it does not run."""
    for process in of_run(run, worker):
        if process.environment.get("LOCAL_RANK") == str(local_rank):
            return process
    raise LookupError(f"{worker} has no process with local rank {local_rank}")


def kill_worker(run: str, worker: str) -> None:
    """SIGKILL to all of a worker, its torchrun first, so that it cannot print anything about the others."""
    with contextlib.suppress(LookupError, ProcessLookupError):
        os.kill(agent(run, worker).pid, signal.SIGKILL)
    kill_all(run, worker)


def kill_all(run: str, worker: str | None = None, patience: float = 5.0) -> bool:
    """SIGKILL until none is left; False where some are after `patience` seconds."""
    deadline = time.monotonic() + patience
    while left := of_run(run, worker):
        if time.monotonic() > deadline:
            return False
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.01)
    return True


def _read(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().split(b"\0")
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except OSError:  # gone, or somebody else's
        return None
    if state in b"ZX" or pid == os.getpid():
        return None
    pairs = (os.fsdecode(word).partition("=") for word in words)
    return Process(pid, tuple(map(os.fsdecode, command)), {key: value for key, _, value in pairs})
