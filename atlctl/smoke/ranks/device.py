"""The check `device`: memory and matrix products of each rank's GPU (or CPU, if there is no GPU)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any

from atlctl.i18n import Message, joined, plural
from atlctl.smoke.context import Run
from atlctl.smoke.findings import Finding, Severity
from atlctl.smoke.ranks.members import Member, account, chosen, leave_out, unjudged
from atlctl.smoke.ranks.settle import ADVICE, Blame, accused, blame, is_silent
from atlctl.smoke.ranks.stages import Stage, StageOutcome

SECONDS = 60.0
CHECK = "device"
_ADVICE = Message("take this GPU or machine out of the job; test it with dcgmi diag -r 3, or a memory test")
_ADVICE_HEAT = Message("nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER on this worker while it is loaded")
#: Sustained load (tier deep): seconds, one-second windows needed to judge, minimum share of the others' final speed.
SUSTAINED, _WINDOWS, _KEPT = 60.0, 9, 0.75
#: Freivalds' test compares sums of many values, so its tolerance is a multiple of the values' tolerance.
_REST = 4.0

Fields = dict[str, Any]


async def check_device(run: Run) -> None:
    with run.check(CHECK) as stage:
        selected = await chosen(run)
        run.find(*unjudged(CHECK, selected))
        if not selected.members:
            stage.not_judged(Message("no worker has a torch that can be tested"))
            account(run, stage, selected, ())
            return
        first = await Stage(run.session, CHECK, selected.members, SECONDS, together=False).run()
        ended = stopped(first)
        wrong = {t.member: text for t in first.tracks if (text := problem(t.results))}
        suspects = [*(one.member for one in ended), *wrong]
        through = {track.member for track in first.tracks if track.done}
        if suspects:
            second = await Stage(run.session, CHECK, suspects, SECONDS, together=False).run()
            through |= {track.member for track in second.tracks if track.done}
            again = {one.member for one in stopped(second)} | {t.member for t in second.tracks if problem(t.results)}
            for one in ended:
                confirmed = one.member in again
                leave_out(run, [one.member] if confirmed else [], one.why)
            run.find(*told(ended, again, len(selected.members)))
            for member, why in wrong.items():
                text = Message("{what}: {why}", what=member.name, why=why)
                run.find(Finding(CHECK, Severity.FAIL, member.culprit, text, member in again, _ADVICE))
        stage.note = note(first, selected.members)
        account(run, stage, selected, through)
        if run.options.tier == "deep":
            sound = [m for m in selected.members if m not in suspects]
            run.progress(CHECK, Message("{seconds:g} s under load", seconds=SUSTAINED))
            await _sustained(run, sound)


async def _sustained(run: Run, members: Sequence[Member]) -> None:
    """Run all ranks under load at the same time; check for wrong values and for falling speed."""
    if not members:
        return
    spec = {"duration": SUSTAINED}
    outcome = await Stage(run.session, "sustained", members, SUSTAINED + SECONDS, together=False, spec=spec).run()
    for one in stopped(outcome):
        run.find(accused(CHECK, one, confirmed=False))
    run.find(*held(outcome))


def held(outcome: StageOutcome) -> list[Finding]:
    """Findings after a long load. A slowdown of all ranks comes from the machines (heat, other load); only ranks that
    slow down more than the others are named."""
    found, kept = [], dict[Member, float]()
    for track in outcome.tracks:
        result = track.results.get("load", {})
        wrong, rates = result.get("wrong"), result.get("rates")
        if isinstance(wrong, int) and wrong:
            why = Message("{n} wrong products in {seconds:g} s under load", n=wrong, seconds=SUSTAINED)
            text = Message("{what}: {why}", what=track.member.name, why=why)
            found.append(Finding(CHECK, Severity.FAIL, track.member.culprit, text, wrong > 1, _ADVICE))
        if isinstance(rates, list) and len(rates) >= _WINDOWS and all(isinstance(r, int | float) and r for r in rates):
            kept[track.member] = median(rates[-_WINDOWS // 3 :]) / median(rates[: _WINDOWS // 3])
    if len(kept) >= 3:
        middle = median(kept.values())
        for member, share in kept.items():
            if share < _KEPT * middle:
                why = Message("under load its speed falls to {share:.0%}, that of the others to {others:.0%}")
                why = why.filled(share=share, others=middle)
                text = Message("{what}: {why}", what=member.name, why=why)
                found.append(Finding(CHECK, Severity.WARN, member.culprit, text, True, _ADVICE_HEAT))
    return found


def told(ended: Sequence[Blame], again: Collection[Member], ranks: int) -> list[Finding]:
    """A finding for each rank that did not finish; `again`: ranks that failed a second time, alone.

    If all `ranks` were silent, no single rank is at fault, and nothing is known.
    """
    silent = [one for one in ended if is_silent(one)]
    if len(silent) == ranks > 1:
        text = Message("none of {n} ranks came to its end in time: the machines are too busy, or hold all of them up")
        return [Finding(CHECK, Severity.INCOMPLETE, None, text.filled(n=ranks), advice=ADVICE["busy"])]
    return [
        accused(CHECK, one, confirmed=True)
        if one.member in again
        else accused(CHECK, one, Severity.WARN, confirmed=False, more=Message("a second time it came to its end"))
        for one in ended
    ]


def stopped(outcome: StageOutcome) -> list[Blame]:
    """Ranks that did not finish. Each runs alone, so none fails because of another."""
    found = []
    for track in outcome.tracks:
        if not track.done and not track.lost:
            found += blame(StageOutcome(outcome.stage, [track], silent=True))
    return found


def problem(results: Mapping[str, Fields]) -> str:
    """Faults of one device's memory or products, as text; empty if there are none."""
    found = []
    memory = results.get("memory", {}).get("wrong")
    if isinstance(memory, list) and memory:
        text = Message("memory does not hold what was written at {n} or more places, the first {first}")
        found.append(text.filled(n=len(memory), first=str(memory[0])))
    for step, result in results.items():
        if not step.startswith("matmul"):
            continue
        limit = result.get("limit")
        if not isinstance(limit, int | float):
            continue
        error, rest = result.get("error"), result.get("rest")
        if not _within(error, limit) or not _within(rest, limit * _REST):
            worst = max((e for e in (error, rest) if isinstance(e, int | float)), default=None)
            by = f"{worst:.3g}" if isinstance(worst, float) else str(worst)
            text = Message("{step} differs from fp64 by {by} of the greatest value ({limit:g} allowed)")
            found.append(text.filled(step=step, by=Message("not a number") if worst is None else by, limit=limit))
    return joined(found)


def _within(value: object, limit: float) -> bool:
    return isinstance(value, int | float) and value <= limit


def note(outcome: StageOutcome, members: Sequence[Member]) -> str:
    names = {str(t.told["gpu"].get("name")) for t in outcome.tracks if "gpu" in t.told}
    what = ", ".join(sorted(names)) if names else Message("CPUs")
    return plural("{n} rank on {what}", "{n} ranks on {what}", len(members), what=what)
