"""A real gloo job in which a test can hang and release a rank, any number of times. The file is also the training
script: `hanging.py FOLDER` under torchrun."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.integration.local import Registry

#: Faults and their expected verdicts.
VERDICTS = {
    "sleep": "hung in user code",
    "lock": "hung in user code",
    "busy": "hung in user code",
    "read": "blocked on I/O",
    "gil": "hung in user code",
    "stop": "stopped",
    "thread": "hung in user code",
    "loader": "hung in user code",
    "write": "blocked on I/O",
    "child": "hung in user code",
    "debugger": "stopped",
}
#: Those that no release ends.
FINAL = {"other": "in another operation", "end": "in another operation"}
#: Faults in which torch's worker server, which is in the rank, does not answer.
SILENT = {"gil", "stop"}
#: Verdicts that differ without Python stacks.
WITHOUT_STACKS = {"debugger": "blocked on I/O"}


class Released(Exception):
    """Raised when the test releases the rank."""


def stuck_sleep(_: Path) -> None:
    time.sleep(10_000)


def stuck_lock(_: Path) -> None:
    import threading

    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def stuck_busy(_: Path) -> None:
    count = 0
    while True:
        count += 1


def stuck_read(folder: Path) -> None:
    """Like a dead mount: reads a FIFO without a writer."""
    (folder / "fifo").open().read()


def stuck_gil(_: Path) -> None:
    """C code that holds the GIL: no other thread of the process runs."""
    import ctypes

    ctypes.PyDLL(None).sleep(10_000)


def stuck_stop(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stuck_thread(_: Path) -> None:
    """An exception in a thread whose result the main thread waits for."""
    import queue
    import threading

    results: queue.Queue[int] = queue.Queue()
    threading.Thread(target=lambda: results.put(1 // 0)).start()
    results.get()


class _Never:
    """Items that never come."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _: int) -> int:
        time.sleep(10_000)
        return 0


def stuck_loader(_: Path) -> None:
    from torch.utils.data import DataLoader

    next(iter(DataLoader(_Never(), num_workers=1)))  # type: ignore[arg-type]


def stuck_write(_: Path) -> None:
    """Like a checkpoint on dead storage: writes to a full pipe."""
    reader, writer = os.pipe()
    try:
        os.write(writer, bytes(1 << 20))
    finally:
        os.close(reader)
        os.close(writer)


def stuck_child(_: Path) -> None:
    """Like a compiler that does not end."""
    subprocess.run([sys.executable, "-c", "while True: pass"], check=False)


def stuck_debugger(folder: Path) -> None:
    import pdb

    # To open it for reading alone would wait for a writer.
    with (folder / "fifo").open("r+b", buffering=0) as fifo, open(os.devnull, "w") as shown:
        pdb.Pdb(stdin=io.TextIOWrapper(fifo), stdout=shown, nosigint=True).set_trace()
        shown.write("")


def stuck_other(_: Path) -> None:
    """Another collective than the other ranks."""
    import torch
    import torch.distributed as dist

    dist.all_gather([torch.ones(8) for _ in range(dist.get_world_size())], torch.ones(8))


def stuck_end(_: Path) -> None:
    """One step less than the other ranks."""
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()


STUCK: dict[str, Callable[[Path], None]] = {
    "sleep": stuck_sleep,
    "lock": stuck_lock,
    "busy": stuck_busy,
    "read": stuck_read,
    "gil": stuck_gil,
    "stop": stuck_stop,
    "thread": stuck_thread,
    "loader": stuck_loader,
    "write": stuck_write,
    "child": stuck_child,
    "debugger": stuck_debugger,
    "other": stuck_other,
    "end": stuck_end,
}


def train(folder: Path) -> None:
    """Train without end. The file `fault` contains `NUMBER KIND RANK`: this rank hangs, once for each number."""
    import torch
    import torch.distributed as dist

    def release(*_: object) -> None:
        raise Released

    signal.signal(signal.SIGUSR1, release)
    torch.set_num_threads(1)
    for name, of_mpi in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
        os.environ[name] = os.environ.get(of_mpi, os.environ[name])
    dist.init_process_group("gloo")
    rank, seen, value, step = dist.get_rank(), "0", torch.ones(8), 0
    while True:
        step += 1
        number, kind, bad = (folder / "fault").read_text().split()
        if number != seen and int(bad) == rank:
            (folder / "stuck").write_text(f"{number} {os.getpid()}")
            try:
                STUCK[kind](folder)
            except Released:
                pass
            finally:
                seen = number
        dist.all_reduce(value)
        if rank == 0:
            (folder / "step.new").write_text(str(step))
            (folder / "step.new").replace(folder / "step")
        time.sleep(0.02)


def spawned(rank: int, world: int, folder: Path) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    train(folder)


def main() -> None:
    """Run the training, with torch's worker server if its variable is set (one socket for each rank)."""
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        from torch.multiprocessing.spawn import spawn

        spawn(spawned, (int(sys.argv[2]), folder), nprocs=int(sys.argv[2]))
        return
    name = "TORCH_WORKER_SERVER_SOCKET"
    if name not in os.environ:
        train(folder)
        return
    from torch.distributed.elastic.control_plane import worker_main

    os.environ[name] += os.environ["RANK"]
    with worker_main():  # type: ignore[union-attr]  # its decorator says otherwise
        train(folder)


