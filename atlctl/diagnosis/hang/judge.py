"""What each rank is doing, one by one and beside the others, and which rank the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from atlctl.diagnosis.hang.frames import Place, imports, place_of
from atlctl.diagnosis.hang.joined import Joined, Pending
from atlctl.diagnosis.hang.report import RankReport, Report
from atlctl.diagnosis.hang.signs import Sign, has_group, idle, sign_of
from atlctl.diagnosis.result import Confidence
from atlctl.diagnosis.tracebacks import Frame

#: Share of the ranks that must be alike before the others are odd, and how many ranks it takes.
_ALIKE, _ENOUGH = 2 / 3, 3
#: Seconds after its start in which a process without a process group starts, whatever it is doing.
YOUNG = 120.0
#: Seconds from which on a start takes too long to be called one without a doubt.
STUCK = 300.0


class What(StrEnum):
    """The verdict on a rank."""

    HUNG = "hung in user code"
    IO = "blocked on I/O"
    STOPPED = "stopped"
    STARVED = "starved"
    GONE = "gone"
    STARTING = "starting"
    COLLECTIVE = "waiting in a collective"
    WORKING = "working"
    UNKNOWN = "cannot tell"


#: Verdicts on a rank that others may wait for, those that need no other rank to be seen first.
ABSOLUTE = frozenset({What.STOPPED, What.STARVED, What.GONE})
#: Verdicts that the other ranks do not change.
_FINAL = ABSOLUTE | {What.STARTING}
CULPRIT = ABSOLUTE | {What.HUNG, What.IO}


@dataclass(frozen=True, slots=True)
class Judged:
    """One rank. `why`: what speaks for it. `waits`: it is in the middle of something that other ranks must join.

    `still`: its main thread did not move. `pending`: the collective it waits in, where its flight recorder tells.
    `report` is None where no process has the rank, `worker` where nothing tells where it should be.
    """

    rank: int | None
    worker: str | None
    what: What
    confidence: Confidence | None
    why: str
    waits: bool = False
    still: bool = False
    sign: Sign | None = None
    place: Place | None = None
    pending: Pending | None = None
    report: RankReport | None = None

    @property
    def age(self) -> float:
        """Seconds since the start of its process; endless where that is not known."""
        return self.report.age if self.report is not None and self.report.age is not None else inf

    @property
    def frames(self) -> tuple[Frame, ...]:
        stack = self.report.stack if self.report else None
        return stack.frames if stack else ()


_BY_SIGN: Mapping[Sign, tuple[What, str]] = {
    Sign.ENDED: (What.GONE, "its process ended during the look"),
    Sign.STOPPED: (What.STOPPED, "a signal has stopped it (SIGSTOP); kill -CONT lets it go on"),
    Sign.TRACED: (What.STOPPED, "a debugger holds it"),
    Sign.FROZEN: (What.STOPPED, "its control group is frozen"),
    Sign.STARVED: (What.STARVED, "it is ready to run and hardly gets a CPU"),
    Sign.DISK: (What.IO, "it waits for a device or a file system, and cannot be interrupted"),
    Sign.SLEEP: (What.HUNG, "it sleeps"),
    Sign.FILE: (What.IO, "it waits for a file or a pipe"),
    Sign.CHILD: (What.HUNG, "it waits for a process that it has started"),
    Sign.LOCK: (What.HUNG, "it waits for a lock, and no collective of gloo is under way in it"),
    Sign.GLOO: (What.COLLECTIVE, "a collective of gloo is under way in it"),
    Sign.BUSY: (What.UNKNOWN, "it uses a CPU"),
    Sign.FUTEX: (What.UNKNOWN, "it waits for another thread or for a lock"),
    Sign.POLL: (What.UNKNOWN, "it waits for the network or a device"),
    Sign.OTHER: (What.UNKNOWN, "it moves, or cannot be seen into"),
}
_BY_PLACE: Mapping[Place, tuple[What, str]] = {
    Place.COLLECTIVE: (What.COLLECTIVE, "its stack is in a collective"),
    Place.JOINING: (What.COLLECTIVE, "its stack is where a process group is made"),
    Place.BACKWARD: (What.UNKNOWN, "it is in the backward pass"),
    Place.DEVICE: (What.UNKNOWN, "it waits for its device"),
    Place.LOADER: (What.HUNG, "it waits for its DataLoader"),
    Place.STORAGE: (What.IO, "its stack reads or writes files"),
    Place.NETWORK: (What.IO, "its stack waits for the network"),
    Place.LOCK: (What.HUNG, "it waits for a lock, a thread or a process of its own"),
    Place.USER: (What.HUNG, "its stack is in no collective"),
}
#: Said of a rank whose stack is in the user's code.
_IN_USER: Mapping[Sign, str] = {
    Sign.SLEEP: "it sleeps, in no collective",
    Sign.BUSY: "it uses a CPU, in no collective",
    Sign.LOCK: "it waits for a lock, in no collective",
    Sign.FUTEX: "it waits for a lock or a thread, in no collective",
    Sign.CHILD: "it waits for a process that it has started",
}


def alone(worker: str, rank: RankReport, report: Report) -> Judged:
    """What a rank's own process says, without a look at the others. The confidence is the most it can get."""
    sign = sign_of(rank, report)
    what, why = _BY_SIGN[sign]
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
    if sign is Sign.DISK and place not in (Place.COLLECTIVE, Place.JOINING):
        return replace(base, confidence=Confidence.LIKELY)
    if sign is Sign.GLOO and place in (Place.USER, Place.BACKWARD, Place.LOCK):
        # `work.wait()` and the reducer of DDP wait below Python, where its stack ends.
        return replace(base, confidence=Confidence.LIKELY, waits=True)
    what, why = _BY_PLACE[place]
    if place is Place.USER:
        why = _IN_USER.get(sign, why)
        if sign is Sign.FILE:
            what, why = _BY_SIGN[sign]
    if place is Place.LOADER and any(child.at.state == "D" for child in rank.children):
        what, why = What.IO, "its DataLoader's processes wait for a device or a file system"
    if function is not None and what is not What.HUNG:
        why = f"{why}: {function}"
    waits = place in (Place.COLLECTIVE, Place.JOINING, Place.DEVICE) or (place is Place.BACKWARD and base.still)
    return replace(
        base, what=what, why=why, confidence=None if what is What.UNKNOWN else Confidence.CERTAIN, waits=waits
    )


