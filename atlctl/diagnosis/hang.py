"""Diagnoses a hang from the workers' reports: the activity of each rank, and the rank that the others wait for.

A rank is judged by its main thread in /proc over a window of some seconds (its sign), by its Python stack, by its
flight recorder, and then in comparison with the other ranks. The answer can be compared with a later one, and merged
with a diagnosis of the logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import ReprEnum, StrEnum
from math import inf
from typing import Literal

from atlctl.diagnosis.flightrecorder import FlightDump, MissedCollective, missing_ranks
from atlctl.diagnosis.launches import NOTHING, Lag, LaunchCounts, counted
from atlctl.diagnosis.rankreport import (
    RankReport,
    StackPlace,
    StackReport,
    ThreadState,
    imports,
    innermost_user_frame,
    place_of,
)
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Proof, Traceback, Verdict
from atlctl.diagnosis.tracebacks import Frame
from atlctl.i18n import LIST, Message, joined
from atlctl.jobs.naming import fold_names

#: A larger world size is not plausible.
_MAX_WORLD = 1 << 20
#: Share of the ranks that must be alike before the others count as odd, and the least number of ranks.
_ALIKE, _ENOUGH = 2 / 3, 3
#: Seconds after its start in which a process without a process group counts as starting.
YOUNG = 120.0
#: Seconds after which a start is doubtful.
STUCK = 300.0


class What(Message, ReprEnum):
    """The verdict on a rank. Each is its own message."""

    HUNG = Message("hung in user code")
    IO = Message("blocked on I/O")
    STOPPED = Message("stopped")
    STARVED = Message("starved")
    GONE = Message("gone")
    UNREACHABLE = Message("unreachable")
    DEVICE = Message("blocked on its GPU")
    DIVERGED = Message("in another operation")
    STARTING = Message("starting")
    COLLECTIVE = Message("waiting in a collective")
    WORKING = Message("working")
    UNKNOWN = Message("undecided")


#: Verdicts on a rank that others may wait for, if they do not depend on other ranks.
ABSOLUTE = frozenset({What.STOPPED, What.STARVED, What.GONE, What.UNREACHABLE})
#: Verdicts that the other ranks do not change.
_FINAL = ABSOLUTE | {What.STARTING}
CULPRIT = ABSOLUTE | {What.HUNG, What.IO, What.DEVICE, What.DIVERGED}


class Sign(StrEnum):
    """A rank's main thread over the window."""

    ENDED = "ended"
    STOPPED = "stopped"
    TRACED = "traced"
    FROZEN = "frozen"
    DISK = "disk"
    STARVED = "starved"
    BUSY = "busy"
    SLEEP = "sleep"
    FILE = "file"
    CHILD = "child"
    #: It waits for a thread of gloo that is in a collective.
    GLOO = "gloo"
    #: It waits for a lock, and no thread of gloo is in a collective.
    LOCK = "lock"
    #: It waits with a timeout, as `send` and `recv` of gloo do, and no thread of gloo is in a collective.
    PEER = "peer"
    FUTEX = "futex"
    POLL = "poll"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Pending:
    """A collective that has not ended on a rank. `seq` counts those of the group from 1."""

    seq: int
    operation: str
    group: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The collectives of all ranks. `pending` by rank; `missing` is the collective at which the ranks
    diverged, by their flight recorders, `absent` the ranks not in it; `counted` is NCCL's count."""

    pending: Mapping[int, Pending]
    missing: MissedCollective | None = None
    counted: LaunchCounts = NOTHING

    @property
    def absent(self) -> frozenset[int]:
        return frozenset(self.missing.absent) if self.missing else frozenset()


