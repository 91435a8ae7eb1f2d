"""Which ranks did not join which collective, from the flight-recorder dumps of many ranks.

Facts only: a rank that did not join may hang, may have left, may itself wait in another group, or its dump may be older
than the others'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atlctl.diagnosis.recorder.dump import DEFAULT_GROUP, Collective, FlightDump, GroupState

#: Operations that end on no rank before every rank has entered them.
_ALL_WAIT = frozenset(
    {
        "all_reduce",
        "allreduce_coalesced",
        "all_reduce_barrier",
        "barrier",
        "all_gather",
        "_all_gather_base",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
    }
)
#: Operations whose input has one size on all ranks. Others differ by right: uneven shards, a root that has none.
_SAME_SIZE = frozenset(
    {
        "all_reduce",
        "allreduce_coalesced",
        "broadcast",
        "reduce",
        "_all_gather_base",
        "all_gather_into_tensor_coalesced",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
    }
)

#: What one rank did under one number: a coalesced collective has several operations.
_Step = tuple[tuple[str, tuple[tuple[int, ...], ...] | None], ...]
#: Name and ranks of a group.
_Key = tuple[str, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A rank that did something else under the same number."""

    rank: int
    operation: str
    input_sizes: tuple[tuple[int, ...], ...]
    frame: str | None


@dataclass(frozen=True, slots=True)
class Missing:
    """A collective of one group at which its ranks parted. `seq` counts the group's collectives from 1.

    `absent` had not entered it, `no_dump` are members that left no dump, `unclear` left one that does not reach back
    far enough. `mismatches` are the minority, or all ranks where there is none. `operation`, `input_sizes`, `frame` and
    `created_ns` (the earliest) are those of most of the joined; None where no dump has the entry any more.
    """

    group: str
    description: str
    seq: int
    joined: tuple[int, ...]
    absent: tuple[int, ...]
    no_dump: tuple[int, ...]
    unclear: tuple[int, ...]
    mismatches: tuple[Mismatch, ...]
    operation: str | None
    input_sizes: tuple[tuple[int, ...], ...]
    frame: str | None
    created_ns: int | None


def missing_ranks(dumps: Sequence[FlightDump]) -> tuple[Missing, ...]:
    """Of each group the first collective that only some ranks entered, and the first that they did unlike.

    A rank without a dump counts where the others still wait. Dumps whose rank is not known are left out; of two of one
    rank the last is taken. In the order of the ranks' clocks.
    """
    by_rank = {dump.rank: dump for dump in dumps if dump.rank is not None}
    found = [item for group in _groups(by_rank) for item in group.findings()]
    return tuple(sorted(found, key=lambda item: (item.created_ns is None, item.created_ns or 0, item.group, item.seq)))


def _groups(by_rank: Mapping[int, FlightDump]) -> Iterator[_Group]:
    """Groups over all ranks. A name alone may stand for several groups that share no rank."""
    known: dict[_Key, str] = {
        (state.name, state.ranks): state.description
        for dump in by_rank.values()
        for state in dump.groups
        if state.ranks is not None
    }
    members: dict[_Key, dict[int, GroupState | None]] = {
        key: dict.fromkeys(sorted(by_rank.keys() & set(key[1] or ()))) for key in known
    }
    described = dict(known)
    for rank, dump in by_rank.items():
        for state in dump.groups:
            told = (key for key in known if key[0] == state.name and rank in (key[1] or ()))
            key: _Key = (state.name, state.ranks) if state.ranks is not None else next(told, (state.name, None))
            described.setdefault(key, state.description)
            members.setdefault(key, {})[rank] = state
    for key, states in members.items():
        if key[1] is None and described[key] == DEFAULT_GROUP:
            states |= dict.fromkeys(by_rank.keys() - states.keys())
        yield _Group(key[0], described[key], key[1], states, by_rank)


