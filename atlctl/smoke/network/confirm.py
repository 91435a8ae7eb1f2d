"""Looking a second time, alone, before anybody is accused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from atlctl.smoke.network.blame import Blame, Pair, blame, ordered

#: Measures these directions again; True where it is bad again.
Look = Callable[[Sequence[Pair]], Awaitable[Mapping[Pair, bool]]]

#: Pairs of a worker that must be bad again before it is accused, and rounds of looking.
_SAMPLE, _LOOKS = 4, 8


async def confirm(names: Sequence[str], seen: Collection[Pair], suspects: Collection[Pair], look: Look) -> set[Pair]:
    """Those of `suspects` (directions among `seen`) that stay: a second look found them bad again, or they are like
    enough others of the same worker that it did. One direction is enough for a pair."""
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


def accused(names: Sequence[str], seen: Collection[Pair], bad: Collection[Pair]) -> Blame:
    """Who is to blame for these directions; the pairs are those of `seen`."""
    return blame(names, {pair: int(pair in bad) for pair in seen})


def _next(names: Sequence[str], told: Blame, left: Collection[Pair], certain: Collection[Pair]) -> list[Pair]:
    """What to look at now: one direction each of the pairs that would be accused and are not certain yet."""
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
    todo |= dict.fromkeys([pair for pair in told.unclear if pair not in sure][: 2 * _SAMPLE])
    # Directions alternate, so that more of them can be looked at at once.
    return [ways[pair][number % len(ways[pair])] for number, pair in enumerate(todo)]