def packages() -> Path:
    """The folder that torch is in; without a load of torch, which takes two CPU seconds and much memory."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    return Path(torch.origin).parents[1]


#: How a worker's ranks are started: by torchrun, by nothing but the platform (one rank), by mpirun, by `mp.spawn`.
LAUNCHERS = {
    "torchrun": (
        "exec {python} -m torch.distributed.run --nnodes {workers} --node-rank $RANK --nproc-per-node {each} "
        "--master-addr 127.0.0.1 --master-port $MASTER_PORT {script} {folder}"
    ),
    "none": "{python} {script} {folder}; exit $?",
    "mpirun": (
        "for i in $(seq 0 $(({each} - 1))); do OMPI_COMM_WORLD_LOCAL_RANK=$i OMPI_COMM_WORLD_LOCAL_SIZE={each} "
        "OMPI_COMM_WORLD_RANK=$((RANK * {each} + i)) OMPI_COMM_WORLD_SIZE=$(({workers} * {each})) "
        "{python} {script} {folder} & done; wait"
    ),
    "spawn": "{python} {script} {folder} {each}; exit $?",
}


class Hanging:
    """A job of `workers` x `each` ranks in `registry`, with faults."""

    def __init__(
        self, registry: Registry, name: str, workers: int, each: int, *env: str, launcher: str = "torchrun"
    ) -> None:
        self.registry, self.name, self.world = registry, name, workers * each
        self.folder = registry.home / f"hanging-{name}"
        self.folder.mkdir()
        os.mkfifo(self.folder / "fifo")
        (self.folder / "fault").write_text("0 none -1")
        self._number = 0
        # The virtual environment's base interpreter, which has no py-spy next to it.
        python = os.path.realpath(sys.executable)
        site = packages()
        options = [word for pair in (f"PYTHONPATH={site}", "OMP_NUM_THREADS=1", *env) for word in ("--env", pair)]
        script = LAUNCHERS[launcher].format(
            python=python, workers=workers, each=each, script=__file__, folder=self.folder
        )
        registry.start(name, workers, "sh", "-c", script, options=tuple(options))

    def step(self) -> int:
        """The current training step."""
        try:
            return int((self.folder / "step").read_text())
        except FileNotFoundError:
            return 0

    def trains(self, seconds: float = 60) -> bool:
        """Whether it makes five more steps in time."""
        goal = self.step() + 5
        return _until(lambda: self.step() >= goal, seconds)

    def hang(self, kind: str, rank: int) -> int:
        """Hang a rank; returns its PID after it is stuck and the other ranks wait."""
        self._number += 1
        (self.folder / "fault.new").write_text(f"{self._number} {kind} {rank}")
        (self.folder / "fault.new").replace(self.folder / "fault")
        assert _until(lambda: self._stuck() is not None, 30), "the rank did not hang"
        pid = self._stuck()
        assert pid is not None
        # The others wait when they take no CPU time any more.
        others, before, now = [other for other in self.pids() if other != pid], -9, 0
        deadline = time.monotonic() + 20
        while now - before > len(others) and time.monotonic() < deadline:
            time.sleep(0.5)
            before, now = now, sum(map(_ticks, others))
        return pid

    def _stuck(self) -> int | None:
        try:
            number, pid = (self.folder / "stuck").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if int(number) == self._number else None

    def release(self, kind: str, pid: int) -> None:
        """Release the rank."""
        if kind in ("read", "debugger"):
            (self.folder / "fifo").write_text("" if kind == "read" else "c\n")
        elif kind == "stop":
            os.kill(pid, signal.SIGCONT)
        else:
            os.kill(pid, signal.SIGUSR1)

    def look(self, *words: str) -> Any:
        """The output of `atlctl stacks -o json`."""
        return self.registry.data("stacks", self.name, *words, timeout=60)

    def pids(self) -> list[int]:
        """The trainers' PIDs."""
        found = self.registry.running(str(self.folder))
        return [process.pid for process in found if "torch.distributed.run" not in process.command]


def _ticks(pid: int) -> int:
    """The CPU time of a process, in hundredths of a second."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def _until(asked: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not asked():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def wrong(data: Any, kind: str, rank: int, stacks: bool) -> str:
    """The error in an answer; empty if it is correct."""
    culprits = [item["rank"] for item in data["culprits"]]
    due = {**VERDICTS, **FINAL, **({} if stacks else WITHOUT_STACKS)}[kind]
    if culprits != [rank] or data["verdict"] != due:
        return f"{kind} on rank {rank}: {data['verdict']} {culprits}: {data['why']}"
    top = [frame["function"] for frame in data["groups"][0]["stack"]]
    if stacks and f"stuck_{kind}" not in top:
        return f"{kind} on rank {rank}: the stack is {json.dumps(top)}"
    return ""


if __name__ == "__main__":
    main()