class _Group:
    """One group: what each rank that left a dump did in it (None: nothing that its dump holds)."""

    def __init__(
        self,
        name: str,
        description: str,
        ranks: tuple[int, ...] | None,
        states: Mapping[int, GroupState | None],
        by_rank: Mapping[int, FlightDump],
    ) -> None:
        self._name = name
        self._description = description
        self._states = states
        self._no_dump = tuple(sorted(set(ranks or ()) - by_rank.keys()))
        self._whole = {rank: by_rank[rank].whole for rank in states}
        self._kept = {rank: _kept(state) for rank, state in states.items() if state}

    def findings(self) -> Iterator[Missing]:
        entered = self._entered()
        unclear = tuple(sorted(rank for rank, last in entered.items() if last is None))
        reached = {rank: last for rank, last in entered.items() if last is not None}
        parted = self._first_unlike()
        behind = self._first_missing(reached)
        for seq in sorted({seq for seq in (parted, behind) if seq is not None}):
            yield self._missing(seq, reached, unclear, unlike=seq == parted)

    def _entered(self) -> dict[int, int | None]:
        """The last collective that each rank had entered for certain; None where its dump does not tell."""
        p2p = any(state.p2p for state in self._states.values() if state)
        proven = max(
            (
                item.seq
                for state in self._states.values()
                if state
                for item in state.done
                if item.state == "completed" and item.operation in _ALL_WAIT
            ),
            default=0,
        )
        entered: dict[int, int | None] = {}
        for rank, state in self._states.items():
            last = state.entered if state else None
            if last is None and state and not p2p:
                last = state.last_enqueued
            if last is None and self._whole[rank]:
                last = 0
            # What ended on one rank was entered by all, also by those whose dump is older or holds nothing of it.
            entered[rank] = max(last or 0, proven) if last is not None or proven else None
        return entered

    def _first_missing(self, reached: Mapping[int, int]) -> int | None:
        if not reached:
            return None
        low = min(reached.values())
        if low < max(reached.values()):
            return low + 1
        if not self._no_dump:
            return None
        waiting = (item.seq for state in self._states.values() if state for item in state.pending if not item.p2p)
        return min(waiting, default=None)

    def _first_unlike(self) -> int | None:
        """The first collective under whose number two ranks did different things."""
        steps: dict[int, set[_Step]] = {}
        for by_seq in self._kept.values():
            for seq, items in by_seq.items():
                steps.setdefault(seq, set()).add(_step(items))
        return min((seq for seq, seen in steps.items() if len(seen) > 1), default=None)

    def _missing(self, seq: int, reached: Mapping[int, int], unclear: tuple[int, ...], *, unlike: bool) -> Missing:
        at = {rank: by_seq[seq] for rank, by_seq in sorted(self._kept.items()) if seq in by_seq}
        votes = Counter(_step(items) for items in at.values()).most_common(2)
        tied = len(votes) == 2 and votes[0][1] == votes[1][1]
        usual = [items[0] for items in at.values() if _step(items) == votes[0][0]]
        first = min(usual, key=lambda item: item.created_ns or 0, default=None)
        others = [(rank, items) for rank, items in at.items() if tied or _step(items) != votes[0][0]]
        return Missing(
            self._name,
            self._description,
            seq,
            joined=tuple(sorted(rank for rank, last in reached.items() if last >= seq)),
            absent=tuple(sorted(rank for rank, last in reached.items() if last < seq)),
            no_dump=self._no_dump,
            unclear=unclear,
            mismatches=tuple(_mismatch(rank, items[0]) for rank, items in others) if unlike else (),
            operation=first.operation if first else None,
            input_sizes=first.input_sizes if first else (),
            frame=first.frame if first else None,
            created_ns=first.created_ns if first else None,
        )


def _kept(state: GroupState) -> dict[int, list[Collective]]:
    """Collectives by number. The first is left out where it may have lost its beginning."""
    by_seq: dict[int, list[Collective]] = {}
    for item in (*state.done, *state.pending):
        if not item.p2p:
            by_seq.setdefault(item.seq, []).append(item)
    if by_seq and min(by_seq) > 1:
        del by_seq[min(by_seq)]
    return by_seq


def _step(items: Sequence[Collective]) -> _Step:
    """What is compared: operations and, where they must be equal on all ranks, sizes."""
    return tuple((item.operation, item.input_sizes if item.operation in _SAME_SIZE else None) for item in items)


def _mismatch(rank: int, item: Collective) -> Mismatch:
    return Mismatch(rank, item.operation, item.input_sizes, item.frame)
