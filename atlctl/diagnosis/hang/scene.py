"""All workers' reports to one answer: ranks judged, folded, the odd ones first, and who is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from atlctl.diagnosis.hang.joined import join
from atlctl.diagnosis.hang.judge import CULPRIT, STUCK, Judged, What, alone, together
from atlctl.diagnosis.hang.report import RankReport, Report
from atlctl.diagnosis.result import Confidence
from atlctl.jobs.naming import fold_names

#: A world larger than this is no world.
_MAX_WORLD = 1 << 20
_ORDER = (
    What.HUNG, What.IO, What.STOPPED, What.GONE, What.STARVED, What.UNKNOWN, What.STARTING, What.WORKING,
    What.COLLECTIVE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that do the same, for the same reason, at the same place of the code."""

    ranks: tuple[Judged, ...]

    @property
    def first(self) -> Judged:
        return self.ranks[0]


@dataclass(frozen=True, slots=True)
class Scene:
    """The whole answer. `ranks` in order, `groups` the odd one first; `culprits` are those that hold up the job, and
    the verdict `what` is theirs. `world`: how many ranks there should be, None where nothing tells. `unseen`: ranks of
    the world that may live on workers that were not seen. `seconds`: the window.
    """

    what: What
    confidence: Confidence | None
    why: str
    culprits: tuple[Judged, ...]
    groups: tuple[Group, ...]
    ranks: tuple[Judged, ...]
    world: int | None
    unseen: tuple[int, ...]
    seconds: float


def diagnose(reports: Mapping[str, Report], whole: bool) -> Scene:
    """From the report of each worker, by name. `whole`: these are all workers of the job."""
    found = [(worker, rank, report) for worker, report in reports.items() for rank in report.ranks]
    world = _world([rank for _, rank, _ in found])
    found = _by_exclusion(found)
    known = {rank.rank for _, rank, _ in found}
    doubled = len([rank for _, rank, _ in found if rank.rank is not None]) > len(known - {None})
    missing = [] if world is None or doubled else [rank for rank in range(world) if rank not in known]
    homes = _homes(found)
    gone = [] if any(rank.rank is None for _, rank, _ in found) else [r for r in missing if whole or r in homes]
    seconds = max((report.seconds for report in reports.values()), default=0.0)
    dumps = [(rank.recorder, report.now) for _, rank, report in found if rank.recorder is not None]
    judged = [alone(worker, rank, report) for worker, rank, report in found]
    judged += [
        Judged(rank, homes.get(rank), What.GONE, Confidence.CERTAIN, "no process has this rank") for rank in gone
    ]
    complete = world is not None and not doubled and len(gone) == len(missing)
    ranks = sorted(together(judged, join(dumps, seconds), complete), key=_number)
    what, confidence, why, culprits = _verdict(ranks, seconds)
    if not ranks:
        why = nobody(reports)
    unseen = tuple(rank for rank in missing if rank not in gone)
    return Scene(what, confidence, why, culprits, _fold(ranks, culprits), tuple(ranks), world, unseen, seconds)


def _number(rank: Judged) -> tuple[bool, int, str]:
    return rank.rank is None, rank.rank or 0, rank.worker or ""


def _world(ranks: Sequence[RankReport]) -> int | None:
    """What most processes were told."""
    told = Counter(size for rank in ranks if (size := rank.number("world_size")) and size < _MAX_WORLD)
    return told.most_common(1)[0][0] if told else None


def _homes(found: Sequence[tuple[str, RankReport, Report]]) -> dict[int, str]:
    """Which worker should have which rank, by what the ranks beside it were told."""
    homes: dict[int, str] = {}
    for worker, rank, _ in found:
        local, count = rank.number("local_rank"), rank.number("local_world_size")
        if rank.rank is not None and local is not None and count is not None and local < count < _MAX_WORLD:
            homes.update(dict.fromkeys(range(rank.rank - local, rank.rank - local + count), worker))
    return homes