@dataclass(frozen=True, slots=True)
class Judged:
    """One rank. `why`: the evidence. `waits`: it is in an operation that other ranks must join.

    `still`: its main thread did not move. `pending`: the collective it waits in, if its flight recorder shows it;
    `missed`: the one that it did not join, by the recorders of the others.
    `lag`: the collectives that it has launched, if NCCL counted fewer than of others; `proven`: its recorder or NCCL's
    count shows that it waits. `report` is None if no process has the rank, `worker` if its place is unknown.
    """

    rank: int | None
    worker: str | None
    what: What
    confidence: Confidence | None
    why: str
    waits: bool = False
    still: bool = False
    sign: Sign | None = None
    place: StackPlace | None = None
    pending: Pending | None = None
    missed: Pending | None = None
    lag: Lag | None = None
    proven: bool = False
    report: RankReport | None = None

    @property
    def held(self) -> bool:
        """Whether it waited for the whole window. With NCCL, a rank that waits uses a CPU."""
        return self.waits and (self.still or self.proven)

    @property
    def age(self) -> float:
        """Seconds since the start of its process; infinite if unknown."""
        return self.report.age if self.report is not None and self.report.age is not None else inf

    @property
    def frames(self) -> tuple[Frame, ...]:
        stack = self.report.stack if self.report else None
        return stack.frames if stack else ()


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks with the same verdict and reason, at the same place in the code."""

    ranks: tuple[Judged, ...]

    @property
    def first(self) -> Judged:
        return self.ranks[0]


@dataclass(frozen=True, slots=True)
class Scene:
    """The whole answer. `ranks` in order, `groups` the odd one first; `culprits` are the ranks that block the job, and
    `what` is their verdict. `world`: the number of ranks, None if unknown. `unseen`: ranks that may be on workers that
    were not inspected. `seconds`: the window."""

    what: What
    confidence: Confidence | None
    why: str
    culprits: tuple[Judged, ...]
    groups: tuple[RankGroup, ...]
    ranks: tuple[Judged, ...]
    world: int | None
    unseen: tuple[int, ...]
    seconds: float


_ORDER = (
    What.HUNG, What.IO, What.DEVICE, What.DIVERGED, What.STOPPED, What.GONE, What.UNREACHABLE, What.STARVED,
    What.UNKNOWN, What.STARTING, What.WORKING, What.COLLECTIVE,
)  # fmt: skip


def diagnose(reports: Mapping[str, StackReport], whole: bool, silent: Mapping[str, str] | None = None) -> Scene:
    """Diagnoses the workers' reports, which are by name. `whole`: these are all workers of the job. `silent`: workers
    that did not answer, with the reasons."""
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
        Judged(rank, homes.get(rank), What.GONE, Confidence.CERTAIN, Message("no process has this rank"))
        for rank in gone
    ]
    launched = counted(reports, world)
    lost = [rank for rank in missing if rank in launched.lost and rank not in gone]
    judged += [
        Judged(rank, homes.get(rank), What.UNREACHABLE, Confidence.LIKELY, Message("its process does not answer NCCL"))
        for rank in lost
    ]
    complete = world is not None and not doubled and len(gone) + len(lost) == len(missing)
    joined = replace(join(dumps, seconds), counted=launched)
    ranks = sorted(together(judged, joined, complete), key=_number)
    unseen = tuple(rank for rank in missing if rank not in gone and rank not in lost)
    if silent and any(rank.held for rank in ranks) and not any(rank.what in CULPRIT for rank in ranks):
        ranks += [_mute(rank, silent) for rank in unseen]
        unseen = ()
    what, confidence, why, culprits = _verdict(ranks, seconds, launched.moved, complete)
    if not ranks:
        why = nobody(reports)
    return Scene(what, confidence, why, culprits, _fold(ranks, culprits), tuple(ranks), world, unseen, seconds)


def _mute(rank: int, silent: Mapping[str, str]) -> Judged:
    """A rank that others may wait for, on a worker that does not answer."""
    why = Message("it is on a worker that does not answer: {workers}", workers=fold_names(silent))
    worker = None
    if len(silent) == 1:
        ((worker, reason),) = silent.items()
        why = Message("its worker does not answer: {why}", why=reason)
    return Judged(rank, worker, What.UNREACHABLE, Confidence.LIKELY, why)


def _number(rank: Judged) -> tuple[bool, int, str]:
    return rank.rank is None, rank.rank or 0, rank.worker or ""


def _world(ranks: Sequence[RankReport]) -> int | None:
    """The world size of most processes."""
    told = Counter(size for rank in ranks if (size := rank.number("world_size")) and size < _MAX_WORLD)
    return told.most_common(1)[0][0] if told else None


def _homes(found: Sequence[tuple[str, RankReport, StackReport]]) -> dict[int, str]:
    """The worker that should have each rank, derived from the environments of the other ranks."""
    homes: dict[int, str] = {}
    for worker, rank, _ in found:
        local, count = rank.number("local_rank"), rank.number("local_world_size")
        if rank.rank is not None and local is not None and count is not None and local < count < _MAX_WORLD:
            homes.update(dict.fromkeys(range(rank.rank - local, rank.rank - local + count), worker))
    return homes


def _by_exclusion(found: list[tuple[str, RankReport, StackReport]]) -> list[tuple[str, RankReport, StackReport]]:
    """Assigns a process with an unreadable environment to the one rank that its worker lacks."""
    homes = _homes(found)
    named = []
    for worker, rank, report in found:
        beside = [other.rank for name, other, _ in found if name == worker]
        lacking = [number for number, name in homes.items() if name == worker and number not in beside]
        if rank.rank is None and beside.count(None) == 1 and len(lacking) == 1:
            rank = replace(rank, rank=lacking[0])
        named.append((worker, rank, report))
    return named


def _verdict(
    ranks: Sequence[Judged], seconds: float, moved: bool | None, complete: bool
) -> tuple[What, Confidence | None, str, tuple[Judged, ...]]:
    """The verdict on the job, its confidence, the reason, and the culprits. `moved`: NCCL counted new launches.
    `complete`: these are all ranks of the job."""
    if ranks and all(rank.sign is Sign.ENDED for rank in ranks):
        return What.UNKNOWN, None, Message("all ranks ended during the look"), ()
    culprits = [rank for rank in ranks if rank.what in CULPRIT]
    waiting = [rank for rank in ranks if rank.what is What.COLLECTIVE and rank.held]
    # A rank that is gone or stopped explains the ranks that hang because of it.
    if culprits:
        best = min(culprits, key=lambda rank: (_rank_of(rank.confidence), _ORDER.index(rank.what)))
        same = [rank for rank in culprits if rank.what is best.what]
        weakest = max((rank.confidence for rank in same), key=_rank_of)
        return best.what, weakest, with_waiting(best.why, ranks, seconds), tuple(culprits)
    starting = [rank for rank in ranks if rank.what is What.STARTING]
    if starting:
        return What.STARTING, None, _how_long(starting, len(ranks)), ()
    if waiting and len(waiting) == len(ranks):
        why = Message("every rank that was seen waits: they may wait for those that were not seen")
        if complete:
            why = Message("every rank waits: for each other in different groups or operations, or for the network")
        return What.UNKNOWN, None, why, ()
    if ranks and moved:
        why = Message("collectives were launched during the look; compare two looks with --repeat")
        return What.WORKING, Confidence.LIKELY, why, ()
    if moved is False and all(rank.waits or rank.sign is Sign.BUSY for rank in ranks):
        why = Message(
            "all ranks have launched the same collectives: a GPU or the network may hang, or their sizes differ"
        )
        return What.UNKNOWN, None, why, ()
    if ranks and all(rank.what is What.WORKING for rank in ranks):
        why = Message("every rank was moving during the look; compare two looks with --repeat")
        return What.WORKING, Confidence.GUESS, why, ()
    if waiting:
        why = Message("some ranks wait in a collective, and it cannot be seen what the others wait for")
        return What.UNKNOWN, None, why, ()
    if any(rank.frames for rank in ranks):
        return What.UNKNOWN, None, Message("no rank differs from the others"), ()
    return What.UNKNOWN, None, Message("no rank differs from the others, and there are no Python stacks"), ()


def _how_long(starting: Sequence[Judged], count: int) -> str:
    """The number of ranks that are starting, and the age of the oldest."""
    age = max((rank.age for rank in starting if rank.age < inf), default=0.0)
    if age >= STUCK:
        return Message(
            "{starting} of {ranks} ranks are still starting after {minutes:.0f} min",
            starting=len(starting),
            ranks=count,
            minutes=age // 60,
        )
    return Message(
        "{starting} of {ranks} ranks are starting, {seconds:.0f} s after they were launched",
        starting=len(starting),
        ranks=count,
        seconds=age,
    )


def nobody(reports: Mapping[str, StackReport]) -> str:
    """The text for a job without running ranks: workers on which torchrun waits, and workers without torchrun."""
    waiting = [worker for worker, report in reports.items() if report.launchers]
    without = [worker for worker, report in reports.items() if not report.launchers]
    if not waiting:
        return Message("no rank process was found: no process with torch has a rank in its environment")
    if not without:
        return Message("no rank runs yet: torchrun waits on {workers} for its rendezvous", workers=fold_names(waiting))
    return Message(
        "no rank runs yet: torchrun waits on {workers}, and there is none on {others}",
        workers=fold_names(waiting),
        others=fold_names(without),
    )


def with_waiting(why: str, ranks: Sequence[Judged], seconds: float) -> str:
    """`why`, with the number of waiting ranks, if any."""
    count = sum(rank.what is What.COLLECTIVE and rank.held for rank in ranks)
    if not count:
        return why
    waiting = Message(
        "{count} of {ranks} ranks have waited for {seconds:.0f} s or more",
        count=count,
        ranks=len(ranks),
        seconds=seconds,
    )
    return joined([why, waiting])


def _rank_of(confidence: Confidence | None) -> int:
    return 3 if confidence is None else list(Confidence).index(confidence)


def _fold(ranks: Sequence[Judged], culprits: Sequence[Judged]) -> tuple[RankGroup, ...]:
    groups: dict[tuple[object, ...], list[Judged]] = {}
    for rank in ranks:
        sign = None if rank.frames or rank.proven or rank.what is What.WORKING else rank.sign
        key = (rank.what, rank.confidence, rank.why, rank.pending, rank.missed, rank.lag, sign, rank.frames, rank.still)
        groups.setdefault(key, []).append(rank)
    made = [RankGroup(tuple(members)) for members in groups.values()]
    return tuple(sorted(made, key=lambda g: (g.first not in culprits, _ORDER.index(g.first.what), len(g.ranks))))


_DEBUGGER = Message("a debugger holds it")
BY_SIGN: Mapping[Sign, tuple[What, str]] = {
    Sign.ENDED: (What.GONE, Message("its process ended during the look")),
    Sign.STOPPED: (What.STOPPED, Message("it was stopped by SIGSTOP; kill -CONT lets it continue")),
    Sign.TRACED: (What.STOPPED, _DEBUGGER),
    Sign.FROZEN: (What.STOPPED, Message("its control group is frozen")),
    Sign.STARVED: (What.STARVED, Message("it is ready to run and hardly gets a CPU")),
    Sign.DISK: (What.IO, Message("it waits for a device or a file system, and cannot be interrupted")),
    Sign.SLEEP: (What.HUNG, Message("it sleeps")),
    Sign.FILE: (What.IO, Message("it waits for a file or a pipe")),
    Sign.CHILD: (What.HUNG, Message("it waits for a process that it has started")),
    Sign.LOCK: (What.HUNG, Message("it waits for a lock, and no collective of gloo is under way in it")),
    Sign.GLOO: (What.COLLECTIVE, Message("a collective of gloo is under way in it")),
    Sign.PEER: (What.UNKNOWN, Message("it waits with a time limit, as in send and recv of gloo")),
    Sign.BUSY: (What.UNKNOWN, Message("it uses a CPU")),
    Sign.FUTEX: (What.UNKNOWN, Message("it waits for another thread or for a lock")),
    Sign.POLL: (What.UNKNOWN, Message("it waits for the network or a device")),
    Sign.OTHER: (What.UNKNOWN, Message("it is running, or its state cannot be read")),
}
BY_PLACE: Mapping[StackPlace, tuple[What, str]] = {
    StackPlace.DEBUGGER: (What.STOPPED, _DEBUGGER),
    StackPlace.COLLECTIVE: (What.COLLECTIVE, Message("its stack is in a collective")),
    StackPlace.JOINING: (What.COLLECTIVE, Message("its stack is creating a process group")),
    StackPlace.BACKWARD: (What.UNKNOWN, Message("it is in the backward pass")),
    StackPlace.DEVICE: (What.UNKNOWN, Message("it waits for its device")),
    StackPlace.LOADER: (What.HUNG, Message("it waits for its DataLoader")),
    StackPlace.STORAGE: (What.IO, Message("its stack reads or writes files")),
    StackPlace.NETWORK: (What.IO, Message("its stack waits for the network")),
    StackPlace.LOCK: (What.HUNG, Message("it waits for one of its locks, threads or processes")),
    StackPlace.USER: (What.HUNG, Message("its stack is in no collective")),
}
#: The reason for a rank whose stack is in the user's code.
_IN_USER: Mapping[Sign, str] = {
    Sign.SLEEP: Message("it sleeps, in no collective"),
    Sign.BUSY: Message("it uses a CPU, in no collective"),
    Sign.LOCK: Message("it waits for a lock, in no collective"),
    Sign.FUTEX: Message("it waits for a lock or a thread, in no collective"),
    Sign.CHILD: BY_SIGN[Sign.CHILD][1],
}


def alone(worker: str, rank: RankReport, report: StackReport) -> Judged:
    """Judges a rank by its own process alone. Later steps can only lower the confidence."""
    sign = sign_of(rank, report)
    what, why = BY_SIGN[sign]
    base = Judged(rank.rank, worker, what, None, why, still=idle(rank), sign=sign, report=rank)
    if sign in (Sign.ENDED, Sign.STOPPED, Sign.TRACED, Sign.FROZEN):
        return replace(base, confidence=Confidence.CERTAIN)
    if sign is Sign.STARVED:
        return replace(base, confidence=Confidence.LIKELY)
    if not base.frames:
        waits = what is What.COLLECTIVE
        return replace(base, confidence=None if what is What.UNKNOWN else Confidence.LIKELY, waits=waits)
    place, function = place_of(base.frames)
    base = replace(base, place=place)
    if sign is Sign.DISK and place not in (StackPlace.COLLECTIVE, StackPlace.JOINING):
        return replace(base, confidence=Confidence.LIKELY)
    if sign is Sign.GLOO and place in (StackPlace.USER, StackPlace.BACKWARD, StackPlace.LOCK):
        # `work.wait()` and the reducer of DDP wait below Python, where its stack ends.
        return replace(base, confidence=Confidence.LIKELY, waits=True)
    if sign is Sign.PEER and place is StackPlace.USER:
        return replace(base, what=What.COLLECTIVE, confidence=Confidence.LIKELY, waits=True)
    what, why = BY_PLACE[place]
    if place is StackPlace.USER:
        why = _IN_USER.get(sign, why)
        if sign is Sign.FILE:
            what, why = BY_SIGN[sign]
    if place is StackPlace.LOADER and any(child.at.state == "D" for child in rank.children):
        what, why = What.IO, Message("its DataLoader's processes wait for a device or a file system")
    if function in _PIPELINE and place is StackPlace.COLLECTIVE:
        why = Message("its stack waits for another rank")
    if function is not None and what not in (What.HUNG, What.STOPPED):
        why = Message("{why}: {function}", why=why, function=function)
    waits = place in (StackPlace.COLLECTIVE, StackPlace.JOINING, StackPlace.DEVICE) or (
        place is StackPlace.BACKWARD and base.still
    )
    return replace(
        base, what=what, why=why, confidence=None if what is What.UNKNOWN else Confidence.CERTAIN, waits=waits
    )


def together(ranks: Sequence[Judged], joined: Joined, complete: bool) -> list[Judged]:
    """Judges each rank in comparison with the others. `complete`: these are all ranks of the job."""
    ranks = _started([_launched(_recorded(rank, joined), joined.counted) for rank in ranks], joined.counted)
    if any(rank.held for rank in ranks):
        others = [rank for rank in ranks if not rank.waits]
        seen = all(rank.place is not None or rank.what in ABSOLUTE for rank in ranks)
        waiting = all(rank.held for rank in ranks if rank.waits)
        spins = any(rank.proven for rank in ranks)
        only = complete and seen and waiting and len(others) == 1
        judged = [_waited_for(rank, joined, only, spins) for rank in ranks]
        return judged if others or not complete else _astray(judged)
    odd = _odd(ranks)
    wait = {rank.place for rank in ranks if rank not in odd and rank.frames} <= _WAITING
    # A stack that stands for many ranks without one says nothing of the one that it was taken of.
    signs = [_sign(rank) for rank in ranks if not rank.frames]
    like_most = {sign for sign, count in Counter(signs).items() if 2 * count > len(ranks)}
    return [
        _odd_one(rank, wait) if rank in odd else _by_itself(rank, bool(odd) or _sign(rank) in like_most)
        for rank in ranks
    ]


#: Operations in which the ranks of a pipeline differ.
_PIPELINE = frozenset({None, "send", "recv", "isend", "irecv", "batch_isend_irecv"})


def _astray(ranks: list[Judged]) -> list[Judged]:
    """Marks the one rank that waits in another operation than all others: by their flight recorders in the same
    collective of a group, else by their stacks. Those are a guess: it may wait for ranks of another process group."""
    recorded = [rank.pending for rank in ranks if rank.pending is not None]
    known = bool(recorded) or all(rank.frames for rank in ranks)
    if len(ranks) < _ENOUGH or not known or not all(rank.held for rank in ranks):
        return ranks
    if recorded and (len(recorded) < len(ranks) or len({(one.seq, one.group) for one in recorded}) > 1):
        return ranks
    operations = [rank.pending.operation if rank.pending else place_of(rank.frames)[1] for rank in ranks]
    confidence = Confidence.LIKELY if recorded else Confidence.GUESS
    (usual, many), *rest = Counter(operations).most_common(2)
    if many != len(ranks) - 1 or not _PIPELINE.isdisjoint(operations):
        return ranks
    why = Message("it is in {operation}, and the others are in {other}", operation=rest[0][0], other=usual)
    return [
        rank if operation == usual else replace(rank, what=What.DIVERGED, why=why, confidence=confidence, waits=False)
        for rank, operation in zip(ranks, operations, strict=True)
    ]


def _started(ranks: Sequence[Judged], counted: LaunchCounts) -> list[Judged]:
    """Marks ranks that have not begun to work as starting: a start is not a hang.

    A process that still imports modules is starting, however long that takes, unless others wait for it. A rank without
    a process is expected to start if others are starting.
    """
    waited_for = any(rank.held and rank.age >= YOUNG for rank in ranks)
    launched = counted.behind.keys() | counted.ahead | counted.left
    found = []
    for rank in ranks:
        why = _start_of(rank) if rank.rank not in launched else None
        if why is not None and (rank.age < YOUNG or not (why is Start.NO_GROUP or waited_for)):
            rank = replace(rank, what=What.STARTING, confidence=None, why=why, waits=False)
        found.append(rank)
    if not any(rank.what is What.STARTING and rank.age < YOUNG for rank in found):
        return found
    return [
        replace(rank, what=What.STARTING, confidence=None, why=Message("no process has this rank yet"))
        if rank.what is What.GONE and rank.report is None
        else rank
        for rank in found
    ]


class Start(Message, ReprEnum):
    """The stage of a starting process."""

    IMPORTING = Message("its stack imports a module")
    NO_TORCH = Message("it has not loaded torch yet")
    NO_GROUP = Message("it has no process group yet")


#: Places that only ranks with a process group reach. Before torch 2.4 its threads have no names.
_AT_WORK = frozenset({StackPlace.COLLECTIVE, StackPlace.BACKWARD})
#: Signs of the main thread while Python imports modules, if its stack is unknown.
_IMPORTS = frozenset({Sign.FILE, Sign.DISK, Sign.BUSY, Sign.STARVED, Sign.OTHER})


def _start_of(rank: Judged) -> Start | None:
    """The stage of a starting process; None if it has started, has ended, or is stopped."""
    report = rank.report
    if report is None or rank.what in (What.STOPPED, What.GONE) or rank.place in _AT_WORK or has_group(report):
        return None
    if imports(rank.frames):
        return Start.IMPORTING
    if report.torch is False and not rank.frames and rank.sign in _IMPORTS:
        return Start.NO_TORCH
    return Start.NO_GROUP


def _recorded(rank: Judged, joined: Joined) -> Judged:
    """Adds the flight recorder's facts to a rank. A rank that moves may have left the collective since; one that uses a
    CPU waits for its GPU."""
    found = joined.pending.get(rank.rank) if rank.rank is not None else None
    missing = joined.missing
    if missing is not None and rank.rank in joined.absent:
        missed = Pending(missing.seq, missing.operation or "?", missing.description or missing.group)
        return replace(rank, missed=missed)
    busy = rank.sign is Sign.BUSY and rank.place in (None, StackPlace.COLLECTIVE, StackPlace.DEVICE)
    waits = rank.what is What.COLLECTIVE or (rank.what is What.UNKNOWN and (rank.still or busy))
    if found is None or not waits:
        return rank
    return replace(rank, what=What.COLLECTIVE, confidence=Confidence.CERTAIN, waits=True, proven=busy, pending=found)


#: Signs of a main thread that does nothing.
_RESTS = frozenset({Sign.SLEEP, Sign.FILE, Sign.CHILD, Sign.DISK, Sign.LOCK, Sign.PEER, Sign.FUTEX, Sign.POLL})


def _launched(rank: Judged, counted: LaunchCounts) -> Judged:
    """Adds NCCL's counts to a rank: it waits for others, or others wait for it."""
    number = rank.rank
    if number is None or rank.what in (What.STOPPED, What.GONE, What.UNREACHABLE):
        return rank
    lag = counted.behind.get(number)
    if lag is not None:
        return _behind(replace(rank, lag=lag), len(counted.behind) == 1)
    if number not in counted.ahead:
        return rank
    if rank.place in (None, StackPlace.COLLECTIVE, StackPlace.JOINING, StackPlace.DEVICE) or rank.sign is Sign.BUSY:
        certain = rank.place in (StackPlace.COLLECTIVE, StackPlace.DEVICE)
        why = rank.why if certain else Message("others have not launched the collective that it waits in")
        confidence = Confidence.CERTAIN if certain else Confidence.LIKELY
        return replace(rank, what=What.COLLECTIVE, why=why, confidence=confidence, waits=True, proven=True)
    why = Message("{why}; no other rank waits for it", why=rank.why)
    return replace(rank, what=What.UNKNOWN, why=why, confidence=None, waits=False)


