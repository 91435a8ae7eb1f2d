"""A group stage until it is whole: ranks that are dead or hang are named, and the others are tested without them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atlctl.smoke.context import Run
from atlctl.smoke.findings import Finding, Severity
from atlctl.smoke.ranks import blame as blaming
from atlctl.smoke.ranks import judging, tournament
from atlctl.smoke.ranks.members import Member, leave_out, versions
from atlctl.smoke.ranks.stages import Outcome, Stage

#: Rounds of one stage: each names at least one rank and goes on without it.
_ROUNDS = 5
#: Words of the error of a stage that nobody can be blamed for.
_WORDS = 300


@dataclass(slots=True)
class Settled:
    """`outcome`: of the last round. `members`: who took part in it. `whole`: it came to its end for all of them."""

    outcome: Outcome | None
    members: list[Member]
    blamed: list[blaming.Blame] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return self.outcome is not None and self.outcome.whole


async def settle(
    run: Run, check: str, members: Sequence[Member], seconds: float, *, least: int = 2, **stage: Any
) -> Settled:
    """Adds a finding for each rank that is to blame, confirmed where the others get along without it."""
    left, blamed, outcome = list(members), list[blaming.Blame](), None
    tried = False
    for _ in range(_ROUNDS):
        if len(left) < least:
            break
        outcome = await Stage(run.session, check, left, seconds, preferred=addresses(run), **stage).run()
        if outcome.whole:
            break
        gone = [track.member for track in blaming.lost(outcome)]
        found = blaming.blame(outcome)
        blamed += found
        leave_out(run, gone, "its agent is gone")
        for one in found:
            leave_out(run, [one.member], one.why)
        if not found and not gone:
            found = await _localise(run, check, left, outcome, seconds, stage)
            blamed += found
            for one in found:
                leave_out(run, [one.member], one.why)
        out = {*gone, *(one.member for one in found)}
        if not out:
            if tried or not outcome.silent:
                break
            tried = True  # silence of all may be a busy machine's, once
        left = [member for member in left if member not in out]
    settled = Settled(outcome, left, blamed)
    run.find(*findings(check, settled, await _once_more(run, check, settled, seconds, stage)))
    if outcome is not None and not outcome.whole and not blamed and len(left) >= least:
        run.find(nobody(check, outcome, versions(run, left)))
    return settled


async def _localise(
    run: Run, check: str, members: Sequence[Member], outcome: Outcome, seconds: float, stage: Mapping[str, Any]
) -> list[blaming.Blame]:
    """Nobody can be told from the others: the same stage in pairs, twice with another partner. Who fails both times
    while its partners get along without it is the one."""
    if len(members) < 3 or len(versions(run, members)) > 1:
        return []
    played, bad = list[tuple[Member, Member]](), list[tuple[Member, Member]]()
    for games in tournament.rounds(members, 2):
        stages = [Stage(run.session, check, pair, seconds, preferred=addresses(run), **stage) for pair in games]
        ends = await asyncio.gather(*(one.run() for one in stages))
        played += games
        bad += [pair for pair, end in zip(games, ends, strict=True) if not end.whole]
    if len(bad) == len(played):
        return []
    culprits, _ = tournament.blame(played, bad)
    said = next((track.error for track in outcome.tracks if track.error), "the whole group makes no progress")
    return [
        blaming.Blame(member, "fails", f"{member.name} fails in pairs with others, who get along without it: {said}")
        for member in culprits
    ]


async def _once_more(
    run: Run, check: str, settled: Settled, seconds: float, stage: Mapping[str, Any]
) -> frozenset[Member]:
    """Those that were accused for silence alone, and get along with a sound rank when they are tried again."""
    fine = set[Member]()
    sound = settled.members if settled.whole else ()
    for one, partner in zip(filter(blaming.silent, settled.blamed), sound, strict=False):
        pair = [partner, one.member]
        if (await Stage(run.session, check, pair, seconds, preferred=addresses(run), **stage).run()).whole:
            fine.add(one.member)
    return frozenset(fine)


def findings(check: str, settled: Settled, fine: Collection[Member] = ()) -> list[Finding]:
    """One for each rank that is to blame; `fine`: a second time they were not."""
    return [
        judging.accused(
            check,
            one,
            Severity.WARN if one.member in fine else Severity.FAIL,
            confirmed=settled.whole,
            more="; a second time it got along" if one.member in fine else "",
        )
        for one in settled.blamed
    ]


def nobody(check: str, outcome: Outcome, torch: Mapping[str, Sequence[str]]) -> Finding:
    """It did not come to its end and no rank can be blamed. Different versions of torch need not understand another."""
    errors = [f"{track.member.name}: {track.error}" for track in outcome.tracks if track.error]
    said = errors[0][:_WORDS] if errors else "no rank makes progress, and all do the same"
    if len(torch) > 1:
        told = "; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(torch.items()))
        text = f"different versions of torch did not get along ({told}): {said}"
        return Finding(check, Severity.NOT_JUDGED, None, text, advice="give all workers one image")
    return Finding(check, Severity.FAIL, None, said, False, "see what mesh and facts say of the network between them")


def addresses(run: Run) -> dict[str, str | None]:
    """Where the platform says that a worker is."""
    return {worker.name: worker.address for worker in run.workers}