def _by_exclusion(found: list[tuple[str, RankReport, Report]]) -> list[tuple[str, RankReport, Report]]:
    """A process whose environment cannot be read has the one rank that its worker lacks."""
    homes = _homes(found)
    named = []
    for worker, rank, report in found:
        beside = [other.rank for name, other, _ in found if name == worker]
        lacking = [number for number, name in homes.items() if name == worker and number not in beside]
        if rank.rank is None and beside.count(None) == 1 and len(lacking) == 1:
            rank = replace(rank, rank=lacking[0])
        named.append((worker, rank, report))
    return named


def _verdict(ranks: Sequence[Judged], seconds: float) -> tuple[What, Confidence | None, str, tuple[Judged, ...]]:
    """What holds up the job, how sure that is, why, and who."""
    culprits = [rank for rank in ranks if rank.what in CULPRIT]
    waiting = [rank for rank in ranks if rank.what is What.COLLECTIVE and rank.still]
    # Someone who is gone or stopped explains those who hang for want of it.
    if culprits:
        best = min(culprits, key=lambda rank: (_rank_of(rank.confidence), _ORDER.index(rank.what)))
        same = [rank for rank in culprits if rank.what is best.what]
        why = best.why + waited(ranks, seconds)
        weakest = max((rank.confidence for rank in same), key=_rank_of)
        return best.what, weakest, why, tuple(culprits)
    starting = [rank for rank in ranks if rank.what is What.STARTING]
    if starting:
        return What.STARTING, None, _how_long(starting, len(ranks)), ()
    if waiting and len(waiting) == len(ranks):
        why = "every rank waits, and none is seen to be missing: a network that is down, or ranks that were not seen"
        return What.UNKNOWN, None, why, ()
    if ranks and all(rank.what is What.WORKING for rank in ranks):
        return What.WORKING, Confidence.GUESS, "no rank stood still during the look; --repeat compares two", ()
    why = "nothing singles out a rank"
    if not any(rank.frames for rank in ranks):
        why += ", and there are no Python stacks"
    return What.UNKNOWN, None, why, ()


def _how_long(starting: Sequence[Judged], count: int) -> str:
    """How many ranks are starting, and for how long the oldest of them has been."""
    age = max((rank.age for rank in starting if rank.age < inf), default=0.0)
    if age >= STUCK:
        return f"{len(starting)} of {count} ranks are still starting after {age // 60:.0f} min"
    return f"{len(starting)} of {count} ranks are starting, {age:.0f} s after they were launched"


def nobody(reports: Mapping[str, Report]) -> str:
    """What is said of a job in which no rank runs: where torchrun waits for the others, and where there is none."""
    waiting = [worker for worker, report in reports.items() if report.launchers]
    without = [worker for worker, report in reports.items() if not report.launchers]
    if not waiting:
        return "no rank process was found: none has RANK and LOCAL_RANK in its environment"
    why = f"no rank runs yet: torchrun waits on {fold_names(waiting)}"
    return why + (f", and there is none on {fold_names(without)}" if without else " for its rendezvous")


def waited(ranks: Sequence[Judged], seconds: float) -> str:
    """How many wait for somebody, to stand behind a sentence; empty where none does."""
    count = sum(rank.what is What.COLLECTIVE and rank.still for rank in ranks)
    return f"; {count} of {len(ranks)} ranks have waited for {seconds:.0f} s or more" if count else ""


def _rank_of(confidence: Confidence | None) -> int:
    return 3 if confidence is None else list(Confidence).index(confidence)


def _fold(ranks: Sequence[Judged], culprits: Sequence[Judged]) -> tuple[Group, ...]:
    groups: dict[tuple[object, ...], list[Judged]] = {}
    for rank in ranks:
        sign = None if rank.frames or rank.what is What.WORKING else rank.sign
        key = (rank.what, rank.confidence, rank.why, rank.pending, sign, rank.frames, rank.still)
        groups.setdefault(key, []).append(rank)
    made = [Group(tuple(members)) for members in groups.values()]
    return tuple(sorted(made, key=lambda g: (g.first not in culprits, _ORDER.index(g.first.what), len(g.ranks))))