def _behind(rank: Judged, alone: bool) -> Judged:
    """A rank that others wait for. `alone`: it is the only one."""
    other = rank.lag is not None and bool(rank.lag.instead)
    waits = rank.place in (StackPlace.COLLECTIVE, StackPlace.JOINING)
    if not other and not alone and (waits or rank.sign is Sign.BUSY):
        # It may wait for another rank, in an operation that is not counted.
        return replace(rank, lag=None)
    if waits or other:
        why = rank.why
        if rank.lag is not None and other:
            why = Message(
                "it launched {operations}, and the others {operation}",
                operations=joined(rank.lag.instead, LIST),
                operation=rank.lag.operation,
            )
        return replace(rank, what=What.DIVERGED, why=why, confidence=Confidence.LIKELY, waits=False)
    if rank.place is StackPlace.DEVICE:
        return replace(rank, what=What.DEVICE, confidence=Confidence.LIKELY, waits=False)
    return replace(rank, waits=False)


def _waited_for(rank: Judged, joined: Joined, only: bool, spins: bool) -> Judged:
    """Judges a rank if others waited for the whole window. `only`: all others wait, and each was inspected.
    `spins`: ranks that wait use a CPU."""
    if rank.what in _FINAL or rank.what in (What.DEVICE, What.DIVERGED):
        return rank
    if rank.waits:
        if rank.what is What.UNKNOWN:
            why = Message("{why}, as others wait", why=rank.why)
            return replace(rank, what=What.COLLECTIVE, confidence=Confidence.GUESS, why=why)
        return rank
    absent = rank.lag is not None or (rank.rank is not None and rank.rank in joined.absent)
    absent = absent or (rank.rank in joined.counted.left and rank.sign in _RESTS)
    if rank.sign is Sign.BUSY and spins and not absent:
        return replace(rank, what=What.UNKNOWN, confidence=None)  # `.item()` is in no collective, and waits for one
    if rank.what is What.UNKNOWN:
        if absent or rank.sign is Sign.BUSY:
            why = Message("{why}, while others wait", why=rank.why)
            return replace(rank, what=What.HUNG, confidence=Confidence.LIKELY, why=why)
        return rank
    # One that wakes up now and then has not moved either, if it launches nothing.
    rests = rank.still or (absent and rank.sign in _RESTS)
    certain = rank.place is not None and (only or absent) and rests
    return replace(rank, confidence=Confidence.CERTAIN if certain else Confidence.LIKELY)


