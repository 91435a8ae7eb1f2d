"""Every two workers by themselves: bandwidth of each pair, GPU by GPU of the same number (a rail)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from atlctl.i18n import Message, joined, plural
from atlctl.smoke.context import Run
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.ranks.allreduce import NOTHING, figures
from atlctl.smoke.ranks.members import Member, chosen, grouped
from atlctl.smoke.ranks.settle import addresses, losers, pairings
from atlctl.smoke.ranks.stages import Stage

SECONDS = 60.0
CHECK = "pairs"
#: Up to so many workers each pair is measured, above that so many rounds.
_ALL, _ROUNDS = 16, 3
#: Less than this share of the middle is slow; so many slow pairs are measured again alone.
_SHARE, _AGAIN = 0.6, 12
_SIZES_CPU, _SIZES_GPU = ((4 << 20, 4),), ((64 << 20, 10),)
_ADVICE = "look at the cable, the port and the switch between them; mesh and throughput tell about TCP on the same way"

Pair = tuple[str, str]


async def check_pairs(run: Run) -> None:
    with run.check(CHECK) as stage:
        selected = await chosen(run)
        rails = by_rail(grouped(run, selected.members))
        workers = list(dict.fromkeys(worker for rail in rails.values() for worker in rail))
        if len(workers) < 2:
            stage.not_judged(Message("one worker: there are no pairs"))
            return
        measured: dict[Pair, dict[int, float]] = {}
        for games in pairings(workers, _ROUNDS if len(workers) > _ALL else None):
            found = await asyncio.gather(*(_play(run, rails, pair) for pair in games))
            measured.update(zip(games, found, strict=True))
            run.progress(f"{CHECK}: {len(measured)} measured")
        on_gpus = any(member.gpu is not None for rail in rails.values() for member in rail.values())
        for pair in (slow(measured) if on_gpus else broken(measured))[:_AGAIN]:
            again = await _play(run, rails, pair)
            measured[pair] = {rail: max(rate, measured[pair].get(rail, 0.0)) for rail, rate in again.items()}
        run.report.data[CHECK] = {
            "workers": workers,
            "busbw": [
                {
                    "pair": sorted(pair, key=workers.index),
                    "rails": {r: float(f"{rate:.4g}") for r, rate in rates.items()},
                }
                for pair, rates in measured.items()
            ],
        }
        run.find(*judge(measured, workers, speed=on_gpus))
        stage.note = note(measured)
        if not on_gpus and not broken(measured):
            why = Message("on CPUs that says little of the network: see throughput")
            stage.not_judged(joined([stage.note, why]))
        elif len(workers) < 3 and not broken(measured):
            stage.not_judged(joined([stage.note, Message("with one pair there is nothing to compare it with")]))


def by_rail(members: Sequence[Member]) -> dict[int, dict[str, Member]]:
    """By the place of a GPU on its worker: who is at that place on each worker."""
    found: dict[int, dict[str, Member]] = {}
    seen: dict[str, int] = {}
    for member in members:
        rail = seen[member.worker] = seen.get(member.worker, -1) + 1
        found.setdefault(rail, {})[member.worker] = member
    return found


async def _play(run: Run, rails: Mapping[int, Mapping[str, Member]], pair: Pair) -> dict[int, float]:
    """GB/s by rail, 0 where the pair did not come to its end."""

    async def one(rail: int) -> float:
        both = [rails[rail][worker] for worker in pair]
        on_gpus = both[0].gpu is not None
        sizes: Any = _SIZES_GPU if on_gpus else _SIZES_CPU
        stage = Stage(run.session, CHECK, both, SECONDS, spec={"sizes": sizes}, preferred=addresses(run))
        outcome = await stage.run()
        found = figures(outcome)
        return found[-1].busbw if outcome.whole and found else 0.0

    common = [rail for rail, members in rails.items() if set(pair) <= set(members)]
    rates = await asyncio.gather(*(one(rail) for rail in common))
    return dict(zip(common, rates, strict=True))


def slow(measured: Mapping[Pair, Mapping[int, float]]) -> list[Pair]:
    """Pairs with a rail far below the middle of all, or without an answer, the slowest first."""
    rates = [rate for rails in measured.values() for rate in rails.values()]
    middle = median(rates) if len(rates) > 2 else 0.0
    worst = {pair: min(rails.values()) for pair, rails in measured.items() if rails}
    found = [pair for pair, rate in worst.items() if rate < _SHARE * middle or rate == 0.0]
    return sorted(found, key=lambda pair: worst[pair])


def broken(measured: Mapping[Pair, Mapping[int, float]]) -> list[Pair]:
    return [pair for pair, rails in measured.items() if 0.0 in rails.values()]


def judge(measured: Mapping[Pair, Mapping[int, float]], order: Sequence[str], speed: bool = True) -> list[Finding]:
    """A worker where most of its pairs are bad, else the link; those without an answer fail, slow ones warn, with
    `speed`. `order`: that of the workers."""
    found = []
    dead = broken(measured)
    lame = [pair for pair in slow(measured) if pair not in dead and speed]
    for severity, bad in ((Severity.FAIL, dead), (Severity.WARN, lame)):
        workers, links = losers(measured, bad)
        for worker in workers:
            rates = [min(rails.values()) for pair, rails in measured.items() if worker in pair and rails]
            span = joined(dict.fromkeys((_rate(min(rates)), _rate(max(rates)))), Message(" to "))
            text = (
                Message("{worker} has pairs that do not come to their end: {rates}", worker=worker, rates=span)
                if severity is Severity.FAIL
                else Message("{worker} is slow to most others: {rates}", worker=worker, rates=span)
            )
            found.append(Finding(CHECK, severity, Culprit("worker", worker), text, True, _ADVICE))
        for pair in links:
            one, other = sorted(pair, key=order.index)
            rail, rate = min(measured[pair].items(), key=lambda item: item[1])
            about = {"one": pair[0], "other": pair[1], "rate": _rate(rate), "rail": rail}
            text = (
                Message("{one} with {other}: {rate} on rail {rail}", **about)
                if len(measured[pair]) > 1
                else Message("{one} with {other}: {rate}", **about)
            )
            found.append(Finding(CHECK, severity, Culprit("link", one, other), text, True, _ADVICE))
    return found


def _rate(rate: float) -> str:
    return f"{rate:.3g} GB/s" if rate else Message("no answer")


def note(measured: Mapping[Pair, Mapping[int, float]]) -> str:
    rates = [rate for rails in measured.values() for rate in rails.values()]
    if not rates:
        return NOTHING
    if len(rates) == 1:
        return Message("1 pair, busbw {rate:.3g} GB/s", rate=rates[0])
    return plural(
        "{n} pair, busbw {least:.3g} to {most:.3g} GB/s, middle {middle:.3g}",
        "{n} pairs, busbw {least:.3g} to {most:.3g} GB/s, middle {middle:.3g}",
        len(measured),
        least=min(rates),
        most=max(rates),
        middle=median(rates),
    )
