"""What NCCL's RAS service counted on a living job: ranks that have launched fewer collectives than their peers.

The counts come from `remote/stacks/ras.py`, which asks twice. Their limits: a kernel that hangs counts as launched,
point-to-point operations are not counted, and communicators that are being created do not appear. So they are one
witness beside the stacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atlctl.jobs import fields

if TYPE_CHECKING:
    from atlctl.diagnosis.rankreport import RankReport, StackReport

#: Limits of one report, as in the probe.
_COMMUNICATORS, _MEMBERS = 64, 64
#: Share of a communicator's ranks up to which those that launched another operation are the odd ones.
_ODD = 1 / 2


@dataclass(frozen=True, slots=True)
class Lag:
    """A rank has launched `count` of an operation and others `most`, in a communicator of `size` ranks (0: unknown).

    `instead`: operations of which it has launched more than others.
    """

    operation: str
    count: int
    most: int
    size: int
    instead: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaunchMember:
    """A process in a communicator, `rank` in it, host and pid as NCCL knows them. `fault` as in the probe."""

    rank: int
    host: str
    pid: int
    lags: tuple[Lag, ...] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True)
class LaunchGroup:
    """`behind` and `ahead` launched nothing between the two answers."""

    size: int
    behind: tuple[LaunchMember, ...]
    behind_count: int
    ahead: tuple[LaunchMember, ...]
    ahead_count: int
    faulty: tuple[LaunchMember, ...]


@dataclass(frozen=True, slots=True)
class Launches:
    """The answers of one RAS service. `moved`: a rank launched something in between, None if unknown.
    `processes`: how many were counted. `problem`: the reason if it did not answer."""

    problem: str | None
    moved: bool | None
    processes: int
    communicators: tuple[LaunchGroup, ...]


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """By global rank. `behind`: ranks that have launched less than others and wait for none in another communicator;
    `ahead`: ranks that wait for others; `left`: those whose process answers without a communicator that others have
    (they have left it, or are creating another one); `lost`: those whose process is unresponsive or dead for NCCL.
    `moved` as in `Launches`."""

    behind: Mapping[int, Lag]
    ahead: frozenset[int]
    left: frozenset[int]
    lost: frozenset[int]
    moved: bool | None


NOTHING = LaunchCounts({}, frozenset(), frozenset(), frozenset(), None)


def parse(found: object) -> Launches | None:
    """The part `ras` of a probe's report; None if there is none. Not trusted."""
    item = fields.mapping(found)
    if not item:
        return None
    moved = item.get("moved")
    return Launches(
        problem=fields.message(item.get("problem"), 300) or None,
        moved=moved if isinstance(moved, bool) else None,
        processes=fields.whole(item.get("processes")) or 0,
        communicators=tuple(
            LaunchGroup(
                size := fields.whole(entry.get("size")) or 0,
                tuple(_members(entry.get("behind"), size)),
                fields.whole(entry.get("behind_count")) or 0,
                tuple(_members(entry.get("ahead"), size)),
                fields.whole(entry.get("ahead_count")) or 0,
                tuple(_members(entry.get("faulty"), size)),
            )
            for entry in fields.entries(item.get("communicators"), _COMMUNICATORS)
        ),
    )


def _members(found: object, size: int) -> Iterable[LaunchMember]:
    for item in fields.items(found, _MEMBERS):
        if not isinstance(item, list) or len(item) < 3:
            continue
        rank, pid = fields.whole(item[0]), fields.whole(item[2])
        if rank is None or pid is None:
            continue
        lags: tuple[Lag, ...] = ()
        if len(item) > 4:
            instead = tuple(fields.text(name, 40) for name in fields.items(item[4], 8))
            lags = tuple(
                Lag(fields.text(name, 40), fields.whole(pair[0]) or 0, fields.whole(pair[1]) or 0, size, instead)
                for name, pair in list(fields.mapping(item[3]).items())[:8]
                if isinstance(pair, list) and len(pair) == 2
            )
        fault = fields.text(item[3], 40) if len(item) == 4 and isinstance(item[3], str) else ""
        yield LaunchMember(rank, fields.text(item[1], 64), pid, lags, fault)


def counted(reports: Mapping[str, StackReport], world: int | None) -> LaunchCounts:
    """The most complete answer, by global rank: by address and pid, else by the rank in a communicator of all."""
    answers = [report.launches for report in reports.values() if report.launches is not None]
    answers = [answer for answer in answers if answer.problem is None]
    if not answers:
        return NOTHING
    answer = max(answers, key=lambda answer: answer.processes)
    ranks = processes(reports)

    def number(member: LaunchMember, size: int) -> int | None:
        found = ranks.get((member.host, member.pid))
        rank = None if found is None else found.rank
        return member.rank if rank is None and size == world else rank

    behind: dict[int, Lag] = {}
    ahead: set[int] = set()
    left: set[int] = set()
    lost: set[int] = set()
    for communicator in answer.communicators:
        size = communicator.size
        odd = _odd(communicator)
        for member in communicator.behind:
            rank = number(member, size)
            if rank is None or not member.lags:
                continue
            if member in odd:
                lag = member.lags[0]
                behind[rank] = max(lag, behind.get(rank, lag), key=lambda lag: (bool(lag.instead), lag.size))
            else:
                ahead.add(rank)
        for member in communicator.faulty:
            rank = number(member, size)
            if rank is not None and member.fault in ("unresponsive", "dead"):
                lost.add(rank)
            elif rank is not None and member.fault == "absent":
                left.add(rank)
        named = {rank for member in communicator.ahead if (rank := number(member, size)) is not None}
        if communicator.ahead_count > len(communicator.ahead) and size == world:
            held = {number(member, size) for member in (*communicator.behind, *communicator.faulty)}
            named |= set(range(world)) - held if communicator.behind_count <= len(communicator.behind) else set()
        ahead |= named
    roots = {rank: lag for rank, lag in behind.items() if rank not in ahead or lag.instead}
    return LaunchCounts(roots, frozenset(ahead - set(roots)), frozenset(left), frozenset(lost), answer.moved)


def processes(reports: Mapping[str, StackReport]) -> dict[tuple[str, int], RankReport | None]:
    """Ranks by host and pid as NCCL knows them. None for workers that share an address and not their processes."""
    ranks: dict[tuple[str, int], RankReport | None] = {}
    for report in reports.values():
        for found in report.ranks:
            for address in report.addresses:
                ranks[address, found.inner] = None if (address, found.inner) in ranks else found
    return ranks


def _odd(communicator: LaunchGroup) -> set[LaunchMember]:
    """The members that others wait for. If all have launched something else, those are a minority."""
    if communicator.behind_count < communicator.size or not all(
        lag.instead for member in communicator.behind for lag in member.lags
    ):
        return set(communicator.behind)
    kinds: dict[Any, list[LaunchMember]] = {}
    for member in communicator.behind:
        kinds.setdefault(member.lags, []).append(member)
    return {member for same in kinds.values() if len(same) < _ODD * communicator.size for member in same}