def _odd(ranks: Sequence[Judged]) -> list[Judged]:
    """The minority, if no rank is proven to wait: all others rest, or all use a CPU, like ranks that wait for a GPU.
    If the majority moves, the minority proves nothing."""
    living = [rank for rank in ranks if rank.sign not in (None, Sign.ENDED) and rank.what is not What.STARTING]
    if len(living) < _ENOUGH:
        return []
    kinds = _kinds(living)
    usual, count = Counter(kinds).most_common(1)[0]
    many = [rank for rank, kind in zip(living, kinds, strict=True) if kind == usual]
    busy = all(rank.sign is Sign.BUSY for rank in many)
    if count < _ALIKE * len(living) or not (busy or all(rank.still for rank in many)):
        return []
    odd = [rank for rank, kind in zip(living, kinds, strict=True) if kind != usual]
    return [rank for rank in odd if rank.still or rank.sign is Sign.BUSY or (busy and rank.sign in _RESTS)]


def _kinds(ranks: Sequence[Judged]) -> list[object]:
    """Each rank's stack, or its sign if the stacks of most are unknown."""
    if 2 * sum(bool(rank.frames) for rank in ranks) > len(ranks):
        return [rank.frames or _sign(rank) for rank in ranks]
    return [_sign(rank) for rank in ranks]


