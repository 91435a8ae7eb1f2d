"""The checks `allreduce` (bandwidth of all ranks by size, compared with the expected figure for the hardware) and
`pairs` (bandwidth of every two workers; GPUs with the same number form a rail)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from atlctl.i18n import COMMA, Message, joined, plural
from atlctl.jobs.fields import entries
from atlctl.smoke.context import Run
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.ranks.collectives import alone, unfinished, wrong_sums
from atlctl.smoke.ranks.expected import BusbwRow, expected
from atlctl.smoke.ranks.members import Member, account, chosen, grouped
from atlctl.smoke.ranks.settle import Settled, addresses, in_pairs, losers, pairings, settle
from atlctl.smoke.ranks.stages import Stage, StageOutcome

SECONDS = 120.0
CHECK = "allreduce"
#: Sizes in bytes and repetitions, on CPUs and on GPUs; the largest GPU size needs idle GPUs.
SIZES_CPU = ((64 << 10, 20), (1 << 20, 8), (16 << 20, 3))
SIZES_GPU = ((1 << 20, 20), (64 << 20, 10), (1 << 30, 5))
_CAP, _CAP_IDLE = 64 << 20, 3 << 30
#: Too slow: below this share of the expected figure; or, within one worker, below this share of the other workers.
SHARE, AMONG = 0.8, 0.6
NOTHING = Message("nothing was measured")
_ADVICE = Message("see which way NCCL took (the check collectives), NCCL_* that differ (facts), and the links (pairs)")
_ADVICE_WORKER = Message(
    "nvidia-smi nvlink -s and nvidia-smi topo -m on this worker: compare them with those of another"
)

_PAIR_SECONDS = 60.0
PAIRS = "pairs"
#: Up to this number of workers every pair is measured; with more workers, this number of rounds.
_ALL_PAIRS, _PAIR_ROUNDS = 16, 3
#: A pair below this share of the median is slow; this many slow pairs are measured again alone.
_PAIR_SHARE, _PAIRS_AGAIN = 0.6, 12
_PAIR_SIZES_CPU, _PAIR_SIZES_GPU = ((4 << 20, 4),), ((64 << 20, 10),)
_ADVICE_PAIR = Message(
    "look at the cable, the port and the switch between them; see mesh and throughput for TCP on the same path"
)

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Figure:
    """The result for one size: median seconds over all ranks, `busbw` and `algbw` in GB/s."""

    size: int
    seconds: float
    algbw: float
    busbw: float


def figures(outcome: StageOutcome) -> list[Figure]:
    """One figure for each size, smallest first; malformed results are left out."""
    world = len(outcome.tracks)
    by_size: dict[int, list[float]] = {}
    for track in outcome.tracks:
        for result in track.results.values():
            size, seconds = result.get("bytes"), result.get("median")
            if isinstance(size, int) and isinstance(seconds, int | float) and seconds > 0:
                by_size.setdefault(size, []).append(seconds)
    found = []
    for size, times in sorted(by_size.items()):
        seconds, algbw = median(times), size / median(times) / 1e9
        found.append(Figure(size, seconds, algbw, algbw * 2 * (world - 1) / world))
    return found


def wrong(outcome: StageOutcome) -> list[Member]:
    """Ranks that received a wrong sum."""
    return [t.member for t in outcome.tracks if any(result.get("wrong") for result in t.results.values())]


def judge(measured: Sequence[Figure], row: BusbwRow | None) -> tuple[Figure, float] | None:
    """The best figure of the sizes in `row`, and its share of the expected value; None if it is good enough."""
    fitting = [figure for figure in measured if row is not None and figure.size >= row.from_bytes]
    if not fitting or row is None:
        return None
    best = max(fitting, key=lambda figure: figure.busbw)
    share = best.busbw / row.busbw
    return (best, share) if share < SHARE else None


def slow_workers(inside: Mapping[str, Sequence[Figure]]) -> dict[str, float]:
    """Workers whose internal GPU bandwidth is lower than on other workers, with their share of the median."""
    best = {worker: max(figure.busbw for figure in found) for worker, found in inside.items() if found}
    if len(best) < 3:
        return {}
    middle = median(best.values())
    return {worker: rate / middle for worker, rate in best.items() if rate < AMONG * middle}


async def check_allreduce(run: Run) -> None:
    with run.check(CHECK) as stage:
        selected = await chosen(run)
        members = grouped(run, selected.members)
        if len(members) < 2:
            stage.not_judged(alone(len(members)))
            account(run, stage, selected, members)
            return
        settled = await settle(run, CHECK, members, SECONDS, spec=spec(run, members))
        account(run, stage, selected, settled.members if settled.whole else ())
        if settled.outcome is None or not settled.whole:
            stage.note = unfinished(len(settled.members), len(members))
            return
        measured = figures(settled.outcome)
        if bad := wrong(settled.outcome):
            sizes = spec(run, settled.members)
            ones = bad
            if len(bad) > 1:
                ones = await in_pairs(run, CHECK, settled.members, SECONDS, lambda end: bool(wrong(end)), spec=sizes)
            text = wrong_sums(len(bad), len(settled.members), CHECK)
            culprits: list[Culprit | None] = [one.culprit for one in ones]
            sure = len(bad) > 1 and bool(ones)
            run.find(*(Finding(CHECK, Severity.FAIL, one, text, sure, _ADVICE) for one in culprits or [None]))
        row = row_for(run, settled)
        if judge(measured, row) is not None:
            again = await settle(run, CHECK, settled.members, SECONDS, spec=spec(run, members))
            if again.outcome is not None and again.whole:
                measured = max(measured, figures(again.outcome), key=lambda found: found[-1].busbw if found else 0.0)
            if row is not None and (low := judge(measured, row)) is not None:
                run.find(too_low(low, row))
        inside = await _inside(run, settled.members)
        run.find(*[_slow(worker, share) for worker, share in inside[1].items()])
        run.report.data[CHECK] = data(measured, row, inside[0])
        stage.note = note(measured, row)
        if row is None and not wrong(settled.outcome):
            stage.not_judged(stage.note)


def spec(run: Run, members: Sequence[Member]) -> dict[str, Any]:
    """The stage's sizes; small if a training is running."""
    if all(member.gpu is None for member in members):
        return {"sizes": SIZES_CPU}
    idle = not run.quiet and not run.options.allow_busy
    return {"sizes": SIZES_GPU if idle else SIZES_GPU[:2], "cap": _CAP_IDLE if idle else _CAP}


