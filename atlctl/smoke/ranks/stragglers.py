"""The check `stragglers`: ranks that compute slower than the others (not for lack of CPU), confirmed alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from atlctl.i18n import Message, joined
from atlctl.smoke.context import Run
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.ranks.device import stopped
from atlctl.smoke.ranks.members import Member, account, chosen, grouped
from atlctl.smoke.ranks.settle import accused, is_silent
from atlctl.smoke.ranks.stages import Stage, StageOutcome

SECONDS = 90.0
CHECK = "stragglers"
#: A rank is slow if its time is above the median by this factor.
LIMIT = 1.5
#: A rank that waited for a CPU for more than this share of its time is starved.
STARVED = 0.4
#: Maximum number of suspects measured alone; rounds of one measurement.
_SUSPECTS, _ROUNDS = 4, 12
_ADVICE = Message(
    "look at clocks, temperature and power of this GPU or machine (nvidia-smi -q -d PERFORMANCE), and what runs there"
)
_ADVICE_STARVED = Message("see what else runs on this machine, and the CPU limit of the container")


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of one rank. `middle`, `least`: median and minimum seconds of a round, without waiting for a CPU;
    `cpu`: CPU seconds of a round; `starved`: share of its time spent waiting for a CPU, None if unknown."""

    middle: float
    least: float
    cpu: float
    starved: float | None


def pace(result: Mapping[str, Any]) -> Pace | None:
    """Parse a rank's result; None if it is malformed."""
    rounds = result.get("rounds")
    if not isinstance(rounds, list) or not rounds:
        return None
    own, cpus, waits, wall = list[float](), list[float](), list[float](), 0.0
    for one in rounds:
        if not isinstance(one, list) or len(one) != 3 or not all(isinstance(x, int | float) for x in one[:2]):
            return None
        waited = one[2] if isinstance(one[2], int | float) else None
        own.append(max(one[0] - (waited or 0.0), one[1], 1e-9))
        cpus.append(one[1])
        wall += one[0]
        if waited is not None:
            waits.append(waited)
    starved = sum(waits) / wall if wall > 0 and len(waits) == len(rounds) else None
    return Pace(median(own), min(own), median(cpus), starved)


def suspects(paces: Mapping[Member, Pace]) -> list[Member]:
    """The slow ranks, slowest first. With fewer than three ranks, it is unknown which one is wrong."""
    if len(paces) < 3:
        return []
    middle = median(one.middle for one in paces.values())
    least = median(one.least for one in paces.values())
    slow = [m for m, one in paces.items() if one.middle > LIMIT * middle and one.least > LIMIT * least]
    return sorted(slow, key=lambda member: -paces[member].middle)


def starved(paces: Mapping[Member, Pace]) -> list[Member]:
    """The ranks that waited for a CPU (perhaps because of each other), longest first."""
    found = [member for member, one in paces.items() if one.starved is not None and one.starved > STARVED]
    return sorted(found, key=lambda member: -(paces[member].starved or 0.0))


async def check_stragglers(run: Run) -> None:
    with run.check(CHECK) as stage:
        selected = await chosen(run)
        members = grouped(run, selected.members)
        if len(members) < 3:
            stage.not_judged(Message("with fewer than 3 ranks none can be called slow"))
            account(run, stage, selected, members)
            return
        first = await _measure(run, members)
        for one in stopped(first):
            severity = Severity.INCOMPLETE if is_silent(one) else Severity.FAIL
            run.find(accused(CHECK, one, severity, confirmed=False))
        paces = read(first)
        account(run, stage, selected, list(paces))
        slow = suspects(paces)
        run.report.data[CHECK] = {m.name: {"seconds": p.middle, "starved": p.starved} for m, p in paces.items()}
        hungry = starved(paces)
        looked = list(dict.fromkeys((*slow[:_SUSPECTS], *hungry[:_SUSPECTS])))
        alone = await _again(run, looked, [member for member in paces if member not in looked], paces)
        run.find(*(judge(member, paces, alone[member]) for member in slow if confirmed(alone.get(member))))
        hungry_alone = [member for member in hungry if still_starved(alone.get(member))]
        twice = await _again(run, hungry_alone, [m for m in paces if m not in hungry_alone], paces)
        run.find(*(lacking(member, twice[member][0]) for member in hungry_alone if still_starved(twice.get(member))))
        stage.note = note(paces, len(hungry))
        if len(paces) < 3:
            stage.not_judged(Message("{some} of {all} ranks reported their speed", some=len(paces), all=len(members)))
        elif crowd := crowded(alone.values()):
            why = Message("{n} of them also alone: too much else runs to compare their speed", n=crowd)
            stage.not_judged(joined([stage.note, why]))