def _sign(rank: Judged) -> Sign | None:
    # A rank that polls and one that waits for a thread may wait for the same thing.
    return Sign.FUTEX if rank.sign is Sign.POLL else rank.sign


#: Places in the code where ranks wait for each other or for their GPUs.
_WAITING = frozenset({StackPlace.COLLECTIVE, StackPlace.JOINING, StackPlace.DEVICE})


def _odd_one(rank: Judged, wait: bool) -> Judged:
    """`wait`: the stacks of the others, if any, show that they wait."""
    if rank.what in _FINAL or rank.waits:
        return rank
    if rank.what is What.UNKNOWN or rank.sign is Sign.BUSY:
        why = Message("{why}, unlike the others", why=rank.why)
        return replace(rank, what=What.HUNG, confidence=Confidence.GUESS, why=why)
    sure = rank.still or (wait and bool(rank.frames))
    return replace(rank, confidence=Confidence.LIKELY if sure else Confidence.GUESS)


def _by_itself(rank: Judged, usual: bool) -> Judged:
    """Judges a rank that is not odd, in a job in which no rank is proven to wait. `usual`: it is like most ranks."""
    if rank.what in _FINAL:
        return rank
    if usual and rank.what is What.HUNG:
        return replace(rank, what=What.UNKNOWN, confidence=None, why=Message("{why}, like most ranks", why=rank.why))
    if rank.still or rank.sign is Sign.DISK:
        weak = rank.what in (What.HUNG, What.COLLECTIVE)
        return replace(rank, confidence=Confidence.GUESS) if weak else rank
    if rank.sign is Sign.BUSY and (rank.waits or not rank.frames):
        # Ranks that wait for a GPU use a CPU, and so do ranks that work.
        return replace(rank, what=What.UNKNOWN, confidence=None)
    why = Message("its main thread ran during the look")
    return replace(rank, what=What.WORKING, confidence=Confidence.GUESS, why=why)