async def _inside(run: Run, members: Sequence[Member]) -> tuple[dict[str, list[Figure]], dict[str, float]]:
    """Bandwidth within each worker, if several workers have several GPUs; slow workers are measured again, alone."""
    by_worker = {m.worker: [one for one in members if one.worker == m.worker] for m in members}
    groups = {worker: ranks for worker, ranks in by_worker.items() if len(ranks) > 1}
    if not groups or len(by_worker) < 2:
        return {}, {}
    found = dict(zip(groups, await asyncio.gather(*(_of_one(run, ranks) for ranks in groups.values())), strict=True))
    for worker in slow_workers(found):
        found[worker] = max(
            found[worker], await _of_one(run, groups[worker]), key=lambda one: one[-1].busbw if one else 0
        )
    return found, slow_workers(found)


async def _of_one(run: Run, ranks: Sequence[Member]) -> list[Figure]:
    outcome = await Stage(run.session, CHECK, ranks, SECONDS, spec=spec(run, ranks), preferred=addresses(run)).run()
    return figures(outcome) if outcome.whole else []


def row_for(run: Run, settled: Settled) -> BusbwRow | None:
    """The expected figure for the hardware; None if GPU types differ or workers have different numbers of GPUs."""
    names = {
        str(gpu.get("name") or "")
        for member in settled.members
        for gpu in entries(run.facts.get(member.worker, {}).get("gpus"))
        if gpu.get("index") == member.gpu
    }
    each = Counter(member.worker for member in settled.members)
    if len(names) != 1 or len(set(each.values())) != 1:
        return None
    return expected(names.pop(), len(each), next(iter(each.values())), extra=run.options.busbw)


