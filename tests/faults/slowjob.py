"""A real gloo job of four workers, one rank each, that is slow in a chosen way. The file is also the training script:
`slowjob.py FOLDER` in a worker.

Each worker is in a network namespace of its own if this machine allows it, so that links can be slowed. The kind of
slowness is switched while the job runs.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import random
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tests.faults.smoke.netns import Network
    from tests.integration.local import Registry

#: Workers; bytes of the gradient; seconds of the faults in a step.
WORLD, GRADIENT = 4, 128 << 10
PAUSE = 0.15
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Kind:
    """`cause`: the class that `slow` must name; `named`: whether the slow worker must be named, or no worker."""

    cause: str
    named: bool = True
    link: bool = False


KINDS = {
    "sleep": Kind("sleep"),
    "code": Kind("code"),
    "gc": Kind("garbage_collection"),
    "output": Kind("output"),
    "storage": Kind("input"),
    "download": Kind("input"),
    "dataloader": Kind("input"),
    "limit": Kind("cpu_limit"),
    "hogs": Kind("cpu_shared"),
    "gpu": Kind("gpu"),
    "lock": Kind("code"),
    "child": Kind("code"),
    "worker": Kind("input"),
    "memory": Kind("memory"),
    "rate": Kind("network", link=True),
    "loss": Kind("network", link=True),
    "losslink": Kind("network", link=True),
    "none": Kind("", named=False),
    "allsleep": Kind("sleep", named=False),
    "checkpoint": Kind("", named=False),
    "evaluation": Kind("", named=False),
    "growing": Kind("", named=False),
    "jitter": Kind("", named=False),
}
#: Bytes of the file that does not fit into the memory of the rank, and of that memory.
FILE, MEMORY = 192 << 20, 48 << 20


# In the worker


def slow_code() -> int:
    """Python code that takes about `PAUSE` seconds."""
    until, total = time.monotonic() + PAUSE, 0
    while time.monotonic() < until:
        for number in range(1000):
            total += number * number
    return total


def fetch_item(folder: Path, rank: int) -> int:
    from torch.utils.data import get_worker_info

    own = get_worker_info()
    if now(folder) == ("dataloader", rank):
        time.sleep(2 * PAUSE)
    elif now(folder) == ("worker", rank) and own is not None and own.id == 1:
        time.sleep(3 * PAUSE)
    return 1


def now(folder: Path) -> tuple[str, int]:
    """The kind and the slow rank."""
    words = (folder / "kind").read_text().split()
    return words[0], int(words[1])


def train(folder: Path) -> None:
    """Train without end."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset

    class Items(Dataset[int]):
        """Items that come late in the kind `dataloader`."""

        def __len__(self) -> int:
            return 1 << 30

        def __getitem__(self, _: int) -> int:
            return fetch_item(folder, rank)

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=(folder / "init").read_text(), rank=rank, world_size=WORLD)
    # As with tensor and data parallelism: ranks wait for each other in several groups.
    made = {pair: dist.new_group(list(pair)) for pair in ((0, 1), (2, 3), (0, 2), (1, 3))}
    groups = [group for pair, group in made.items() if rank in pair]
    batches = iter(DataLoader(Items(), batch_size=1, num_workers=2, prefetch_factor=2))
    gradient = torch.ones(GRADIENT // 4)
    weights = torch.ones(64, 64)
    garbage: list[Any] = []
    step, begun = 0, time.monotonic()
    last, since = "", 0
    while True:
        step += 1
        kind, slow = now(folder)
        last, since = kind, since if kind == last else step
        next(batches)
        if kind == "allsleep" or (kind == "sleep" and slow == rank):
            wait_for_lease()
        elif kind in ("limit", "hogs"):
            work()
        elif not KINDS[kind].named:
            be_healthy(kind, step - since, rank, folder, weights)
        elif slow == rank:
            be_slow(kind, folder, garbage)
        forward(weights)
        for group in groups:
            dist.all_reduce(weights[0].clone(), group=group)
        dist.all_reduce(gradient)
        gradient.fill_(1.0)
        if rank == 0:
            took, begun = time.monotonic() - begun, time.monotonic()
            print(f"step {step}/1000000 loss 2.1 time {took:.3f}s", flush=True)
            (folder / "step.new").write_text(str(step))
            (folder / "step.new").replace(folder / "step")


def forward(weights: Any) -> None:
    """The healthy part of a step: some computation, then a pause like that of a GPU's computation."""
    for _ in range(20):
        weights @ weights
    time.sleep(0.02)


def wait_for_lease() -> None:
    time.sleep(PAUSE)


def be_slow(kind: str, folder: Path, garbage: list[Any]) -> None:
    if kind in ("code", "gpu"):
        slow_code()
    elif kind == "gc":
        if not garbage:
            garbage += [[number] for number in range(400_000)]
        until = time.monotonic() + PAUSE
        while time.monotonic() < until:
            gc.collect()
    elif kind == "output":
        for number in range(20_000):
            print(f"debug: item {number} of the batch", flush=True)
    elif kind == "storage":
        read_shard(folder)
    elif kind == "download":
        download(folder)

    elif kind == "lock":
        threading.Event().wait(PAUSE)
    elif kind == "child":
        subprocess.run(["sleep", str(PAUSE)], check=True)
    elif kind == "memory":
        touch_pages(folder)


def be_healthy(kind: str, step: int, rank: int, folder: Path, weights: Any) -> None:
    """What belongs to a training, or changes from step to step. `step`: since the kind was chosen."""
    if kind == "checkpoint" and rank == 0 and step % 80 == 79:
        save(folder / "checkpoint")
    elif kind == "evaluation" and step % 60 == 59:
        for _ in range(15):
            forward(weights)
    elif kind == "growing":
        time.sleep(min(0.1, 0.0005 * step))
    elif kind == "jitter":
        time.sleep(random.random() * PAUSE)


def save(path: Path) -> None:
    """Write and sync a checkpoint, for two steps or so of a slow kind."""
    until = time.monotonic() + 2 * PAUSE
    with path.open("wb", buffering=0) as file:
        while time.monotonic() < until:
            file.write(bytes(1 << 18))
            os.fsync(file.fileno())


def touch_pages(folder: Path) -> None:
    """Read pages of a file that is larger than the memory of this process may be."""
    until = time.monotonic() + PAUSE
    with (folder / "big").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        pages.madvise(mmap.MADV_RANDOM)
        while time.monotonic() < until:
            pages[random.randrange(FILE)]


def work() -> None:
    """The same amount of computation each time, about 20 ms on a CPU that is free."""
    for number in range(400_000):
        number * number


def read_shard(folder: Path) -> None:
    with (folder / "shard").open("rb", buffering=0) as file:
        while file.read(1 << 16):
            pass


def download(folder: Path) -> None:
    port = int((folder / f"port-{os.environ['RANK']}").read_text())
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv(1 << 16):
            pass


# Beside it in the worker


def serve(folder: Path) -> None:
    """A server in the worker whose answers are slow."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        path = folder / f"port-{os.environ['RANK']}"
        path.with_suffix(".new").write_text(str(listening.getsockname()[1]))
        path.with_suffix(".new").replace(path)
        while True:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                for _ in range(5):
                    time.sleep(PAUSE / 5)
                    connection.sendall(b"x" * 4096)


# Around the job

_NVIDIA_SMI = """\
#!/bin/sh
read kind slow <{folder}/kind
if [ "$kind $ATLCTL_WORKER" = "gpu worker-$slow" ]; then
  echo "0, GPU-1, NVIDIA H100, 97, 30000, 81559, 310, 92, 0, 840, 0, 0x40"
else
  echo "0, GPU-1, NVIDIA H100, 95, 30000, 81559, 320, 61, 0, 1935, 0, 0x0"
fi
"""


def feed(fifo: Path, ended: threading.Event) -> None:
    """Feed a FIFO slowly each time it is read."""
    while not ended.wait(0.005):
        try:
            fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # not read now
            continue
        with contextlib.suppress(OSError):
            for _ in range(5):
                time.sleep(PAUSE / 5)
                os.write(fd, b"x" * 4096)
        os.close(fd)


class SlowJob:
    """The job in `registry`. `network`: the namespaces of its workers; None: all are in this one. Use with `with`."""

    def __init__(self, registry: Registry, name: str, network: Network | None) -> None:
        from tests.integration.hanging import packages

        self.registry, self.name, self.network = registry, name, network
        self.folder = registry.home / f"slow-{name}"
        self.folder.mkdir()
        os.mkfifo(self.folder / "shard")
        self._kind("none", 0)
        host = "127.0.0.1" if network is None else network.address(0)
        (self.folder / "init").write_text(f"tcp://{host}:{_free_port()}")
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "nvidia-smi").write_text(_NVIDIA_SMI.format(folder=self.folder))
        (tools / "nvidia-smi").chmod(0o755)
        # The virtual environment's base interpreter, which has no py-spy next to it.
        python = os.path.realpath(sys.executable)
        env = {
            "PYTHONPATH": str(packages()), "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo" if network is None else "eth0",
            "PATH": f"{tools}:{os.environ['PATH']}",
        }  # fmt: skip
        options = [word for pair in env.items() for word in ("--env", "=".join(pair))]
        enter = "" if network is None else f"nsenter --net=/run/netns/{network.space(0)[:-1]}$RANK "
        program = f"{enter}{python} {__file__}"
        rank = "LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 TORCHELASTIC_RUN_ID=x"
        script = f"{program} serve {self.folder} & export {rank}; exec {program} train {self.folder}"
        registry.start(name, WORLD, "sh", "-c", script, options=tuple(options))
        #: The step from which on it is slow.
        self.since = 0
        self._ended = threading.Event()
        self._feeder = threading.Thread(target=feed, args=(self.folder / "shard", self._ended), daemon=True)
        self._hogs: list[subprocess.Popen[bytes]] = []
        self._group: Path | None = None

    def __enter__(self) -> Self:
        self._feeder.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        self._ended.set()
        self._feeder.join()
        self.registry.cli("stop", self.name, "--yes", "--grace", "1", timeout=60)

    def _kind(self, kind: str, rank: int) -> None:
        (self.folder / "kind.new").write_text(f"{kind} {rank}")
        (self.folder / "kind.new").replace(self.folder / "kind")

    def step(self) -> int:
        """The current training step."""
        try:
            return int((self.folder / "step").read_text())
        except FileNotFoundError:
            return 0

    def trains(self, seconds: float = 60, steps: int = 5) -> bool:
        """Whether it makes so many more steps in time."""
        goal, deadline = self.step() + steps, time.monotonic() + seconds
        while self.step() < goal:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def rate(self, seconds: float) -> float:
        """Steps in a second."""
        first, begun = self.step(), time.monotonic()
        time.sleep(seconds)
        return (self.step() - first) / (time.monotonic() - begun)

    def pid(self, rank: int) -> int:
        """The trainer's PID."""
        found = self.registry.running(f"train {self.folder}")
        return next(
            one.pid
            for one in found
            if f"RANK={rank}".encode() in Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0")
            and "pt_data_worker" not in Path(f"/proc/{one.pid}/comm").read_text()
            and one.parent not in {other.pid for other in found}
        )

    def slow(self, kind: str, rank: int) -> None:
        """Make the job slow, after healing it. Raises OSError if this machine does not allow that."""
        self.heal()
        if kind == "limit":
            self._limit(self.pid(rank), "cpu", ("cpu.cfs_quota_us", "5000"), ("cpu.max", "5000 100000"))
        elif kind == "memory":
            self._big_file()
            limit = str(MEMORY)
            self._limit(self.pid(rank), "memory", ("memory.limit_in_bytes", limit), ("memory.max", limit))
        elif kind == "hogs":
            self._crowd(self.pid(rank))
        elif kind == "rate" and self.network is not None:
            self.network.rate(rank, 8)
        elif kind == "loss" and self.network is not None:
            self.network.lose(rank, 3)
        elif kind == "losslink" and self.network is not None:
            self.network.lose_between(rank, (rank + 1) % WORLD, 3)
        self.since = self.step() + 1
        self._kind(kind, rank)
        assert self.trains(), f"{kind}: it does not train"

    def heal(self) -> None:
        kind, rank = (self.folder / "kind").read_text().split()
        self._kind("none", 0)
        for hog in self._hogs:
            hog.kill()
            hog.wait()
        if self._hogs:
            _pin(self.pid(int(rank)), os.sched_getaffinity(0))
        self._hogs.clear()
        if self._group is not None:
            for pid in (self._group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (self._group.parent / "cgroup.procs").write_text(pid)
            self._group.rmdir()
            self._group = None
        if kind == "rate" and self.network is not None:
            self.network.rate(int(rank), MBIT)
        elif kind in ("loss", "losslink") and self.network is not None:
            self.network.heal()

    def _limit(self, pid: int, controller: str, old: tuple[str, str], new: tuple[str, str]) -> None:
        """Put a process into a control group with a limit: file and value, of versions 1 and 2."""
        first = (_CGROUP / controller).is_dir()
        group = (_CGROUP / controller if first else _CGROUP) / f"atlslow-{os.getpid()}"
        group.mkdir()
        self._group = group
        name, value = old if first else new
        (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))

    def _big_file(self) -> None:
        """A file that is not in the page cache."""
        with (self.folder / "big").open("wb") as file:
            for _ in range(FILE >> 20):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _crowd(self, pid: int) -> None:
        """Pin the rank to one CPU, and 16 busy processes, too."""
        cpu = {max(os.sched_getaffinity(0))}
        _pin(pid, cpu)
        env = {key: value for key, value in {**os.environ, **self.registry.env}.items() if value is not None}
        for _ in range(16):
            # The kernel may share out a CPU by sessions.
            hog = subprocess.Popen([sys.executable, "-c", "while True: pass"], env=env, start_new_session=True)
            os.sched_setaffinity(hog.pid, cpu)
            self._hogs.append(hog)

    def look(self, *words: str) -> Any:
        """The output of `atlctl slow -o json`."""
        return self.registry.data("slow", self.name, *words, timeout=120)


#: The rate of every link in Mbit/s.
MBIT = 1000.0


def _free_port() -> int:
    from atlctl.remote.supervisor.boot import free_port

    return free_port()


def _pin(pid: int, cpus: set[int]) -> None:
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(tid), cpus)


def network() -> Network | None:
    """Namespaces for the workers; None if this machine does not allow them."""
    from tests.faults.smoke.netns import Network, refused

    return None if refused() else Network(WORLD, MBIT)


def wrong(data: Any, kind: str, rank: int) -> str:
    """The error in an answer; empty if it is correct, `undecided` if it names no cause."""
    wanted = KINDS[kind]
    named = {(one["worker"], one["peer"]) for one in data["culprits"]}
    bad = f"worker-{rank}"
    fits = all(bad in ends for ends in named) if wanted.link else {worker for worker, _ in named} == {bad}
    who = bool(named) and fits if wanted.named else not named
    if who and (not wanted.cause or data["cause"] == wanted.cause):
        return ""
    if wanted.named and not named:
        return f"undecided: {data['cause']}: {data['why']}"
    return f"{data['cause']} {data['confidence']} {sorted(map(str, named))}: {data['why']}"


def main() -> None:
    {"train": train, "serve": serve}[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()