#: Least share of the window on a CPU, or ready to run, for a busy thread.
_BUSY = 0.5
#: A starved thread: least share of the window in which it was ready but had no CPU, most share on a CPU.
_WAITED, _RAN = 0.5, 0.3
#: torch's threads that run the collectives of gloo. A thread in a collective waits with a timeout, an idle one without.
_GLOO = "pt_gloo_runloop"

#: torch's threads of any process group. Names have 15 characters.
_OF_GROUPS = (_GLOO, "pt_nccl_", "pt_xccl_", "pt_mpi_", "pt_ucc_")

#: System calls by the kind of wait.
SLEEP_CALLS = frozenset({"nanosleep", "clock_nanosleep", "pause"})
WRITE_CALLS = frozenset({"write", "writev", "pwrite64", "fsync", "fdatasync", "sendfile"})
FILE_CALLS = WRITE_CALLS | {
    "read", "readv", "pread64", "preadv", "open", "openat", "stat", "lstat", "fstat", "newfstatat", "statx", "flock",
    "fcntl", "getdents64", "io_getevents", "io_uring_enter",
}  # fmt: skip
POLL_CALLS = frozenset({
    "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "recvfrom", "recvmsg", "accept", "accept4",
    "connect", "ioctl",
})  # fmt: skip
CHILD_CALLS = frozenset({"wait4", "waitid"})
#: Prefixes of kernel function names, used if system calls cannot be read.
_WCHAN = (
    ("hrtimer_nanosleep", "clock_nanosleep"),
    ("do_nanosleep", "nanosleep"),
    ("futex", "futex"),
    ("pipe_", "read"),
    ("anon_pipe_", "read"),
    ("wait_for_partner", "openat"),
    ("fifo_open", "openat"),
    ("do_wait", "wait4"),
    ("do_epoll_wait", "epoll_wait"),
    ("ep_poll", "epoll_wait"),
    ("do_poll", "poll"),
    ("do_sys_poll", "poll"),
    ("poll_schedule_timeout", "poll"),
    ("do_select", "select"),
    ("folio_wait", "read"),
    ("wait_on_page", "read"),
    ("io_schedule", "read"),
    ("rpc_wait", "read"),
    ("nfs", "read"),
    ("fuse_", "read"),
    ("request_wait_answer", "read"),
)