def too_low(low: tuple[Figure, float], row: BusbwRow) -> Finding:
    figure, share = low
    text = Message(
        "busbw {rate:.1f} GB/s at {size} is {share:.0%} of the {should:g} that it should be ({source})",
        rate=figure.busbw,
        size=size(figure.size),
        share=share,
        should=row.busbw,
        source=row.source,
    )
    return Finding(CHECK, Severity.WARN, None, text, True, _ADVICE)


def _slow(worker: str, share: float) -> Finding:
    text = Message("the GPUs of {worker} among themselves reach {share:.0%} of the middle of all workers")
    text = text.filled(worker=worker, share=share)
    return Finding(CHECK, Severity.WARN, Culprit("worker", worker), text, True, _ADVICE_WORKER)


def data(measured: Sequence[Figure], row: BusbwRow | None, inside: Mapping[str, Sequence[Figure]]) -> dict[str, Any]:
    """The figures for JSON output."""
    return {
        "sizes": [_figure(figure) for figure in measured],
        "expected": None if row is None else {"busbw": row.busbw, "from_bytes": row.from_bytes, "source": row.source},
        "inside": {worker: [_figure(figure) for figure in found] for worker, found in inside.items()},
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "bytes": figure.size,
        "seconds": round(figure.seconds, 6),
        "algbw": float(f"{figure.algbw:.4g}"),
        "busbw": float(f"{figure.busbw:.4g}"),
    }


def note(measured: Sequence[Figure], row: BusbwRow | None) -> str:
    if not measured:
        return NOTHING
    rates = [f"{size(figure.size)} {figure.busbw:.3g}" for figure in measured]
    text = Message("busbw in GB/s: {rates}", rates=joined(rates, COMMA))
    if row is None:
        return joined([text, Message("no figure is known for this hardware")])
    return joined([text, Message("should be {rate:g} from {size}", rate=row.busbw, size=size(row.from_bytes))])


def size(count: int) -> str:
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if count >= unit:
            return f"{count // unit}{name}"
    return str(count)


# Pairs of workers


async def check_pairs(run: Run) -> None:
    with run.check(PAIRS) as stage:
        selected = await chosen(run)
        rails = by_rail(grouped(run, selected.members))
        workers = list(dict.fromkeys(worker for rail in rails.values() for worker in rail))
        account(run, stage, selected, [member for rail in rails.values() for member in rail.values()])
        if len(workers) < 2:
            stage.not_judged(Message("one worker: there are no pairs"))
            return
        measured: dict[Pair, dict[int, float]] = {}
        for games in pairings(workers, _PAIR_ROUNDS if len(workers) > _ALL_PAIRS else None):
            found = await asyncio.gather(*(_play(run, rails, pair) for pair in games))
            measured.update(zip(games, found, strict=True))
            run.progress(PAIRS, plural("{n} pair measured", "{n} pairs measured", len(measured)))
        on_gpus = any(member.gpu is not None for rail in rails.values() for member in rail.values())
        for pair in (slow_pairs(measured) if on_gpus else broken_pairs(measured))[:_PAIRS_AGAIN]:
            again = await _play(run, rails, pair)
            measured[pair] = {rail: max(rate, measured[pair].get(rail, 0.0)) for rail, rate in again.items()}
        run.report.data[PAIRS] = {
            "workers": workers,
            "busbw": [
                {
                    "pair": sorted(pair, key=workers.index),
                    "rails": {r: float(f"{rate:.4g}") for r, rate in rates.items()},
                }
                for pair, rates in measured.items()
            ],
        }
        run.find(*judge_pairs(measured, workers, speed=on_gpus))
        stage.note = note_on_pairs(measured)
        if not on_gpus and not broken_pairs(measured):
            why = Message("on CPUs that says little of the network: see throughput")
            stage.not_judged(joined([stage.note, why]))
        elif len(workers) < 3 and not broken_pairs(measured):
            stage.not_judged(joined([stage.note, Message("with one pair there is nothing to compare it with")]))


