"""Wrong values to the rank that made them. Pure functions over what the ranks measured, by their place in the group.

What comes from a worker may be malformed: a value of a wrong kind counts as not told.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlctl.jobs.naming import counted

Fields = dict[str, Any]
#: What each rank told of each step, by its place in the group.
Results = Mapping[int, Mapping[str, Fields]]

#: Gradients of one micro-batch agree within this share of their norm; those that came back, within that of the
#: greatest value. Both are far above fp32's error and far below one wrong bit that matters.
_AGREE, SYNCED = 1e-5, 2e-5
#: Against fp64, where no third rank has a vote.
_AGREE_FP64 = 1e-4


@dataclass(frozen=True, slots=True)
class Wrong:
    """`place` is at fault, None where nobody can be named; with `peer` it may be either, or what is between them."""

    place: int | None
    evidence: str
    peer: int | None = None


def collectives(results: Results) -> list[Wrong]:
    """Who sent or received wrong values. Wrong sums name nobody by themselves, so they count only where nothing else
    explains them."""
    pairs: dict[tuple[int, int], list[str]] = defaultdict(list)
    for receiver, steps in results.items():
        for step, result in steps.items():
            wrong = result.get("wrong")
            for sender in wrong if isinstance(wrong, dict) else {}:
                if sender.isdigit() and int(sender) in results:
                    pairs[int(sender), receiver].append(step)
    found: list[Wrong] = []
    left = dict(pairs)
    while left:
        sent = Counter(sender for sender, _ in left)
        got = Counter(receiver for _, receiver in left)
        # A rank that finds its own part wrong is at fault whatever the others see.
        own = Counter({sender: len(results) for sender, receiver in left if sender == receiver})
        place, _ = (sent + got + own).most_common(1)[0]
        several = max(sent[place], got[place]) > 1
        if not several and place not in own:
            (sender, receiver), names = next(iter(left.items()))
            told = f"what rank {sender} sent came wrong to rank {receiver} alone, in {_steps(names)}"
            found.append(Wrong(sender, told + _first(results, sender, receiver), receiver))
            left.pop((sender, receiver))
            continue
        if own[place] or sent[place] >= got[place]:
            mine = {pair: steps for pair, steps in left.items() if pair[0] == place}
            who = counted(len({receiver for _, receiver in mine}), "rank")
            told = f"wrong values from it came to {who} in {_steps([s for one in mine.values() for s in one])}"
            found.append(Wrong(place, told + _first(results, *next(iter(mine)))))
        else:
            mine = {pair: steps for pair, steps in left.items() if pair[1] == place}
            told = f"it got wrong values from {counted(len(mine), 'rank')} that others got right"
            found.append(Wrong(place, told + _first(results, *next(iter(mine)))))
        left = {pair: steps for pair, steps in left.items() if place not in pair}
    return found or _sums(results)


def _sums(results: Results) -> list[Wrong]:
    wrong = {
        place: [step for step, result in steps.items() if isinstance(result.get("sum"), list) and result["sum"]]
        for place, steps in results.items()
    }
    bad = {place: steps for place, steps in wrong.items() if steps}
    if not bad:
        return []
    if 2 * len(bad) < len(results):
        return [
            Wrong(place, f"wrong sums in {_steps(steps)} came to it, and right ones to the others")
            for place, steps in sorted(bad.items())
        ]
    steps = [step for one in bad.values() for step in one]
    return [Wrong(None, f"wrong sums in {_steps(steps)} came to {len(bad)} of {len(results)} ranks")]


def _first(results: Results, sender: int, receiver: int) -> str:
    """The first wrong value, in words."""
    for result in results[receiver].values():
        wrong = result.get("wrong")
        what = wrong.get(str(sender)) if isinstance(wrong, dict) else None
        if isinstance(what, list) and len(what) == 4:
            count, at, got, want = what
            return f" ({count} values, the first at {at}: {got} in place of {want})"
    return ""


def _steps(steps: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(steps))


def ddp(results: Results) -> list[Wrong]:
    """By falling certainty: outvoted gradients, what was given to DDP, what it left in each rank."""
    found: dict[int, str] = {}
    agreed = _votes(results, found)
    for place, steps in results.items():
        given = _numbers(steps.get("sync", {}).get("given"))
        if place not in found and given and place in agreed and not _near(given, agreed[place], _AGREE_FP64):
            found[place] = "the gradient that it gave to DDP is not the one of its micro-batch"
    for step, what in (("sync", "gradients"), ("update", "parameters")):
        _diverged(results, step, what, found)
    if not found:
        off = {place: steps["sync"].get("error") for place, steps in results.items() if "sync" in steps}
        bad = [place for place, error in off.items() if not _small(error)]
        if bad:
            text = f"gradients after the sync differ from the reference on {len(bad)} of {len(results)} ranks"
            return [Wrong(bad[0] if len(bad) == 1 and len(results) > 1 else None, text)]
    return [Wrong(place, text) for place, text in sorted(found.items())]


def fsdp(results: Results) -> list[Wrong]:
    """Parameters after a step: the same bits on every rank, and near the reference."""
    found: dict[int, str] = {}
    _diverged(results, "fsdp", "parameters", found, of="fsdp")
    if not found:
        bad = [p for p, steps in results.items() if "fsdp" in steps and not _small(steps["fsdp"].get("error"))]
        if bad:
            text = f"parameters after a step differ from the reference on {len(bad)} of {len(results)} ranks"
            return [Wrong(bad[0] if len(bad) == 1 and len(results) > 1 else None, text)]
    return [Wrong(place, text) for place, text in sorted(found.items())]


def _votes(results: Results, found: dict[int, str]) -> dict[int, list[float]]:
    """What most ranks say of each micro-batch's gradient; who says another thing goes to `found`."""
    said: dict[int, dict[int, list[float]]] = defaultdict(dict)
    for voter, steps in results.items():
        votes = steps.get("gradients", {}).get("votes")
        for sender, marks in votes.items() if isinstance(votes, dict) else ():
            numbers = _numbers(marks)
            if sender.isdigit() and int(sender) in results and numbers:
                said[int(sender)][voter] = numbers
    agreed: dict[int, list[float]] = {}
    against: Counter[int] = Counter()
    for sender, votes in said.items():
        backed = {voter: sum(_near(marks, other, _AGREE) for other in votes.values()) for voter, marks in votes.items()}
        best = max(backed, key=lambda voter: backed[voter])
        if 2 * backed[best] <= len(votes):
            continue
        agreed[sender] = votes[best]
        against.update(voter for voter, marks in votes.items() if not _near(marks, votes[best], _AGREE))
    for voter, times in against.items():
        cast = sum(voter in votes for votes in said.values())
        if 2 * times >= cast:
            found[voter] = f"the gradients that it computes are outvoted {times} of {cast} times"
    if len(results) < 3:
        _alone(results, found, agreed)
    return agreed


