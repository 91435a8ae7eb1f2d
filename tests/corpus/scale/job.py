"""A job of many ranks: its workers, their clocks and ranks, and the habits that differ from cluster to cluster."""

from __future__ import annotations

import calendar
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from tests.corpus.scale.log import SECOND, Clock, Log
from tests.corpus.scale.profiles import Profile, pick

Style = Literal["logging", "megatron", "first", "bars"]
Network = Literal["socket", "ib"]
Rendezvous = Literal["c10d", "static"]
#: NCCL_DEBUG, empty where it is not set.
Debug = Literal["", "WARN", "INFO"]

#: The largest skew of a worker's clock, in seconds.
MAX_SKEW = 5.0


@dataclass(slots=True)
class Worker:
    """`node_rank` follows the sorted hosts with the c10d rendezvous, the index without."""

    index: int
    name: str
    host: str
    address: str
    log: Log
    node_rank: int = -1


@dataclass(slots=True)
class Rank:
    """One process. `base` is where its libraries lie in memory."""

    worker: Worker
    local: int
    number: int
    pid: int
    base: int
    port: int

    def add(self, moment: int, text: str, end: str = "\n") -> None:
        """Into its worker's log."""
        self.worker.log.add(moment, text, end)


@dataclass(slots=True)
class Job:
    """All of one case. Times are ns since the epoch; `begin` is when the first container starts."""

    rng: Random
    profile: Profile
    workers: list[Worker]
    processes: int
    rendezvous: Rendezvous
    network: Network
    nccl_debug: Debug
    numeric_peers: bool
    style: Style
    record: bool
    kernel_log: bool
    verbose_agent: bool
    script: str
    timeout: int
    begin: int
    restarts: int = 0
    ranks: list[Rank] = field(default_factory=list)

    @property
    def world(self) -> int:
        return len(self.workers) * self.processes

    @property
    def store_host(self) -> Worker:
        """The worker whose torchrun keeps the store."""
        return next(worker for worker in self.workers if worker.node_rank == 0)

    def of(self, worker: Worker) -> list[Rank]:
        """The worker's ranks, by local rank."""
        first = worker.node_rank * self.processes
        return self.ranks[first : first + self.processes]

    def rank(self, worker: Worker, local: int) -> Rank:
        return self.of(worker)[local]

    def neighbours(self, rank: Rank) -> list[Rank]:
        """The ranks on other workers that it has connections to: ring and tree, one rail for each local rank."""
        count, node = len(self.workers), rank.worker.node_rank
        nodes = {(node - 1) % count, (node + 1) % count, 2 * node + 1, 2 * node + 2}
        nodes |= {(node - 1) // 2} if node else set()
        return [self.ranks[at * self.processes + rank.local] for at in sorted(nodes - {node}) if at < count]

    def renew_processes(self, first_pid: int) -> None:
        """New processes on every worker, as after a restart."""
        for rank in self.ranks:
            rank.pid = first_pid + rank.local
            rank.base = 0x7F0000000000 + self.rng.randrange(1 << 24) * 0x1000
            rank.port = self.rng.randrange(33000, 60900)

    def seconds(self, low: float, high: float) -> int:
        """A random span, ns."""
        return int(self.rng.uniform(low, high) * SECOND)


def build(
    rng: Random,
    workers: int,
    processes: int,
    least: tuple[int, int] = (2, 1),
    rendezvous: Rendezvous | None = None,
    restarts: int = 0,
) -> Job:
    """A job with everything that is free drawn from `rng`; `least` is the lowest version of PyTorch."""
    profile = pick(rng, least)
    with_master = rng.random() < 0.2
    domain = f".{rng.choice(('llama-hl', 'gpt', 'pretrain'))}.{rng.choice(('ml', 'research'))}.svc.cluster.local"
    long_names = rng.random() < 0.25
    fraction_is_steady = rng.random() < 0.6
    zone = rng.choice((0, 0, 8 * 3600, -7 * 3600))
    pid = rng.choice((66, 72, 131, 409))
    made = []
    for index in range(workers):
        name = f"worker-{index - with_master}" if index or not with_master else "master-0"
        skew = int(rng.uniform(-MAX_SKEW, MAX_SKEW) * SECOND)
        steady = rng.randrange(SECOND) if fraction_is_steady else 0
        log = Log(Clock(skew, steady, zone))
        made.append(
            Worker(
                index,
                name,
                name + (domain if long_names else ""),
                f"10.244.{index}.{rng.randrange(2, 250)}",
                log,
            )
        )
    kinds: tuple[Rendezvous, ...] = ("c10d", "c10d", "static")
    kind: Rendezvous = rng.choice(kinds) if rendezvous is None else rendezvous
    order = sorted(made, key=lambda worker: worker.host) if kind == "c10d" else made
    for node_rank, worker in enumerate(order):
        worker.node_rank = node_rank
    debugs: tuple[Debug, ...] = ("", "WARN", "INFO")
    networks: tuple[Network, ...] = ("socket", "ib")
    styles: tuple[Style, ...] = ("logging", "megatron", "first", "bars")
    job = Job(
        rng=rng,
        profile=profile,
        workers=made,
        processes=processes,
        rendezvous=kind,
        network=rng.choice(networks),
        nccl_debug=rng.choice(debugs),
        numeric_peers=rng.random() < 0.4,
        style=rng.choice(styles),
        record=rng.random() < 0.35,
        kernel_log=rng.random() < 0.5,
        verbose_agent=profile.number >= (2, 3) and rng.random() < 0.25,
        script=rng.choice(("train.py", "pretrain_gpt.py", "finetune.py")),
        timeout=rng.choice((600, 600, 1800)),
        begin=_moment(rng),
        restarts=restarts,
    )
    job.ranks = [
        Rank(worker, local, worker.node_rank * processes + local, 0, 0, 0)
        for worker in order
        for local in range(processes)
    ]
    job.renew_processes(pid)
    return job


def _moment(rng: Random) -> int:
    """Some time of 2026, in months with one digit and with two."""
    day = calendar.timegm((2026, rng.randrange(1, 13), rng.randrange(1, 28), rng.randrange(24), rng.randrange(60), 0))
    return day * SECOND + rng.randrange(SECOND)
