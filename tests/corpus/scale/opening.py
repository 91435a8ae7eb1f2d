"""How a job starts: containers, rendezvous, communicators and the steps before anything goes wrong."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from random import Random

from tests.corpus.scale import agent, nccl, user
from tests.corpus.scale.job import Job, Rank, Rendezvous, build
from tests.corpus.scale.log import SECOND
from tests.corpus.scale.nccl import Group, Work

#: One step's collectives: type, elements in and out, each times the world's size where it is given as None.
_PATTERN = (
    ("ALLREDUCE", 26_214_400, 26_214_400),
    ("_REDUCE_SCATTER_BASE", None, 8_388_608),
    ("_ALLGATHER_BASE", 8_388_608, None),
    ("ALLREDUCE", 1, 1),
)


@dataclass(frozen=True, slots=True)
class Size:
    """Workers and processes of each."""

    workers: int
    processes: int


@dataclass(slots=True)
class Opening:
    """A job that has made `step` steps by `moment` (ns) and is inside the next one."""

    job: Job
    moment: int
    step: int
    pace: float

    @property
    def sequence(self) -> int:
        """The number of the collective that comes next."""
        return 7 + self.step * len(_PATTERN) + self.step % len(_PATTERN)


def begin(
    rng: Random,
    size: Size,
    least: tuple[int, int] = (2, 1),
    rendezvous: Rendezvous | None = None,
    restarts: int = 0,
) -> Opening:
    """Starts a job and trains for some steps."""
    job = build(rng, size.workers, size.processes, least, rendezvous, restarts)
    joined = start_containers(job, restarts == 0)
    opening = Opening(job, joined, rng.randrange(200, 9000), rng.choice((0.8, 2.4, 6.5)))
    train(opening, joined)
    return opening


def start_containers(job: Job, may_restart: bool = True) -> int:
    """Banners, and often one worker that came too early for the store's name and was started again.

    The moment when all have joined (ns).
    """
    rng, last = job.rng, job.begin
    early = [worker for worker in job.workers if worker is not job.store_host]
    again = rng.choice(early) if may_restart and job.rendezvous == "c10d" and early and rng.random() < 0.5 else None
    for worker in job.workers:
        moment = job.begin + job.seconds(0, 6)
        if worker is again:
            agent.banner(job, worker, moment)
            agent.name_not_found(job, worker, moment + job.seconds(4, 6))
            moment += job.seconds(12, 15)
        agent.banner(job, worker, moment)
        last = max(last, moment)
    return last + job.seconds(1, 2)


def train(opening: Opening, joined: int, attempt: int = 0) -> None:
    """From the rendezvous to the middle of a step; moves `opening` on."""
    job = opening.job
    for worker in job.workers:
        agent.rendezvous_complete(job, worker, joined + job.seconds(0, 0.4), attempt)
    loaded = joined + job.seconds(7, 12)
    for rank in job.ranks:
        user.start_lines(job, rank, loaded + job.seconds(0, 2))
    took = job.seconds(3, 6)
    nccl.start(job, loaded + 3 * SECOND, took)
    steps = {"logging": 24, "megatron": 180, "first": 130, "bars": 140}[job.style] + job.rng.randrange(9)
    moment = user.training(job, loaded + 5 * SECOND + took, steps, opening.step, opening.pace, attempt > 0)
    opening.step += steps
    opening.moment = moment + int(opening.pace * SECOND * job.rng.uniform(0.2, 0.8))


def default_work(opening: Opening, rank: Rank, since: int, ahead: int = 0, skipped: int = 0) -> Work:
    """The collective in the default group that the rank waits in. `ahead`: enqueued behind it already.

    `skipped`: collectives that this rank left out, so that its next one is of another type than its peers'.
    """
    world = opening.job.world
    sequence = opening.sequence
    operation, inside, outside = _PATTERN[(sequence + skipped) % len(_PATTERN)]
    whole = 8_388_608 * world
    return Work(
        Group(rank.number),
        sequence,
        operation,
        (inside or whole, outside or whole),
        sequence + ahead,
        sequence - 1,
        since,
    )


def behind(opening: Opening, rank: Rank) -> Work:
    """The counters of a rank that never came to the next collective."""
    done = opening.sequence - 1
    return Work(Group(rank.number), done, _PATTERN[done % len(_PATTERN)][0], (1, 1), done, done, opening.moment)


def anyone(opening: Opening, besides: Container[str] = ()) -> Rank:
    """A random rank, on a worker that is none of `besides`."""
    return opening.job.rng.choice([rank for rank in opening.job.ranks if rank.worker.name not in besides])