def together(ranks: Sequence[Judged], joined: Joined, complete: bool) -> list[Judged]:
    """The same ranks, each in the light of the others. `complete`: these are all ranks that there should be."""
    ranks = _started([_recorded(rank, joined) for rank in ranks])
    if any(rank.waits and rank.still for rank in ranks):
        others = [rank for rank in ranks if not rank.waits]
        seen = all(rank.place is not None or rank.what in ABSOLUTE for rank in ranks)
        waiting = all(rank.still for rank in ranks if rank.waits)
        return [_waited_for(rank, joined, complete and seen and waiting and len(others) == 1) for rank in ranks]
    odd = _odd(ranks)
    return [_odd_one(rank) if rank in odd else _by_itself(rank, bool(odd)) for rank in ranks]


def _started(ranks: Sequence[Judged]) -> list[Judged]:
    """The same ranks, with those that have not begun to work marked as starting: a start is not a hang.

    A process that is still importing is starting however long that takes, unless others wait for it by then. A rank
    without a process is to come where others are starting.
    """
    waited_for = any(rank.waits and rank.still and rank.age >= YOUNG for rank in ranks)
    found = []
    for rank in ranks:
        why = _start_of(rank)
        if why is not None and (rank.age < YOUNG or not (why == _NO_GROUP or waited_for)):
            rank = replace(rank, what=What.STARTING, confidence=None, why=why, waits=False)
        found.append(rank)
    if not any(rank.what is What.STARTING and rank.age < YOUNG for rank in found):
        return found
    return [
        replace(rank, what=What.STARTING, confidence=None, why="no process has this rank yet")
        if rank.what is What.GONE and rank.report is None
        else rank
        for rank in found
    ]


_NO_GROUP = "it has no process group yet"
#: What only ranks with a process group do. Before torch 2.4 its threads have no names.
_AT_WORK = frozenset({Place.COLLECTIVE, Place.BACKWARD})
#: What the main thread does while Python reads modules, where its stack is not known.
_IMPORTS = frozenset({Sign.FILE, Sign.DISK, Sign.BUSY, Sign.STARVED, Sign.OTHER})