def _alone(results: Results, found: dict[int, str], agreed: dict[int, list[float]]) -> None:
    """Too few for a vote: the rank whose gradient differs from its own reference in fp64."""
    for place, steps in results.items():
        gradients = steps.get("gradients", {})
        votes = gradients.get("votes")
        own = _numbers(votes.get(str(place))) if isinstance(votes, dict) else []
        exact = _numbers(gradients.get("reference"))
        if own and exact and not _near(own, exact, _AGREE_FP64):
            found[place] = "the gradient that it computes differs from its own reference in fp64"
        elif exact:
            agreed.setdefault(place, exact)


def _diverged(results: Results, step: str, what: str, found: dict[int, str], of: str = "sync") -> None:
    """After the sync all ranks hold the same bits. Where no bits are those of most, the step `of` has the errors."""
    digests = {place: str(steps[step].get("digest")) for place, steps in results.items() if step in steps}
    kinds = Counter(digests.values())
    if len(kinds) < 2:
        return
    usual, many = kinds.most_common(1)[0]
    odd = [place for place, digest in digests.items() if digest != usual]
    if 2 * many <= len(digests):
        odd = [place for place, steps in results.items() if not _small(steps.get(of, {}).get("error"))]
    for place in odd:
        found.setdefault(place, f"its {what} differ from those of the other ranks after the sync")


def _numbers(value: object) -> list[float]:
    if not isinstance(value, list) or not all(isinstance(number, int | float) for number in value):
        return []
    return [float(number) for number in value]


def _near(one: Sequence[float], other: Sequence[float], share: float) -> bool:
    """Both are marks of the same values: a norm, then sums whose error the norm bounds. NaN is near nothing."""
    if len(one) != len(other) or not one:
        return False
    scale = max(abs(one[0]), abs(other[0]), 1e-30)
    return all(abs(a - b) <= share * scale for a, b in zip(one, other, strict=True))


def _small(error: object) -> bool:
    return isinstance(error, int | float) and error <= SYNCED


Judge = Callable[[Results], list[Wrong]]