async def _measure(run: Run, members: Sequence[Member]) -> StageOutcome:
    spec = {"rounds": _ROUNDS}
    return await Stage(run.session, CHECK, members, SECONDS, together=False, spec=spec).run()


async def _again(
    run: Run, looked: Sequence[Member], good: Sequence[Member], paces: Mapping[Member, Pace]
) -> dict[Member, tuple[Pace, Pace]]:
    """Measure each rank alone, and then a control rank, if possible on another machine."""
    found: dict[Member, tuple[Pace, Pace]] = {}
    for member in looked:
        rest = [one for one in good or looked if one != member]
        others = sorted(
            [one for one in rest if one.worker != member.worker] or rest, key=lambda other: paces[other].middle
        )
        control = others[len(others) // 2]
        own, other = read(await _measure(run, [member])), read(await _measure(run, [control]))
        if member in own and control in other:
            found[member] = own[member], other[control]
    return found


def read(outcome: StageOutcome) -> dict[Member, Pace]:
    told = {track.member: pace(track.results.get("work", {})) for track in outcome.tracks if track.done}
    return {member: one for member, one in told.items() if one is not None}


def confirmed(alone: tuple[Pace, Pace] | None) -> bool:
    """Whether a rank measured alone is also slow, compared with the control rank."""
    if alone is None:
        return False
    own, control = alone
    return own.middle > LIMIT * control.middle and own.least > LIMIT * control.least


def still_starved(alone: tuple[Pace, Pace] | None) -> bool:
    """Whether a rank measured alone gets less than half the CPU time of the control rank: then neither the test nor
    load on all machines is the cause."""
    if alone is None or alone[0].starved is None or alone[1].starved is None:
        return False
    own, control = alone[0].starved, alone[1].starved
    return own > STARVED and 1.0 - own < 0.5 * (1.0 - control)


def crowded(looks: Iterable[tuple[Pace, Pace]]) -> int:
    """The number of measurements in which both the rank and its control rank were starved."""
    return sum(all(one.starved is not None and one.starved > STARVED for one in look) for look in looks)


def judge(member: Member, paces: Mapping[Member, Pace], alone: tuple[Pace, Pace]) -> Finding:
    own, control = alone
    times = paces[member].middle / median(one.middle for one in paces.values())
    busy = own.cpu > 0.7 * own.middle
    how = Message("it computes slowly") if busy else Message("most of that it neither computes nor waits for a CPU")
    pace = Message("{times:.1f} times as slow as the middle of all, alone {alone:.1f} times")
    pace = pace.filled(times=times, alone=own.middle / control.middle)
    text = joined([Message("{what}: {why}", what=member.name, why=pace), how])
    return Finding(CHECK, Severity.WARN, member.culprit, text, True, _ADVICE)


def lacking(member: Member, alone: Pace) -> Finding:
    """The finding for a machine with too little CPU: its speed is not judged, and it is not a fault."""
    text = Message("{who} is starved: also alone it waits for a CPU {share:.0%} of its time")
    text = text.filled(who=member.name, share=alone.starved or 0.0)
    culprit = Culprit("worker", member.worker, rank=member.number)
    return Finding(CHECK, Severity.NOT_JUDGED, culprit, text, True, _ADVICE_STARVED)


def note(paces: Mapping[Member, Pace], hungry: int) -> str:
    if not paces:
        return ""
    middles = [one.middle for one in paces.values()]
    text = Message("slowest {times:.2f} times the middle", times=max(middles) / median(middles))
    waited = Message("{some} of {all} had to wait for a CPU", some=hungry, all=len(paces))
    return joined([text, waited]) if hungry else text
