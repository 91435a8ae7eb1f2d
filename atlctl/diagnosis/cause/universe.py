"""Who should be there: the ranks of a round, as far as anybody has named them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from atlctl.diagnosis.cause.scene import Round
from atlctl.diagnosis.failures import Failure, Part
from atlctl.diagnosis.processes import Process


@dataclass(slots=True)
class Universe:
    """`world` is the number of processes in all, None where it is not known. `unheard` are ranks that nobody named."""

    world: int | None
    known: dict[int, Failure] = field(default_factory=dict)
    unheard: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every rank of the job was heard or named."""
        return self.world is not None and not self.unheard


def universe(this: Round) -> Universe:
    """The ranks of a round. A rank that several workers claim is left to the one that has the most to say."""
    told = Counter(
        item.world
        for worker in this.scene.workers
        if worker.evidence.log
        for item in worker.evidence.log.identities
        if item.world is not None and worker.rounds.of(item.line_no) == this.number
    )
    known: dict[int, Failure] = {}
    for item in this.failures:
        if item.rank is not None and (item.rank not in known or known[item.rank].part is Part.SILENT):
            known[item.rank] = item
    world = told.most_common(1)[0][0] if told else None
    if world is not None and known and max(known) >= world:
        world = None
    unheard = tuple(rank for rank in range(world) if rank not in known) if world is not None else ()
    return Universe(world, known, unheard)


def gaps(this: Round) -> list[Process]:
    """Local ranks that a worker must have and nobody named: the others of their worker, or other workers, have them."""
    locals_of: dict[str, set[int]] = defaultdict(set)
    bases: dict[str, int] = {}
    indexes: dict[str, int] = {}
    for item in this.failures:
        if item.local_rank is not None:
            locals_of[item.worker].add(item.local_rank)
            indexes[item.worker] = item.process.index
            if item.rank is not None:
                bases[item.worker] = item.rank - item.local_rank
    sizes = Counter(len(found) for found in locals_of.values() if found == set(range(len(found))))
    usual, agree = sizes.most_common(1)[0] if sizes else (0, 0)
    if agree == 1:
        usual = max(sizes)  # launchers start the same number on every worker, as a rule
    missing = []
    for worker, found in locals_of.items():
        size = max(*found, usual - 1, 0) + 1
        base = bases.get(worker)
        missing += [
            Process(worker, indexes[worker], this.number, None if base is None else base + local, local)
            for local in range(size)
            if local not in found
        ]
    return missing


def place_unheard(this: Round, rank: int) -> Process | None:
    """The worker and local rank that an unheard rank must have, by the ranks around it."""
    ranges: dict[str, tuple[int, int, int]] = {}
    for item in this.failures:
        if item.rank is not None and item.local_rank is not None:
            base = item.rank - item.local_rank
            low, high, index = ranges.get(item.worker, (base, item.rank, item.process.index))
            ranges[item.worker] = (min(low, base), max(high, item.rank), index)
    for worker, (low, _, index) in ranges.items():
        above = min((start for name, (start, _, _) in ranges.items() if name != worker and start > low), default=None)
        if low <= rank and (above is None or rank < above):
            size = max(high - start + 1 for start, high, _ in ranges.values())
            if rank - low < max(size, 1):
                return Process(worker, index, this.number, rank, rank - low)
    return None


def rank_of_the_mute(this: Round, worker: str) -> int | None:
    """The rank of a worker of which no process was heard, where every other worker has one and one is missing."""
    others = [item for item in this.failures if item.worker != worker]
    count = len(this.scene.workers)
    ranks = {item.rank for item in others if item.rank is not None}
    missing = set(range(count)) - ranks
    return missing.pop() if len(others) == len(ranks) == count - 1 and len(missing) == 1 else None