def idle(rank: RankReport) -> bool:
    """Whether it did not run at all in the window."""
    return bool(rank.looks) and rank.main_ticks <= 1 and not rank.switches


def has_group(rank: RankReport) -> bool:
    """Whether the process has made a process group: torch names the threads of each, from 2.4 on."""
    return rank.recorder is not None or any(thread.name.startswith(_OF_GROUPS) for thread in rank.waits)


def call_of(moment: ThreadState) -> str | None:
    """The system call, derived from the kernel's function if the call itself may not be read."""
    if moment.syscall not in (None, "none"):
        return moment.syscall
    wchan = moment.wchan or ""
    return next((call for begin, call in _WCHAN if wchan.startswith(begin)), None)


def sign_of(rank: RankReport, report: StackReport) -> Sign:
    """The sign of the main thread; the most reliable is checked first."""
    if not rank.looks:
        return Sign.ENDED
    if rank.frozen:
        return Sign.FROZEN
    states = {look.state for look in rank.looks}
    if states == {"T"}:
        return Sign.STOPPED
    if states == {"t"}:
        return Sign.TRACED
    if states == {"D"}:
        return Sign.DISK
    if _starved(rank, report):
        return Sign.STARVED
    if _wanted(rank, report) >= _BUSY:
        return Sign.BUSY
    calls = {call_of(look) for look in rank.looks}
    for sign, family in (
        (Sign.SLEEP, SLEEP_CALLS),
        (Sign.FILE, FILE_CALLS),
        (Sign.CHILD, CHILD_CALLS),
        (Sign.POLL, POLL_CALLS),
    ):
        if all(call in family for call in calls):
            # Reading a pipe or a socket is the same wait, although it is not a file.
            return sign
    if calls == {"futex"}:
        return _lock(rank)
    return Sign.OTHER


def _wanted(rank: RankReport, report: StackReport) -> float:
    """The share of the window in which the main thread ran or was ready to run."""
    if not report.seconds:
        return 0.0
    ticks = rank.main_ticks / report.ticks_per_second
    ready = 0.0 if rank.run_ns is None or rank.wait_ns is None else (rank.run_ns + rank.wait_ns) / 1e9
    return max(ticks, ready) / report.seconds


def _starved(rank: RankReport, report: StackReport) -> bool:
    if rank.run_ns is None or rank.wait_ns is None:
        return False
    window = report.seconds * 1e9
    denied = (report.throttled_us or 0) * 1e3 > _WAITED * window and bool(rank.wait_ns)
    return (rank.wait_ns > _WAITED * window or denied) and rank.run_ns < _RAN * window


def _lock(rank: RankReport) -> Sign:
    """The kind of wait on a futex, as far as the threads of gloo show it."""
    gloo = [thread for thread in rank.waits if thread.name == _GLOO]
    if not gloo or not idle(rank) or any(at.syscall is None for at in gloo):
        return Sign.FUTEX
    if any(at.syscall == "futex" and at.timed for at in gloo):
        return Sign.GLOO
    if not all(at.syscall == "futex" and not at.timed for at in gloo):
        return Sign.FUTEX
    return Sign.PEER if all(look.timed for look in rank.looks) else Sign.LOCK


def join(dumps: Sequence[tuple[FlightDump, float | None]], window: float) -> Joined:
    """Merges dumps, each with its worker's clock in seconds. Operations younger than `window` seconds may still end."""
    pending: dict[int, Pending] = {}
    for dump, now in dumps:
        waiting = [
            (entry.created_ns or 0, entry.seq, entry.operation, state.description or state.name)
            for state in dump.groups
            for entry in state.pending
            if not entry.p2p and _old(entry.created_ns, now, window)
        ]
        if dump.rank is not None and waiting:
            _, seq, operation, group = min(waiting)
            pending[dump.rank] = Pending(seq, operation, group)
    clocks = [now for _, now in dumps if now is not None]
    now = min(clocks) if clocks else None
    found = [item for item in missing_ranks([dump for dump, _ in dumps]) if _old(item.created_ns, now, window)]
    return Joined(pending, next((item for item in found if item.absent), None))