def by_rail(members: Sequence[Member]) -> dict[int, dict[str, Member]]:
    """Members by rail (the position of a GPU on its worker) and worker."""
    found: dict[int, dict[str, Member]] = {}
    seen: dict[str, int] = {}
    for member in members:
        rail = seen[member.worker] = seen.get(member.worker, -1) + 1
        found.setdefault(rail, {})[member.worker] = member
    return found


async def _play(run: Run, rails: Mapping[int, Mapping[str, Member]], pair: Pair) -> dict[int, float]:
    """GB/s by rail; 0 if the pair did not finish."""

    async def one(rail: int) -> float:
        both = [rails[rail][worker] for worker in pair]
        on_gpus = both[0].gpu is not None
        sizes: Any = _PAIR_SIZES_GPU if on_gpus else _PAIR_SIZES_CPU
        stage = Stage(run.session, PAIRS, both, _PAIR_SECONDS, spec={"sizes": sizes}, preferred=addresses(run))
        outcome = await stage.run()
        found = figures(outcome)
        return found[-1].busbw if outcome.whole and found else 0.0

    common = [rail for rail, members in rails.items() if set(pair) <= set(members)]
    rates = await asyncio.gather(*(one(rail) for rail in common))
    return dict(zip(common, rates, strict=True))


def slow_pairs(measured: Mapping[Pair, Mapping[int, float]]) -> list[Pair]:
    """Pairs with a rail far below the median, or without a result; slowest first."""
    rates = [rate for rails in measured.values() for rate in rails.values()]
    middle = median(rates) if len(rates) > 2 else 0.0
    worst = {pair: min(rails.values()) for pair, rails in measured.items() if rails}
    found = [pair for pair, rate in worst.items() if rate < _PAIR_SHARE * middle or rate == 0.0]
    return sorted(found, key=lambda pair: worst[pair])


def broken_pairs(measured: Mapping[Pair, Mapping[int, float]]) -> list[Pair]:
    return [pair for pair, rails in measured.items() if 0.0 in rails.values()]


def judge_pairs(
    measured: Mapping[Pair, Mapping[int, float]], order: Sequence[str], speed: bool = True
) -> list[Finding]:
    """Findings for workers with mostly bad pairs, and for the other bad links. Pairs without a result fail; slow pairs
    get a warning if `speed`. `order`: the order of the workers."""
    found = []
    dead = broken_pairs(measured)
    lame = [pair for pair in slow_pairs(measured) if pair not in dead and speed]
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
            found.append(Finding(PAIRS, severity, Culprit("worker", worker), text, True, _ADVICE_PAIR))
        for pair in links:
            one, other = sorted(pair, key=order.index)
            rail, rate = min(measured[pair].items(), key=lambda item: item[1])
            about = {"one": pair[0], "other": pair[1], "rate": _rate(rate), "rail": rail}
            text = (
                Message("{one} with {other}: {rate} on rail {rail}", **about)
                if len(measured[pair]) > 1
                else Message("{one} with {other}: {rate}", **about)
            )
            found.append(Finding(PAIRS, severity, Culprit("link", one, other), text, True, _ADVICE_PAIR))
    return found


def _rate(rate: float) -> str:
    return f"{rate:.3g} GB/s" if rate else Message("no answer")


def note_on_pairs(measured: Mapping[Pair, Mapping[int, float]]) -> str:
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
