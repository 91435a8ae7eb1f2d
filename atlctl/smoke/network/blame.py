"""Find the workers and links that explain a matrix of bad pairs with the fewest faults; confirm by measuring again.

A pair is bad if at least one direction is bad. A faulty worker makes all of its pairs bad, in the same way or (if the
peer or the link has a worse fault) in a worse way. A bad link makes one pair bad.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

Pair = tuple[str, str]
#: Measures these directions again; True for each that is bad again.
Look = Callable[[Sequence[Pair]], Awaitable[Mapping[Pair, bool]]]

#: Up to this many candidates, all combinations are tried. With more candidates, only "none" and "all" are tried.
_TRIED = 8
#: Links are named one by one up to this number (or half the number of workers, if that is more).
_LISTED = 8
#: One in this many pairs of a blamed worker may be good: the fault may be intermittent.
_LENIENT = 4
#: Number of a worker's pairs that must be bad again before it is accused; maximum number of repeated measurements.
_SAMPLE, _LOOKS = 4, 8


@dataclass(frozen=True, slots=True)
class PairBlame:
    """The workers and links to blame. `unclear`: bad pairs with several equally good explanations."""

    workers: tuple[str, ...] = ()
    links: tuple[Pair, ...] = ()
    unclear: tuple[Pair, ...] = ()


def pairs(names: Sequence[str], directed: Mapping[Pair, int]) -> dict[Pair, int]:
    """The worse of both directions for each pair; the two names are in the order of `names`."""
    place = {name: number for number, name in enumerate(names)}
    found: dict[Pair, int] = {}
    for (one, other), kind in directed.items():
        pair = ordered(place, one, other)
        found[pair] = max(kind, found.get(pair, 0))
    return found


def ordered(place: Mapping[str, int], one: str, other: str) -> Pair:
    return (one, other) if place[one] < place[other] else (other, one)


def blame(names: Sequence[str], directed: Mapping[Pair, int]) -> PairBlame:
    """Find the culprits. `directed` has each measured direction: 0 is good, a higher number is a worse fault."""
    seen = pairs(names, directed)
    bad = {pair: kind for pair, kind in seen.items() if kind}
    if not bad:
        return PairBlame()
    own: dict[str, list[Pair]] = {name: [] for name in names}
    for pair in seen:
        for name in pair:
            own[name].append(pair)
    kinds = {name: kind for name in names if (kind := _kind(own[name], seen))}
    best: list[tuple[str, ...]] = []
    least = (len(bad), 0)
    for workers in _tries(kinds, len(names)):
        cost = _cost(workers, kinds, seen, bad, own)
        if cost < least:
            best, least = [workers], cost
        elif cost == least:
            best.append(workers)
    solutions = [(set(workers), _links(workers, kinds, bad)) for workers in best or [()]]
    certain = set.intersection(*(workers for workers, _ in solutions))
    links = set.intersection(*(set(links) for _, links in solutions))
    if 2 * len(certain) > len(names):
        certain, links = set(), set()  # if most workers look faulty, the cause is elsewhere
    if len(links) > max(_LISTED, len(names) // 2):
        links = set()
    explained = {pair for pair in bad if pair in links or certain & set(pair)}
    return PairBlame(
        tuple(name for name in names if name in certain),
        tuple(pair for pair in bad if pair in links),
        tuple(pair for pair in bad if pair not in explained),
    )


def _tries(kinds: Mapping[str, int], count: int) -> Iterable[tuple[str, ...]]:
    candidates = tuple(kinds)
    if len(candidates) <= _TRIED:
        for size in range(len(candidates) + 1):
            yield from combinations(candidates, size)
    else:
        yield ()
        if len(candidates) < count:
            yield candidates


def _kind(own: Collection[Pair], seen: Mapping[Pair, int]) -> int:
    """The fault of this worker if it has one: the mildest of its pairs, ignoring a few good ones. 0: no fault."""
    if len(own) < 2:
        return 0
    return sorted(seen[pair] for pair in own)[len(own) // _LENIENT]


def _predicted(pair: Pair, workers: Collection[str], kinds: Mapping[str, int]) -> int:
    return max((kinds[name] for name in pair if name in workers), default=0)


def _cost(
    workers: Sequence[str],
    kinds: Mapping[str, int],
    seen: Mapping[Pair, int],
    bad: Collection[Pair],
    own: Mapping[str, Sequence[Pair]],
) -> tuple[int, int]:
    """The number of faults and contradictions, then the number of accused workers: on a tie, fewer accusations win."""
    blamed = set(workers)
    touched = {pair for name in workers for pair in own[name]}
    wrong = sum(_predicted(pair, blamed, kinds) != seen[pair] for pair in touched)
    rest = sum(pair not in touched for pair in bad)
    return len(workers) + wrong + rest, len(workers)


def _links(workers: Collection[str], kinds: Mapping[str, int], bad: Mapping[Pair, int]) -> list[Pair]:
    return [pair for pair, kind in bad.items() if _predicted(pair, workers, kinds) < kind]


async def confirm(names: Sequence[str], seen: Collection[Pair], suspects: Collection[Pair], look: Look) -> set[Pair]:
    """The `suspects` (directions out of `seen`) that are confirmed: bad again when measured again, or similar to enough
    confirmed ones of the same worker. One bad direction is enough for a pair."""
    left, certain = dict.fromkeys(suspects), set[Pair]()
    for _ in range(_LOOKS):
        todo = _next(names, accused(names, seen, left), left, certain)
        if not todo:
            return set(left)
        for pair, again in (await look(todo)).items():
            if again:
                certain.add(pair)
            else:
                left.pop(pair, None)
    return certain


def accused(names: Sequence[str], seen: Collection[Pair], bad: Collection[Pair]) -> PairBlame:
    """The workers and links to blame for the directions in `bad`, out of all measured directions (`seen`)."""
    return blame(names, {pair: int(pair in bad) for pair in seen})


def _next(names: Sequence[str], told: PairBlame, left: Collection[Pair], certain: Collection[Pair]) -> list[Pair]:
    """The directions to measure next: one for each pair that would be accused and is not confirmed yet."""
    place = {name: number for number, name in enumerate(names)}
    ways: dict[Pair, list[Pair]] = {}
    for pair in left:
        ways.setdefault(ordered(place, *pair), []).append(pair)
    sure = {ordered(place, *pair) for pair in certain}
    todo: dict[Pair, None] = {}
    for name in told.workers:
        own = [pair for pair in ways if name in pair]
        missing = _SAMPLE - sum(pair in sure for pair in own)
        open_ = [pair for pair in own if pair not in sure and pair not in todo]
        todo |= dict.fromkeys(open_[: max(0, missing)])
    todo |= dict.fromkeys(pair for pair in told.links if pair not in sure)
    todo |= dict.fromkeys(_spread([pair for pair in told.unclear if pair not in sure])[: 2 * _SAMPLE])
    # Directions alternate, so more of them can be measured at the same time.
    return [ways[pair][number % len(ways[pair])] for number, pair in enumerate(todo)]


def _spread(pairs: Sequence[Pair]) -> list[Pair]:
    """First those that have no end in common, which can be measured at the same time."""
    apart, others, ends = list[Pair](), list[Pair](), set[str]()
    for pair in pairs:
        if ends.isdisjoint(pair):
            apart.append(pair)
            ends.update(pair)
        else:
            others.append(pair)
    return apart + others