def _start_of(rank: Judged) -> str | None:
    """How far its start has come; None for a process that is past it, that has ended, or that is stopped."""
    report = rank.report
    if report is None or rank.what in (What.STOPPED, What.GONE) or rank.place in _AT_WORK or has_group(report):
        return None
    if imports(rank.frames):
        return "its stack imports a module"
    if report.torch is False and not rank.frames and rank.sign in _IMPORTS:
        return "it has not loaded torch yet"
    return _NO_GROUP


def _recorded(rank: Judged, joined: Joined) -> Judged:
    """With what the recorder says of it. A rank that moves on may have left that collective meanwhile."""
    found = joined.pending.get(rank.rank) if rank.rank is not None else None
    waits = rank.what is What.COLLECTIVE or (rank.what is What.UNKNOWN and rank.still)
    if found is None or not waits or rank.rank in joined.absent:
        return rank
    return replace(rank, what=What.COLLECTIVE, confidence=Confidence.CERTAIN, waits=True, pending=found)


def _waited_for(rank: Judged, joined: Joined, only: bool) -> Judged:
    """A rank beside others that have waited for the whole window. `only`: all others wait, and each has been seen."""
    if rank.what in _FINAL:
        return rank
    if rank.waits:
        if rank.what is What.UNKNOWN:
            return replace(rank, what=What.COLLECTIVE, confidence=Confidence.GUESS, why=f"{rank.why}, as others wait")
        return rank
    absent = rank.rank is not None and rank.rank in joined.absent
    if rank.what is What.UNKNOWN:
        if rank.sign is Sign.BUSY or absent:
            return replace(rank, what=What.HUNG, confidence=Confidence.LIKELY, why=f"{rank.why}, while others wait")
        return rank
    certain = rank.place is not None and (only or absent) and rank.still
    return replace(rank, confidence=Confidence.CERTAIN if certain else Confidence.LIKELY)


def _odd(ranks: Sequence[Judged]) -> list[Judged]:
    """The few that differ from the many, where nobody is proven to wait: the many all rest, or all use a CPU, as ranks
    do that wait for a GPU. Where the many move, the few may be anything."""
    living = [rank for rank in ranks if rank.sign not in (None, Sign.ENDED) and rank.what is not What.STARTING]
    if len(living) < _ENOUGH:
        return []
    usual, count = Counter(_kind(rank) for rank in living).most_common(1)[0]
    many = [rank for rank in living if _kind(rank) == usual]
    rest = all(rank.still for rank in many) or all(rank.sign is Sign.BUSY for rank in many)
    if count < _ALIKE * len(living) or not rest:
        return []
    return [rank for rank in living if _kind(rank) != usual and (rank.still or rank.sign is Sign.BUSY)]


def _kind(rank: Judged) -> object:
    if rank.frames:
        return rank.frames
    # Whoever polls and whoever waits for a thread may wait for the same thing.
    return Sign.FUTEX if rank.sign is Sign.POLL else rank.sign


def _odd_one(rank: Judged) -> Judged:
    if rank.what in _FINAL or rank.waits:
        return rank
    if rank.what is What.UNKNOWN or rank.sign is Sign.BUSY:
        return replace(rank, what=What.HUNG, confidence=Confidence.GUESS, why=f"{rank.why}, unlike the others")
    return replace(rank, confidence=Confidence.LIKELY)


def _by_itself(rank: Judged, others_odd: bool) -> Judged:
    """A rank of a job in which nobody is proven to wait, and which is not odd."""
    if rank.what in _FINAL:
        return rank
    if others_odd and rank.what is What.HUNG:
        return replace(rank, what=What.UNKNOWN, confidence=None, why=f"{rank.why}, like most ranks")
    if rank.still or rank.sign is Sign.DISK:
        weak = rank.what in (What.HUNG, What.COLLECTIVE)
        return replace(rank, confidence=Confidence.GUESS) if weak else rank
    if rank.sign is Sign.BUSY and (rank.waits or not rank.frames):
        # Ranks that wait for a GPU use a CPU, and so do ranks that work.
        return replace(rank, what=What.UNKNOWN, confidence=None)
    why = "its main thread ran during the look"
    return replace(rank, what=What.WORKING, confidence=Confidence.GUESS, why=why)