def _old(created_ns: int | None, now: float | None, window: float) -> bool:
    return created_ns is not None and (now is None or now - created_ns / 1e9 >= window)


#: still: did not run, same place. same: ran, same place in the code. moved: another place. ran: ran, place unknown.
#: new: another process, or none before. gone: no process.
Moved = Literal["still", "same", "moved", "ran", "new", "gone"]


@dataclass(frozen=True, slots=True)
class RankChange:
    """The change of one rank between two inspections."""

    rank: int | None
    worker: str | None
    how: Moved


def changes(first: Scene, second: Scene) -> tuple[RankChange, ...]:
    """The changes between two inspections, one for each rank of either, in order."""
    before = {_key(rank): rank for rank in first.ranks}
    after = {_key(rank): rank for rank in second.ranks}
    found = [RankChange(rank.rank, rank.worker, _how(before.get(key), rank)) for key, rank in after.items()]
    found += [RankChange(rank.rank, rank.worker, "gone") for key, rank in before.items() if key not in after]
    return tuple(sorted(found, key=lambda change: (change.rank is None, change.rank or 0, change.worker or "")))


def _key(rank: Judged) -> tuple[object, ...]:
    # A rank that is gone may have no known worker.
    return (rank.rank,) if rank.rank is not None else (rank.worker, rank.report.pid if rank.report else None)


def _how(old: Judged | None, new: Judged) -> Moved:
    if new.report is None:
        return "gone"
    if old is None or old.report is None:
        return "new"
    if (old.worker, old.report.pid, old.report.start) != (new.worker, new.report.pid, new.report.start):
        return "new"
    if bool(old.frames) != bool(new.frames) or old.frames != new.frames or old.pending != new.pending:
        return "moved" if old.frames and new.frames else "ran"
    if old.still and new.still and old.report.looks[-1:] == new.report.looks[:1]:
        return "still"
    return "same" if new.frames else "ran"


#: The categories of an inspection: a process does not reach its peers' collective, or is gone; or its start is slow.
HANG, START = "hang", "slow_start"
#: Most entries in `candidates`.
_MAX_STUCK = 16
#: Seconds without a log line after which a job counts as stuck.
QUIET = 30.0
#: Frames of a stack that are shown as evidence, the innermost first.
_FRAMES = 6


def with_look(found: Diagnosis, scene: Scene, quiet: float | None) -> Diagnosis:
    """Adds the inspection `scene` to the diagnosis `found`. If the logs have an answer, or candidates for one, that is
    kept, and the inspection becomes a remark: waiting ranks then wait for those that failed.

    `quiet`: seconds since the last line of any log, None if unknown. If the job still logs, a rank that others wait for
    is only a guess: saving and evaluating look the same.
    """
    if found.verdict is Verdict.NONE and scene.what is What.STARTING:
        stuck = [rank for rank in scene.ranks if rank.what is What.STARTING and STUCK <= rank.age < inf]
        if stuck:
            found = replace(
                found, verdict=Verdict.UNDECIDED, candidates=tuple(_cause(rank, scene) for rank in stuck[:_MAX_STUCK])
            )
    if found.verdict is not Verdict.NONE or not scene.culprits:
        return replace(found, remarks=(*found.remarks, _remark(scene)))
    causes = tuple(_cause(rank, scene) for rank in scene.culprits)
    remarks = [Message("the logs name no failure: this is what the ranks are doing now")]
    if quiet is None or quiet < QUIET:
        causes = tuple(replace(cause, confidence=Confidence.GUESS) for cause in causes)
        if quiet is not None:
            remarks.append(
                Message("the last line of a log is {seconds:.0f} s old: it may only be slow", seconds=max(0.0, quiet))
            )
    one = Verdict.RANK if causes[0].rank is not None else Verdict.WORKER
    verdict = one if len(causes) == 1 else Verdict.RANKS
    return replace(found, verdict=verdict, root_causes=causes, remarks=(*found.remarks, *remarks))


def _remark(scene: Scene) -> str:
    ranks = [str(rank.rank) for rank in scene.culprits if rank.rank is not None]
    what: Message = scene.what
    if ranks:
        told = Message("{what} (rank {ranks} and more)") if len(ranks) > 8 else Message("{what} (rank {ranks})")
        what = told.filled(what=what, ranks=", ".join(ranks[:8]))
    return joined([Message("the ranks were inspected"), what, scene.why])


def _cause(rank: Judged, scene: Scene) -> Cause:
    report = rank.report
    proofs = [Proof(rank.worker, None, str(frame)) for frame in rank.frames[:_FRAMES]] if rank.worker else []
    if rank.worker and report is not None and report.looks:
        at = report.looks[-1]
        place = f" in {at.syscall}" if at.syscall else f" at {at.wchan}" if at.wchan else ""
        proofs.append(
            Proof(rank.worker, None, f"/proc/{report.pid}: state {at.state}{place}, {report.main_ticks} ticks of CPU")
        )
    return Cause(
        worker=rank.worker,
        category=START if rank.what is What.STARTING else HANG,
        message=rank.what,
        confidence=rank.confidence or Confidence.GUESS,
        why=with_waiting(rank.why, scene.ranks, scene.seconds),
        rank=rank.rank,
        local_rank=report.number("local_rank") if report is not None else None,
        frame=innermost_user_frame(rank.frames),
        proofs=tuple(proofs),
        traceback=Traceback(tuple(reversed(rank.frames))) if rank.frames else None,
    )
